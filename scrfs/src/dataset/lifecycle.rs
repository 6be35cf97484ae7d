//! The life of a dataset on one node, from its first frozen file to its eviction, and where the
//! node has its files meanwhile. Pure: [`Life::after`] takes one state and one step and gives the
//! next state; the table of both is the first test below.
//!
//! ```text
//! being sealed --> complete --> presented --> presented and overwritten
//!                     ^             |                   |
//!                     | put back    v                   v
//! arriving ---------> hidden <------+-------------------+
//! ```
//!
//! A dataset that is complete, and not yet listed by the tree, can be overwritten too. From every
//! state it may leave. On storage are the words of [`Life::record`], and COMPLETE, which
//! is a file of its own:
//!
//! | state | HOME | COMPLETE | the sealed files |
//! |---|---|---|---|
//! | being sealed | `TREE` | no | at its name in the tree, frozen |
//! | arriving (fetched) | `ASIDE` | no | in `staged`, then in `aside` of its own directory |
//! | complete, presented | `TREE` | yes | at its name in the tree |
//! | the same, and overwritten | `UNDER` | yes | in `aside`; the next generation is at its name |
//! | hidden | `ASIDE` | yes | in `aside`; those of a member that is being rebuilt in `staged` |
//! | leaving | any, and GOING | until its bytes are gone, if it was complete | out of sight, and being deleted |
//!
//! Redundancy files are in the dataset's own directory in all states. Whether the tree lists the
//! dataset, and whether all members have recorded COMPLETE, each worker finds out anew.
//!
//! What a crash between record and files leaves, and what the next worker reads from that
//! ([`Step::Found`]):
//!
//! | step | HOME | `aside` is there | is read as |
//! |---|---|---|---|
//! | Overwritten | `UNDER` | no | `TREE` |
//! | PutBack | `TREE` | yes | `ASIDE` |
//! | Hidden or Superseded, from `TREE` | `TREE` | yes | `ASIDE` |
//! | Hidden or Superseded, from `UNDER` | `UNDER` | yes | `UNDER`: it is done again |
//! | Leaves | any, and GOING | either | leaving: the worker finishes that at its start |

use std::fmt;
use std::sync::Arc;

use super::CatalogIndex;

/// Where a node has its files of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// At the dataset's name in the mounted tree.
    InTree,
    /// In the dataset's own directory, and programs do not see the dataset: it arrives, is hidden,
    /// or has been superseded.
    Aside,
    /// In the dataset's own directory, while programs see at its name the next generation, which
    /// overwrites it and is built on it.
    Beneath,
}

/// How far the dataset is.
#[derive(Debug, Clone)]
enum Stage {
    /// Its members are frozen or fetched here; COMPLETE is not recorded. (Where a member is
    /// rebuilt, COMPLETE comes first.)
    Unfinished,
    Complete {
        catalog: Arc<CatalogIndex>,
        /// The tree lists it.
        listed: bool,
        /// All members have recorded COMPLETE.
        settled: bool,
    },
    /// Its eviction has begun.
    Leaving {
        catalog: Option<Arc<CatalogIndex>>,
        /// The tree lists it still.
        listed: bool,
    },
}

/// A state.
#[derive(Debug, Clone)]
pub struct Life {
    stage: Stage,
    files: Files,
}

/// What happens to a dataset.
#[derive(Debug, Clone)]
pub enum Step {
    /// COMPLETE is recorded with this catalog, or with a newer revision.
    Completed(Arc<CatalogIndex>),
    /// All members have recorded COMPLETE.
    Settled,
    /// The tree lists it.
    Listed,
    /// The tree does not list it, as the generation before it cannot leave.
    Unlisted,
    /// A program overwrites it: its files go beneath the next generation.
    Overwritten,
    /// A newer generation has its name.
    Superseded,
    /// A restart does not present it. By then it is settled too.
    Hidden,
    /// A restart is about to present it: its files go back to its name. By then it is settled too.
    PutBack,
    /// The restart presents it: it is listed, and settled.
    Presented,
    /// Its eviction begins.
    Leaves,
    /// A program removed its directory.
    Removed,
    /// Its files are found in the dataset's own directory, or are not. Overwritten and PutBack are
    /// recorded before the files move; Hidden and Superseded are recorded after that. A crash or an
    /// error between the two always leaves the files as the truth. Files that are nowhere stay
    /// recorded as aside.
    Found {
        /// They are there.
        aside: bool,
    },
}

