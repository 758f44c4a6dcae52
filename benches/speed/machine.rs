//! Where it was measured, in one line, and where files are made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file system in memory that every Linux has.
const MEMORY: &str = "/dev/shm";
/// What repositories, mirrors and work trees take, with room to spare.
const ROOM: u64 = 3 << 30;

/// Memory if it has room, else, or if the user wants it so, the disk.
pub(crate) fn place_for_files(on_disk: bool) -> PathBuf {
    let has_room = rustix::fs::statvfs(MEMORY)
        .is_ok_and(|volume| volume.f_bavail.saturating_mul(volume.f_frsize) >= ROOM);
    if has_room && !on_disk {
        MEMORY.into()
    } else {
        std::env::temp_dir()
    }
}

/// Processor, memory, kernel, git, load, and where files are made.
pub(crate) fn description(files: &Path) -> String {
    let cpu = value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".to_owned());
    let memory = value("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib >> 20);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let git = Command::new("git")
        .arg("version")
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    let load = read("/proc/loadavg");
    let load: Vec<&str> = load.split(' ').take(2).collect();
    let load = load.join(" and ");
    format!(
        "{cores} cores of {cpu}, {memory} GiB, Linux {kernel}, {git}; load over 1 and 5 minutes: {load}; files in {}",
        files.display()
    )
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn value(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
