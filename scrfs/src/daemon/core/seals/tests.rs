//! What every input does to a seal at every stage, and that no order of inputs leaves a name taken,
//! a dataset frozen for nothing, or a promise forgotten.

use std::collections::BTreeSet;

use super::*;

const ID: DatasetId = DatasetId(5);
const NAME: &[u8] = b"ck";

impl Seals {
    fn at(stage: &str) -> Self {
        let stage = match stage {
            "none" => return Self::default(),
            "ordered" => Stage::Ordered,
            "freezing" => Stage::Freezing,
            "thawing" => Stage::Thawing,
            "frozen" => Stage::Frozen,
            "failed" => Stage::Failed,
            other => panic!("{other}"),
        };
        Self(BTreeMap::from([(ID, Seal { name: NAME.to_vec(), stage })]))
    }

    fn stage(&self) -> &'static str {
        match self.0.get(&ID).map(|seal| seal.stage) {
            None => "none",
            Some(Stage::Ordered) => "ordered",
            Some(Stage::Freezing) => "freezing",
            Some(Stage::Thawing) => "thawing",
            Some(Stage::Frozen) => "frozen",
            Some(Stage::Failed) => "failed",
        }
    }

    /// What the input answers.
    fn put(&mut self, input: &str) -> &'static str {
        let told = |told: bool| if told { "told" } else { "" };
        match input {
            "ordered" => self.ordered(ID, NAME).map_or("refused", |()| ""),
            "begins" => self.begins(ID).map_or("given up", |()| ""),
            "refused" => told(self.refused(ID)),
            "ends frozen" => told(self.ended(ID, true)),
            "ends not frozen" => told(self.ended(ID, false)),
            "dropped" => self.dropped(ID).map_or("", |name| if name == NAME { "named" } else { "?" }),
            "sealed" => {
                self.sealed(ID);
                ""
            }
            "lead gone" => {
                self.lead_gone();
                ""
            }
            other => panic!("{other}"),
        }
    }
}

/// The cells of a table's lines.
fn rows(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.split('|').map(str::trim).collect()).collect()
}

/// In a cell: the next stage, and what is answered. `-`: the same stage, and no answer.
#[test]
fn each_input_at_each_stage() {
    let table = "
              | none        | ordered      | freezing       | thawing     | frozen      | failed
ordered         | ordered     | -            | -, refused     | -, refused  | ordered     | ordered
begins          | -, given up | freezing     | -, given up    | -, given up | -, given up | -, given up
refused         | -           | failed, told | -, told        | -, told     | -, told     | -, told
ends frozen     | -           | -            | frozen, told   | none        | -           | -
ends not frozen | -           | -            | failed, told   | none        | -           | -
dropped         | -           | none, named  | thawing, named | -           | none, named | none, named
sealed          | -           | none         | -              | -           | none        | none
lead gone       | -           | none         | thawing        | -           | none        | none
";
    let rows = rows(table);
    for row in &rows[1..] {
        for (stage, cell) in rows[0].iter().zip(row).skip(1) {
            let mut seals = Seals::at(stage);
            let answer = seals.put(row[0]);
            let (next, expected) = cell.split_once(", ").unwrap_or((cell, ""));
            let next = if next == "-" { stage } else { next };
            assert_eq!((seals.stage(), answer), (next, expected), "{stage}: {}", row[0]);
        }
    }
}

#[test]
fn what_is_said_of_each_stage() {
    let table = "
                  | none | ordered | freezing | thawing | frozen | failed
is under way      | no   | yes     | yes      | no      | yes    | yes
takes the name    | no   | no      | yes      | yes     | no     | no
is thawing        | no   | no      | no       | yes     | no     | no
is given up       | yes  | no      | no       | yes     | no     | no
";
    let rows = rows(table);
    for row in &rows[1..] {
        for (stage, cell) in rows[0].iter().zip(row).skip(1) {
            let seals = Seals::at(stage);
            let is_so = match row[0] {
                "is under way" => {
                    assert_eq!(seals.is_under_way(None), seals.name(ID).is_some());
                    assert!(!seals.is_under_way(Some(DatasetId(6))));
                    seals.is_under_way(Some(ID))
                }
                "takes the name" => seals.is_freezing(NAME),
                "is thawing" => seals.is_thawing(NAME),
                "is given up" => seals.is_given_up(ID),
                other => panic!("{other}"),
            };
            assert_eq!(is_so, *cell == "yes", "{stage}: {}", row[0]);
            assert!(!seals.is_freezing(b"other") && !seals.is_thawing(b"other"));
        }
    }
}

