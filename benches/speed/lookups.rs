//! A lookup, through relay and gateway against direct: the same client, one connection kept alive on each side.
//!
//! The client is this program again (`speed client SOCKET URL [CA TOKEN]`): inside the agent's sandbox, as the agent's
//! command, and outside. Both wait on a socket to be told how many calls to make, so that their rounds alternate.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};

use sandboxrun::gateway::Role;

use crate::rounds::Times;
use crate::table::Row;
use crate::world::{Done, TICKET_TOKEN, Volumes, World, spec};

/// What relay and gateway may add to the median.
const ADDED: Duration = Duration::from_millis(2);
const ROUNDS: usize = 10;
const CALLS: usize = 50;
const PATH: &str = "/rest/api/2/issue/DEMO-1";
/// The relay's port in a network of its own.
const PORT: u16 = 7070;
/// How long a client may take to come or to answer.
const PATIENCE: Duration = Duration::from_mins(1);

/// Medians of 500 calls each, one after the other.
pub(crate) async fn rows(world: &World) -> Done<Vec<Row>> {
    let run = world
        .begin(&world.gateway, spec(None)?, Role::Agent)
        .await?;
    let pod_socket = run.volumes.root.join("pod.sock");
    world.listen(&world.gateway, &pod_socket, Role::Pod, &run.live)?;
    let root = run.volumes.root.clone();
    let for_pod = Volumes {
        root: root.clone(),
        socket: pod_socket,
    };
    world.run_pod("provision", &for_pod).await?;

    let mut inside = Contestant::start(&root.join("inside.sock"), |socket| {
        agent(world, &run.volumes, socket)
    })
    .await?;
    let mut outside = Contestant::start(&root.join("outside.sock"), |socket| {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("client")
            .arg(socket)
            .arg(format!("{}{PATH}", world.forge.origin()))
            .arg(world.disk.path().join("ca.pem"))
            .arg(TICKET_TOKEN);
        Ok(command)
    })
    .await?;
    inside.calls(5).await?;
    outside.calls(5).await?;
    let (mut ours, mut rival) = (Times::default(), Times::default());
    for _ in 0..world.rounds(ROUNDS) {
        ours.extend(inside.calls(CALLS).await?);
        rival.extend(outside.calls(CALLS).await?);
    }
    inside.end().await?;
    outside.end().await?;
    Ok(vec![
        Row::added(
            "lookup: through relay and gateway, p50",
            ours.median(),
            rival.median(),
            ADDED,
        ),
        Row::times(
            "lookup: the same, p99",
            ours.percentile(99),
            rival.percentile(99),
            None,
        ),
    ])
}

/// `sandboxrun-pod agent` in a sandbox with a network of its own, as its proof demands.
fn agent(world: &World, volumes: &Volumes, socket: &Path) -> Done<Command> {
    let mut command = Command::new("bwrap");
    command
        .args(["--unshare-all", "--die-with-parent", "--as-pid-1"])
        .args(["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"])
        .arg("--bind")
        .args([&volumes.root, &volumes.root])
        .arg(&world.pod)
        .args(["agent", "--gateway", &volumes.gateway()])
        .args(["--relay-port", &PORT.to_string(), "--"])
        .arg(std::env::current_exe()?)
        .arg("client")
        .arg(socket)
        .arg(format!("http://127.0.0.1:{PORT}/lookups/tickets{PATH}"));
    Ok(command)
}

/// One client, and the line over which it is told what to do.
struct Contestant {
    child: Child,
    stream: BufReader<UnixStream>,
}

impl Contestant {
    async fn start(socket: &PathBuf, make: impl FnOnce(&Path) -> Done<Command>) -> Done<Self> {
        let listener = UnixListener::bind(socket)?;
        let mut command = make(socket)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted?,
            ended = child.wait() => return Err(format!("a client ended early: {}", ended?).into()),
            () = tokio::time::sleep(PATIENCE) => return Err("a client did not come".into()),
        };
        Ok(Self {
            child,
            stream: BufReader::new(accepted.0),
        })
    }

    /// How long each call took.
    async fn calls(&mut self, count: usize) -> Done<Vec<Duration>> {
        self.stream
            .write_all(format!("{count}\n").as_bytes())
            .await?;
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, self.stream.read_line(&mut line)).await??;
        let times = line.split_whitespace().map(str::parse);
        let times: Vec<u64> = times.collect::<Result<_, _>>()?;
        if times.len() == count {
            Ok(times.into_iter().map(Duration::from_micros).collect())
        } else {
            Err("a client broke off".into())
        }
    }

    /// It ends when its line does.
    async fn end(mut self) -> Done<()> {
        self.stream.shutdown().await?;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await??;
        ended
            .success()
            .then_some(())
            .ok_or_else(|| format!("a client ended with {ended}").into())
    }
}

/// The client: `SOCKET URL [CA TOKEN]`.
pub(crate) async fn client(args: &[String]) -> Done<()> {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let mut args = args.iter();
    let (Some(socket), Some(url)) = (args.next(), args.next()) else {
        return Err("client SOCKET URL [CA TOKEN]".into());
    };
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .tcp_nodelay(true);
    if let Some(ca) = args.next() {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(ca)?)?;
        builder = builder.tls_certs_only([ca]);
    }
    let client = builder.build()?;
    let token = args.next();
    let mut stream = BufReader::new(UnixStream::connect(socket).await?);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let count: usize = line.trim().parse()?;
        line.clear();
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            let mut request = client.get(url);
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let answer = request.send().await?.error_for_status()?;
            answer.bytes().await?;
            times.push(start.elapsed().as_micros().to_string());
        }
        stream
            .write_all((times.join(" ") + "\n").as_bytes())
            .await?;
    }
    Ok(())
}
