//! Where things are: names, addresses and paths, the same for the harness and for the programs
//! inside the nodes.
//!
//! A cluster has one state directory on the host. Inside every namespace it is seen as [`INSIDE`]:
//!
//! | path | what |
//! |---|---|
//! | `conf.json` | sizes and shared directories, read when a node boots |
//! | `bin/` | the programs of this build (bound in the namespaces, empty on the host) |
//! | `etc/` | files that stand in the place of those of `/etc`: hosts, passwd, group, Open MPI's site parameters |
//! | `nodes/NODE` | the running node's record: host pid, pid in the cluster, PID namespace |
//! | `nodes/NODE.cut` | exists while the node is cut off |
//! | `door` | socket of the remote shell server |
//! | `log/NODE` | what a node's init had to say |
//! | `pfs/` | the parallel file system, seen as [`PFS`] |
//! | `ssd/NODE/` | a node's cache when it survives reboots |

use std::fmt;
use std::path::{Path, PathBuf};

/// The state directory as every namespace of the cluster sees it.
pub const INSIDE: &str = "/run/sim";
/// The programs of this build, in every namespace; first in `PATH` there.
pub const BIN: &str = "/run/sim/bin";
/// The shared directory that stands for the parallel file system, in every namespace; anyone may
/// write.
pub const PFS: &str = "/pfs";
/// Node-local storage for checkpoints, a file system of its own on every node; anyone may write.
pub const CACHE: &str = "/cache";
/// An empty directory on every node, for the mount.
pub const SCR: &str = "/scr";
/// The user that jobs run as when they do not run as root.
pub const JOB_UID: u32 = 1000;
/// The cluster's users, by name: whose jobs run, and another who may be up to anything.
pub const USERS: [(&str, u32); 2] = [("job", JOB_UID), ("mate", 1001)];
/// `PATH` in every namespace.
pub const PATH: &str = "/run/sim/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A place where a command can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The login node: the bridge is here, and launchers run here. It sees the processes of all
    /// nodes.
    Head,
    /// A compute node, counted from 0.
    Node(usize),
}

impl Place {
    /// Reads `head` or `nodeK`.
    pub fn parse(name: &str) -> Option<Self> {
        if name == "head" {
            return Some(Self::Head);
        }
        name.strip_prefix("node")?.parse().ok().filter(|&k| k < MAX_NODES).map(Self::Node)
    }

    /// The address on the cluster's network.
    pub fn address(self) -> String {
        match self {
            Self::Head => "10.77.0.254".to_owned(),
            Self::Node(k) => format!("10.77.0.{}", k + 1),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head => f.write_str("head"),
            Self::Node(k) => write!(f, "node{k}"),
        }
    }
}

/// More would not fit the address range.
pub const MAX_NODES: usize = 250;

/// Paths in a cluster's state directory, from the host or from inside.
#[derive(Clone, Debug)]
pub struct State {
    dir: PathBuf,
}

impl State {
    /// The cluster whose state directory is `dir`.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The cluster that this process is inside of.
    pub fn inside() -> Self {
        Self::at(INSIDE)
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sizes and shared directories.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("conf.json")
    }

    /// Files that stand over those of `/etc`.
    pub fn etc(&self) -> PathBuf {
        self.dir.join("etc")
    }

    /// Where a new root is put together; always empty on the host.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The remote shell's socket.
    pub fn door(&self) -> PathBuf {
        self.dir.join("door")
    }

    /// The parallel file system.
    pub fn pfs(&self) -> PathBuf {
        self.dir.join("pfs")
    }

    /// A node's cache when it survives reboots.
    pub fn ssd(&self, place: Place) -> PathBuf {
        self.dir.join("ssd").join(place.to_string())
    }

    /// A running node's record.
    pub fn record(&self, place: Place) -> PathBuf {
        self.dir.join("nodes").join(place.to_string())
    }

    /// Exists while the node is cut off.
    pub fn cut(&self, place: Place) -> PathBuf {
        self.dir.join("nodes").join(format!("{place}.cut"))
    }

    /// What a node's init had to say.
    pub fn log(&self, place: Place) -> PathBuf {
        self.dir.join("log").join(place.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for place in [Place::Head, Place::Node(0), Place::Node(17)] {
            assert_eq!(Place::parse(&place.to_string()), Some(place));
        }
        for bad in ["", "node", "node-1", "node250", "login", "node1x"] {
            assert_eq!(Place::parse(bad), None, "{bad}");
        }
        assert_eq!(Place::Node(3).address(), "10.77.0.4");
    }
}