#[test]
fn a_seal_begins_where_its_name_is_free_or_its_base_s() {
    let (one, two) = (Some(DatasetId(1)), Some(DatasetId(2)));
    let here = |state| Some(OnRecord { id: DatasetId(1), state });
    let begins = |seals: &Seals, base, here, is_recorded| match seals.may_begin(ID, base, here, is_recorded) {
        Ok(()) => String::new(),
        Err(refusal) => refusal.to_string(),
    };
    let ordered = Seals::at("ordered");
    let complete = "its name is that of dataset 1, Complete here";
    for (base, here, is_recorded, outcome) in [
        (None, None, false, ""),
        (one, here(HeldState::Complete), false, ""),
        (one, None, false, "the generation before it is not here"),
        (None, here(HeldState::Complete), false, complete),
        (two, here(HeldState::Complete), false, complete),
        (None, here(HeldState::Frozen), false, "its name is that of dataset 1, Frozen here"),
        (one, here(HeldState::Recorded), false, "its name is that of dataset 1, Recorded here"),
        (None, None, true, "it is being sealed already"),
    ] {
        assert_eq!(begins(&ordered, base, here, is_recorded), outcome, "{base:?} {here:?} {is_recorded}");
    }
    for (stage, outcome) in [
        ("freezing", "it is being sealed already"),
        ("thawing", "it is being sealed already"),
        ("frozen", ""),
    ] {
        let mut seals = Seals::at(stage);
        let next = DatasetId(6);
        seals.ordered(next, NAME).unwrap();
        assert_eq!(
            seals.may_begin(next, None, None, false).map_err(|e| e.to_string()).err().unwrap_or_default(),
            outcome
        );
        seals.ordered(DatasetId(7), b"other").unwrap();
        assert_eq!(seals.may_begin(DatasetId(7), None, None, false), Ok(()), "{stage}: of another name");
    }
    assert_eq!(begins(&Seals::default(), None, None, false), "the seal was given up");
}

#[test]
fn what_is_owed_stays_frozen_until_there_is_an_outcome() {
    let endings = [
        (Ending::NotFrozen, true),
        (Ending::Dropped(Settling::No), false),
        (Ending::Dropped(Settling::Kept), true),
        (Ending::Dropped(Settling::Given), false),
        (Ending::NoneComes { in_doubt: false }, false),
        (Ending::NoneComes { in_doubt: true }, true),
    ];
    let mut owed = Owed::default();
    owed.frozen(NAME, ID);
    for (ending, keeps) in endings {
        assert_eq!(owed.keeps(NAME, ending), keeps, "{ending:?}");
        assert!(!owed.keeps(b"other", ending), "{ending:?}: not owed");
    }
    // COMPLETE of the generation over which it is sealed, in a later revision.
    owed.sealed(NAME, DatasetId(4));
    assert!(owed.has(NAME));
    // Sealed at another try, under another id.
    owed.sealed(NAME, DatasetId(6));
    assert!(!owed.has(NAME));
}

/// A freezing thread of the trial, and how far it is.
struct Thread {
    id: DatasetId,
    name: &'static [u8],
    did: u8,
    is_frozen: bool,
}

