//! A lead of a job of two nodes of which one is real, over the daemon's socket: step by step, or
//! steadily.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use scrfs::control::client::{ClientError, DataConnection, Link};
use scrfs::control::{
    Command, DataReply, DataRequest, DirOp, Event, Inventory, MarkerOutcome, MemberPart, Role, Settings,
    Start,
};
use scrfs::daemon::CacheStore;
use scrfs::dataset::{Catalog, EntryKind, Layout, MemberPlace, Protection, Protections, Scheme};
use scrfs::ids::{DatasetId, Epoch, Member, NodeRank, RequestId};

use super::Mounted;

const WAIT: Duration = Duration::from_mins(1);
/// How long the steady lead waits before it looks what it is told.
const TURN: Duration = Duration::from_millis(50);

/// Where the mount has a second store, that is where the job's datasets go.
fn protections(control: &Path) -> Protections {
    let recorded = scrfs::mount::stores::recorded(control);
    let second = recorded.into_iter().filter(|store| store.used && !store.primary);
    let bytes = |store: CacheStore| store.base.into_os_string().into_encoded_bytes();
    let usual = Protection::by(Scheme::Xor);
    let named = |store| Protection { store: Some(bytes(store)), ..usual.clone() };
    Protections { descriptors: second.map(named).collect(), usual }
}

/// A lead whose steps a test says.
pub(crate) struct Lead {
    link: Link,
    pub(crate) epoch: Epoch,
    control: PathBuf,
}

impl Lead {
    fn connect(control: &Path, epoch: u64) -> Result<Self, ClientError> {
        let settings = Settings {
            prefix: control.join("prefix").into_os_string().into_encoded_bytes(),
            user: "root".into(),
            job_id: "t".into(),
            checkpoint_path: None,
            coordinator_wait_ms: 20_000,
            seal_timeout_ms: 20_000,
            cache_size: 2,
            cache_bytes: 0,
            protections: protections(control),
            enable: true,
            flush_every: 0,
            scrub_interval_ms: 0,
            fetch: true,
            distribute: true,
            list_max: 1000,
            jobs: scrfs::control::JobRules { block_bytes: 65536, encode_threads: 1 },
            sealing: scrfs::control::SealRules::default(),
            loose: scrfs::control::LooseRules::default(),
            restart: scrfs::control::RestartRules::default(),
            advice: scrfs::control::AdviceRules::default(),
        };
        let (hosts, start, epoch) = (vec!["n0".into(), "n1".into()], Start::Attach, Epoch(epoch));
        let role = Role::Coordinator { epoch, rank: NodeRank(0), hosts, start, settings: Box::new(settings) };
        let link = Link::connect(control, role, WAIT)?;
        Ok(Self { link, epoch, control: control.to_owned() })
    }

