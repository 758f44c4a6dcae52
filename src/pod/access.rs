//! Makes what an agent locked readable again, where it is ours.

use std::os::fd::{AsFd, AsRawFd as _};

use rustix::fs::{self, AtFlags, Mode, OFlags};

/// Lets the owner (us) read a file, or read and enter a directory. Follows no link: the entry is opened as a mere
/// handle first. What cannot be changed stays, and the caller's next try says so.
pub(super) fn let_us_read(directory: impl AsFd, name: &[u8], is_directory: bool) {
    let bits = if is_directory { 0o700 } else { 0o400 };
    let handle = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(handle) = fs::openat(&directory, name, handle, Mode::empty()) else {
        return;
    };
    let Ok(stat) = fs::statat(&handle, "", AtFlags::EMPTY_PATH) else {
        return;
    };
    let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | bits);
    let _refused = fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), mode);
}
