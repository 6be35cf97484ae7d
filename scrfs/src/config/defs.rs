//! Every parameter that scrfs honours, in one table: name, kind, default, who may set it, and what
//! it does.
//!
//! The table in `scrfs/docs/operations.md` is this one; a test compares them.

/// How a parameter's text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `0` or `1`.
    Bool,
    /// A whole number in this range, both ends included.
    Count(u64, u64),
    /// Bytes in this range; suffixes k, m, g, t are powers of 1024.
    Bytes(u64, u64),
    /// Seconds; suffix `ms` or `s`. At most a day.
    Time,
    /// One of these words, in any case.
    Word(&'static [&'static str]),
    /// Any text without line breaks.
    Text,
    /// A path; a relative one is below the working directory, or below what `doc` says.
    Path,
    /// Paths separated by commas or colons.
    Paths,
    /// Host names separated by commas or blanks; `n[1-4,7]` stands for five.
    Hosts,
    /// File names separated by commas.
    Names,
    /// A regular expression that a whole name has to match.
    Pattern,
    /// Permissions as octal digits.
    Mode,
}

impl Kind {
    /// For the manual.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Bool => "0 or 1",
            Self::Count(..) => "number",
            Self::Bytes(..) => "bytes (k, m, g)",
            Self::Time => "seconds (s, ms)",
            Self::Word(_) => "word",
            Self::Text => "text",
            Self::Path => "path",
            Self::Paths => "paths",
            Self::Hosts => "hosts",
            Self::Names => "names",
            Self::Pattern => "regular expression",
            Self::Mode => "octal mode",
        }
    }
}

/// Who may set a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Anyone, in the environment or in the user file.
    User,
    /// Only the system file, and the environment of a program that the administrator starts.
    Administrator,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// As it stands in the environment and in files.
    pub name: &'static str,
    /// How its text is read.
    pub kind: Kind,
    /// Its text when nobody sets it; empty = not set, `doc` says what holds then.
    pub default: &'static str,
    /// Who may set it.
    pub who: Who,
    /// What it does, one line.
    pub doc: &'static str,
}

