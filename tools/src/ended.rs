//! Waiting for the end of a process that is not, or not only, a child.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process, whatever its number is given to later.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// `None`: there is none of this number.
    pub fn open(pid: Pid) -> Option<Self> {
        let pid = rustix::process::Pid::from_raw(pid.as_raw())?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Kills it; that it has ended already is as good.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }

    /// Waits for its end for at most `limit`; true when it has come.
    pub fn wait(&self, limit: Duration) -> bool {
        let end = std::time::Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let Ok(left) = Timespec::try_from(left) else { return false };
            match poll(&mut [PollFd::new(&self.0.as_fd(), PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                other => return other.is_ok_and(|ready| ready > 0),
            }
        }
    }
}

/// The same for a number that cannot be given away meanwhile, as an unreaped child's cannot.
pub fn wait(pid: Pid, limit: Duration) -> bool {
    Process::open(pid).is_none_or(|process| process.wait(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_comes_or_the_limit() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let process = Process::open(pid).unwrap();
        assert!(!process.wait(Duration::from_millis(10)));
        process.kill();
        assert!(process.wait(Duration::from_mins(1)) && wait(pid, Duration::ZERO));
        child.wait().unwrap();
        assert!(Process::open(pid).is_none());
    }
}
