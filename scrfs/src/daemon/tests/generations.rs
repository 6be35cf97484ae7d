//! The next generation of a sealed dataset. What the mounted tree does before a change, the tests
//! do.

use super::*;
use crate::control::{FrozenPart, HeldState};
use crate::dataset::Names;

impl Bench {
    pub(super) fn begin(&self, id: u64) -> Result<(), Errno> {
        let (give, outcome) = crossbeam_channel::bounded(1);
        let done = Box::new(move |result| give.send(result).unwrap());
        GlobalRequests::open_generation(self.node.as_ref(), DatasetId(id), done);
        outcome.recv_timeout(WAIT).unwrap()
    }

    pub(super) fn keep(&self, id: u64, file: &str) -> Result<(), Errno> {
        let (give, outcome) = crossbeam_channel::bounded(1);
        let done = Box::new(move |result| give.send(result).unwrap());
        self.node.keep_sealed(DatasetId(id), &path(file), self.number(&format!("ck/{file}")), done);
        outcome.recv_timeout(WAIT).unwrap()
    }

    /// Overwrites a sealed file in place.
    pub(super) fn change(&self, id: u64, file: &str, bytes: &[u8]) {
        self.keep(id, file).unwrap();
        self.node.changing(DatasetId(id), &path(file), Some(7)).unwrap();
        std::fs::write(self.tree.at(&path("ck")).join(file), bytes).unwrap();
    }

    fn remove(&self, id: u64, file: &str) {
        self.node.removing(DatasetId(id), &path(file)).unwrap();
        std::fs::remove_file(self.tree.at(&path("ck")).join(file)).unwrap();
    }

    pub(super) fn in_tree(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.tree.at(&path("ck")).join(file)).ok()
    }

    pub(super) fn told(&self, id: u64) -> Option<Generation> {
        self.tree.inner.lock().generations.get(&DatasetId(id)).cloned()
    }
}

pub(super) fn read(lead: &Lead, id: u64, file: &str) -> String {
    let request = DataRequest::OpenFile { id: DatasetId(id), path: path(file) };
    let mut file = std::fs::File::from(lead.data().descriptor(&request).unwrap());
    let mut text = String::new();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    text
}

pub(super) fn names(files: &[FrozenFile]) -> Vec<String> {
    files.iter().map(|file| file.path.to_string()).collect()
}