const fn row(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Parameter {
    Parameter { name, kind, default, who: Who::User, doc }
}

const fn system(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Parameter {
    Parameter { name, kind, default, who: Who::Administrator, doc }
}

/// The words of the schemes that this version makes.
pub const SCHEMES: &[&str] = &["LOCAL", "SINGLE", "PARTNER", "XOR", "RS"];

/// The words of SCR's other schemes. Messages say that this version does not make them.
pub const OTHER_SCHEMES: &[&str] = &["FILE"];

/// Largest `SCR_SET_SIZE`.
pub const SET_SIZE_MAX: u64 = 4096;
/// Largest `SCR_SET_FAILURES`.
pub const FAILURES_MAX: u64 = 64;
/// Largest `SCR_HOP_DISTANCE`.
pub const HOP_DISTANCE_MAX: u64 = 65_536;

/// Where a marker has to be set.
pub const SCOPES: &[&str] = &["any", "all"];

/// What a marker's close waits for.
pub const SEALS: &[&str] = &["wait", "background"];

/// When a restart lets programs start.
pub const RESTARTS: &[&str] = &["eager", "lazy"];

/// All parameters.
pub const PARAMETERS: &[Parameter] = &[
    row(
        "SCR_ENABLE",
        Kind::Bool,
        "1",
        "0: directories are global, markers succeed at once, and nothing is protected",
    ),
    row("SCR_DEBUG", Kind::Count(0, 9), "0", "1: more in the logs; 2 and above: everything"),
    row("SCR_CONF_FILE", Kind::Path, "", "user file; default `$SCR_PREFIX/.scrconf`"),
    row("SCR_JOB_ID", Kind::Text, "", "the job's id; default: the scheduler's, else `local`"),
    row(
        "SCR_USER_NAME",
        Kind::Text,
        "",
        "the job's user; default: where root mounts the scheduler's word, else who starts it",
    ),
    row(
        "SCR_NODELIST",
        Kind::Hosts,
        "",
        "hosts of the job, spares last; default: the scheduler's, else this host",
    ),
    row("SCR_PREFIX", Kind::Path, "", "the job's directory on the PFS; default: the working directory"),
    row(
        "SCRFS_MOUNT",
        Kind::Path,
        "/scr",
        "where scrfs is mounted; `%j` stands for the job's id, `%u` for its user, `%%` for `%`",
    ),
    row("SCRFS_MODE", Kind::Mode, "0700", "mode of a new mount's root, which is the job user's"),
    system(
        "SCRFS_OPERATOR_GROUP",
        Kind::Text,
        "",
        "a group of this machine that may read the status and the events of every job",
    ),
    system(
        "SCR_CNTL_BASE",
        Kind::Path,
        "",
        "where control directories are, absolute; default: `/run/scrfs` for root, `/dev/shm` for others",
    ),
    row(
        "SCR_CACHE_BASE",
        Kind::Paths,
        "/dev/shm",
        "stores: where the cache may be; a dataset goes to the one that its descriptor names, else to the one with most room; a user may choose among those of the system file",
    ),
    row(
        "SCRFS_DESCRIPTORS",
        Kind::Text,
        "",
        "checkpoint descriptors separated by `;`, in the form of SCR's `CKPT=` lines; default: those of the files",
    ),
    row("SCR_CACHE_SIZE", Kind::Count(1, 1000), "2", "sealed datasets kept in the cache"),
    row("SCRFS_CACHE_BYTES", Kind::Bytes(0, 1 << 60), "0", "bytes that a node's cache may take; 0: no limit"),
    row(
        "SCR_COPY_TYPE",
        Kind::Word(SCHEMES),
        "XOR",
        "how datasets are protected: XOR (of each set one node may be lost), RS (SCR_SET_FAILURES of them), PARTNER (a copy at the next node of the set), or SINGLE (also LOCAL): not at all",
    ),
    row(
        "SCR_SET_SIZE",
        Kind::Count(1, SET_SIZE_MAX),
        "8",
        "least members of a redundancy set, which has fewer than twice as many; all nodes where there are fewer; with RS at most 96",
    ),
    row(
        "SCR_SET_FAILURES",
        Kind::Count(1, FAILURES_MAX),
        "2",
        "with RS: members of a set that may be lost; fewer than SCR_SET_SIZE",
    ),
    row("SCR_HOP_DISTANCE", Kind::Count(1, HOP_DISTANCE_MAX), "1", "stride between the members of a set"),
    row(
        "SCR_GROUP",
        Kind::Text,
        "NODE",
        "kind of failure groups, of each of which a set has one member at most: NODE, or one that `GROUPS=` lines name",
    ),
    row(
        "SCRFS_GROUPS",
        Kind::Text,
        "",
        "failure groups separated by `;`, in the form of SCR's `GROUPS=` lines; default: those of the files",
    ),
    row("SCR_DISTRIBUTE", Kind::Bool, "1", "a restart may use the cache"),
    row("SCR_FETCH", Kind::Bool, "1", "a restart may fetch from the prefix"),
    row("SCR_FLUSH", Kind::Count(0, 1_000_000), "10", "every n-th dataset is flushed; 0: none"),
    row(
        "SCR_RUNS",
        Kind::Count(1, 1_000_000),
        "",
        "runs of the program at most; default: until two in a row protect nothing new",
    ),
    row(
        "SCRFS_LAUNCHER_TIMEOUT",
        Kind::Time,
        "600s",
        "a launcher that does not end is ended so long after the last process of its program; 4 s or more, or 0: it is waited for",
    ),
    row(
        "SCR_WATCHDOG_TIMEOUT",
        Kind::Count(0, 1_000_000_000),
        "0",
        "a program none of whose datasets has become complete for so many seconds is ended and started again; 0: never",
    ),
    row(
        "SCR_MIN_NODES",
        Kind::Count(1, 1_000_000),
        "",
        "fewest nodes to run on; default: as many as the last run had",
    ),
    row("SCR_EXCLUDE_NODES", Kind::Hosts, "", "hosts never to use"),
    row(
        "SCR_CHECKPOINT_INTERVAL",
        Kind::Count(0, 1_000_000_000),
        "0",
        "a checkpoint is advised at every n-th question; 0: no such rule",
    ),
    row(
        "SCR_CHECKPOINT_SECONDS",
        Kind::Count(0, 1_000_000_000),
        "0",
        "a checkpoint is advised so many seconds after the last; 0: no such rule",
    ),
    row(
        "SCR_CHECKPOINT_OVERHEAD",
        Kind::Count(0, 100),
        "0",
        "a checkpoint is advised while less than this percentage of the time went into waiting at markers; 0: no such rule",
    ),
    row(
        "SCR_HALT_SECONDS",
        Kind::Count(0, 1_000_000_000),
        "0",
        "programs are advised to end so many seconds before the allocation does; 0: never",
    ),
    row(
        "SCRFS_END_TIME",
        Kind::Count(0, 1 << 40),
        "",
        "when the allocation ends, seconds since 1970; default: the scheduler's word",
    ),
    row(
        "SCRFS_END_GRACE",
        Kind::Time,
        "60s",
        "how long the newest protected dataset may take to get to the PFS at the end of the job; 0: it is not brought there",
    ),
    row(
        "SCRFS_HALT_SIGNAL",
        Kind::Word(SIGNALS),
        "TERM",
        "what a program is sent that does not end by itself when a halt is due",
    ),
    row(
        "SCRFS_HALT_GRACE",
        Kind::Time,
        "30s",
        "how long a program may take to end by itself when a halt is due, and again after the signal",
    ),
    row(
        "SCRFS_RESTART",
        Kind::Word(RESTARTS),
        "eager",
        "eager: programs start when all bytes are there; lazy: when all names are; bytes are verified and rebuilt behind",
    ),
    row(
        "SCRFS_FETCH",
        Kind::Word(RESTARTS),
        "eager",
        "lazy: what only the prefix has is listed at once and fetched behind programs; so it is with SCRFS_RESTART=lazy",
    ),
    row(
        "SCRFS_KEEP_UNSEALED",
        Kind::Bool,
        "0",
        "1: a restart moves files that are not sealed aside, into the cache; 0: it removes them",
    ),
    row(
        "SCR_MPI_BUF_SIZE",
        Kind::Bytes(4096, 16 << 20),
        "1m",
        "bytes of one block between coordinators, at most 16m; a set is encoded in blocks of 4m at most, in larger sets smaller ones (XOR, 8 members: 584k). SCR's default is 128k: fewer hand-overs while programs spin",
    ),
    row(
        "SCRFS_ENCODE_THREADS",
        Kind::Count(1, 64),
        "1",
        "strips in which a node encodes its part of a large dataset at a time, each with two threads: more where a node has many cores and one reads memory too slowly; a strip has at least four blocks",
    ),
    row(
        "SCRFS_CHECKPOINT_PATH",
        Kind::Path,
        "",
        "where datasets are, below the mount's root; default: there",
    ),
    row(
        "SCRFS_DATASET_PATTERN",
        Kind::Pattern,
        "",
        "files of the checkpoint path that match belong to the dataset that the first group (or the one called `dataset`) names",
    ),
    row("SCRFS_MARKER", Kind::Names, ".complete", "names of markers; `.complete` is always one"),
    row(
        "SCRFS_MARKER_SCOPE",
        Kind::Word(SCOPES),
        "any",
        "any: a marker on one node seals; all: it must be set on every node that runs the program",
    ),
    row(
        "SCRFS_SEAL",
        Kind::Word(SEALS),
        "wait",
        "wait: the marker's close returns when the dataset is protected; background: when it is frozen",
    ),
    row(
        "SCRFS_SEAL_TIMEOUT",
        Kind::Time,
        "30s",
        "how long a seal waits for writers, a marker for a node that cannot record, and with scope all for the marker on every node",
    ),
    row(
        "SCRFS_COMMIT_ON_RENAME",
        Kind::Pattern,
        "",
        "renaming a dataset's directory to a name that matches is a marker, in the background",
    ),
    row(
        "SCRFS_COORDINATOR_WAIT",
        Kind::Time,
        "10s",
        "how long requests wait for a successor of lost coordinators",
    ),
    row(
        "SCRFS_NODE_TIMEOUT",
        Kind::Time,
        "30s",
        "a node whose network answers, and that itself has been silent for so long, counts as dead; 2 s or more",
    ),
    row(
        "SCRFS_SCRUB_INTERVAL",
        Kind::Time,
        "0",
        "how often cached datasets are compared with their checksums in the background, and mended; 0: never",
    ),
    row(
        "SCRFS_FANOUT",
        Kind::Count(2, 100_000),
        "16",
        "nodes to which each coordinator passes on what the first one says to all",
    ),
    row("SCRFS_LOOSE_MAX", Kind::Bytes(1, 1 << 30), "1m", "bytes of a pointer file at most"),
    row("SCRFS_LOOSE_FILES", Kind::Count(0, 10_000), "64", "pointer files at most"),
    row(
        "SCRFS_LIST_MAX",
        Kind::Count(1, 100_000_000),
        "400000",
        "files of one dataset at most, and directories",
    ),
];

/// `SCRFS_HALT_SIGNAL`.
pub const SIGNALS: &[&str] = &["TERM", "HUP", "USR1", "USR2"];

/// The row of `name`.
pub fn find(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|p| p.name == name)
}

/// Planned: accepted with a warning, without effect.
pub const NOT_YET: &[&str] = &[
    "SCR_LOG_ENABLE",
    "SCR_CACHE_PURGE",
    "SCR_FETCH_WIDTH",
    "SCR_FLUSH_WIDTH",
    "SCR_FLUSH_ASYNC",
    "SCR_FLUSH_ON_RESTART",
    "SCR_FLUSH_ASYNC_BW",
    "SCR_FLUSH_ASYNC_PERCENT",
    "SCR_PREFIX_SIZE",
    "SCR_FILE_BUF_SIZE",
    "CACHE",
];

/// Read, checked and brought to every node, but nothing acts on them yet: accepted with a warning.
pub const PENDING: &[&str] = &[];

/// No parameters: what scrfs-run sets for the program and for its own parts, log filters, and what
/// arms fault points in test builds.
pub const EXPORTED: &[&str] = &[
    "SCRFS_CURRENT",
    "SCRFS_HOSTS",
    "SCRFS_RUN",
    "SCRFS_RUN_TOKEN",
    "SCRFS_NODES",
    "SCRFS_NODE_RANK",
    "SCRFS_LOG",
    "SCRFS_LOG_TO",
    "SCRFS_FAULTS",
    "SCRFS_FAULTS_FILE",
];

/// Names that belong to scrfs: a typing error in one is worth a warning.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with("SCRFS_") && !EXPORTED.contains(&name)
}

/// Of one name.
const TYPING_ERRORS_MAX: usize = 2;

/// The parameter that a name with a typing error or two in it means.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let distance = |known: &str| strsim::damerau_levenshtein(name, known);
    let nearest = PARAMETERS.iter().map(|known| (distance(known.name), known.name)).min()?;
    let is_known = EXPORTED.contains(&name) || nearest.0 > TYPING_ERRORS_MAX;
    (!is_known).then_some(nearest.1)
}
