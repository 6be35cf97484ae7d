//! Workers die while a program waits for the lead: a scripted one, over the real socket.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scrfs::control::client::{DataConnection, Link};
use scrfs::control::{Command, DataReply, DataRequest, Event, Inventory, MemberPart, Role, Settings, Start};
use scrfs::dataset::{Catalog, EntryKind, Layout, MemberPlace, Scheme};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank, RequestId};

use super::{Mounted, in_namespace, wait_until};

const WAIT: Duration = Duration::from_secs(10);
const ID: DatasetId = DatasetId(1);

struct Lead {
    link: Link,
    epoch: Epoch,
    control: PathBuf,
}

impl Lead {
    /// Attaches as soon as a daemon listens.
    fn attach(m: &Mounted, epoch: u64) -> Self {
        let settings = Settings {
            prefix: m.dir.path().join("prefix").into_os_string().into_encoded_bytes(),
            user: "root".into(),
            job_id: "t".into(),
            coordinator_wait_ms: 10_000,
            seal_timeout_ms: 10_000,
            cache_size: 2,
            scheme: Scheme::Xor,
            set_size: 8,
            hop_distance: 1,
            flush_every: 0,
            fetch: true,
            distribute: true,
            list_max: 1000,
            block_bytes: 65536,
        };
        let (hosts, start) = (vec!["n0".into(), "n1".into()], Start::Attach);
        let role = Role::Coordinator { epoch: Epoch(epoch), rank: NodeRank(0), hosts, start, settings };
        let until = Instant::now() + WAIT;
        loop {
            match Link::connect(&m.control(), role.clone(), WAIT) {
                Ok(link) => return Self { link, epoch: Epoch(epoch), control: m.control() },
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&mut self, command: &Command) {
        self.link.commands.send(command).unwrap();
    }

    fn next(&mut self) -> Event {
        self.link.events.receive(Some(WAIT)).unwrap().expect("an event within the time")
    }

    fn inventory(&mut self) -> Inventory {
        self.send(&Command::Inventory);
        match self.next() {
            Event::Inventory(inventory) => *inventory,
            other => panic!("{other:?}"),
        }
    }

    /// Takes the one request of a program through its round, up to `steps` answers of the daemon.
    fn round(&mut self, steps: u32) -> RequestId {
        let (request, op) = match self.next() {
            Event::DirRequest { request, op } => (request, op),
            other => panic!("{other:?}"),
        };
        if steps > 0 {
            self.send(&Command::DirPrepare { round: 1, ops: vec![(request, op)] });
            assert!(matches!(self.next(), Event::DirPrepared { votes, .. } if votes == [0]));
        }
        if steps > 1 {
            self.send(&Command::DirApply { round: 1, verdicts: vec![0] });
            assert!(matches!(self.next(), Event::DirApplied { results, .. } if results == [0]));
        }
        request
    }

    fn finish(&mut self, request: RequestId, errno: i32) {
        self.send(&Command::DirFinish { results: vec![(request, errno)] });
    }
}

fn kill_worker(m: &Mounted) {
    let worker = m.pid("worker.lock");
    kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
    wait_until("a new worker", || m.pid("worker.lock") != worker);
}

/// A program, in a process that can be waited for while the mount does not answer.
fn program(m: &Mounted, script: &str) -> JoinHandle<bool> {
    let mut command = std::process::Command::new("timeout");
    command.args(["-k", "2", "60", "bash", "-ec", script]).current_dir(&m.mount_point);
    std::thread::spawn(move || command.status().unwrap().success())
}

#[test]
fn a_request_is_decided_once() {
    in_namespace(&[], |m| {
        // Asked; voted for; applied here and perhaps elsewhere.
        for steps in 0..3 {
            let epoch = 10 * u64::from(steps) + 1;
            let mut lead = Lead::attach(m, epoch);
            lead.inventory();
            lead.send(&Command::Serve);
            let mkdir = program(m, &format!("mkdir d{steps}; ! mkdir d{steps} 2>/dev/null"));
            let request = lead.round(steps);
            kill_worker(m);

            let mut lead = Lead::attach(m, epoch + 1);
            let unfinished = lead.inventory().unfinished;
            if steps == 2 {
                assert_eq!(unfinished.len(), 1);
                lead.send(&Command::DirReplay { round: 1, ops: unfinished });
                assert!(matches!(lead.next(), Event::DirApplied { results, .. } if results == [0]));
                lead.finish(request, 0);
                lead.send(&Command::Serve);
            } else {
                assert!(unfinished.is_empty());
                lead.send(&Command::Serve);
                assert_eq!(lead.round(2), request, "asked again under its id");
                lead.finish(request, 0);
            }
            // The second mkdir is another request, which fails before the lead is asked.
            assert!(mkdir.join().unwrap(), "steps {steps}");
            assert!(m.at(&format!("d{steps}")).is_dir());
        }
    });
}

#[test]
fn a_waiting_marker_goes_on_waiting() {
    in_namespace(&[], |m| {
        fs::create_dir(m.at("ck")).unwrap();
        fs::write(m.at("ck/f"), b"data").unwrap();
        let mut lead = Lead::attach(m, 1);
        lead.inventory();
        lead.send(&Command::Serve);
        let touch = program(m, "touch ck/.complete");
        assert!(matches!(lead.next(), Event::Marker { name } if name == b"ck"));
        kill_worker(m);
        let mut lead = Lead::attach(m, 2);
        lead.inventory();
        lead.send(&Command::Serve);
        assert!(matches!(lead.next(), Event::Marker { name } if name == b"ck"));
        lead.send(&Command::Freeze { id: ID, name: b"ck".to_vec(), member: Member(0) });
        let Event::Frozen { result: Ok(files), .. } = lead.next() else { panic!("not frozen") };
        assert_eq!(files.len(), 1);
        kill_worker(m);
        // What was frozen in an earlier epoch is dropped while settling; the marker is sent again.
        let mut lead = Lead::attach(m, 3);
        assert_eq!(lead.inventory().datasets.len(), 1);
        lead.send(&Command::Drop { id: ID, reason: "a test".into() });
        assert!(matches!(lead.next(), Event::Dropped { .. }));
        lead.send(&Command::Serve);
        assert!(matches!(lead.next(), Event::Marker { name } if name == b"ck"));
        let id = DatasetId(2);
        lead.send(&Command::Freeze { id, name: b"ck".to_vec(), member: Member(0) });
        assert!(matches!(lead.next(), Event::Frozen { result: Ok(_), .. }));
        let catalog = catalog(id, lead.epoch, &encode(&lead, id));
        lead.send(&Command::Commit(Box::new(catalog)));
        assert!(matches!(lead.next(), Event::Committed { result: Ok(()), .. }));
        assert!(!touch.is_finished(), "all members' records are not known yet");
        kill_worker(m);
        let mut lead = Lead::attach(m, 4);
        lead.inventory();
        lead.send(&Command::Sealed(id));
        lead.send(&Command::Serve);
        assert!(touch.join().unwrap(), "the marker's close succeeds");
        assert_eq!(fs::read(m.at("ck/f")).unwrap(), b"data");

        // Names that are only in the catalog, and names that were removed, outlive a worker too.
        let number = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(m.at(name)).unwrap());
        let before = (number("ck"), number("ck/f"));
        fs::remove_file(m.at("ck/.complete")).unwrap();
        kill_worker(m);
        assert_eq!((number("ck"), number("ck/f")), before);
        assert!(!m.at("ck/.complete").exists(), "removed before");
        drop(lead);
    });
}

fn encode(lead: &Lead, id: DatasetId) -> MemberPart {
    let mut data = DataConnection::connect(&lead.control, lead.epoch, WAIT).unwrap();
    let path = scrfs::path::RelPath::new("f").unwrap();
    let fd = data.descriptor(&DataRequest::OpenFile { id, path }).unwrap();
    let mut bytes = Vec::new();
    fs::File::from(fd).read_to_end(&mut bytes).unwrap();
    let crcs = vec![crc32fast::hash(&bytes)];
    let name = "1_of_2_in_0.xor".to_owned();
    let create = DataRequest::CreateRedundancy { id, member: Member(0), name: name.clone() };
    fs::File::from(data.descriptor(&create).unwrap()).write_all(b"parity").unwrap();
    let redundancy = Some((name, 6, crc32fast::hash(b"parity")));
    let set = vec![Member(0), Member(1)];
    let finish = DataRequest::FinishMember { id, member: Member(0), crcs, redundancy, set, members: 2 };
    match data.request(&finish).unwrap() {
        DataReply::Part(part) => *part,
        other => panic!("{other:?}"),
    }
}

fn catalog(id: DatasetId, epoch: Epoch, part: &MemberPart) -> Catalog {
    let bytes = part.entries.iter().map(|entry| match &entry.kind {
        EntryKind::File(copy) => copy.size,
        _ => 0,
    });
    let place = |host: &str, files, bytes| MemberPlace { host: host.into(), files, bytes };
    let members = vec![place("n0", 1, bytes.sum()), place("n1", 0, 0)];
    let mut catalog = Catalog {
        id,
        epoch,
        revision: 0,
        name: b"ck".to_vec(),
        created_us: 1,
        user: "root".into(),
        job_id: "t".into(),
        layout: Layout { scheme: Scheme::Xor, members, sets: vec![vec![Member(0), Member(1)]] },
        entries: part.entries.clone(),
    };
    catalog.sort();
    catalog
}