/// This state does not have that step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a dataset that is {life} cannot be {step}")]
pub struct Refused {
    /// The state.
    pub life: String,
    /// The step.
    pub step: &'static str,
}

impl Life {
    /// A dataset begins on this node: frozen for its seal where its files are in the tree, else
    /// fetched or rebuilt.
    pub fn begin(files: Files) -> Self {
        Self { stage: Stage::Unfinished, files }
    }

    /// The state after a step.
    ///
    /// # Errors
    /// [`Refused`] where this state does not have that step.
    pub fn after(&self, step: &Step) -> Result<Self, Refused> {
        let refused = || Refused { life: self.to_string(), step: step.word() };
        match step {
            Step::Completed(catalog) => return Ok(self.completed(catalog)),
            Step::Leaves => return Ok(self.leaving()),
            Step::Removed => return Ok(self.removed()),
            Step::Found { aside } => return Ok(self.found(*aside)),
            _ => {}
        }
        let Stage::Complete { catalog, listed, settled } = &self.stage else { return Err(refused()) };
        let (files, listed, settled) = match (step, self.files) {
            (Step::Settled, files) => (files, *listed, true),
            (Step::Listed, Files::InTree | Files::Beneath) => (self.files, true, *settled),
            (Step::Unlisted, files) => (files, false, *settled),
            (Step::Overwritten, Files::InTree) => (Files::Beneath, *listed, *settled),
            (Step::Superseded, Files::InTree | Files::Beneath) => (Files::Aside, false, *settled),
            (Step::Hidden, _) => (Files::Aside, false, true),
            (Step::PutBack, Files::Aside) => (Files::InTree, false, true),
            (Step::Presented, Files::InTree) => (Files::InTree, true, true),
            _ => return Err(refused()),
        };
        Ok(Self { stage: Stage::Complete { catalog: Arc::clone(catalog), listed, settled }, files })
    }

    /// As [`Step::Completed`], which every state has.
    #[must_use]
    pub fn completed(&self, catalog: &Arc<CatalogIndex>) -> Self {
        let catalog = Arc::clone(catalog);
        let stage = match &self.stage {
            Stage::Unfinished => Stage::Complete { catalog, listed: false, settled: false },
            Stage::Complete { listed, settled, .. } => {
                Stage::Complete { catalog, listed: *listed, settled: *settled }
            }
            Stage::Leaving { listed, .. } => Stage::Leaving { catalog: Some(catalog), listed: *listed },
        };
        Self { stage, ..*self }
    }

    /// As [`Step::Removed`], which every state has.
    #[must_use]
    pub fn removed(&self) -> Self {
        Self {
            stage: Stage::Leaving { catalog: self.catalog().cloned(), listed: false },
            files: Files::Aside,
        }
    }

    fn leaving(&self) -> Self {
        let stage = Stage::Leaving { catalog: self.catalog().cloned(), listed: self.is_listed() };
        Self { stage, files: self.files }
    }

    /// As [`Step::Found`], which every state has.
    #[must_use]
    pub fn found(&self, aside: bool) -> Self {
        let mut found = self.clone();
        match (self.files, aside) {
            (Files::InTree, true) => {
                found.files = Files::Aside;
                if let Stage::Complete { listed, .. } = &mut found.stage {
                    *listed = false;
                }
            }
            // Its next generation had not quite begun.
            (Files::Beneath, false) => found.files = Files::InTree,
            _ => {}
        }
        found
    }

    /// Where its files are.
    pub fn files(&self) -> Files {
        self.files
    }

    /// Its catalog, once COMPLETE is recorded.
    pub fn catalog(&self) -> Option<&Arc<CatalogIndex>> {
        match &self.stage {
            Stage::Unfinished => None,
            Stage::Complete { catalog, .. } => Some(catalog),
            Stage::Leaving { catalog, .. } => catalog.as_ref(),
        }
    }

    /// COMPLETE is recorded; also while it leaves.
    pub fn is_complete(&self) -> bool {
        self.catalog().is_some()
    }

    /// The tree lists it.
    pub fn is_listed(&self) -> bool {
        matches!(self.stage, Stage::Complete { listed: true, .. } | Stage::Leaving { listed: true, .. })
    }

