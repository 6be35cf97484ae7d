//! A mount in a mount namespace of the thread's own, and a plain directory on the same file system
//! beside its cache.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

const SCRFS: &str = env!("CARGO_BIN_EXE_scrfs");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    Tmpfs,
    Ext4,
    Xfs,
    Btrfs,
    /// ext4 as the second store of a mount, to which all datasets go; the first is a tmpfs.
    Second,
}

impl Backing {
    /// The program that makes it in an image file, its arguments, and how it is mounted; tmpfs
    /// needs no image.
    fn maker(self) -> Option<(&'static str, &'static [&'static str], &'static str)> {
        match self {
            Self::Tmpfs => None,
            Self::Ext4 | Self::Second => {
                Some(("mkfs.ext4", &["-q", "-E", "lazy_itable_init=1,nodiscard"], "loop,nosuid,nodev"))
            }
            Self::Xfs => Some(("mkfs.xfs", &["-q", "-K"], "loop,nosuid,nodev")),
            Self::Btrfs => Some(("mkfs.btrfs", &["-q", "-K"], "loop,nosuid,nodev")),
        }
    }
}

/// One of the ways to run everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    pub backing: Backing,
    pub passthrough: bool,
}

impl Way {
    /// Where a test works that may work at `scope`: of a second store only datasets are.
    pub fn scope(self, scope: Scope) -> Scope {
        if self.backing == Backing::Second { Scope::Dataset } else { scope }
    }

    /// Each backing and each mode meets each scope once.
    pub fn one_scope(self) -> Scope {
        let dataset = (self.backing == Backing::Tmpfs) == self.passthrough;
        self.scope(if dataset { Scope::Dataset } else { Scope::Scratch })
    }
}

pub const WAYS: [Way; 9] = [
    Way { backing: Backing::Tmpfs, passthrough: true },
    Way { backing: Backing::Tmpfs, passthrough: false },
    Way { backing: Backing::Ext4, passthrough: true },
    Way { backing: Backing::Ext4, passthrough: false },
    Way { backing: Backing::Xfs, passthrough: true },
    Way { backing: Backing::Xfs, passthrough: false },
    Way { backing: Backing::Btrfs, passthrough: true },
    Way { backing: Backing::Btrfs, passthrough: false },
    Way { backing: Backing::Second, passthrough: true },
];

/// Where on the mount a test works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Node-local scratch, outside the checkpoint path.
    Scratch,
    /// A dataset that is not sealed.
    Dataset,
}

/// Where a place is seen in its mount namespace: the same short path whatever TMPDIR is, as sockets
/// have no more than 107 bytes for theirs.
const SEEN: &str = "/mnt";

pub struct Place {
    pub way: Way,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new(way: Way) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "needs root");
        // A child of another test has its parent's descriptors until its exec: a FIFO or a file
        // that was closed here would be open there.
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FILES)
            .expect("a private mount namespace and table of descriptors");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let dir = tempfile::tempdir().unwrap();
        // As /tmp is: the control directory is made in it.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        mount(Some(dir.path()), SEEN, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let place = Self { way, _dir: dir };
        for name in ["scr", "cache", "image", "first"] {
            fs::create_dir(place.path(name)).unwrap();
        }
        // As the mount itself is, so that devices and programs behave alike.
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let maker = way.backing.maker();
        let memory = if maker.is_none() { "cache" } else { "image" };
        mount(Some("tmpfs"), &place.path(memory), Some("tmpfs"), flags, None::<&str>).unwrap();
        if let Some((program, arguments, options)) = maker {
            let image = place.path("image/image");
            fs::File::create(&image).unwrap().set_len(4 << 30).unwrap();
            run(Command::new(program).args(arguments).arg(&image));
            run(Command::new("mount").args(["-o", options]).arg(&image).arg(place.path("cache")));
        }
        if way.backing == Backing::Second {
            // More room, so that it is the first store.
            let size = Some("size=8g");
            mount(Some("tmpfs"), &place.path("first"), Some("tmpfs"), flags, size).unwrap();
        }
        run(&mut place.mount_command());
        for name in ["scr", "scr/scratch", "scr/job", "cache/twin"] {
            let path = place.path(name);
            if !path.exists() {
                fs::create_dir(&path).unwrap();
            }
            open_to_all(&path);
        }
        place
    }

    fn mount_command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "2", "60", SCRFS, "mount", "--user", "root", "--job-id", "t"]);
        command.arg("--control-base").arg(self.path("control"));
        if self.way.backing == Backing::Second {
            let (first, second) = (self.path("first"), self.path("cache"));
            command.arg("--cache-base").arg(format!("{},{}", first.display(), second.display()));
            command.env("SCRFS_DESCRIPTORS", format!("0 STORE={}", second.display()));
        } else {
            command.arg("--cache-base").arg(self.path("cache"));
        }
        command.args(["--checkpoint-path", "job"]);
        if !self.way.passthrough {
            command.arg("--no-passthrough");
        }
        command.arg(self.path("scr"));
        command
    }

    #[allow(clippy::unused_self, reason = "the place has been entered: its paths are the process's")]
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(SEEN).join(name)
    }

    /// A new directory for a test on the mount, and its twin beside the cache; open to every user.
    pub fn pair(&self, scope: Scope, name: &str) -> (PathBuf, PathBuf) {
        let mounted = match scope {
            Scope::Scratch => self.path("scr/scratch").join(name),
            Scope::Dataset => self.path("scr/job").join(name),
        };
        let native = self.path("cache/twin").join(name);
        // One deeper: nothing else happens in the directory above it.
        [native, mounted]
            .map(|path| {
                fs::create_dir(&path).unwrap();
                let inner = path.join("in");
                fs::create_dir(&inner).unwrap();
                open_to_all(&path);
                open_to_all(&inner);
                inner
            })
            .into()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Command::new("timeout")
            .args(["-k", "2", "60", SCRFS, "umount", "--force"])
            .arg(self.path("scr"))
            .output();
        for name in ["scr", "cache", "image", "first"] {
            let _ = umount2(&self.path(name), MntFlags::MNT_DETACH);
        }
        if std::thread::panicking() {
            let log = self.path("control/root/scr.t/daemon.log");
            let log = fs::read_to_string(log).unwrap_or_default();
            let from = log.len().saturating_sub(4000);
            let tail = String::from_utf8_lossy(&log.as_bytes()[from..]);
            let _ = writeln!(std::io::stderr(), "end of daemon.log:\n{tail}");
        }
        let _ = umount2(SEEN, MntFlags::MNT_DETACH);
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Runs `test` on a fresh place, in a thread with a mount namespace and descriptors of its own, of
/// which `/proc/thread-self` tells, not `/proc/self`.
pub fn in_place<T: Send + 'static>(way: Way, test: impl FnOnce(&Place) -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || test(&Place::new(way)));
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
