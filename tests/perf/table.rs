//! The rows, and the table that is printed of them.

use std::borrow::Cow;
use std::fmt::Write;

use crate::backing::Kind;
use crate::mount::Mode;

/// What is measured; the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    WriteLarge,
    ReadLarge,
    WriteSmall,
    CreateGrowth,
    CycleToNative,
    CycleToLoopback,
    Memory,
    Spin(Waited, Ranks),
    /// As many bytes sent from rank to rank.
    Ring(Medium, Extent),
    Protect(Medium, Extent, Scheme),
    /// The same, to a program that protects as much and does nothing else.
    ProtectToPlain(Medium, Extent, Scheme),
    /// The longest wait for what begins the next checkpoint, while one of 4 nodes of 256 MiB is
    /// encoded.
    Meanwhile(Next),
    /// What of 4 nodes of 256 MiB is lost, and the scheme gives back.
    Rebuild(Scheme),
    /// From `scrfs-run` to the first byte that some rank reads, and to the last of all ranks.
    RelaunchFirst,
    RelaunchAll,
    IdleCoordinator,
    IdleDaemon,
    /// Of a dataset of some kilobytes, on so many nodes.
    Tiny(usize),
    /// Of a daemon, with so many datasets of 10,000 nodes of 32 files.
    CommitMemory(u64),
    CommitTime,
    CommitWait,
}

/// Over what nodes talk to one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Medium {
    SharedMemory,
    Network,
}

impl Medium {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            Self::Network => "network",
        }
    }
}

/// What a rank waits for while the others spin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waited {
    Marker,
    Directory,
    Open,
}

/// How much is protected: nodes, and the bytes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    Four64,
    Four256,
    Eight128,
}

impl Extent {
    pub(crate) fn nodes(self) -> usize {
        if self == Self::Eight128 { 8 } else { 4 }
    }

    pub(crate) fn mib(self) -> usize {
        match self {
            Self::Four64 => 64,
            Self::Four256 => 256,
            Self::Eight128 => 128,
        }
    }
}

/// How it is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scheme {
    Partner,
    Xor,
    Rs1,
    Rs2,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Partner => "PARTNER",
            Self::Xor => "XOR",
            Self::Rs1 => "RS(1)",
            Self::Rs2 => "RS(2)",
        }
    }
}

/// What a program does for its next checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Next {
    Directory,
    Marker,
}

/// How many ranks spin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ranks {
    AsCores,
    TwiceCores,
}

impl Measure {
    pub(crate) fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::WriteLarge => "1 MiB sequential write",
            Self::ReadLarge => "1 MiB sequential read",
            Self::WriteSmall => "4 KiB sequential write",
            Self::CreateGrowth => "create, the last 500 to the first 500",
            Self::CycleToNative => "small-file cycle to native",
            Self::CycleToLoopback => "small-file cycle to a bare loopback",
            Self::Memory => "private memory after 100,000 files, MiB",
            Self::Spin(Waited::Marker, Ranks::AsCores) => {
                "marker, 64 MiB a node, ranks that spin: one a core"
            }
            Self::Spin(Waited::Directory, Ranks::AsCores) => "mkdir, ranks that spin: one a core",
            Self::Spin(Waited::Open, Ranks::AsCores) => {
                "open of 1 MiB elsewhere, ranks that spin: one a core"
            }
            Self::Spin(_, Ranks::TwiceCores) => "the same, two or more a core",
            Self::Meanwhile(Next::Directory) => {
                "mkdir while 4 nodes of 256 MiB are encoded, XOR, in the background: the longest, ms"
            }
            Self::Meanwhile(Next::Marker) => "the marker of another dataset meanwhile: the longest, ms",
            Self::Rebuild(scheme) => {
                let lost = if scheme == Scheme::Rs2 { "2 nodes of 4 are" } else { "a node of 4 is" };
                return format!("{lost} lost, 256 MiB each, {}: rebuilt", scheme.name()).into();
            }
            Self::RelaunchFirst => {
                "a node of 4 is lost, 256 MiB each, XOR: to the program's first byte, lazy to eager"
            }
            Self::RelaunchAll => "the same: until every rank has read its own file",
            Self::IdleCoordinator => "an idle coordinator, % of a core",
            Self::IdleDaemon => "an idle daemon, % of a core",
            Self::Tiny(nodes) => {
                return format!("marker, {nodes} nodes of 4 KiB, XOR, shared memory").into();
            }
            Self::CommitMemory(1) => "most memory of a daemon, a dataset of 320,000 files is recorded, MiB",
            Self::CommitMemory(datasets) => {
                return format!("the same, {datasets} of them one after the other").into();
            }
            Self::CommitTime => "processor time of a daemon for each",
            Self::CommitWait => "the longest that a program waits meanwhile, ms",
            Self::Ring(medium, extent) => {
                let (nodes, mib) = (extent.nodes(), extent.mib());
                return format!("MPI alone, {nodes} nodes of {mib} MiB, {}", medium.name()).into();
            }
            Self::Protect(medium, extent, scheme) => {
                let (nodes, mib) = (extent.nodes(), extent.mib());
                let (scheme, medium) = (scheme.name(), medium.name());
                return format!("marker, {nodes} nodes of {mib} MiB, {scheme}, {medium}").into();
            }
            Self::ProtectToPlain(medium, extent, scheme) => {
                let marker = Self::Protect(medium, extent, scheme).name();
                return format!("{marker}: to a plain program").into();
            }
        })
    }
}

/// What a figure must hold, and what it should.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// A ratio of speeds: more is better.
    AtLeast { gate: f64, goal: f64 },
    /// A cost: less is better.
    AtMost { gate: f64, goal: f64 },
}

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) measure: Measure,
    pub(crate) backing: Kind,
    pub(crate) mode: Mode,
    /// What native, or the peer, gave; with its unit.
    pub(crate) peer: String,
    /// What /scr gave; with its unit.
    pub(crate) scr: String,
    /// What is held against the bound.
    pub(crate) figure: f64,
    /// None: for comparison only.
    pub(crate) bound: Option<Bound>,
}

impl Row {
    pub(crate) fn holds(&self) -> bool {
        match self.bound {
            None => true,
            Some(Bound::AtLeast { gate, .. }) => self.figure >= gate,
            Some(Bound::AtMost { gate, .. }) => self.figure <= gate,
        }
    }
}

/// The table as it stands in documents.
pub(crate) fn render(rows: &[Row], pairs: usize) -> String {
    let mut text = format!("medians of {pairs} pairs\n");
    text += "| measure | backing | mode | native or peer | /scr | figure | gate | goal |\n";
    text += "|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        let (gate, goal) = match row.bound {
            None => ("-".to_owned(), "-".to_owned()),
            Some(Bound::AtLeast { gate, goal } | Bound::AtMost { gate, goal }) => {
                (gate.to_string(), goal.to_string())
            }
        };
        let missed = if row.holds() { "" } else { " (missed)" };
        let (measure, backing, mode) = (row.measure.name(), row.backing.name(), row.mode.name());
        let (peer, scr, figure) = (&row.peer, &row.scr, row.figure);
        let _ = writeln!(
            text,
            "| {measure} | {backing} | {mode} | {peer} | {scr} | {figure:.2}{missed} | {gate} | {goal} |"
        );
    }
    text
}
