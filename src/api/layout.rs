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
/// [`OUTPUT`] inside [`SANDBOX`].
pub const OUTPUT_NAME: &str = "output";
/// The structured result, inside [`OUTPUT`].
pub const OUTPUT_FILE: &str = "/sandbox/output/output.json";
/// The agent's home directory.
pub const HOME: &str = "/home/agent";
/// Our own program inside the agent's container, read-only.
pub const POD_PROGRAM: &str = "/sandboxrun/sandboxrun-pod";
/// The Unix socket through which `exec` asks for its grant (and, in a local run, all that the relay forwards).
pub const SOCKET: &str = "/sandboxrun/run/gateway.sock";
/// The environment variable of `provision` and `broker` that holds the addresses of the pod's node
/// (`status.hostIPs`), separated by commas.
pub const NODE_ADDRESSES_ENV: &str = "SANDBOXRUN_NODE_ADDRESSES";
/// The baseline of every input; mounted in `provision` and `collect` only.
pub const BASELINE: &str = "/baseline";
/// Where the relay listens, inside the agent's network namespace.
pub const RELAY_PORT: u16 = 7070;
/// Where [`POD_PROGRAM`] and the broker's socket lie in a pod.
pub const PROGRAM_DIR: &str = "/sandboxrun";
/// The Unix socket in a pod through which `exec` reaches the broker.
pub const BROKER_SOCKET: &str = "/sandboxrun/broker.sock";
/// Our program inside our own image.
pub const IMAGE_PROGRAM: &str = "/sandboxrun-pod";
/// Where a pod's token for the gateway lies, in our own containers only.
pub const TOKEN_DIR: &str = "/var/run/sandboxrun";
/// The token's name in [`TOKEN_DIR`].
pub const TOKEN_NAME: &str = "token";
/// The token.
pub const TOKEN_FILE: &str = "/var/run/sandboxrun/token";
/// Where a container's last words go.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// The environment variable of our own containers that holds the gateway's CA, PEM.
pub const CA_VARIABLE: &str = "SANDBOXRUN_GATEWAY_CA";
