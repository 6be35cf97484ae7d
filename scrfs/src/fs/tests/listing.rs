//! Reading directories, and the texts of `.scrfs`.

use super::*;
use crate::fs::files::LISTINGS_MAX;
use crate::keep::keeper::Keepers;
use crate::keep::memory;

impl Bench {
    /// The names from `offset` on, as far as there is room for so many, and the offset after them.
    fn some_names(&self, fh: u64, offset: u64, most: usize) -> Result<(Vec<String>, u64), Errno> {
        let (mut names, mut last) = (Vec::new(), offset);
        self.fs.readdir(fh, offset, true, &mut |listed, _, next| {
            if names.len() == most {
                return Taken::Full;
            }
            names.push(String::from_utf8(listed.name.clone()).unwrap());
            last = next;
            Taken::Name
        })?;
        Ok((names, last))
    }

    fn eye(&self, name: &str) -> u64 {
        self.id(self.id(ROOT, ".scrfs"), name)
    }
}

fn memory_and_tree() -> (std::os::fd::OwnedFd, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    (memory::create().unwrap(), dir)
}

/// The kernel had all of it, and its program a part; the descriptors went with the worker.
#[test]
fn a_listing_of_a_former_worker_ends_where_it_ended() {
    let (memory, dir) = memory_and_tree();
    let bench = Bench::over(dir, &memory);
    for name in ["a", "b", "c"] {
        bench.write(ROOT, name, b"");
    }
    let fh = bench.fs.opendir(me(), ROOT).unwrap();
    let (names, end) = bench.some_names(fh, 0, 100).unwrap();
    assert_eq!((names.len(), end), (5, 5));
    let kept = bench.fs.opendir(me(), ROOT).unwrap();
    bench.some_names(kept, 0, 2).unwrap();
    let unread = bench.fs.opendir(me(), ROOT).unwrap();
    let Bench { dir, fs, .. } = bench;
    drop(fs);

    let bench = Bench::over(dir, &memory);
    bench.fs.restore(&Keepers::find(bench.fs.keep()).unwrap()).unwrap();
    assert_eq!(bench.some_names(fh, end, 100), Ok((Vec::new(), end)));
    assert_eq!(bench.some_names(fh, 2, 100), Err(Errno(libc::ESTALE)), "the rest is not known");
    assert_eq!(bench.some_names(kept, 2, 100), Err(Errno(libc::ESTALE)));
    assert_eq!(bench.some_names(unread, 0, 100).unwrap().0.len(), 5);
    assert_eq!(bench.some_names(fh, 0, 100).unwrap().1, end, "it can begin anew");
    assert_eq!(bench.some_names(fh, 2, 100).unwrap().0.len(), 3);
}

/// The kernel counts no lookups of an answer that is an error.
#[test]
fn a_lookup_that_fails_in_the_middle_of_a_listing_is_told_by_the_next_answer() {
    let bench = Bench::new("ck");
    let make = |parent, name: &str| {
        now(&start(|done| bench.fs.mkdir(me(), parent, name.as_bytes(), 0o755, done))).unwrap().attr.nodeid
    };
    let deep = (0..15).fold(ROOT, |parent, _| make(parent, &"d".repeat(250)));
    let dir = make(ROOT, "dir");
    for name in ["a", "b", "c"] {
        bench.write(dir, &name.repeat(200), b"");
    }
    let fh = bench.fs.opendir(me(), dir).unwrap();
    let (mut taken, mut last) = (0, 0);
    let listed = bench.fs.readdir(fh, 0, true, &mut |_, entry, next| {
        last = next;
        if entry.is_none() {
            return Taken::Name;
        }
        taken += 1;
        // There the paths of its files are too long.
        let to = "e".repeat(200);
        now(&start(|done| bench.fs.rename(me(), (ROOT, b"dir"), (deep, to.as_bytes()), 0, done))).unwrap();
        Taken::Entry
    });
    assert_eq!((listed, taken, last), (Ok(()), 1, 3));
    assert_eq!(bench.some_names(fh, last, 100), Err(Errno(libc::ENAMETOOLONG)));
}

#[test]
fn texts_take_of_the_memory_of_listings_and_have_numbers_of_their_worker() {
    let (memory, dir) = memory_and_tree();
    let bench = Bench::over(dir, &memory);
    let read = |bench: &Bench| now(&bench.open(bench.eye("status"), libc::O_RDONLY)).map(|opened| opened.fh);
    let all = bench.fs.files.listings().take(LISTINGS_MAX).unwrap();
    assert_eq!(read(&bench), Err(Errno(libc::ENOMEM)));
    drop(all);
    let former = read(&bench).unwrap();
    assert!(bench.fs.files.listings().take(LISTINGS_MAX).is_err(), "one is open");
    bench.fs.release(former);
    assert!(bench.fs.files.listings().take(LISTINGS_MAX).is_ok());
    let Bench { dir, fs, .. } = bench;
    drop(fs);
    let bench = Bench::over(dir, &memory);
    assert!((0..4).all(|_| read(&bench).unwrap() != former), "that one may be open still");
}
