//! A forge, manifests and the built programs: one run is one process, as a user starts it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use demo_forge::{Change, Forge, Options, Repo, Token, Visibility};
use serde_json::{Value, json};

/// Every credential is a word that a search finds.
pub(crate) const GIT_TOKEN: &str = "canary-git-5d41402abc4b2a76";
pub(crate) const TICKET_TOKEN: &str = "canary-tickets-7d793037a0760186";
pub(crate) const CANARIES: [&str; 2] = [GIT_TOKEN, TICKET_TOKEN];

/// What should happen soon has happened by then, on the slowest machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// A forge with a private repository `acme/app`, and a state directory of its own.
pub(crate) struct World {
    pub(crate) forge: Forge,
    pub(crate) app: Repo,
    /// The head of `main` of `acme/app`.
    pub(crate) head: String,
    pub(crate) dir: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Options::new()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let options = options
            .token(Token::read("reader", GIT_TOKEN))
            .ticket_token(TICKET_TOKEN);
        let forge = Forge::start(options).await.unwrap();
        let app = forge.create("acme/app", Visibility::Private).unwrap();
        app.commit("main", &[Change::file("README.md", "first\n")])
            .unwrap();
        let head = app
            .commit(
                "main",
                &[
                    Change::file("README.md", "second\n"),
                    Change::executable("run.sh", "#!/bin/sh\n"),
                    Change::file("src/a.txt", "a\n"),
                ],
            )
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        // Started as root, the program becomes somebody else, who must get through here.
        open_to_all(dir.path());
        forge.write_ca(&dir.path().join("ca.pem")).unwrap();
        Self {
            forge,
            app,
            head,
            dir,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// A run whose agent is this shell script, in the one input `app`.
    pub(crate) fn script(&self, script: &str) -> Manifest {
        Manifest::new(self).script(script)
    }

    /// The command line of a run, with stdin closed.
    pub(crate) fn command(&self, manifest: &Manifest) -> Command {
        self.command_at(manifest, &self.state())
    }

    /// The same, with its state elsewhere.
    pub(crate) fn command_at(&self, manifest: &Manifest, state: &Path) -> Command {
        let file = self.path(&format!("{}.yaml", manifest.name));
        fs::write(&file, manifest.text()).unwrap();
        let mut command = self.bare_at(state);
        command.arg("-f").arg(file);
        command
    }

    /// `sandboxrun run -o json` without a manifest.
    pub(crate) fn bare(&self) -> Command {
        self.bare_at(&self.state())
    }

    fn bare_at(&self, state: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxrun"));
        let port = self.forge.addr().port();
        command
            .args(["run", "-o", "json"])
            .args(["--secret", "forge-token/token=env:TEST_GIT_TOKEN"])
            .args(["--secret", "tracker-token/token=env:TEST_TICKET_TOKEN"])
            .arg("--secret")
            .arg(format!(
                "forge-ca/ca.crt=file:{}",
                self.path("ca.pem").display()
            ))
            .args(["--allow-address", &format!("127.0.0.1=127.0.0.1/32:{port}")])
            .arg("--state-dir")
            .arg(state)
            .env("TEST_GIT_TOKEN", GIT_TOKEN)
            .env("TEST_TICKET_TOKEN", TICKET_TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Does a whole run.
    pub(crate) fn run(&self, manifest: &Manifest) -> Done {
        self.finish(&mut self.command(manifest))
    }

    pub(crate) fn finish(&self, command: &mut Command) -> Done {
        self.start(command).wait()
    }

    pub(crate) fn start(&self, command: &mut Command) -> Running {
        let mut child = command.spawn().unwrap();
        let stdout = Said::read(child.stdout.take().unwrap());
        let stderr = Said::read(child.stderr.take().unwrap());
        Running {
            child,
            stdout,
            stderr,
            state: self.state(),
        }
    }

    /// A command line whose `bwrap` runs these lines of shell first, and then the real one with `"$@"`. That is where a
    /// test breaks something between two steps: `$what` is `probe`, `provision`, `agent` or `collect`.
    pub(crate) fn breaking(&self, manifest: &Manifest, lines: &str) -> Command {
        let bin = self.path("bin");
        fs::create_dir_all(&bin).unwrap();
        open_to_all(&bin);
        let fake = bin.join("bwrap");
        let real = which("bwrap");
        let text = format!(
            "#!/bin/bash\nwhat=probe; last=\nfor word; do [ \"$last\" != {program} ] || case $word in provision|agent|collect) what=$word; break;; esac; last=$word; done\n\
             state='{}'\n{lines}\nexec {} \"$@\"\n",
            self.state().display(),
            real.display(),
            program = sandboxrun::api::layout::POD_PROGRAM,
        );
        fs::write(&fake, text).unwrap();
        open_to_all(&fake);
        let mut path = bin.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        let mut command = self.command(manifest);
        command.env("PATH", path);
        command
    }

    /// `sandboxrun audit ...` on the record of these runs.
    pub(crate) fn audit(&self, args: &[&str]) -> (i32, String) {
        audit(&self.state().join("record.sqlite"), args)
    }

    /// The events of all runs, in the order of the record.
    pub(crate) fn events(&self) -> Vec<Value> {
        let (code, lines) = self.audit(&["export"]);
        assert_eq!(code, 0, "{lines}");
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// What is left below `runs/`.
    pub(crate) fn runs_left(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.state().join("runs")) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

pub(crate) fn audit(record: &Path, args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sandboxrun"))
        .arg("audit")
        .arg("--record")
        .arg(record)
        .args(args)
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (code(output.status), text)
}

pub(crate) fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Where a program is.
pub(crate) fn which(program: &str) -> PathBuf {
    std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{program} is not installed"))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Every file below, as far as it can be read; no link is followed.
pub(crate) fn files_below(top: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                todo.extend(entries.map(|entry| entry.path()));
            }
            Ok(meta) if meta.is_file() => files.push(path),
            Ok(_) | Err(_) => {}
        }
    }
    files
}

/// The processes of this machine whose command line or environment holds this word, but for ourselves.
pub(crate) fn processes_with(word: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        for name in ["cmdline", "environ"] {
            let bytes = fs::read(entry.path().join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
            if text.contains(word) {
                found.push((pid, text));
                break;
            }
        }
    }
    found
}

/// Whether a process is this one or was started below it.
pub(crate) fn is_below(pid: u32, ancestor: u32) -> bool {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(1)?.parse().ok()
    };
    std::iter::successors(Some(pid), |pid| parent(*pid)).any(|pid| pid == ancestor)
}

/// A shell's view of an exit: 128 and the signal for one that was killed.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// What a program says, while it says it.
struct Said {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Said {
    fn read(mut from: impl std::io::Read + Send + 'static) -> Self {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let said = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            // What a killed program did not say is not there.
            while let Ok(length @ 1..) = from.read(&mut chunk) {
                said.lock().unwrap().extend_from_slice(&chunk[..length]);
            }
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn all(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }
}

/// A run that is under way.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: Said,
    stderr: Said,
    state: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.pid().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// What it has written to stderr: the steps of the run so far.
    pub(crate) fn said(&self) -> String {
        self.stderr.so_far()
    }

    /// Waits for a step on stderr.
    pub(crate) fn step(&self, name: &str) {
        soon(name, || self.said().contains(name).then_some(()));
    }

    /// Kills it, at once and for good.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.stderr.so_far()
    }

    /// The directory of the run, once there is one.
    pub(crate) fn dir(&self) -> PathBuf {
        let runs = self.state.join("runs");
        soon("the run has a directory", || {
            fs::read_dir(&runs).ok()?.next()?.ok().map(|e| e.path())
        })
    }

    /// Waits until the agent wrote this file below its output directory.
    pub(crate) fn written(&self, name: &str) -> PathBuf {
        let path = self.dir().join("sandbox/output").join(name);
        soon(name, || path.exists().then(|| path.clone()))
    }

    pub(crate) fn wait(mut self) -> Done {
        let deadline = Instant::now() + 3 * SOON;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                let _killed = self.child.wait();
                panic!("the run does not end: {}", self.stderr.all());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let stdout = self.stdout.all();
        Done {
            code: code(status),
            status: serde_json::from_str(&stdout).unwrap_or(Value::Null),
            stdout,
            stderr: self.stderr.all(),
            state: self.state,
        }
    }
}

/// Waits for something that happens soon.
pub(crate) fn soon<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    /// What `-o json` printed; null when nothing could be begun.
    pub(crate) status: Value,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    state: PathBuf,
}

impl Done {
    /// Asserts the exit code and gives the run back.
    #[track_caller]
    pub(crate) fn ended_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.stderr, self.stdout);
        self
    }

    /// Asserts that it failed for this reason, with the code that the registry gives it.
    #[track_caller]
    pub(crate) fn failed_by(self, code: i32, reason: &str) -> Self {
        let done = self.ended_with(code);
        assert_eq!(
            done.status["error"]["reason"], reason,
            "{}\n{}",
            done.stderr, done.stdout
        );
        done
    }

    pub(crate) fn message(&self) -> &str {
        self.status["error"]["message"].as_str().unwrap()
    }

    /// Where the one kept run lies.
    pub(crate) fn kept(&self) -> PathBuf {
        let mut left = fs::read_dir(self.state.join("runs")).unwrap();
        left.next().expect("nothing was kept").unwrap().path()
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.kept().join("workspace")
    }

    /// A file below the agent's output directory.
    pub(crate) fn output(&self, name: &str) -> String {
        let path = self.kept().join("sandbox/output").join(name);
        let bytes = fs::read(&path)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), self.stderr));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn input(&self, name: &str) -> &Value {
        self.status["inputs"]
            .as_array()
            .unwrap()
            .iter()
            .find(|input| input["name"] == name)
            .unwrap()
    }

    pub(crate) fn condition(&self, kind: &str) -> &str {
        self.status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|condition| condition["type"] == kind)
            .unwrap()["status"]
            .as_str()
            .unwrap()
    }
}

