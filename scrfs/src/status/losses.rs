//! What the loss of each node would cost.

use std::collections::{BTreeSet, HashSet};

use serde::Serialize;

use super::{FAILED, HIDDEN, NodeStatus};

/// What it costs if one of `hosts` alone dies now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss<'a> {
    /// Nodes whose loss costs the same.
    pub hosts: Vec<&'a str>,
    /// What a restart would present then; `None`: nothing.
    pub presented: Option<Presented<'a>>,
    /// What nobody would have any more. Of what is not sealed, and of changes, only those on the
    /// node that was asked are known.
    pub lost: Vec<Lost<'a>>,
}

/// The dataset that a restart would present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Presented<'a> {
    /// Its id.
    pub id: u64,
    /// Its directory's name.
    pub name: &'a str,
    /// It has left the caches.
    pub from_pfs: bool,
}

/// Something of a dataset that would be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Lost<'a> {
    /// Its directory's name.
    pub name: &'a str,
    /// What of it.
    pub what: LostPart,
}

/// Which part of a dataset would be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LostPart {
    /// All that was sealed.
    Sealed,
    /// It was never sealed: a restart removes it.
    Unsealed,
    /// What was changed since it was sealed: a restart presents what was sealed.
    Changes,
}

/// For each node that `s` knows of.
pub fn losses(s: &NodeStatus) -> Vec<Loss<'_>> {
    // Of each dataset the nodes that it does not outlive.
    let fatal = s.datasets.iter().map(|d| d.survives.iter().filter(|(_, kept)| !kept));
    let fatal: Vec<HashSet<&str>> =
        fatal.map(|hosts| hosts.map(|(host, _)| host.as_str()).collect()).collect();
    let mut all: Vec<Loss<'_>> = Vec::new();
    for host in hosts(s) {
        let (presented, lost) = cost(s, &fatal, host);
        match all.iter_mut().find(|known| known.presented == presented && known.lost == lost) {
            Some(known) => known.hosts.push(host),
            None => all.push(Loss { hosts: vec![host], presented, lost }),
        }
    }
    all
}

fn cost<'a>(
    s: &'a NodeStatus,
    fatal: &[HashSet<&str>],
    host: &str,
) -> (Option<Presented<'a>>, Vec<Lost<'a>>) {
    let (mut presented, mut lost) = (None, Vec::new());
    // The last restart could not use the hidden ones, or a person chose against them.
    for (d, fatal) in s.datasets.iter().zip(fatal).filter(|(d, _)| d.state != HIDDEN) {
        let mut loses = |what| lost.push(Lost { name: &d.name, what });
        if d.changed.is_some() {
            loses(LostPart::Changes);
        }
        if d.state == FAILED {
            loses(LostPart::Sealed);
        } else if !d.is_complete() {
            loses(LostPart::Unsealed);
        } else if !fatal.contains(host) {
            presented = presented.or(Some(Presented { id: d.id, name: &d.name, from_pfs: false }));
        } else {
            loses(LostPart::Sealed);
        }
    }
    let gone = s.on_pfs.as_ref().map(|gone| Presented { id: gone.id, name: &gone.name, from_pfs: true });
    let fetched = gone.filter(|gone| presented.is_none_or(|cached| cached.id < gone.id));
    (fetched.or(presented), lost)
}

/// All nodes that this one knows of.
pub(super) fn hosts(s: &NodeStatus) -> BTreeSet<&str> {
    let coordinators = s.coordinator.iter().flat_map(|c| &c.hosts);
    let members = s.datasets.iter().flat_map(|d| d.survives.iter().map(|(host, _)| host));
    let mut all: BTreeSet<&str> = coordinators.chain(members).map(String::as_str).collect();
    all.insert(&s.host);
    all
}
