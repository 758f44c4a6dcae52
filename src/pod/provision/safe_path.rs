//! Which names of a commit may be written to a disk.
//!
//! A pinned commit may be hostile. What git itself refuses to check out is refused here: `.git` in any spelling that some
//! file system takes for it, `.` and `..`, and a `.gitmodules` that is a link. All else is a plain name, and since every
//! file is made with `O_EXCL` below a directory that we made, no link can lead a write out of the tree.

/// Why a name may not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsafeName {
    /// Empty, `.` or `..`, or with a `/` or NUL inside.
    #[error("is no name of a file")]
    NotAName,
    /// `.git` in some spelling.
    #[error("is `.git`, or what some file systems take for it")]
    DotGit,
    /// A link that git would read rules from.
    #[error("is a `.gitmodules` that is a link")]
    LinkedRules,
    /// Longer than file systems allow.
    #[error("is longer than a path may be")]
    TooLong,
}

/// The longest path that Linux takes, with its NUL.
const PATH_MAX: usize = 4096;

/// Checks one name of a tree and the whole path that it makes.
///
/// # Errors
/// Which rule it breaks.
pub(super) fn check(name: &[u8], path_len: usize, is_link: bool) -> Result<(), UnsafeName> {
    if name.is_empty() || matches!(name, b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0))
    {
        return Err(UnsafeName::NotAName);
    }
    if name.len() > 255 || path_len >= PATH_MAX {
        return Err(UnsafeName::TooLong);
    }
    // NTFS splits at a backslash; nothing else does, but the clone of a clone may land there.
    for part in name.split(|b| *b == b'\\') {
        if is_dot_git(part) {
            return Err(UnsafeName::DotGit);
        }
        if is_link && spelled(part, b".gitmodules", b"gitmod", b"gi7eba") {
            return Err(UnsafeName::LinkedRules);
        }
    }
    Ok(())
}

/// `.git` as ext4, NTFS (`GIT~1`, `.git.`, `.git::$INDEX_ALLOCATION`) or HFS+ (ignored code points) read it.
fn is_dot_git(name: &[u8]) -> bool {
    let on_ntfs = ntfs_visible(name);
    on_ntfs.eq_ignore_ascii_case(b".git")
        || on_ntfs.eq_ignore_ascii_case(b"git~1")
        || hfs_visible(name).eq_ignore_ascii_case(b".git")
}

/// As [`is_dot_git`], for a longer name: its short forms on NTFS are `GITMOD~1` to `~4`, then a hash.
fn spelled(name: &[u8], full: &[u8], short: &[u8], hashed: &[u8]) -> bool {
    let on_ntfs = ntfs_visible(name).to_ascii_lowercase();
    let is_short = on_ntfs
        .strip_prefix(short)
        .is_some_and(|rest| matches!(rest, [b'~', b'1'..=b'4']));
    let is_hashed = on_ntfs.strip_prefix(hashed).is_some_and(|rest| {
        rest.strip_prefix(b"~")
            .is_some_and(|n| n.len() == 1 && n.iter().all(u8::is_ascii_digit))
    });
    on_ntfs == full || is_short || is_hashed || hfs_visible(name).eq_ignore_ascii_case(full)
}

/// What NTFS sees of a name: no stream, no dots or spaces at the end.
fn ntfs_visible(name: &[u8]) -> &[u8] {
    let mut seen = name.split(|b| *b == b':').next().unwrap_or(name);
    while let [rest @ .., b' ' | b'.'] = seen {
        seen = rest;
    }
    seen
}

/// What HFS+ compares: without the code points that it ignores.
fn hfs_visible(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else {
        return name.to_vec();
    };
    let kept = text.chars().filter(
        |c| !matches!(u32::from(*c), 0x200c..=0x200f | 0x202a..=0x202e | 0x206a..=0x206f | 0xfeff),
    );
    kept.collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain(b"a.txt", Ok(()))]
    #[case::like_git(b".gitignore", Ok(()))]
    #[case::ends_in_git(b"a.git", Ok(()))]
    #[case::not_utf8(b"\xff\xfe", Ok(()))]
    #[case::newline(b"a\nb", Ok(()))]
    #[case::short_name_of_another(b"git~2", Ok(()))]
    #[case::dots(b"...", Ok(()))]
    #[case::empty(b"", Err(UnsafeName::NotAName))]
    #[case::here(b".", Err(UnsafeName::NotAName))]
    #[case::up(b"..", Err(UnsafeName::NotAName))]
    #[case::slash(b"a/b", Err(UnsafeName::NotAName))]
    #[case::dot_git(b".git", Err(UnsafeName::DotGit))]
    #[case::upper(b".GIT", Err(UnsafeName::DotGit))]
    #[case::ntfs_short(b"GiT~1", Err(UnsafeName::DotGit))]
    #[case::ntfs_trailing(b".git. . ", Err(UnsafeName::DotGit))]
    #[case::ntfs_stream(b".git::$INDEX_ALLOCATION", Err(UnsafeName::DotGit))]
    #[case::ntfs_backslash(b".git\\hooks", Err(UnsafeName::DotGit))]
    #[case::ntfs_backslash_later(b"a\\.GIT \\b", Err(UnsafeName::DotGit))]
    #[case::hfs(".g\u{200c}it".as_bytes(), Err(UnsafeName::DotGit))]
    #[case::hfs_mark("\u{feff}.Git".as_bytes(), Err(UnsafeName::DotGit))]
    fn v05_names_that_lead_into_a_git_directory_are_refused(
        #[case] name: &[u8],
        #[case] want: Result<(), UnsafeName>,
    ) {
        assert_eq!(check(name, name.len(), false), want);
    }

    #[test]
    fn v05_a_linked_gitmodules_is_refused() {
        for name in [
            b".gitmodules".as_slice(),
            b".GITMODULES.",
            b"gitmod~1",
            b"GI7EBA~1",
        ] {
            assert_eq!(check(name, name.len(), true), Err(UnsafeName::LinkedRules));
            assert_eq!(check(name, name.len(), false), Ok(()));
        }
        assert_eq!(check(b"x", 4096, false), Err(UnsafeName::TooLong));
    }
}