    /// Attaches as soon as a daemon listens.
    pub(crate) fn attach(control: &Path, epoch: u64) -> Self {
        let until = Instant::now() + WAIT;
        loop {
            match Self::connect(control, epoch) {
                Ok(lead) => return lead,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn send(&mut self, command: &Command) {
        self.link.commands.send(command).unwrap();
    }

    /// The next event that a lead acts on.
    pub(crate) fn next(&mut self) -> Event {
        loop {
            match self.link.events.receive(Some(WAIT)).unwrap().expect("an event within the time") {
                Event::Overwritten(_) => {}
                event => return event,
            }
        }
    }

    /// The next event, which tells of a marker of `name`: its request.
    pub(crate) fn marker(&mut self, name: &str) -> RequestId {
        match self.next() {
            Event::Marker { request, name: of, .. } if of == name.as_bytes() => request,
            other => panic!("{other:?}"),
        }
    }

    /// Dataset `id` is complete everywhere, and this marker of it is answered.
    pub(crate) fn sealed(&mut self, id: DatasetId, request: RequestId) {
        self.send(&Command::Sealed(id));
        self.send(&end(b"ck", request, id));
    }

    pub(crate) fn inventory(&mut self) -> Inventory {
        self.send(&Command::Inventory);
        match self.next() {
            Event::Inventory(inventory) => *inventory,
            other => panic!("{other:?}"),
        }
    }

    /// Takes the one request of a program through its round, up to `steps` answers of the daemon.
    pub(crate) fn round(&mut self, steps: u32) -> RequestId {
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

    pub(crate) fn finish(&mut self, request: RequestId, errno: i32) {
        self.send(&Command::DirFinish { results: vec![(request, errno)] });
    }
}

/// Does a member's part of the encoding of a dataset with one file.
pub(crate) fn encode(lead: &Lead, id: DatasetId, files: &[&str]) -> MemberPart {
    let mut data = DataConnection::connect(&lead.control, lead.epoch, WAIT).unwrap();
    let mut crc = |file: &str| {
        let path = scrfs::path::RelPath::new(file).unwrap();
        let fd = data.descriptor(&DataRequest::OpenFile { id, path }).unwrap();
        let mut bytes = Vec::new();
        fs::File::from(fd).read_to_end(&mut bytes).unwrap();
        crc32fast::hash(&bytes)
    };
    let crcs = files.iter().map(|file| crc(file)).collect();
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

/// The catalog of a dataset that has that part only.
pub(crate) fn catalog(id: DatasetId, name: &[u8], epoch: Epoch, part: &MemberPart) -> Catalog {
    let bytes = part.entries.iter().map(|entry| match &entry.kind {
        EntryKind::File(copy) => copy.size,
        _ => 0,
    });
    let place = |host: &str, files, bytes| MemberPlace { host: host.into(), files, bytes, taken: None };
    let files = part.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File(_))).count();
    let members = vec![place("n0", files as u64, bytes.sum()), place("n1", 0, 0)];
    let mut catalog = Catalog {
        id,
        epoch,
        revision: 0,
        name: name.to_vec(),
        created_us: 1,
        user: "root".into(),
        job_id: "t".into(),
        layout: Layout {
            encoding: 0,
            protection: Protection::by(Scheme::Xor),
            members,
            sets: vec![vec![Member(0), Member(1)]],
        },
        entries: part.entries.clone(),
    };
    catalog.sort();
    catalog
}

/// A lead that attaches to one worker after the other and serves rounds; it seals only when it is
/// told to.
pub(crate) struct Steady {
    orders: Arc<Orders>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Orders {
    seal: AtomicBool,
    end: AtomicBool,
    rounds: AtomicU64,
}

impl Steady {
    /// Returns when it is attached.
    pub(crate) fn start(control: &Path) -> Self {
        let (orders, path) = (Arc::new(Orders::default()), control.to_owned());
        let mut session = Some(Session::of(Lead::attach(control, 1)));
        let told = Arc::clone(&orders);
        let thread = std::thread::spawn(move || {
            let mut epoch = 1;
            while !told.end.load(Ordering::Relaxed) {
                // An error is a worker's death.
                let _ = session.take().map(|session| session.serve(&told));
                epoch += 1;
                match Lead::connect(&path, epoch) {
                    Ok(lead) => session = Some(Session::of(lead)),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { orders, thread }
    }

    /// With the sealed dataset `ck`, which has one file, `f`.
    pub(crate) fn with_sealed(m: &Mounted) -> Self {
        let lead = Self::start(&m.control());
        lead.seal();
        fs::create_dir(m.at("ck")).unwrap();
        fs::write(m.at("ck/f"), b"bytes").unwrap();
        fs::write(m.at("ck/.complete"), b"").unwrap();
        lead
    }

    /// From now on it seals.
    pub(crate) fn seal(&self) {
        self.orders.seal.store(true, Ordering::Relaxed);
    }

    /// Ends it; how many rounds it has led.
    pub(crate) fn end(self) -> u64 {
        self.orders.end.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.orders.rounds.load(Ordering::Relaxed)
    }
}

/// A steady lead's time with one worker.
struct Session {
    lead: Lead,
    /// What came while something else was waited for.
    later: VecDeque<Event>,
    round: u64,
    marker: Option<(RequestId, Vec<u8>)>,
}

impl Session {
    fn of(lead: Lead) -> Self {
        Self { lead, later: VecDeque::new(), round: 0, marker: None }
    }

    fn serve(mut self, orders: &Orders) -> Result<(), ClientError> {
        self.lead.link.commands.send(&Command::Inventory)?;
        let found = self.answer(|event| match event {
            Event::Inventory(inventory) => Ok(inventory),
            other => Err(other),
        })?;
        if !found.unfinished.is_empty() {
            self.round += 1;
            let requests = found.unfinished.iter().map(|(request, _)| *request).collect();
            self.lead.link.commands.send(&Command::DirReplay { round: self.round, ops: found.unfinished })?;
            self.finish(requests)?;
        }
        self.lead.link.commands.send(&Command::Serve)?;
        while !orders.end.load(Ordering::Relaxed) {
            let event = match self.later.pop_front() {
                Some(event) => Some(event),
                None => self.lead.link.events.receive(Some(TURN))?,
            };
            match event {
                Some(Event::DirRequest { request, op }) => {
                    self.lead_round(request, op)?;
                    orders.rounds.fetch_add(1, Ordering::Relaxed);
                }
                Some(Event::Marker { request, name, .. }) => self.marker = Some((request, name)),
                _ => {}
            }
            if orders.seal.load(Ordering::Relaxed)
                && let Some((request, name)) = self.marker.take()
            {
                self.seal(request, &name)?;
            }
        }
        Ok(())
    }

    /// The first event that `pick` takes.
    fn answer<T>(&mut self, pick: impl Fn(Event) -> Result<T, Event>) -> Result<T, ClientError> {
        let until = Instant::now() + WAIT;
        loop {
            assert!(Instant::now() < until, "the daemon does not answer its lead");
            match self.lead.link.events.receive(Some(TURN))?.map(&pick) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(other)) => self.later.push_back(other),
                None => {}
            }
        }
    }

    fn lead_round(&mut self, request: RequestId, op: DirOp) -> Result<(), ClientError> {
        self.round += 1;
        let round = self.round;
        self.lead.link.commands.send(&Command::DirPrepare { round, ops: vec![(request, op)] })?;
        let verdicts = self.answer(|event| match event {
            Event::DirPrepared { votes, .. } => Ok(votes),
            other => Err(other),
        })?;
        self.lead.link.commands.send(&Command::DirApply { round, verdicts })?;
        self.finish(vec![request])
    }

    fn finish(&mut self, requests: Vec<RequestId>) -> Result<(), ClientError> {
        let results = self.answer(|event| match event {
            Event::DirApplied { results, .. } => Ok(results),
            other => Err(other),
        })?;
        let results = requests.into_iter().zip(results).collect();
        self.lead.link.commands.send(&Command::DirFinish { results })
    }

    /// A dataset with one file, named `f`.
    fn seal(&mut self, request: RequestId, name: &[u8]) -> Result<(), ClientError> {
        let id = DatasetId(1);
        let freeze = Command::Freeze { id, name: name.to_vec(), member: Member(0), base: None };
        self.lead.link.commands.send(&freeze)?;
        let part = self.answer(|event| match event {
            Event::Frozen { result, .. } => Ok(result),
            other => Err(other),
        })?;
        assert_eq!(part.map(|part| part.files.len()), Ok(1));
        let catalog = catalog(id, name, self.lead.epoch, &encode(&self.lead, id, &["f"]));
        self.lead.link.commands.send(&Command::Commit(Arc::new(catalog)))?;
        let result = self.answer(|event| match event {
            Event::Committed { result, .. } => Ok(result),
            other => Err(other),
        })?;
        assert_eq!(result, Ok(()));
        self.lead.link.commands.send(&Command::Sealed(id))?;
        self.lead.link.commands.send(&end(name, request, id))
    }
}

fn end(name: &[u8], request: RequestId, id: DatasetId) -> Command {
    let outcome = MarkerOutcome::Sealed(id);
    Command::MarkersEnd { name: name.to_vec(), requests: vec![request], outcome }
}