    /// All members have recorded COMPLETE.
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Complete { settled: true, .. })
    }

    /// Its eviction has begun: nobody speaks of it any more.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. })
    }

    /// Complete, and not in the mount: a restart did not present it, or has yet to, or a newer
    /// generation has its name.
    pub fn is_hidden(&self) -> bool {
        matches!(self.stage, Stage::Complete { .. }) && self.files == Files::Aside
    }

    /// Its files are at its name in the tree.
    pub fn is_in_tree(&self) -> bool {
        self.files == Files::InTree
    }

    /// Its next generation has begun here.
    pub fn is_overwritten(&self) -> bool {
        self.files == Files::Beneath
    }

    /// It has its name in the tree: for the files that are frozen, for the sealed ones, or for
    /// their next generation.
    pub fn has_name(&self) -> bool {
        self.files != Files::Aside
    }

    /// What is recorded of it: where its files are, and whether it leaves.
    pub fn record(&self) -> (&'static str, bool) {
        let files = match self.files {
            Files::InTree => "TREE",
            Files::Aside => "ASIDE",
            Files::Beneath => "UNDER",
        };
        (files, self.is_leaving())
    }

    /// From what is recorded. COMPLETE is a step of its own.
    pub fn from_record(files: &[u8], leaves: bool) -> Self {
        let files = match files {
            b"TREE" => Files::InTree,
            b"UNDER" => Files::Beneath,
            _ => Files::Aside,
        };
        let begun = Self::begin(files);
        if leaves { begun.leaving() } else { begun }
    }
}

