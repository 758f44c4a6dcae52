//! Where things lie inside a pod or a local sandbox. Absolute paths, the same in both.

/// The inputs, one directory each.
pub const WORKSPACE: &str = "/workspace";
/// Prompt, context and output of the agent.
pub const SANDBOX: &str = "/sandbox";
/// The prompt, when the run has one.
pub const PROMPT: &str = "/sandbox/prompt.md";
/// Context files, read-only for the agent.
pub const CONTEXT: &str = "/sandbox/context";
/// What the agent may leave as files.
pub const OUTPUT: &str = "/sandbox/output";
/// The structured result, inside [`OUTPUT`].
pub const OUTPUT_FILE: &str = "/sandbox/output/output.json";
/// The agent's home directory.
pub const HOME: &str = "/home/agent";
/// Our own program inside the agent's container, read-only.
pub const POD_PROGRAM: &str = "/sandboxrun/sandboxrun-pod";
/// The Unix socket through which `exec` asks for its grant (and, in a local run, all that the relay forwards).
pub const SOCKET: &str = "/sandboxrun/run/gateway.sock";
/// The baseline of every input; mounted in `provision` and `collect` only.
pub const BASELINE: &str = "/baseline";
/// Where the relay listens, inside the agent's network namespace.
pub const RELAY_PORT: u16 = 7070;
