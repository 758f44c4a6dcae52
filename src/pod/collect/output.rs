//! Reads the agent's output: one regular file, no link followed, bounded.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::api::layout;
use crate::api::wire::{OUTPUT_MAX_BYTES, OutputFile};
use crate::pod::access;

/// What lies at the output's place below `sandbox`.
#[must_use]
pub(super) fn read(sandbox: &Path) -> OutputFile {
    let relative = layout::OUTPUT_FILE
        .strip_prefix(layout::SANDBOX)
        .unwrap_or(layout::OUTPUT_FILE);
    let mut parts: Vec<_> = relative
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    let Some(name) = parts.pop() else {
        return OutputFile::Absent;
    };
    let refused = |message: String| OutputFile::Refused { message };
    let base = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut directory = match fs::open(sandbox, base | OFlags::DIRECTORY, Mode::empty()) {
        Ok(directory) => directory,
        Err(errno) => return refused(format!("cannot be reached: {errno}")),
    };
    for part in parts {
        directory = match open(&directory, part, base | OFlags::DIRECTORY, true) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return OutputFile::Absent,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return refused(format!("lies in `{part}`, which is no directory any more"));
            }
            Err(errno) => return refused(format!("cannot be reached: {errno}")),
        };
    }
    let stat = match fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return OutputFile::Absent,
        Err(errno) => return refused(format!("cannot be read: {errno}")),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refused("is no regular file".to_owned());
    }
    let too_large = || refused(format!("is larger than {OUTPUT_MAX_BYTES} bytes"));
    if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > OUTPUT_MAX_BYTES {
        return too_large();
    }
    let mut bytes = Vec::new();
    let read = open(&directory, name, base | OFlags::NONBLOCK, false)
        .map_err(std::io::Error::from)
        .map(std::fs::File::from)
        .and_then(|file| file.take(OUTPUT_MAX_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => refused(format!("cannot be read: {error}")),
        Ok(length) if length as u64 > OUTPUT_MAX_BYTES => too_large(),
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) => OutputFile::Text { text },
            Err(_) => refused("is not UTF-8 text".to_owned()),
        },
    }
}

fn open(at: &OwnedFd, name: &str, flags: OFlags, is_directory: bool) -> Result<OwnedFd, Errno> {
    let open = || fs::openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty());
    match open() {
        Err(Errno::ACCESS) => {
            access::let_us_read(at, name.as_bytes(), is_directory);
            open()
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn sandbox() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("output")).unwrap();
        let file = dir.path().join("output/output.json");
        (dir, file)
    }

    fn is_refused(dir: &tempfile::TempDir) -> bool {
        matches!(read(dir.path()), OutputFile::Refused { .. })
    }

    #[test]
    fn a_regular_file_of_text_is_read_and_nothing_else() {
        let (dir, file) = sandbox();
        assert_eq!(read(dir.path()), OutputFile::Absent);
        fs::write(&file, "{}").unwrap();
        assert_eq!(
            read(dir.path()),
            OutputFile::Text {
                text: "{}".to_owned()
            }
        );
        fs::write(&file, b"\xff").unwrap();
        assert!(is_refused(&dir), "not text");
        fs::write(&file, vec![b' '; 1024 * 1024]).unwrap();
        assert!(matches!(read(dir.path()), OutputFile::Text { .. }));
        fs::write(&file, vec![b' '; 1024 * 1024 + 1]).unwrap();
        assert!(is_refused(&dir), "too large");
        fs::remove_file(&file).unwrap();
        symlink("/etc/hostname", &file).unwrap();
        assert!(is_refused(&dir), "a link");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(is_refused(&dir), "a directory");
        fs::remove_dir(&file).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, mode).unwrap();
        assert!(is_refused(&dir), "a FIFO, which is not opened");
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_not_followed() {
        let (dir, _) = sandbox();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("output.json"), "{}").unwrap();
        fs::remove_dir(dir.path().join("output")).unwrap();
        assert_eq!(read(dir.path()), OutputFile::Absent);
        symlink(elsewhere.path(), dir.path().join("output")).unwrap();
        assert!(is_refused(&dir));
    }
}