impl Lead {
    pub(super) fn changed(&mut self, id: u64) -> bool {
        self.send(Command::AskChanges(DatasetId(id)));
        match self.next() {
            Event::Changes { changed, .. } => changed,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn carry(&mut self, id: u64, dropped: &[&str]) {
        let dropped = dropped.iter().map(|text| path(text)).collect();
        self.send(Command::Carry { id: DatasetId(id), dropped });
        assert_eq!(self.next(), Event::Carried { id: DatasetId(id), result: Ok(()) });
    }

    /// Encodes and commits what was frozen.
    pub(super) fn finish(&mut self, id: u64, part: &FrozenPart, dropped: &[&str]) {
        self.carry(id, dropped);
        let mut files: Vec<FrozenFile> = part.files.iter().chain(&part.carried).cloned().collect();
        let dropped: Names = dropped.iter().map(|name| path(name)).collect();
        let goes = |file: &FrozenFile| part.carried.contains(file) && dropped.cover(&file.path);
        files.retain(|file| !goes(file));
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let part = encode(&mut self.data(), id, &files).unwrap();
        let catalog = catalog(id, self.epoch, "ck", &part);
        self.commit(&catalog).unwrap();
        self.send(Command::Sealed(DatasetId(id)));
    }
}

#[test]
fn names_that_were_removed_begin_nothing_once_their_dataset_is_evicted() {
    let bench = Bench::new();
    bench.write("ck/a", b"a");
    bench.write("ck/b", b"b");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    bench.remove(1, "a");
    lead.send(Command::Evict(DatasetId(1)));
    assert_eq!(lead.next(), Event::Evicted(DatasetId(1)));
    lead.send(Command::LooseAsk { round: 1 });
    assert_eq!(lead.next(), Event::LooseBegun { round: 1, begun: Vec::new() });
}

#[test]
fn the_sealed_bytes_are_whole_until_the_next_generation_is_sealed() {
    let mut bench = Bench::new();
    for (file, bytes) in [("ck/a", "old a"), ("ck/b", "old b"), ("ck/c", "old c")] {
        bench.write(file, bytes.as_bytes());
    }
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    assert!(!lead.changed(1));
    bench.begin(1).unwrap();
    bench.begin(1).unwrap();
    assert!(!lead.changed(1), "nothing was changed yet");
    bench.change(1, "a", b"new a, longer");
    bench.remove(1, "c");
    bench.node.changing(DatasetId(1), &path("n"), Some(3)).unwrap();
    std::fs::write(bench.tree.at(&path("ck/n")), b"n").unwrap();
    for _ in 0..2 {
        assert!(lead.changed(1));
        assert_eq!([read(&lead, 1, "a"), read(&lead, 1, "c")], ["old a", "old c"]);
        assert_eq!(bench.in_tree("a").as_deref(), Some("new a, longer"));
        let held = bench.inventory();
        assert_eq!((held.datasets[0].members.len(), held.datasets[0].listed), (1, true));
        bench.restart();
        let told = bench.told(1).unwrap();
        assert!(told.open);
        assert_eq!((told.removed, told.changed), (vec![path("c")], vec![path("a"), path("n")]));
        lead = bench.serving(lead.epoch + 1);
    }
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    assert_eq!((names(&part.files), names(&part.carried)), (vec!["a".into(), "n".into()], vec!["b".into()]));
    assert_eq!(part.removed, [path("c"), path("a")], "gone, and replaced");
    lead.finish(2, &part, &[]);
    assert!(!lead.changed(2));
    let held = bench.inventory().datasets;
    assert_eq!(held.iter().map(|d| (d.id.0, d.listed)).collect::<Vec<_>>(), [(1, false), (2, true)]);
    assert_eq!([read(&lead, 1, "a"), read(&lead, 1, "c"), read(&lead, 2, "b")], ["old a", "old c", "old b"]);
    lead.send(Command::Evict(DatasetId(1)));
    assert_eq!(lead.next(), Event::Evicted(DatasetId(1)));
    assert_eq!([read(&lead, 2, "a"), read(&lead, 2, "n")], ["new a, longer", "n"]);
    bench.restart();
    assert!(bench.told(2).is_none() && bench.tree.is_sealed("ck"));
}

/// Dataset 1 is flushed still, when programs change in the third generation what they had left
/// alone in the second.
#[test]
fn what_two_generations_share_is_changed_under_neither() {
    let bench = Bench::new();
    for (file, bytes) in [("ck/f", "old f"), ("ck/g", "old g")] {
        bench.write(file, bytes.as_bytes());
    }
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    bench.begin(1).unwrap();
    bench.change(1, "g", b"new g");
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    lead.finish(2, &part, &[]);
    bench.begin(2).unwrap();
    bench.change(2, "f", b"third");
    assert_eq!(bench.in_tree("f").as_deref(), Some("third"));
    assert_eq!([read(&lead, 2, "f"), read(&lead, 2, "g")], ["old f", "new g"]);
    assert_eq!([read(&lead, 1, "f"), read(&lead, 1, "g")], ["old f", "old g"]);
}

#[cfg(feature = "faults")]
#[test]
fn who_cannot_begin_a_generation_for_lack_of_room_is_told_so() {
    use crate::faults::{Fault, arm};

    let bench = Bench::new();
    bench.write("ck/f", b"old");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    for (found, told) in
        [(libc::ENOSPC, libc::ENOSPC), (libc::EDQUOT, libc::ENOSPC), (libc::EPERM, libc::EIO)]
    {
        arm(1, Fault::Error(found));
        assert_eq!(bench.node.open_for(&make("ck/sub")), Err(told));
        arm(0, Fault::Death);
    }
    assert!(bench.events().contains("its next generation cannot begin"));
    assert_eq!(bench.node.open_for(&make("ck/sub")), Ok(()));
}

/// What is at its name may be the former's bytes, of the same size.
#[cfg(feature = "faults")]
#[test]
fn a_new_worker_shows_no_dataset_whose_former_generation_cannot_leave() {
    use crate::faults::{Fault, arm};

    let mut shown = 0;
    for points in 1..=30 {
        let bench = Bench::new();
        bench.write("ck/f", b"old");
        let mut lead = bench.serving(1);
        lead.seal(1, "ck");
        bench.begin(1).unwrap();
        bench.change(1, "f", b"new");
        let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
        lead.carry(2, &[]);
        let newer = catalog(2, 1, "ck", &encode(&mut lead.data(), 2, &part.files).unwrap());
        arm(points, Fault::Error(libc::EIO));
        bench.node.commit(newer);
        arm(0, Fault::Death);
        let life = || bench.node.state.lock().table.datasets[&DatasetId(2)].life.clone();
        let listed = || bench.tree.inner.lock().sealed[&b"ck"[..]].catalog().id;
        if !life().is_complete() || life().is_listed() {
            continue;
        }
        // As a new worker does, whose own try fails too, at its first step.
        arm(1, Fault::Error(libc::EIO));
        bench.node.list_again(DatasetId(2));
        arm(0, Fault::Death);
        assert!(!life().is_listed() && listed() == DatasetId(1), "at {points}");
        bench.node.list_again(DatasetId(2));
        assert_eq!(listed(), DatasetId(2), "at {points}");
        shown += 1;
    }
    assert!(shown > 0);
}

#[cfg(feature = "faults")]
#[test]
fn a_dataset_stays_sealed_at_whatever_step_the_begin_of_its_next_generation_fails() {
    use crate::faults::{Fault, arm};

    for points in 1..=24 {
        let mut bench = Bench::new();
        bench.write("ck/f", b"old");
        let mut lead = bench.serving(1);
        lead.seal(1, "ck");
        arm(points, Fault::Error(libc::EIO));
        drop(bench.node.change(DatasetId(1), bench.node.presentations()));
        arm(0, Fault::Death);
        bench
            .node
            .change(DatasetId(1), bench.node.presentations())
            .unwrap_or_else(|error| panic!("at {points}: {error}"));
        assert_eq!(read(&lead, 1, "f"), "old", "at {points}");
        drop(lead);
        bench.restart();
        assert!(bench.tree.is_sealed("ck") && bench.told(1).is_some(), "at {points}");
    }
}

/// Dataset 2 is sealed over dataset 1, which stays: its flush has not ended.
pub(super) fn seal_over(bench: &Bench, lead: &mut Lead) {
    lead.seal(1, "ck");
    bench.begin(1).unwrap();
    bench.change(1, "f", b"new");
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    lead.finish(2, &part, &[]);
    assert!(!lead.changed(2), "that it is sealed was heard");
}

#[test]
fn a_removal_takes_the_generation_before_too() {
    let mut bench = Bench::new();
    for file in ["ck/f", "other/f"] {
        bench.write(file, b"old");
    }
    let mut lead = bench.serving(1);
    lead.seal(3, "other");
    seal_over(&bench, &mut lead);
    lead.remove_directory("ck");
    assert_eq!(lead.next(), Event::Removed(DatasetId(1)));
    assert_eq!(lead.next(), Event::Removed(DatasetId(2)));
    assert_eq!(lead.next(), Event::DirApplied { round: 1, results: vec![0] });
    let held = |bench: &Bench| bench.inventory().datasets.iter().map(|held| held.id.0).collect::<Vec<_>>();
    assert_eq!(held(&bench), [3]);
    let record = |id: u64| bench.control().join(format!("dataset.{id}.scrinfo"));
    until("the removal", || !record(1).exists() && !record(2).exists());
    bench.restart();
    assert_eq!(held(&bench), [3]);
}

#[test]
fn a_restart_gives_back_what_was_sealed() {
    let mut bench = Bench::new();
    bench.write("ck/sub/a", b"old");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    bench.begin(1).unwrap();
    bench.change(1, "sub/a", b"half-written");
    // A seal that was begun is in doubt no more at a restart.
    lead.freeze_over(2, "ck", Some(1)).unwrap();
    bench.restart();
    let mut lead = bench.lead(2, Start::Restart);
    let held = lead.inventory().datasets;
    assert_eq!(held.iter().map(|d| d.state).collect::<Vec<_>>(), [HeldState::Complete, HeldState::Frozen]);
    assert_eq!(lead.verify(DatasetId(1)), [(Member(0), [None, None])]);
    lead.send(Command::Present { datasets: vec![DatasetId(1)] });
    assert_eq!(lead.next(), Event::Presented { result: Ok(()) });
    assert_eq!(bench.in_tree("sub/a").as_deref(), Some("old"));
    lead.send(Command::Serve);
    assert!(!lead.changed(1));
    bench.restart();
    assert!(bench.told(1).is_none(), "what was changed is forgotten");
}

#[test]
fn what_others_changed_leaves_the_tree_with_the_seal() {
    let bench = Bench::new();
    for file in ["ck/a", "ck/b", "ck/sub/c"] {
        bench.write(file, file.as_bytes());
    }
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    let refused = lead.freeze_over(2, "ck", None).unwrap_err();
    assert!(refused.contains("dataset 1"), "{refused}");
    let part = lead.freeze_over(3, "ck", Some(1)).unwrap();
    assert_eq!(names(&part.carried), ["a", "b", "sub/c"]);
    lead.send(Command::Drop { id: DatasetId(3), reason: "try again".into() });
    lead.next();
    assert_eq!(bench.in_tree("b").as_deref(), Some("ck/b"), "a failed seal leaves all as it was");
    assert!(bench.told(1).unwrap().open && !bench.tree.is_frozen("ck"));
    let part = lead.freeze_over(4, "ck", Some(1)).unwrap();
    lead.finish(4, &part, &["b", "sub"]);
    assert_eq!([bench.in_tree("a"), bench.in_tree("b")], [Some("ck/a".to_owned()), None]);
    assert!(!bench.tree.at(&path("ck/sub")).exists());
    assert_eq!(read(&lead, 1, "sub/c"), "ck/sub/c");
}

#[test]
fn wrong_sealed_bytes_are_not_carried_on() {
    let bench = Bench::new();
    for file in ["ck/a", "ck/b"] {
        bench.write(file, b"right");
    }
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    for file in ["a", "b"] {
        std::fs::write(bench.tree.at(&path("ck")).join(file), b"wrong").unwrap();
    }
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    lead.carry(2, &[]);
    let error = encode(&mut lead.data(), 2, &part.carried).unwrap_err();
    assert!(error.contains("CRC"), "{error}");
    lead.send(Command::Drop { id: DatasetId(2), reason: "wrong bytes".into() });
    lead.next();
    // On a cache that shares blocks the bytes are not read when they are kept.
    if bench.keep(1, "a").is_err() {
        assert!(bench.events().contains("CRC"), "{}", bench.events());
        assert!(bench.inventory().datasets[0].members.is_empty(), "as missing: a restart rebuilds it");
    }
}

#[test]
fn markers_after_a_change_ask_for_the_next_generation() {
    let bench = Bench::new();
    bench.write("ck/f", b"1");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    // What other nodes have changed by then the lead does not know yet.
    let asks = |lead: &mut Lead| {
        let again = bench.marker("ck", Caller::default());
        let Event::Marker { request, base: Some(DatasetId(1)), .. } = lead.next() else { panic!() };
        lead.send(Command::Sealed(DatasetId(1)));
        assert!(again.try_recv().is_err(), "not by a word of the seal before");
        (request, again)
    };
    let (request, again) = asks(&mut lead);
    assert!(!lead.changed(1));
    lead.sealed(request, 1);
    assert_eq!(again.recv_timeout(WAIT).unwrap(), Ok(()), "nothing was changed");
    bench.begin(1).unwrap();
    bench.change(1, "f", b"2");
    let (request, next) = asks(&mut lead);
    let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
    assert!(next.try_recv().is_err(), "not by the seal of the generation before");
    lead.finish(2, &part, &[]);
    lead.sealed(request, 2);
    assert_eq!(next.recv_timeout(WAIT).unwrap(), Ok(()));
}

#[test]
fn a_generation_in_which_nothing_was_changed_is_sealed_already() {
    let bench = Bench::new();
    bench.write("ck/f", b"1");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    bench.begin(1).unwrap();
    bench.node.changing(DatasetId(1), &path("new"), None).unwrap();
    std::fs::write(bench.tree.at(&path("ck/new")), b"made").unwrap();
    std::fs::remove_file(bench.tree.at(&path("ck/new"))).unwrap();
    let marker = bench.marker("ck", Caller::default());
    let request = lead.marker("ck", false);
    assert!(!lead.changed(1));
    lead.sealed(request, 1);
    assert_eq!(marker.recv_timeout(WAIT).unwrap(), Ok(()));
}

#[test]
fn every_lead_hears_what_is_being_overwritten() {
    let bench = Bench::new();
    bench.write("ck/f", b"1");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    bench.begin(1).unwrap();
    let told = |lead: &mut Lead| match lead.link.events.receive(Some(WAIT)).unwrap() {
        Some(Event::Overwritten(id)) => id,
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&mut lead), DatasetId(1));
    assert_eq!(told(&mut bench.serving(2)), DatasetId(1));
}

#[cfg(feature = "faults")]
impl Bench {
    /// Keeps sealed file `a` of dataset 1, and has `what` done at the `step`-th point of that in
    /// another thread, whose end is waited for if it does not wait for this one. `None` where there
    /// is no such point.
    fn keep_interrupted(&self, step: u32, what: impl FnOnce() + Send + 'static) -> Option<Result<(), Errno>> {
        let (give, over) = crossbeam_channel::bounded(1);
        let interruption = move || {
            let (end, wait) = crossbeam_channel::bounded(1);
            let done = std::thread::spawn(move || {
                what();
                let _ = end.send(());
            });
            let _ = wait.recv_timeout(Duration::from_millis(500));
            give.send(done).unwrap();
        };
        crate::faults::interrupt("generation", step, Box::new(interruption));
        let kept = self.node.keep_sealed_file(DatasetId(1), &path("a"), self.number("ck/a"));
        if crate::faults::uninterrupted().is_some() {
            return None;
        }
        over.recv_timeout(WAIT).unwrap().join().unwrap();
        Some(kept)
    }