/// A node of which the records, the tree and the threads are made up. It does what follows from
/// [`Seals`] and [`Owed`] as the node does.
#[derive(Default)]
struct Trial {
    seals: Seals,
    owed: Owed,
    datasets: BTreeMap<DatasetId, (&'static [u8], HeldState)>,
    /// Names that the tree has frozen.
    frozen: BTreeSet<&'static [u8]>,
    threads: Vec<Thread>,
    /// Ordered, and about to begin.
    ordered: Option<(DatasetId, &'static [u8])>,
    /// Orders that are to be answered.
    asked: BTreeSet<DatasetId>,
    /// Names whose markers were answered when all nodes were frozen.
    promised: BTreeSet<&'static [u8]>,
    ids: u64,
}

impl Trial {
    fn here(&self, name: &[u8]) -> Option<OnRecord> {
        let named = self.datasets.iter().filter(|(_, (other, _))| *other == name);
        named.map(|(id, (_, state))| OnRecord { id: *id, state: *state }).next_back()
    }

    fn is_complete(&self, id: DatasetId) -> bool {
        self.datasets.get(&id).is_some_and(|(_, state)| *state == HeldState::Complete)
    }

    fn in_doubt(&self, name: &[u8]) -> bool {
        self.here(name).is_some_and(|here| here.state != HeldState::Complete)
    }

    fn answer(&mut self, id: DatasetId, told: bool) {
        assert_eq!(told, self.asked.remove(&id), "an order is answered once, unless it was given up");
    }

    fn order(&mut self, name: &'static [u8]) {
        if self.ordered.is_some() || self.seals.is_thawing(name) {
            return;
        }
        self.ids += 1;
        let id = DatasetId(self.ids);
        self.asked.insert(id);
        self.seals.ordered(id, name).unwrap();
        let here = self.here(name);
        let base = here.filter(|here| here.state == HeldState::Complete).map(|here| here.id);
        if self.seals.may_begin(id, base, here, false).is_ok() {
            self.ordered = Some((id, name));
        } else {
            let told = self.seals.refused(id);
            self.answer(id, told);
        }
    }

    fn begin(&mut self, can: bool) {
        let Some((id, name)) = self.ordered.take() else { return };
        if can && self.seals.begins(id).is_ok() {
            self.threads.push(Thread { id, name, did: 0, is_frozen: false });
        } else {
            let told = self.seals.refused(id);
            self.answer(id, told);
        }
    }

    /// One step of a thread: freeze; record; undo; end.
    fn go_on(&mut self, at: usize, can: bool) {
        let Thread { id, name, did, is_frozen } = self.threads[at];
        match did {
            0 => drop(self.frozen.insert(name)),
            1 if can && !self.seals.is_given_up(id) => {
                self.datasets.insert(id, (name, HeldState::Frozen));
                self.owed.frozen(name, id);
                self.threads[at].is_frozen = true;
            }
            1 => {}
            2 => {
                let is_recorded = self.datasets.contains_key(&id);
                let is_frozen = is_frozen && !self.seals.came_to_nothing(id, is_recorded);
                self.threads[at].is_frozen = is_frozen;
                if !is_frozen && !self.owed.keeps(name, Ending::NotFrozen) {
                    self.frozen.remove(name);
                }
            }
            _ => {
                self.threads.swap_remove(at);
                let told = self.seals.ended(id, is_frozen);
                return self.answer(id, told);
            }
        }
        self.threads[at].did += 1;
    }

    fn give_up(&mut self, name: &[u8]) {
        if self.owed.has(name) {
            self.owed.ended(name);
            self.promised.remove(name);
            self.frozen.remove(name);
        }
    }

    fn drop_seal(&mut self, id: DatasetId, settling: Settling) {
        let begun = self.seals.dropped(id);
        self.asked.remove(&id);
        if self.is_complete(id) {
            return;
        }
        let recorded = self.datasets.remove(&id).map(|(name, _)| name);
        if let Some(name) = recorded
            && !self.owed.keeps(name, Ending::Dropped(settling))
        {
            self.frozen.remove(name);
        }
        if let Some(name) = recorded.map(<[u8]>::to_vec).or(begun)
            && !self.owed.keeps(&name, Ending::Dropped(settling))
        {
            self.give_up(&name);
        }
    }

    fn commit(&mut self, id: DatasetId) {
        let Some((name, state)) = self.datasets.get_mut(&id) else { return };
        if *state == HeldState::Frozen {
            return;
        }
        let name = *name;
        if std::mem::replace(state, HeldState::Complete) != HeldState::Complete {
            self.promised.remove(name);
            self.frozen.remove(name);
        }
        self.owed.sealed(name, id);
    }

    fn lead_gone(&mut self) {
        self.seals.lead_gone();
        self.asked.clear();
    }

    fn unfinished(&self) -> Vec<DatasetId> {
        let unfinished = self.datasets.iter().filter(|(_, (_, state))| *state != HeldState::Complete);
        unfinished.map(|(id, _)| *id).collect()
    }

    /// No lead has come: what can be complete nowhere is given up.
    fn no_successor(&mut self) {
        self.lead_gone();
        let stays = |name: &[u8]| self.owed.keeps(name, Ending::NoneComes { in_doubt: self.in_doubt(name) });
        let given_up: Vec<Vec<u8>> = self.owed.names().filter(|name| !stays(name)).cloned().collect();
        for id in self.unfinished() {
            if self.datasets[&id].1 == HeldState::Frozen {
                self.drop_seal(id, Settling::Given);
            }
        }
        for name in given_up {
            self.give_up(&name);
        }
    }

    fn present(&mut self) {
        self.lead_gone();
        let owed: Vec<Vec<u8>> = self.owed.names().cloned().collect();
        for name in owed {
            self.give_up(&name);
        }
        for id in self.unfinished() {
            let (name, _) = self.datasets.remove(&id).unwrap();
            self.frozen.remove(name);
        }
    }

    /// The worker dies, and another one reads what is on storage.
    fn restart_worker(&mut self) {
        self.lead_gone();
        (self.seals, self.ordered) = (Seals::default(), None);
        self.threads.clear();
        let unfinished = self.unfinished();
        let names = unfinished.iter().map(|id| self.datasets[id].0);
        let owed = |name: &&&[u8]| self.owed.has(name);
        self.frozen = NAMES.iter().filter(owed).copied().chain(names).collect();
    }

    fn check(&self) {
        for name in NAMES {
            let is_frozen = self.frozen.contains(name);
            assert!(is_frozen || !self.owed.has(name), "an owed dataset is frozen");
            assert!(self.owed.has(name) || !self.promised.contains(name), "a promise is owed");
            let has_reason = self.owed.has(name) || self.in_doubt(name) || self.seals.is_freezing(name);
            assert!(has_reason || !is_frozen, "nothing is frozen for nothing");
        }
        assert_eq!(self.seals.freezing().count(), self.threads.len());
    }
}

const NAMES: [&[u8]; 2] = [b"a", b"b"];

#[test]
fn no_order_of_inputs_leaves_a_name_taken_or_an_owed_seal_forgotten() {
    for seed in 0..20_000_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % n
        };
        let mut trial = Trial::default();
        for _ in 0..80 {
            let (name, can) = (NAMES[below(2)], below(4) > 0);
            let id = DatasetId((trial.ids + 1).saturating_sub(below(4) as u64));
            match below(24) {
                0..4 => trial.order(name),
                4..7 => trial.begin(can),
                7..14 if !trial.threads.is_empty() => {
                    let at = below(trial.threads.len());
                    trial.go_on(at, can);
                }
                14 => trial.drop_seal(id, Settling::No),
                15 => trial.drop_seal(id, Settling::Kept),
                16 if trial.owed.has(name) => drop(trial.promised.insert(name)),
                17 => {
                    if let Some((_, state @ HeldState::Frozen)) = trial.datasets.get_mut(&id) {
                        *state = HeldState::Recorded;
                    }
                }
                18..20 => trial.commit(id),
                20 if trial.is_complete(id) => trial.seals.sealed(id),
                21 => trial.lead_gone(),
                22 if can => trial.no_successor(),
                22 => trial.present(),
                // A lead refuses no marker of a dataset whose seal is under way.
                23 if can && !trial.seals.is_freezing(name) => {
                    let ending = Ending::NoneComes { in_doubt: trial.in_doubt(name) };
                    if !trial.owed.keeps(name, ending) {
                        trial.give_up(name);
                    }
                }
                23 => trial.restart_worker(),
                _ => {}
            }
            trial.check();
        }
        trial.begin(true);
        while !trial.threads.is_empty() {
            trial.go_on(0, true);
            trial.check();
        }
        assert!(trial.asked.is_empty(), "seed {seed}: every order was answered");
        trial.lead_gone();
        assert!(trial.seals.0.is_empty(), "seed {seed}: {:?}", trial.seals);
        trial.present();
        assert!(trial.frozen.is_empty() && trial.owed.names().next().is_none(), "seed {seed}");
        for name in NAMES {
            trial.order(name);
            trial.begin(true);
            assert_eq!(trial.threads.len(), 1, "seed {seed}: the name is free");
            (0..4).for_each(|_| trial.go_on(0, true));
            assert!(trial.owed.has(name), "seed {seed}");
        }
    }
}
