//! What is measured: a scrfs mount, and the peer, a bare loopback over FUSE. Both go with their
//! values.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::backing::{Backing, run};

/// How the mount serves file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Passthrough,
    Plain,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Plain => "plain",
        }
    }
}

/// A scrfs mount over a backing file system.
pub(crate) struct Mount {
    program: PathBuf,
    home: PathBuf,
    point: PathBuf,
}

impl Mount {
    pub(crate) fn new(backing: &Backing, mode: Mode) -> io::Result<Self> {
        let program = sibling("scrfs")?;
        let home = backing.path().join(mode.name());
        let point = home.join("scr");
        std::fs::create_dir_all(&point)?;
        let mut command = Command::new(&program);
        command.args(["mount", "--user", "root", "--job-id", mode.name()]);
        command.arg("--control-base").arg(home.join("control")).arg("--cache-base").arg(home.join("cache"));
        if mode == Mode::Plain {
            command.arg("--no-passthrough");
        }
        run(command.arg(&point))?;
        Ok(Self { program, home, point })
    }

    /// Where it is mounted.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// The most memory that one of its processes has had, in MiB.
    pub(crate) fn peak_mib(&self) -> io::Result<f64> {
        let mut most = 0_u32;
        for pid in self.processes()? {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
            most = most.max(kib.and_then(|kib| kib.trim().parse().ok()).unwrap_or(0));
        }
        Ok(f64::from(most) / 1024.0)
    }

    /// A new dataset's directory.
    pub(crate) fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.point.join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }

    /// Where the cache keeps the one file of this name.
    pub(crate) fn backing_file(&self, name: &str) -> io::Result<PathBuf> {
        let mut left = vec![self.home.join("cache")];
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    left.push(entry.path());
                } else if entry.file_name() == name {
                    return Ok(entry.path());
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::NotFound, format!("the cache has no file {name}")))
    }

    /// The processes that serve it: those of the program with the mount point among their
    /// arguments.
    pub(crate) fn processes(&self) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(program) = std::fs::read_link(entry.path().join("exe")) else { continue };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let point = self.point.as_os_str().as_encoded_bytes();
            if program == self.program && line.split(|byte| *byte == 0).any(|word| word == point) {
                found.push(pid);
            }
        }
        Ok(found)
    }

    /// Seconds of processor time that its threads have used since they began.
    pub(crate) fn cpu_seconds(&self) -> io::Result<f64> {
        let mut used = std::time::Duration::ZERO;
        for pid in self.processes()? {
            for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                let Ok(times) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
                let nanoseconds = times.split(' ').next().and_then(|first| first.parse().ok());
                used += std::time::Duration::from_nanos(nanoseconds.unwrap_or(0));
            }
        }
        Ok(used.as_secs_f64())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new(&self.program).arg("umount").arg(&self.point).status();
        // The cache outlives a mount, but not a measurement.
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// The peer: as little as a loopback with passthrough can do.
pub(crate) struct Loopback {
    child: Child,
    point: PathBuf,
}

impl Loopback {
    pub(crate) fn new(backing: &Backing) -> io::Result<Self> {
        let (below, point) = (backing.path().join("below"), backing.path().join("loopback"));
        std::fs::create_dir_all(&below)?;
        std::fs::create_dir_all(&point)?;
        let mut child = Command::new(sibling("scrfs-loopback")?)
            .arg(&below)
            .arg(&point)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            io::BufRead::read_line(&mut io::BufReader::new(out), &mut line)?;
        }
        let loopback = Self { child, point };
        if line.trim() == "ready" {
            Ok(loopback)
        } else {
            Err(io::Error::other("the loopback did not start"))
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.point).status();
        let _ = self.child.wait();
    }
}

fn sibling(name: &str) -> io::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name(name);
    if program.exists() {
        Ok(program)
    } else {
        Err(io::Error::other(format!("{} is not built", program.display())))
    }
}
