//! Names of one file that a seal makes files of their own, and descriptors of one file in several
//! processes, while programs use them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::process::Command as Program;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use scrfs::control::{Command, Event};
use scrfs::ids::{DatasetId, Member};

use super::asked_again::program;
use super::lead::{Lead, catalog, encode};
use super::takeover::replace_worker;
use super::{both_modes, wait_until};

/// The kernel asks for an inode, which has stood for all names when the program that waits gave one
/// of them.
#[test]
fn who_waits_for_the_seal_writes_the_name_that_it_opened() {
    both_modes(|m| {
        fs::create_dir(m.at("ck")).unwrap();
        fs::write(m.at("ck/f"), b"data").unwrap();
        for name in ["ck/g", "ck/h"] {
            fs::hard_link(m.at("ck/f"), m.at(name)).unwrap();
        }
        let mut lead = Lead::attach(&m.control(), 1);
        lead.inventory();
        lead.send(&Command::Serve);
        let touch = program(m, "touch ck/.complete");
        let request = lead.marker("ck");
        let id = DatasetId(1);
        lead.send(&Command::Freeze { id, name: b"ck".to_vec(), member: Member(0), base: None });
        assert!(matches!(lead.next(), Event::Frozen { result: Ok(_), .. }));

        let (tell, told) = std::sync::mpsc::channel();
        let (written, cut) = (m.at("ck/g"), m.at("ck/h"));
        let waiting = |work: Box<dyn FnOnce() + Send>| {
            let tell = tell.clone();
            let thread = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                work();
            });
            let thread_id = told.recv().unwrap().as_raw_nonzero();
            // A name that is only being looked up is looked up again.
            let at = format!("/proc/self/task/{thread_id}/stack");
            wait_until("the request to open or to truncate", || {
                let has = |stack: &str, call: &str| stack.contains(call);
                fs::read_to_string(&at).is_ok_and(|stack| {
                    has(&stack, "request_wait_answer")
                        && ["fuse_do_setattr", "fuse_send_open", "fuse_do_open", "fuse_file_open"]
                            .iter()
                            .any(|call| has(&stack, call))
                })
            });
            thread
        };
        let writer = waiting(Box::new(move || fs::write(written, b"other").unwrap()));
        let shortener = waiting(Box::new(move || {
            nix::unistd::truncate(&cut, 1).unwrap();
        }));

        let catalog = catalog(id, b"ck", lead.epoch, &encode(&lead, id, &["f", "g", "h"]));
        lead.send(&Command::Commit(Arc::new(catalog)));
        assert!(matches!(lead.next(), Event::Committed { result: Ok(()), .. }));
        lead.sealed(id, request);
        assert!(touch.join().unwrap());
        writer.join().unwrap();
        shortener.join().unwrap();
        let read = |name: &str| fs::read_to_string(m.at(name)).unwrap();
        assert_eq!([read("ck/f"), read("ck/g"), read("ck/h")], ["data", "other", "d"]);
        let number = |name: &str| fs::metadata(m.at(name)).unwrap().ino();
        assert!(number("ck/f") != number("ck/g") && number("ck/g") != number("ck/h"));
        // What is written now is that name's too.
        let mut file = OpenOptions::new().append(true).open(m.at("ck/f")).unwrap();
        std::io::Write::write_all(&mut file, b" more").unwrap();
        assert_eq!([read("ck/f"), read("ck/g"), read("ck/h")], ["data more", "other", "d"]);
    });
}

/// execve(2) closes what is close-on-exec while links below /proc/PID wait for that execve to go
/// on: a daemon that follows one before it answers would wait for ever, and the program too.
#[test]
fn a_program_that_begins_closes_files() {
    both_modes(|m| {
        fs::create_dir(m.at("ck")).unwrap();
        for name in ["latest", "ck/f", "ck/.complete"] {
            let _open = File::create(m.at(name)).unwrap();
            let mut child = Program::new("true").spawn().unwrap();
            wait_until("the program has begun", || child.try_wait().unwrap().is_some());
        }
    });
}

/// Also for a successor.
#[test]
fn a_program_that_runs_is_not_truncated() {
    both_modes(|m| {
        fs::copy("/bin/sleep", m.at("sleep")).unwrap();
        // Another test's child may hold the writer for a moment, between its fork and its exec.
        let mut child = loop {
            match Program::new(m.at("sleep")).arg("60").spawn() {
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => std::thread::yield_now(),
                child => break child.unwrap(),
            }
        };
        let truncate =
            || rustix::fs::open(m.at("sleep"), OFlags::RDONLY | OFlags::TRUNC, Mode::empty()).map(drop);
        assert_eq!(truncate(), Err(rustix::io::Errno::TXTBSY));
        replace_worker(m);
        assert_eq!(truncate(), Err(rustix::io::Errno::TXTBSY));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("it may be truncated", || truncate().is_ok());
    });
}
