//! File systems made for a measurement; gone with the value.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a file system may keep for itself meanwhile, bytes.
const ROOM_SLACK: u64 = 4 << 20;

/// Which file system the cache is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tmpfs,
    /// In a file on a tmpfs: what is measured is the file system, not a disk.
    Ext4,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Ext4 => "ext4",
        }
    }
}

/// A mounted file system.
pub(crate) struct Backing {
    pub(crate) kind: Kind,
    /// Innermost last.
    points: Vec<PathBuf>,
    home: tempfile::TempDir,
}

impl Backing {
    /// At least `mib` MiB of room.
    pub(crate) fn new(kind: Kind, mib: usize) -> io::Result<Self> {
        let home = tempfile::tempdir()?;
        let mut backing = Self { kind, points: Vec::new(), home };
        let outer = backing.directory("memory")?;
        // An ext4 file of `mib` and the file system's own blocks.
        let size = mib + mib / 8 + 64;
        backing.mount(&["-t", "tmpfs", "-o", &format!("size={size}m"), "tmpfs"], outer.clone())?;
        if kind == Kind::Ext4 {
            let image = outer.join("image");
            run(Command::new("truncate").arg(format!("--size={mib}M")).arg(&image))?;
            run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
            let inner = backing.directory("ext4")?;
            backing.mount(&["-o", "loop", &image.to_string_lossy()], inner)?;
        }
        Ok(backing)
    }

    /// Where files can be made.
    pub(crate) fn path(&self) -> &Path {
        self.points.last().map_or(Path::new("/nonexistent"), PathBuf::as_path)
    }

    /// Free bytes.
    pub(crate) fn room(&self) -> io::Result<u64> {
        let told = rustix::fs::statvfs(self.path())?;
        Ok(told.f_bfree.saturating_mul(told.f_frsize))
    }

    /// Waits until removed files have given back what they held: all of `room` but a little.
    pub(crate) fn await_room(&self, room: u64) -> io::Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        while self.room()? + ROOM_SLACK < room {
            if Instant::now() > until {
                return Err(io::Error::other("a removed file keeps its bytes"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.home.path().join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }

    fn mount(&mut self, arguments: &[&str], point: PathBuf) -> io::Result<()> {
        run(Command::new("mount").args(arguments).arg(&point))?;
        self.points.push(point);
        Ok(())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        for point in self.points.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(point).status();
        }
    }
}

/// Runs `command` to its end, or says how it failed.
pub(crate) fn run(command: &mut Command) -> io::Result<()> {
    let status = command.stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
