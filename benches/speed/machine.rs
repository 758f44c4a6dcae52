//! Where it was measured, in one line.

use std::fs;
use std::process::Command;

/// Processor, memory, kernel, git and load.
pub(crate) fn description() -> String {
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
        "{cores} cores of {cpu}, {memory} GiB, Linux {kernel}, {git}; load over 1 and 5 minutes: {load}"
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
