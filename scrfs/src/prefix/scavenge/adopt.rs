//! What nodes have saved becomes a dataset of the prefix, if it is whole or can be made so.
//!
//! Each node looks when it has saved its part; the one that finds all parts publishes. What is left
//! then, because a node is lost, or the one that published died, is taken up by the next start's
//! coordinators and by `scrfs-ctl scavenge`: they rebuild members as well. What is not whole is
//! never published; it stays, and is named.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Instant;

use crate::control::loose::Age;
use crate::dataset::{Catalog, Scheme};
use crate::ids::{Epoch, Member};
use crate::plain;
use crate::redundancy::right;

use super::super::directory::{PfsError, Prefix, Result, is_name, read_bounded, remove_file, remove_tree};
use super::super::lock::Lock;
use super::super::{Known, StoredDataset, flush, index};
use super::again::{self, Identity};
use super::{
    Collection, DATASET, MemberRecord, PUBLISHER, Standing, ages, audit, is_lost, rebuild, standing,
};

/// Who looks.
#[derive(Clone, Copy)]
pub enum By<'a> {
    /// A node that has saved its part: publishes what is whole, if no other node is about to.
    Node,
    /// Coordinators that start: whoever was about to publish, rebuilding what is lost or has gone
    /// bad. What was found bad before is not read again, and after this time nothing is.
    Start(Tell<'a>, Option<Instant>),
    /// A person: the same, however long it takes.
    Person(Tell<'a>),
}

/// Is told how it goes on.
pub type Tell<'a> = &'a dyn Fn(Progress<'_>);

impl<'a> By<'a> {
    /// Who hears of it; a node's thread tells nobody.
    pub(super) fn listener(self) -> Option<Tell<'a>> {
        match self {
            Self::Node => None,
            Self::Start(tell, _) | Self::Person(tell) => Some(tell),
        }
    }

    /// Another name is done, of which there may be very many.
    pub(super) fn goes(self) {
        if let Some(tell) = self.listener() {
            tell(Progress::Goes);
        }
    }
}

/// How it goes on: rebuilding may take long, and so may many files.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// For people.
    Said(&'a str),
    /// Another block, or name, is done.
    Goes,
}

/// What became of one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// Which it is.
    pub age: Age,
    /// Its name; empty if that is not known.
    pub name: Vec<u8>,
    /// What became of it.
    pub outcome: Outcome,
    /// What became of its pointer files, if they are not with it, or what else stays to be done.
    pub note: Option<String>,
}

/// See [`Adoption`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the prefix now; these members and their hosts were rebuilt.
    Published(Vec<(Member, String)>),
    /// It was in the prefix.
    Stored,
    /// A newer one is on the PFS, and this one was not whole, or has its name.
    Superseded {
        /// The epoch of this one.
        epoch: Epoch,
        /// The epoch of the newer one.
        newer: Epoch,
    },
    /// It stays as it is.
    Waits {
        /// Members that are not there, and their hosts.
        missing: Vec<(Member, String)>,
        /// Why.
        reason: String,
    },
    /// It may be whole: the PFS failed, and this is why.
    Hindered(String),
}

impl std::fmt::Display for Adoption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name[..] {
            [] => write!(f, "dataset {} of epoch {}: ", self.age.id, self.age.epoch)?,
            name => write!(f, "{} (dataset {}): ", String::from_utf8_lossy(name), self.age.id)?,
        }
        self.outcome.fmt(f)?;
        self.note.as_ref().map_or(Ok(()), |note| write!(f, "; {note}"))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Published(rebuilt) if rebuilt.is_empty() => write!(f, "published"),
            Self::Published(rebuilt) => write!(f, "published; rebuilt: {}", shown(rebuilt)),
            Self::Stored => write!(f, "on the PFS already"),
            Self::Superseded { epoch, newer } => {
                write!(f, "removed: a newer one is on the PFS, of epoch {newer}; this is of epoch {epoch}")
            }
            Self::Hindered(reason) => write!(f, "not published: {reason}"),
            Self::Waits { missing, reason } if missing.is_empty() => write!(f, "not published: {reason}"),
            Self::Waits { missing, reason } => {
                write!(f, "not published: {} missing: {reason}", shown(missing))
            }
        }
    }
}

