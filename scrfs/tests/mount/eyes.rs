//! `.scrfs`, `user.scrfs.*`, and the records of what programs do with files.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::fs::XattrFlags;
use scrfs::control::client;
use scrfs::control::{Advice, Answer, Ask, Command, Event};

use super::lead::{Lead, Steady};
use super::takeover::replace_worker;
use super::{Mounted, both_modes, wait_until};

const NAMES: [&str; 8] =
    ["current", "events", "metrics", "need_checkpoint", "post", "should_exit", "status", "status.json"];

fn eye(m: &Mounted, name: &str) -> String {
    fs::read_to_string(m.at(".scrfs").join(name)).unwrap()
}

fn names(m: &Mounted, dir: &str) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(m.at(dir)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_that_are_not_there() {
    both_modes(|m| {
        fs::write(m.at("loose"), b"x").unwrap();
        assert_eq!(names(m, ""), ["loose"], "not listed at the root");
        assert_eq!(names(m, ".scrfs"), NAMES);
        let meta = fs::metadata(m.at(".scrfs/status")).unwrap();
        assert_eq!((meta.len(), meta.mode(), meta.nlink()), (0, 0o100_444, 1));
        assert_eq!(fs::metadata(m.at(".scrfs")).unwrap().mode(), 0o40_555);
        assert!(eye(m, "status").contains("no coordinator yet"), "{}", eye(m, "status"));
        let json: serde_json::Value = serde_json::from_str(&eye(m, "status.json")).unwrap();
        assert_eq!(json["mount_point"], m.mount_point.to_str().unwrap());
        assert_eq!(
            (eye(m, "current"), eye(m, "need_checkpoint"), eye(m, "should_exit")),
            (String::new(), "1\n".into(), "0\n".into())
        );
        let metrics = eye(m, "metrics");
        for line in ["scrfs_coordinator_attached 0", "scrfs_should_exit 0", "# EOF"] {
            assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
        }
        m.shell(
            0,
            "echo to whom it may concern > .scrfs/post; grep -q 'message of user 0: to whom' .scrfs/events",
        );
        // Whoever reaches the mount may read; only the job's user may post.
        m.shell(1, "cat .scrfs/status .scrfs/metrics > /dev/null; ! echo x 2> /dev/null > .scrfs/post");
        m.shell(0, "tail -n 1 .scrfs/events | python3 -m json.tool > /dev/null; dd if=.scrfs/status bs=7 status=none | cmp - .scrfs/status");
    });
}

#[test]
fn nothing_there_can_be_changed() {
    both_modes(|m| {
        let denied = |what: &str, outcome: std::io::Result<()>| {
            let error = outcome.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}");
        };
        fs::write(m.at("f"), b"x").unwrap();
        let at = |name: &str| m.at(".scrfs").join(name);
        denied("create", fs::write(at("new"), b"x"));
        denied("mkdir", fs::create_dir(at("new")));
        denied("symlink", std::os::unix::fs::symlink("x", at("new")));
        denied("link", fs::hard_link(m.at("f"), at("new")));
        denied("unlink", fs::remove_file(at("status")));
        denied("rename out", fs::rename(at("status"), m.at("new")));
        denied("rename in", fs::rename(m.at("f"), at("new")));
        denied("rename over", fs::rename(m.at("f"), at("status")));
        denied("rmdir", fs::remove_dir(m.at(".scrfs")));
        denied("rename of it", fs::rename(m.at(".scrfs"), m.at("new")));
        denied(
            "chmod",
            fs::set_permissions(at("status"), std::os::unix::fs::PermissionsExt::from_mode(0o777)),
        );
        denied(
            "mkdir of it",
            fs::create_dir(m.at(".scrfs")).map_err(|e| {
                if e.kind() == ErrorKind::AlreadyExists { ErrorKind::PermissionDenied.into() } else { e }
            }),
        );
        let set = |path| rustix::fs::setxattr(path, "user.x", b"1", XattrFlags::empty()).map_err(Into::into);
        denied("xattr", set(at("status")));
        assert_eq!(names(m, ".scrfs"), NAMES);
        assert_eq!(names(m, ""), ["f"]);
        let long = vec![b'x'; 4097];
        assert!(OpenOptions::new().write(true).open(at("post")).unwrap().write_all(&long).is_err());
    });
}

#[test]
fn an_open_one_is_read_on_from_the_next_worker() {
    both_modes(|m| {
        let mut file = File::open(m.at(".scrfs/status")).unwrap();
        let mut dir = fs::read_dir(m.at(".scrfs")).unwrap();
        let mut post = OpenOptions::new().write(true).open(m.at(".scrfs/post")).unwrap();
        let mut first = [0; 10];
        file.read_exact(&mut first).unwrap();
        replace_worker(m);
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert!(text.as_bytes().starts_with(&first) && text.contains("no datasets"), "{text}");
        assert!(dir.next().is_some());
        post.write_all(b"after it").unwrap();
        assert!(eye(m, "events").contains("after it"));
    });
}

#[test]
fn the_leads_advice_and_what_reaches_it() {
    both_modes(|m| {
        let mut lead = Lead::attach(&m.control(), 1);
        lead.inventory();
        lead.send(&Command::Serve);
        // Answered when that is done: requests are sent from then on.
        lead.inventory();
        let advice =
            Advice { need_checkpoint: false, should_exit: true, begun_us: 1, sealed_us: 2, waited_us: 3 };
        lead.send(&Command::Advise(advice));
        wait_until("the advice", || eye(m, "should_exit") == "1\n");
        assert_eq!(eye(m, "need_checkpoint"), "0\n");
        assert!(matches!(lead.next(), Event::Asked { times: 1 }));
        assert!(eye(m, "status").contains("coordinator 0 of 2"));
        m.shell(0, "echo hello > .scrfs/post");
        assert!(matches!(lead.next(), Event::Posted { text } if text == "message of user 0: hello"));
        // What was advised outlives the worker, and the next lead hears of it, and how often was
        // asked.
        drop(lead);
        let mut lead = Lead::attach(&m.control(), 2);
        assert_eq!(lead.inventory().advice, Some(advice));
        lead.send(&Command::Serve);
        assert!(matches!(lead.next(), Event::Asked { times: 1 }));
    });
}

