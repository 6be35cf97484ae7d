//! Stories of many names and many threads.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fence::Stream;
use super::place::{Scope, WAYS, in_place};
use super::random::Random;
use super::scenes::Tale;

const MANY: usize = 100_000;

/// A big directory, read in pieces while its names change.
pub fn many(dir: &Path, tale: &mut Tale) {
    read_in_pieces(dir, 3000, tale);
}

#[test]
fn a_hundred_thousand_names() {
    in_place(WAYS[0], |place| {
        let (native, mounted) = place.pair(Scope::Dataset, "many");
        // The daemon holds a descriptor for each file that the kernel remembers.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let count = if limit > 110_000 { MANY } else { 10_000 };
        let told = [native, mounted].map(|dir| {
            let mut tale = Tale::default();
            read_in_pieces(&dir, count, &mut tale);
            tale
        });
        assert_eq!(told[0], told[1]);
    });
}

fn read_in_pieces(dir: &Path, count: usize, tale: &mut Tale) {
    let at = |n: usize| dir.join(format!("{n:06}"));
    for n in 0..count {
        File::create(at(n)).unwrap();
    }
    let mut stream = Stream::open(File::open(dir).unwrap());
    let mut names = Vec::new();
    let mut positions = Vec::new();
    for _ in 0..count / 2 {
        positions.push(stream.tell());
        names.push(stream.next().unwrap().0);
    }
    // Back to where it was, to the name that followed.
    for at in [0, 1, 777, count / 2 - 1] {
        stream.seek(positions[at]);
        assert_eq!(stream.next().unwrap().0, names[at]);
    }
    let seen: HashSet<Vec<u8>> = names.iter().cloned().collect();
    tale.say("distinct", seen.len() == names.len());
    // What was not read yet goes, every second one; new ones come. No name that stays may be missed
    // or come twice.
    for n in (0..count).step_by(2).filter(|n| !seen.contains(format!("{n:06}").as_bytes())) {
        fs::remove_file(at(n)).unwrap();
    }
    fs::write(dir.join("new"), b"").unwrap();
    let mut rest = Vec::new();
    while let Some((name, ..)) = stream.next() {
        rest.push(name);
    }
    let stays = |name: &[u8]| {
        std::str::from_utf8(name).ok().and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n % 2 == 1)
    };
    let mut staying: Vec<&Vec<u8>> = names.iter().chain(&rest).filter(|name| stays(name)).collect();
    staying.sort();
    tale.say("stayed", staying.len());
    staying.dedup();
    tale.say("once", staying.len());
    stream.rewind();
    let mut again = HashSet::new();
    while let Some((name, ..)) = stream.next() {
        again.insert(name);
    }
    tale.say("new after a rewind", again.contains(b"new".as_slice()));
    drop(stream);
    for entry in fs::read_dir(dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    tale.say("left", fs::read_dir(dir).unwrap().count());
}

/// Threads that make, link, rename and remove the same few names while others look at them: nothing
/// but ENOENT and EEXIST may come of it, no name may show another's content, and numbers stay with
/// their files.
pub fn coming_and_going(dir: &Path, tale: &mut Tale) {
    let stop = Arc::new(AtomicBool::new(false));
    let emptied_shows = tale.cached;
    let name = |n: u64| dir.join(format!("n{n}"));
    fs::create_dir(dir.join("sub")).unwrap();
    let kept = dir.join("kept");
    fs::write(&kept, b"kept").unwrap();
    let number = fs::metadata(&kept).unwrap().ino();
    std::thread::scope(|scope| {
        let lookers: Vec<_> = (0..3_u64)
            .map(|n| {
                let stop = Arc::clone(&stop);
                scope.spawn(move || {
                    let mut random = Random::new(n + 100);
                    while !stop.load(Ordering::Relaxed) {
                        expected(fs::symlink_metadata(name(random.below(8))).map(drop));
                        expected(fs::read(name(random.below(8))).map(|text| {
                            // Emptied meanwhile, where the kernel caches what the daemon serves:
                            // semantics.md, Limits.
                            let gone = emptied_shows && text == [0; 7];
                            assert!(text.is_empty() || text == b"content" || gone, "{text:?}");
                        }));
                        expected(fs::read_dir(dir).map(|names| {
                            for entry in names {
                                expected(entry.unwrap().metadata().map(drop));
                            }
                        }));
                    }
                })
            })
            .collect();
        let changers: Vec<_> = (0..4_u64)
            .map(|n| {
                scope.spawn(move || {
                    let mut random = Random::new(n);
                    for _ in 0..400 {
                        let (a, b) = (name(random.below(8)), name(random.below(8)));
                        match random.below(6) {
                            0 | 1 => expected(fs::write(a, b"content")),
                            2 => expected(fs::remove_file(a)),
                            3 => expected(fs::rename(a, b)),
                            4 => expected(fs::hard_link(a, b)),
                            _ => expected(fs::rename(a, dir.join("sub").join(n.to_string()))),
                        }
                    }
                })
            })
            .collect();
        for round in 0..100 {
            let to = dir.join(format!("kept{round}"));
            let from = if round == 0 { kept.clone() } else { dir.join(format!("kept{}", round - 1)) };
            fs::rename(from, &to).unwrap();
            assert_eq!(fs::metadata(&to).unwrap().ino(), number);
        }
        for thread in changers {
            thread.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for thread in lookers {
            thread.join().unwrap();
        }
    });
    fs::hard_link(dir.join("kept99"), dir.join("linked")).unwrap();
    tale.say("one file", fs::metadata(dir.join("linked")).unwrap().ino() == number);
    fs::remove_dir_all(dir.join("sub")).unwrap();
    tale.say("kept", fs::read_to_string(dir.join("linked")).unwrap());
}

fn expected(outcome: std::io::Result<()>) {
    if let Err(error) = outcome {
        let number = error.raw_os_error();
        assert!(matches!(number, Some(libc::ENOENT | libc::EEXIST)), "{error}");
    }
}
