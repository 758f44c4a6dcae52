#!/usr/bin/env bash
# Starts the demo forge with this repository's own history, runs examples/quickstart.yaml against it, verifies the record.
# Usage: quickstart.sh BIN_DIR. Run it by `make quickstart`.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$1" && pwd)
work=$(mktemp -d)
forge_pid=
finish() {
  [ -z "$forge_pid" ] || { kill "$forge_pid" 2>/dev/null; wait "$forge_pid" 2>/dev/null; } || true
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
say() { printf '\n== %s\n' "$*"; }

say "A private repository: this project's own history, with a branch main and a tag quickstart"
git clone --quiet --bare "$here" "$work/app.git"
git -C "$work/app.git" update-ref refs/heads/main "$(git -C "$here" rev-parse HEAD)"
git -C "$work/app.git" -c user.name=demo -c user.email=demo@example.com tag -f -a -m "for the quickstart" quickstart \
  "$(git -C "$here" rev-parse HEAD)" >/dev/null

say "The demo forge: TLS with a CA of its own, tokens for git and for its ticket API"
random() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }
export FORGE_TOKEN TRACKER_TOKEN
FORGE_TOKEN=$(random) TRACKER_TOKEN=$(random)
"$bin/demo-forge" --root "$work/forge" --listen 127.0.0.1:18443 --ca-out "$work/ca.pem" --url-out "$work/url" \
  --token app-read=env:FORGE_TOKEN:read --ticket-token env:TRACKER_TOKEN \
  --repo "acme/app=$work/app.git:private" --sample acme/tools &
forge_pid=$!
for _ in $(seq 200); do
  [ -s "$work/url" ] && break
  kill -0 "$forge_pid" 2>/dev/null || { echo "the demo forge did not start: is port 18443 free?" >&2; exit 1; }
  sleep 0.1
done

say "The run"
run=("$bin/sandboxrun" run -f "$here/examples/quickstart.yaml"
  --secret forge-token/token=env:FORGE_TOKEN --secret tracker-token/token=env:TRACKER_TOKEN
  --secret "forge-ca/ca.crt=file:$work/ca.pem" --allow-address 127.0.0.1=127.0.0.1/32:18443)
"${run[@]}"

say "Its record"
"$bin/sandboxrun" audit verify

cat <<TEXT

== Next
  $bin/sandboxrun audit show            the story of this run, a line an event
  $bin/sandboxrun explain sandbox.policy_not_enforced
                                        what an error code means, and what to do
  $bin/sandboxrun validate -f examples/quickstart.yaml
                                        check a manifest of your own, offline
TEXT
