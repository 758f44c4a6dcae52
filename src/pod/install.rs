//! Puts our own program where the agent's container finds it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Copies the running program to `path`: whole or not at all, executable, writable by nobody.
///
/// # Errors
/// When it cannot be written there.
pub(super) fn install(path: &Path) -> io::Result<()> {
    let mut made = path.as_os_str().to_owned();
    made.push(".new");
    let made = Path::new(&made);
    match fs::remove_file(made) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::copy("/proc/self/exe", made)?;
    fs::set_permissions(made, Permissions::from_mode(0o555))?;
    fs::rename(made, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_start_replaces_what_the_first_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(dir.path().join("program.new"), "half").unwrap();
        for _ in 0..2 {
            install(&path).unwrap();
            let own = fs::metadata("/proc/self/exe").unwrap().len();
            let there = fs::metadata(&path).unwrap();
            assert_eq!(there.len(), own);
            assert_eq!(there.permissions().mode() & 0o777, 0o555);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