    fn own(&self, below: &str) -> PathBuf {
        self.directory.path().join("cache/user/scr.j1/dataset.1").join(below)
    }
}

/// At each step of the copy that a program waits for.
#[cfg(feature = "faults")]
#[test]
fn a_restart_in_the_middle_of_a_copy_leaves_the_sealed_dataset_whole() {
    for step in 1.. {
        let mut bench = Bench::new();
        for file in ["ck/a", "ck/b"] {
            bench.write(file, b"sealed");
        }
        let mut lead = bench.serving(1);
        lead.seal(1, "ck");
        bench.begin(1).unwrap();
        let node = Arc::clone(&bench.node);
        let Some(kept) = bench.keep_interrupted(step, move || node.present(&[DatasetId(1)])) else {
            assert!(step > 2);
            return;
        };
        assert!(!bench.own("aside").exists(), "step {step}");
        assert!(matches!(kept, Ok(()) | Err(Errno(libc::EAGAIN))), "step {step}: {kept:?}");
        let whole = |bench: &Bench| {
            let files = ["a", "b"].map(|file| bench.in_tree(file));
            assert_eq!(files, ["sealed"; 2].map(|text| Some(text.to_owned())), "step {step}");
            assert!(bench.tree.is_sealed("ck"), "step {step}");
        };
        whole(&bench);
        bench.restart();
        whole(&bench);
        bench.begin(1).unwrap();
        bench.change(1, "a", b"new");
        assert_eq!(std::fs::read(bench.own("aside/a")).unwrap(), b"sealed", "step {step}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn a_copy_whose_dataset_is_evicted_meanwhile_is_asked_for_again() {
    let bench = Bench::new();
    for file in ["ck/a", "ck/b"] {
        bench.write(file, b"sealed");
    }
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    bench.begin(1).unwrap();
    bench.change(1, "b", b"new");
    let kept = bench.keep_interrupted(1, move || {
        let part = lead.freeze_over(2, "ck", Some(1)).unwrap();
        lead.finish(2, &part, &[]);
        assert!(!lead.changed(2));
        lead.send(Command::Evict(DatasetId(1)));
        assert_eq!(lead.next(), Event::Evicted(DatasetId(1)));
    });
    assert_eq!(kept, Some(Err(Errno(libc::EAGAIN))));
    assert!(!bench.own("").exists());
    bench.begin(2).unwrap();
    bench.change(2, "a", b"newer");
    assert_eq!(bench.in_tree("a").as_deref(), Some("newer"));
}

#[test]
fn what_was_asked_before_a_restart_begins_no_generation_after_it() {
    let bench = Bench::new();
    bench.write("ck/a", b"sealed");
    let mut lead = bench.serving(1);
    lead.seal(1, "ck");
    assert!(!lead.changed(1));
    let (release, busy) = crossbeam_channel::bounded::<()>(1);
    bench.node.lanes.generations.run(move || busy.recv().unwrap());
    let (give, outcome) = crossbeam_channel::bounded(1);
    let done = Box::new(move |result| give.send(result).unwrap());
    GlobalRequests::open_generation(bench.node.as_ref(), DatasetId(1), done);
    bench.node.present(&[DatasetId(1)]);
    release.send(()).unwrap();
    assert_eq!(outcome.recv_timeout(WAIT).unwrap(), Err(Errno(libc::EINTR)));
    assert!(bench.told(1).is_none());
    bench.begin(1).unwrap();
}