fn attribute(m: &Mounted, path: &str, name: &str) -> Option<String> {
    let mut value = [0; 100];
    match rustix::fs::getxattr(m.at(path), name, &mut value[..]) {
        Ok(length) => Some(String::from_utf8(value[..length].to_vec()).unwrap()),
        Err(rustix::io::Errno::NODATA) => None,
        Err(error) => panic!("{path} {name}: {error}"),
    }
}

#[test]
fn attributes_tell_what_is_known_of_a_file() {
    both_modes(|m| {
        fs::create_dir(m.at("ck")).unwrap();
        fs::write(m.at("ck/f"), b"bytes").unwrap();
        fs::write(m.at("loose"), b"x").unwrap();
        m.shell(0, "OMPI_COMM_WORLD_RANK=3 bash -c 'echo x > ck/ranked'");
        assert_eq!(attribute(m, "ck/f", "user.scrfs.state").as_deref(), Some("open"));
        assert!(attribute(m, "ck/f", "user.scrfs.node").is_some());
        assert_eq!(attribute(m, "ck/ranked", "user.scrfs.rank").as_deref(), Some("3"));
        assert_eq!(attribute(m, "ck", "user.scrfs.state").as_deref(), Some("open"));
        for (path, name) in [("ck/f", "id"), ("ck/f", "crc"), ("ck/f", "what"), ("loose", "state")] {
            assert_eq!(attribute(m, path, &format!("user.scrfs.{name}")), None, "{path} {name}");
        }
        let set = rustix::fs::setxattr(m.at("ck/f"), "user.scrfs.id", b"1", XattrFlags::empty());
        assert_eq!(set, Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::fs::removexattr(m.at("ck/f"), "user.scrfs.state"), Err(rustix::io::Errno::PERM));
        // What copies attributes does not see them.
        rustix::fs::setxattr(m.at("ck/f"), "user.own", b"1", XattrFlags::empty()).unwrap();
        let mut list = [0_u8; 200];
        let length = rustix::fs::listxattr(m.at("ck/f"), &mut list[..]).unwrap();
        assert_eq!(&list[..length], b"user.own\0");
    });
}

#[test]
fn attributes_of_a_sealed_file() {
    both_modes(|m| {
        let lead = Steady::with_sealed(m);
        assert_eq!(attribute(m, "ck/f", "user.scrfs.id").as_deref(), Some("1"));
        assert_eq!(attribute(m, "ck/f", "user.scrfs.state").as_deref(), Some("protected"));
        let crc = format!("{:08x}", crc32fast::hash(b"bytes"));
        assert_eq!(attribute(m, "ck/f", "user.scrfs.crc"), Some(crc));
        assert_eq!(attribute(m, "ck", "user.scrfs.id").as_deref(), Some("1"));
        assert_eq!(eye(m, "current"), "ck\n");
        lead.end();
    });
}

fn records(m: &Mounted) -> Vec<serde_json::Value> {
    let lines = eye(m, "events");
    let all = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    all.filter_map(|line| line.get("io").cloned()).collect()
}

#[test]
fn records_of_what_is_done_with_files() {
    both_modes(|m| {
        let switch = |on| {
            let answer = client::ask(&m.control(), &Ask::RecordIo(on), Duration::from_secs(10)).unwrap();
            assert_eq!(answer, Answer::Done);
        };
        fs::write(m.at("before"), b"x").unwrap();
        switch(true);
        // The kernel tells of a close later: who opens the file before that shares a record.
        for (count, line) in [(1, "head -c 100000 /dev/zero | tee f"), (2, "cat f"), (3, "cat f")] {
            m.shell(0, &format!("{line} > /dev/null"));
            wait_until("one more", || records(m).len() == count);
        }
        let passthrough = eye(m, "status").contains("passthrough");
        let written = &records(m)[0];
        assert_eq!(
            (&written["path"], &written["opens"], &written["uid"]),
            (&"f".into(), &1.into(), &0.into())
        );
        assert_eq!((&written["bytes_written"], &written["errors"]), (&100_000.into(), &0.into()));
        assert_eq!(written["measured"], if passthrough { "size" } else { "daemon" });
        let read = &records(m)[1];
        let bytes = if passthrough { serde_json::Value::Null } else { 100_000.into() };
        assert_eq!((&read["bytes_read"], &read["bytes_written"]), (&bytes, &0.into()));
        // One record for all who have it open at once.
        let (one, two) = (File::open(m.at("f")).unwrap(), File::open(m.at("f")).unwrap());
        drop(one);
        drop(two);
        wait_until("one more", || records(m).len() == 4);
        assert_eq!(records(m)[3]["opens"], 2);
        // Wanted also from the next worker.
        replace_worker(m);
        fs::write(m.at("g"), b"after").unwrap();
        wait_until("of the next worker", || records(m).iter().any(|record| record["path"] == "g"));
        switch(false);
        let count = records(m).len();
        fs::write(m.at("h"), b"x").unwrap();
        m.shell(0, "true");
        assert_eq!(records(m).len(), count);
    });
}