impl Step {
    /// For messages.
    fn word(&self) -> &'static str {
        match self {
            Self::Completed(_) => "completed",
            Self::Settled => "settled",
            Self::Listed => "listed",
            Self::Unlisted => "unlisted",
            Self::Overwritten => "overwritten",
            Self::Superseded => "superseded",
            Self::Hidden => "hidden",
            Self::PutBack => "put back",
            Self::Presented => "presented",
            Self::Leaves => "evicted",
            Self::Removed => "removed",
            Self::Found { .. } => "found",
        }
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let overwritten = if self.files == Files::Beneath { " and overwritten" } else { "" };
        match &self.stage {
            Stage::Unfinished if self.files == Files::InTree => f.write_str("being sealed"),
            Stage::Unfinished => f.write_str("arriving"),
            Stage::Leaving { .. } => f.write_str("leaving"),
            Stage::Complete { .. } if self.files == Files::Aside => f.write_str("hidden"),
            Stage::Complete { listed: true, .. } => write!(f, "presented{overwritten}"),
            Stage::Complete { .. } => write!(f, "complete{overwritten}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Catalog, Layout, Protection, Scheme};
    use crate::ids::{DatasetId, Epoch};

    fn catalog(revision: u32) -> Arc<CatalogIndex> {
        Arc::new(CatalogIndex::new(Catalog {
            id: DatasetId(1),
            epoch: Epoch(1),
            revision,
            name: b"ck".to_vec(),
            created_us: 0,
            user: String::new(),
            job_id: String::new(),
            layout: Layout {
                encoding: 0,
                protection: Protection::by(Scheme::Single),
                members: Vec::new(),
                sets: Vec::new(),
            },
            entries: Vec::new(),
        }))
    }

    fn lived(files: Files, steps: &[Step]) -> Life {
        steps.iter().fold(Life::begin(files), |life, step| life.after(step).unwrap())
    }

    /// The states that the node goes through.
    fn states() -> Vec<Life> {
        let complete = Step::Completed(catalog(0));
        let presented = [complete.clone(), Step::Listed];
        let leaves = [&presented[..], &[Step::Leaves]].concat();
        let overwritten = [&presented[..], &[Step::Overwritten]].concat();
        vec![
            lived(Files::InTree, &[]),
            lived(Files::Aside, &[]),
            lived(Files::InTree, std::slice::from_ref(&complete)),
            lived(Files::InTree, &presented),
            lived(Files::InTree, &[complete.clone(), Step::Overwritten]),
            lived(Files::InTree, &overwritten),
            lived(Files::Aside, &[complete]),
            lived(Files::InTree, &leaves),
        ]
    }

    /// A row is a state; a column is a step; `-` is refused.
    #[test]
    fn the_table() {
        let steps = [
            ("completed", Step::Completed(catalog(1))),
            ("listed", Step::Listed),
            ("overwritten", Step::Overwritten),
            ("superseded", Step::Superseded),
            ("hidden", Step::Hidden),
            ("put back", Step::PutBack),
            ("presented", Step::Presented),
            ("leaves", Step::Leaves),
        ];
        let row = |head: &str, cells: Vec<String>| {
            let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:<27}")).collect();
            format!("{head:<26}{}", cells.concat()).trim_end().to_owned()
        };
        let mut lines = vec![row("", steps.iter().map(|(word, _)| (*word).to_owned()).collect())];
        for life in states() {
            let next = |step| life.after(step).map_or_else(|_| "-".to_owned(), |life| life.to_string());
            lines.push(row(&life.to_string(), steps.iter().map(|(_, step)| next(step)).collect()));
        }
        let expected = "
                          completed                  listed                     overwritten                superseded                 hidden                     put back                   presented                  leaves
being sealed              complete                   -                          -                          -                          -                          -                          -                          leaving
arriving                  hidden                     -                          -                          -                          -                          -                          -                          leaving
complete                  complete                   presented                  complete and overwritten   hidden                     hidden                     -                          presented                  leaving
presented                 presented                  presented                  presented and overwritten  hidden                     hidden                     -                          presented                  leaving
complete and overwritten  complete and overwritten   presented and overwritten  -                          hidden                     hidden                     -                          -                          leaving
presented and overwritten presented and overwritten  presented and overwritten  -                          hidden                     hidden                     -                          -                          leaving
hidden                    hidden                     -                          -                          -                          hidden                     complete                   -                          leaving
leaving                   leaving                    -                          -                          -                          -                          -                          -                          leaving";
        let table = format!("\n{}", lines.join("\n"));
        assert_eq!(table, expected, "{table}");
    }

    #[test]
    fn what_cannot_be_shown_is_as_before_it_was_listed() {
        let complete = lived(Files::InTree, &[Step::Completed(catalog(0))]);
        let again = complete.after(&Step::Listed).and_then(|life| life.after(&Step::Unlisted)).unwrap();
        assert_eq!((again.to_string(), again.is_listed()), (complete.to_string(), false));
    }

    #[test]
    fn a_newer_revision_changes_the_catalog_alone() {
        for life in states() {
            let next = life.after(&Step::Completed(catalog(7))).unwrap();
            assert_eq!(next.catalog().map(|index| index.catalog().revision), Some(7), "{life}");
            assert_eq!((next.is_listed(), next.files()), (life.is_listed(), life.files()), "{life}");
        }
    }

    #[test]
    fn all_members_have_recorded_what_a_restart_has_looked_at() {
        let complete = lived(Files::InTree, &[Step::Completed(catalog(0))]);
        assert!(!complete.is_settled() && !complete.after(&Step::Listed).unwrap().is_settled());
        for step in [Step::Settled, Step::Hidden, Step::Presented] {
            assert!(complete.after(&step).unwrap().is_settled(), "{step:?}");
        }
        let refused = Life::begin(Files::InTree).after(&Step::Settled).unwrap_err();
        assert_eq!(refused.to_string(), "a dataset that is being sealed cannot be settled");
    }

    #[test]
    fn a_worker_finds_every_state_again_by_its_record_and_its_files() {
        for life in states() {
            let (files, leaves) = life.record();
            let mut found = Life::from_record(files.as_bytes(), leaves);
            if let Some(catalog) = life.catalog() {
                found = found.after(&Step::Completed(Arc::clone(catalog))).unwrap();
            }
            let aside = life.files() != Files::InTree;
            found = found.after(&Step::Found { aside }).unwrap();
            assert_eq!((found.files(), found.is_leaving()), (life.files(), life.is_leaving()), "{life}");
            assert_eq!(found.is_complete(), life.is_complete(), "{life}");
            assert!(!found.is_listed() && !found.is_settled(), "each worker finds that out anew");
        }
        let moved = |files: &[u8], aside| Life::from_record(files, false).after(&Step::Found { aside });
        assert_eq!(moved(b"TREE", true).unwrap().files(), Files::Aside);
        assert_eq!(moved(b"UNDER", false).unwrap().files(), Files::InTree);
    }
}
