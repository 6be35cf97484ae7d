//! What others than root and the job's user have made of a prefix. It can be used all the same: a
//! project's directory may be a colleague's. Somebody is told.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The directory of scrfs's state, and SCR's.
const STATE: &str = ".scr";

/// What a stranger, neither root nor `user`, made first: the prefix, a link to it, or the directory
/// of its state, which is no link of anybody's. Who made them can read what is kept there, and put
/// other things in its place.
pub fn made(prefix: &Path, user: u32) -> Vec<String> {
    let state = prefix.join(STATE);
    let belongs = |path: &Path, meta: fs::Metadata| {
        let is_strange = ![0, user].contains(&meta.uid());
        is_strange.then(|| format!("{} belongs to user {}", path.display(), meta.uid()))
    };
    let named = fs::symlink_metadata(prefix).ok();
    let link = named.filter(fs::Metadata::is_symlink);
    let link = link.and_then(|meta| belongs(prefix, meta)).map(|text| text + ", the link");
    let directory = fs::metadata(prefix).ok().and_then(|meta| belongs(prefix, meta));
    let kept = fs::symlink_metadata(&state).ok().and_then(|meta| {
        if meta.is_symlink() {
            return Some(format!("{} is a symbolic link", state.display()));
        }
        belongs(&state, meta)
    });
    link.into_iter().chain(directory).chain(kept).collect()
}

/// Neither root nor who makes files in this thread, the job's user in root's daemon too, has made
/// this file.
pub fn is_theirs(file: &fs::Metadata) -> bool {
    // No such user: nothing changes, and who it is comes back.
    let us = [0, nix::unistd::setfsuid(nix::unistd::Uid::from_raw(u32::MAX)).as_raw()];
    !us.contains(&file.uid())
}

/// Anybody can have made this file in the directory `above`: nor has the directory's owner, and
/// everybody may make files there.
pub fn is_planted(file: &fs::Metadata, above: &fs::Metadata) -> bool {
    is_theirs(file) && above.mode() & 0o002 != 0 && above.uid() != file.uid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_have_made_of_a_prefix_is_named() {
        use std::os::unix::fs::{chown, lchown, symlink};
        const ANN: u32 = 54_321;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let found = |name: &str| -> Vec<String> {
            let shown = dir.path().display().to_string() + "/";
            made(&at(name), ANN).iter().map(|text| text.replace(&shown, "")).collect()
        };
        for (name, owner) in
            [("ann", ANN), ("ann/.scr", ANN), ("eve", ANN + 1), ("root", 0), ("root/.scr", 7)]
        {
            fs::create_dir(at(name)).unwrap();
            chown(at(name), Some(owner), None).unwrap();
        }
        for (link, to, owner) in [("mine", "ann", ANN), ("theirs", "ann", 7), ("eve/.scr", "../ann", ANN)] {
            symlink(to, at(link)).unwrap();
            lchown(at(link), Some(owner), None).unwrap();
        }
        assert_eq!((found("ann"), found("mine"), found("none")), Default::default());
        assert_eq!(found("theirs"), ["theirs belongs to user 7, the link"]);
        assert_eq!(found("eve"), ["eve belongs to user 54322", "eve/.scr is a symbolic link"]);
        assert_eq!(found("root"), ["root/.scr belongs to user 7"]);
    }
}
