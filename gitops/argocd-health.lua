-- The health of a SandboxRun for Argo CD. docs/gitops.md says where it goes.
--
-- Healthy: it succeeded. Degraded: it failed or was cancelled, and does not go on by itself. Suspended: it waits until
-- spec.suspend is false. Progressing: everything else, also what is not known yet.
local hs = {status = "Progressing", message = "Waiting for the operator"}

local metadata, status = obj.metadata or {}, obj.status
if status == nil or status.conditions == nil then
  return hs
end
-- What is said of an older spec says nothing of this one.
if metadata.generation ~= nil and status.observedGeneration ~= metadata.generation then
  return hs
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end

local function is(kind)
  local condition = conditions[kind]
  return condition ~= nil and condition.status == "True"
end

local function say(health, condition)
  hs.status = health
  local words = {}
  if condition ~= nil and condition.reason ~= nil and condition.reason ~= "" then
    table.insert(words, condition.reason)
  end
  if condition ~= nil and condition.message ~= nil and condition.message ~= "" then
    table.insert(words, condition.message)
  end
  hs.message = table.concat(words, ": ")
  return hs
end

if is("Ready") then
  return say("Healthy", conditions.Ready)
end
if is("Stalled") or is("Failed") then
  return say("Degraded", conditions.Failed or conditions.Stalled)
end
if obj.spec ~= nil and obj.spec.suspend == true and status.startedAt == nil then
  return say("Suspended", conditions.Reconciling)
end
return say("Progressing", conditions.Reconciling)
