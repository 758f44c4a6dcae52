//! Files as they are named on the command line.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::api::manifest::MAX_BYTES;

/// A manifest's bytes: at most one more than is allowed, so that the reader can say so. `-` is stdin.
pub(super) fn read_manifest(path: &Path) -> io::Result<Vec<u8>> {
    let limit = MAX_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Writes a generated file, unless it is there with just these bytes. Gives whether it was written.
pub(super) fn write_if_changed(path: &Path, text: &str) -> io::Result<bool> {
    match std::fs::read(path) {
        Ok(bytes) if bytes == text.as_bytes() => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(path, text)?;
    Ok(true)
}