/// The kinds of the events.
pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["event"]["kind"].as_str().unwrap())
        .collect()
}

/// The manifests of a run: JSON is YAML too.
#[derive(Clone)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) spec: Value,
    pub(crate) others: Vec<Value>,
}

impl Manifest {
    pub(crate) fn new(world: &World) -> Self {
        let origin = world.forge.origin();
        let ca = json!({"name": "forge-ca", "key": "ca.crt"});
        let token = |name| json!({"name": name, "key": "token"});
        let connector = |name, auth, uses, kind| {
            let mut spec = json!({"type": kind, "url": origin, "caRef": ca, "uses": uses});
            if auth != Value::Null {
                spec["auth"] = auth;
            }
            json!({
                "apiVersion": "sandboxrun.dev/v1alpha1", "kind": "Connector",
                "metadata": {"name": name}, "spec": spec,
            })
        };
        let secret = |name| {
            json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "annotations": {"sandboxrun.dev/origin": origin}},
            })
        };
        let git_auth = json!({"token": {"secretRef": token("forge-token")}});
        let ticket_auth = json!({"header": {
            "name": "Authorization", "prefix": "Bearer ", "secretRef": token("tracker-token"),
        }});
        Self {
            name: "test".to_owned(),
            spec: json!({
                "inputs": [{
                    "name": "app", "repository": "acme/app", "connector": "forge",
                    "ref": {"branch": "main"},
                }],
                "agent": {"image": "none", "command": ["/bin/true"]},
            }),
            others: vec![
                connector("forge", git_auth, json!(["Inputs"]), "Git"),
                connector("public", Value::Null, json!(["Inputs"]), "Git"),
                connector("tracker", ticket_auth, json!(["Lookups"]), "HTTP"),
                secret("forge-token"),
                secret("tracker-token"),
                secret("forge-ca"),
            ],
        }
    }

    pub(crate) fn script(mut self, script: &str) -> Self {
        self.spec["agent"]["command"] = json!(["/bin/sh", "-c"]);
        self.spec["agent"]["args"] = json!([script]);
        self
    }

    /// Sets a part of the spec: `/agent/timeout`.
    pub(crate) fn set(mut self, pointer: &str, value: Value) -> Self {
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        self.spec.pointer_mut(parent).unwrap()[last] = value;
        self
    }

    /// One more input.
    pub(crate) fn input(mut self, input: Value) -> Self {
        self.spec["inputs"].as_array_mut().unwrap().push(input);
        self
    }

    /// A lookup `tickets` of these paths.
    pub(crate) fn tickets(mut self, lookup: &Value) -> Self {
        let mut whole = json!({"name": "tickets", "connector": "tracker"});
        for (key, value) in lookup.as_object().unwrap() {
            whole[key] = value.clone();
        }
        self.spec["lookups"] = json!([whole]);
        self
    }

    pub(crate) fn text(&self) -> String {
        let run = json!({
            "apiVersion": "sandboxrun.dev/v1alpha1", "kind": "SandboxRun",
            "metadata": {"name": self.name}, "spec": self.spec,
        });
        let mut text = String::new();
        for document in std::iter::once(&run).chain(&self.others) {
            text.push_str("---\n");
            text.push_str(&document.to_string());
            text.push('\n');
        }
        text
    }
}