/// `member 1 (node1), member 3 (node3)`.
fn shown(members: &[(Member, String)]) -> String {
    let shown = members.iter().map(|(member, host)| match &host[..] {
        "" => format!("member {member}"),
        host => format!("member {member} ({host})"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// All that nodes have saved, newest first, for coordinators that start.
///
/// # Errors
/// Newer coordinators are at work, or somebody else changes the index. Other failures are told, and
/// concern one dataset.
pub fn adopt_all(prefix: &Prefix, tell: Tell<'_>) -> Result<Vec<Adoption>> {
    let mut adoptions = Vec::new();
    let until = Instant::now().checked_add(audit::START_READS_FOR);
    for age in ages(prefix)? {
        match adopt(prefix, age, By::Start(tell, until)) {
            Ok(adoption) => adoptions.push(adoption),
            Err(error @ (PfsError::Superseded(..) | PfsError::Locked { .. })) => return Err(error),
            Err(error) => {
                let outcome = Outcome::Hindered(error.to_string());
                adoptions.push(Adoption { age, name: Vec::new(), outcome, note: None });
            }
        }
    }
    Ok(adoptions)
}

/// One of them.
///
/// # Errors
/// Of the PFS, or newer coordinators are at work. What is in the way with the dataset itself is an
/// [`Outcome::Waits`].
pub fn adopt(prefix: &Prefix, age: Age, by: By<'_>) -> Result<Adoption> {
    let collection = Collection::of(prefix, age);
    let mut look = Look::at(age);
    let (mut looks, begun) = (1, Instant::now());
    let adopted = loop {
        look.seen = None;
        let adopted = collection.adopt(prefix, by, &mut look);
        if !collection.is_disturbed(prefix, look.seen, &adopted)
            || !again::may_look(prefix, (looks, begun), by)
        {
            break adopted;
        }
        tracing::info!(?adopted, "another may be publishing it: looking again");
        looks += 1;
    };
    let outcome = match adopted {
        // What was missing was on its way to its place.
        Ok(Outcome::Waits { .. } | Outcome::Hindered(_)) if is_stored(prefix, &look.known) => Outcome::Stored,
        Ok(outcome) => outcome,
        // By another, which has kept this one from it.
        Err(error) if is_stored(prefix, &look.known) => {
            tracing::info!(%error, "published by another");
            Outcome::Stored
        }
        Err(
            error @ (PfsError::Dataset { .. }
            | PfsError::Content { .. }
            | PfsError::Record { .. }
            | PfsError::Newer { .. }
            | PfsError::Unusable { .. }),
        ) => Outcome::Waits { missing: Vec::new(), reason: error.to_string() },
        Err(error) => return Err(error),
    };
    let Look { known, note, .. } = look;
    Ok(Adoption { age, name: known.name.unwrap_or_default(), outcome, note })
}

/// What is found on the way.
struct Look {
    /// Of the dataset.
    known: Known,
    /// [`Adoption::note`].
    note: Option<String>,
    /// What was looked at.
    seen: Option<Identity>,
}

impl Look {
    fn at(age: Age) -> Self {
        Self { known: Known::by_age(age), note: None, seen: None }
    }
}

/// How [`Collection::publish`] ended.
enum Put {
    Published,
    /// By another.
    Before,
    /// One of this epoch has its name.
    Newer(Epoch),
}

fn is_stored(prefix: &Prefix, known: &Known) -> bool {
    index::survey(prefix).is_ok_and(|stored| matches!(standing(&stored, known), Standing::Stored))
}

impl Collection {
    fn adopt(&self, prefix: &Prefix, by: By<'_>, look: &mut Look) -> Result<Outcome> {
        prefix.is_ours()?;
        self.settle(prefix)?;
        let seen = self.identity()?;
        look.seen = Some(seen);
        let stored = index::survey(prefix)?;
        let catalog = self.catalog();
        if let Ok(Some(catalog)) = &catalog {
            look.known = Known::of(catalog);
        }
        if let Standing::Stored = standing(&stored, &look.known) {
            look.note = self.finish(prefix);
            return Ok(Outcome::Stored);
        }
        let give_up = |newer| self.give_up(prefix, seen, newer);
        let newer = newer_than(&stored, &look.known);
        let catalog = match catalog {
            Err(error) if is_lost(&error) => return Ok(self.without_catalog(&error)),
            catalog => catalog?,
        };
        let Some(catalog) = catalog else {
            if let Some(newer) = newer {
                return give_up(newer);
            }
            let reason = "no node that has recorded it as complete has saved its part".to_owned();
            return Ok(Outcome::Waits { missing: Vec::new(), reason });
        };
        if !is_name(&catalog.name) {
            let reason = "this name cannot be used in the prefix".to_owned();
            return Ok(Outcome::Waits { missing: Vec::new(), reason });
        }
        let mut records = self.members(&catalog, &|| by.goes())?;
        let mut presumed = BTreeSet::new();
        if by.listener().is_some() {
            presumed = self.presume(&catalog, &mut records, &|| by.goes())?;
            self.count_empty(&catalog, &mut records);
        }
        let bad = self.bad()?;
        match by {
            By::Person(_) => {}
            By::Node | By::Start(..) => leave_out(&bad, &mut records),
        }
        let reason = in_the_way(&catalog, &records, by);
        let newer = replaced_by(&stored, &catalog).or(newer.filter(|_| reason.is_some()));
        if let Some(newer) = newer {
            return give_up(newer);
        }
        if let Some(reason) = reason {
            return Ok(waits(&catalog, &records, &bad, reason));
        }
        if let Some(other) = self.claim(prefix, by)? {
            return Ok(waits(&catalog, &records, &bad, format!("{other} is about to publish it")));
        }
        let unreadable = audit::audit(self, prefix, &catalog, &mut records, &presumed, by)?;
        if let Some(reason) = in_the_way(&catalog, &records, by) {
            remove_file(&self.directory.join(PUBLISHER))?;
            return match (unreadable, newer_than(&stored, &look.known)) {
                (Some(error), _) => Err(error),
                (None, Some(newer)) => give_up(newer),
                (None, None) => Ok(waits(&catalog, &records, &self.bad()?, reason)),
            };
        }
        let missing = missing(&catalog, &records);
        let published = self
            .complete_from(prefix, &catalog, &records, &presumed, by)
            .and_then(|()| self.publish(prefix, &catalog, by));
        if let (Err(_), By::Node) = (&published, by) {
            // Whoever tries next may.
            remove_file(&self.directory.join(PUBLISHER))?;
        }
        let outcome = match published? {
            Put::Newer(newer) => return give_up(newer),
            Put::Published => Outcome::Published(missing),
            Put::Before => Outcome::Stored,
        };
        look.note = self.finish(prefix);
        Ok(outcome)
    }

    /// Nothing else tells which files it has, and what their bytes were.
    fn without_catalog(&self, error: &PfsError) -> Outcome {
        let (again, dataset) = ("`scrfs umount --job-id ID --save SECONDS`", self.directory.join(DATASET));
        let reason = format!(
            "{error}; no other catalog of it is there. A node that has the dataset in its cache still writes \
             it again ({again}); if none has, the dataset is lost: what is in {} was saved of it, and cannot \
             be checked any more",
            dataset.display()
        );
        Outcome::Waits { missing: Vec::new(), reason }
    }

    /// Where all files of a set are there, its members without files are too, whatever has become
    /// of their nodes.
    fn count_empty(&self, catalog: &Catalog, records: &mut [Option<MemberRecord>]) {
        let missing = missing(catalog, records);
        for set in &catalog.layout.sets {
            let of_set = || missing.iter().filter(|(member, _)| set.contains(member));
            if of_set().any(|(member, _)| catalog.files_of(*member).next().is_some()) {
                continue;
            }
            for (member, host) in of_set() {
                let (age, member, host) = (self.age, *member, host.clone());
                let digest = super::digest(std::iter::empty());
                let record = MemberRecord { age, member, host, digest, redundancy: Vec::new() };
                records[member.0 as usize] = Some(record);
            }
        }
    }

    /// True to nobody: a newer one is in the prefix. Not while another publishes it.
    fn give_up(&self, prefix: &Prefix, seen: Identity, newer: Epoch) -> Result<Outcome> {
        if self.is_moving(prefix, seen)? {
            return Err(PfsError::io(&self.directory.join(DATASET), "open")(io::ErrorKind::NotFound.into()));
        }
        remove_tree(&self.directory)?;
        Ok(Outcome::Superseded { epoch: self.age.epoch, newer })
    }

    /// The node that is about to publish, if it is another one.
    fn claim(&self, prefix: &Prefix, by: By<'_>) -> Result<Option<String>> {
        let path = self.directory.join(PUBLISHER);
        let content = format!("{}\n{}\n", prefix.host, std::process::id());
        let By::Node = by else {
            // What is in the way there is in every node's way, too.
            if let Err(error) = super::put(prefix, &path, content.as_bytes()) {
                tracing::warn!(%error, "who publishes is not recorded");
            }
            return Ok(None);
        };
        match plain::make_file(&path) {
            Ok(mut file) => {
                file.write_all(content.as_bytes()).map_err(PfsError::io(&path, "write"))?;
                Ok(None)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let bytes = read_bounded(&path)?.unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes);
                let host = text.lines().next().unwrap_or_default();
                // A node has one daemon of the job: the one before is dead.
                Ok((host != prefix.host)
                    .then(|| if host.is_empty() { "another node" } else { host }.to_owned()))
            }
            Err(e) => Err(PfsError::io(&path, "create")(e)),
        }
    }

    /// Rebuilds what is missing. A redundancy file whose CRC is not known may be to blame where
    /// that fails; then the others may be enough.
    fn complete_from(
        &self,
        prefix: &Prefix,
        catalog: &Catalog,
        records: &[Option<MemberRecord>],
        presumed: &BTreeSet<Member>,
        by: By<'_>,
    ) -> Result<()> {
        self.complete(prefix, catalog, records, by).or_else(|error| {
            let others = without_redundancy(presumed, records);
            let is_other = !presumed.is_empty() && matches!(error, PfsError::Content { .. });
            if is_other && in_the_way(catalog, &others, by).is_none() {
                self.complete(prefix, catalog, &others, by)
            } else {
                Err(error)
            }
        })
    }

    /// Rebuilds what is missing.
    fn complete(
        &self,
        prefix: &Prefix,
        catalog: &Catalog,
        records: &[Option<MemberRecord>],
        by: By<'_>,
    ) -> Result<()> {
        let Some(tell) = by.listener() else { return Ok(()) };
        for (member, host) in missing(catalog, records) {
            let (name, lost) = (String::from_utf8_lossy(&catalog.name), shown(&[(member, host)]));
            let from = "is rebuilt from what the other nodes of its set have saved";
            tell(Progress::Said(&format!("{name} (dataset {}): {lost} {from}", self.age.id)));
            rebuild::rebuild(prefix, self, catalog, records, member, &|| tell(Progress::Goes))?;
            prefix.step("scavenge.rebuilt")?;
            let of = super::digest(catalog.files_of(member).map(|(entry, copy)| (&entry.path, copy)));
            let record = MemberRecord {
                age: self.age,
                member,
                host: prefix.host.clone(),
                digest: of,
                redundancy: Vec::new(),
            };
            self.record(prefix, &record)?;
        }
        Ok(())
    }

    /// All members are there.
    fn publish(&self, prefix: &Prefix, catalog: &Catalog, by: By<'_>) -> Result<Put> {
        let dataset = self.directory.join(DATASET);
        audit::clear(&dataset, catalog, by)?;
        flush::make_names(&dataset, catalog, &|| by.goes())?;
        flush::finish_copy(prefix, &dataset, catalog, Some(&self.directory), &|| by.goes())?;
        prefix.step("scavenge.whole")?;
        let lock = Lock::take(prefix)?;
        // Others may have published meanwhile, this one or a newer one.
        let stored = index::survey(prefix)?;
        if matches!(standing(&stored, &Known::of(catalog)), Standing::Stored) {
            return Ok(Put::Before);
        }
        if let Some(newer) = replaced_by(&stored, catalog) {
            return Ok(Put::Newer(newer));
        }
        flush::swap_in(prefix, &lock, catalog, &dataset)?;
        drop(lock);
        prefix.step("scavenge.published")?;
        Ok(Put::Published)
    }
}

/// Members that are not there, and where they were.
fn missing(catalog: &Catalog, records: &[Option<MemberRecord>]) -> Vec<(Member, String)> {
    let places = (0..).zip(catalog.layout.members.iter().zip(records));
    places
        .filter(|(_, (_, record))| record.is_none())
        .map(|(number, (place, _))| (Member(number), place.host.clone()))
        .collect()
}

/// The epoch of the newest dataset of the prefix, if that is newer.
fn newer_than(stored: &[StoredDataset], known: &Known) -> Option<Epoch> {
    match standing(stored, known) {
        Standing::Older(newer) => Some(newer.epoch),
        Standing::Stored | Standing::Newest => None,
    }
}

/// They count as missing.
pub(super) fn leave_out(bad: &BTreeSet<Member>, records: &mut [Option<MemberRecord>]) {
    for member in bad {
        if let Some(record) = records.get_mut(member.0 as usize) {
            *record = None;
        }
    }
}

/// The same records without redundancy files of these members.
fn without_redundancy(
    members: &BTreeSet<Member>,
    records: &[Option<MemberRecord>],
) -> Vec<Option<MemberRecord>> {
    let mut records = records.to_vec();
    for record in records.iter_mut().flatten().filter(|record| members.contains(&record.member)) {
        record.redundancy.clear();
    }
    records
}

/// It stays as it is for this reason; of some members bytes are there, and bad.
fn waits(
    catalog: &Catalog,
    records: &[Option<MemberRecord>],
    bad: &BTreeSet<Member>,
    mut reason: String,
) -> Outcome {
    let missing = missing(catalog, records);
    let damaged: Vec<_> = missing.iter().filter(|(member, _)| bad.contains(member)).cloned().collect();
    if !damaged.is_empty() {
        reason = format!("{reason}; what was saved of {} is bad", shown(&damaged));
    }
    Outcome::Waits { missing, reason }
}

/// The epoch of a newer dataset of this name in the prefix, which this one would take the place of.
/// Of two of the same age, which are of two jobs, the one that was sealed later is newer.
fn replaced_by(stored: &[StoredDataset], catalog: &Catalog) -> Option<Epoch> {
    let age = (catalog.epoch, catalog.id, catalog.created_us);
    let newer = |dataset: &&StoredDataset| (dataset.epoch, dataset.id, dataset.created_us.unwrap_or(0)) > age;
    let mut of_name = stored.iter().filter(|dataset| dataset.usable && dataset.name == catalog.name);
    of_name.find(newer).map(|dataset| dataset.epoch)
}

/// Why it cannot be published as things are.
fn in_the_way(catalog: &Catalog, records: &[Option<MemberRecord>], by: By<'_>) -> Option<String> {
    let record = |member: &Member| records.get(member.0 as usize).and_then(Option::as_ref);
    for set in &catalog.layout.sets {
        let lost: Vec<usize> = (0..set.len()).filter(|at| record(&set[*at]).is_none()).collect();
        if lost.is_empty() {
            continue;
        }
        if matches!(by, By::Node) {
            return Some("the other nodes have not saved their parts yet".to_owned());
        }
        if !catalog.layout.survives(set, &lost) {
            return Some(match (catalog.layout.scheme(), catalog.layout.scheme().losses(set.len())) {
                (_, 0) => "nothing protects them".to_owned(),
                (Scheme::Partner, _) => "the copy of one of them was on another of them".to_owned(),
                (_, most) => format!("their redundancy set can give back {most} of its members"),
            });
        }
        let without = super::gone(set, records);
        let is_enough = match catalog.layout.scheme() {
            // Only the copies of the lost ones are needed; a lost neighbour has none.
            Scheme::Partner => lost.iter().all(|at| {
                let partner = right(set.len(), *at);
                lost.contains(&partner) || !without.contains(&partner)
            }),
            _ => catalog.layout.survives(set, &without),
        };
        if !is_enough {
            return Some("redundancy data of their set is not there, or bad".to_owned());
        }
    }
    None
}
