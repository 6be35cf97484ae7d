//! A thread that works on files with the job user's ids and groups only.
//!
//! File-system ids and supplementary groups belong to a thread; giving up fsuid 0 also gives up the
//! capabilities that override permissions. The daemon's other threads keep theirs, and signals to
//! this one stay root's to send. So does the umask: where programs' files are made it is 0.

use std::ffi::CString;
use std::io;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::Sender;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::Mode;

use crate::control::server::Peer;
use crate::faults::Pending;
use crate::plain;

/// A user's rights on files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that its new files and directories do not get.
    pub umask: u32,
}

/// Where a user's own is not known: nobody else's business.
const PRIVATE: u32 = 0o077;

impl Identity {
    /// The rights that a peer had when it connected; where the kernel does not tell its groups,
    /// those that the user database gives.
    pub fn of_peer(peer: &Peer) -> Self {
        let umask = peer.umask().unwrap_or(PRIVATE);
        match &peer.groups {
            Some(groups) => Self { uid: peer.uid, gid: peer.gid, groups: groups.clone(), umask },
            None => Self { umask, ..Self::of(peer.uid, peer.gid) },
        }
    }

    /// `uid` and `gid` with the groups that the user database gives to that user.
    pub fn of(uid: u32, gid: u32) -> Self {
        let name = nix::unistd::User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        let groups = name
            .and_then(|name| CString::new(name).ok())
            .and_then(|name| nix::unistd::getgrouplist(&name, Gid::from_raw(gid)).ok())
            .unwrap_or_else(|| vec![Gid::from_raw(gid)]);
        Self { uid, gid, groups: groups.into_iter().map(Gid::as_raw).collect(), umask: PRIVATE }
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub struct UserThread {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl UserThread {
    /// Starts it; fails when this process may not take on `identity`.
    pub fn start(identity: &Identity) -> io::Result<Self> {
        let (work, queue) = crossbeam_channel::bounded::<Work>(1);
        let (ready, started) = crossbeam_channel::bounded(1);
        let identity = identity.clone();
        let thread = Builder::new().name("scrfs-pfs".into()).spawn(move || {
            let taken = take_on(&identity);
            let go_on = taken.is_ok();
            if ready.send(taken).is_ok() && go_on {
                queue.iter().for_each(|work| work());
            }
        })?;
        let started = started.recv().map_err(|_| ended())?;
        let this = Self { work: Some(work), thread: Some(thread) };
        started.map(|()| this)
    }

    /// Does `work` there and waits for it.
    pub fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> io::Result<R> {
        let (give, outcome) = crossbeam_channel::bounded(1);
        let pending = Pending::leave();
        let work: Work = Box::new(move || {
            pending.enter();
            let done = work();
            let _ = give.send((done, Pending::leave()));
        });
        self.work.as_ref().ok_or_else(ended)?.send(work).map_err(|_| ended())?;
        let (done, pending) = outcome.recv().map_err(|_| ended())?;
        pending.enter();
        Ok(done)
    }
}

impl Drop for UserThread {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread with the user's rights has ended")
}

fn take_on(identity: &Identity) -> io::Result<()> {
    // From here on it is this thread's alone.
    unshare(CloneFlags::CLONE_FS)?;
    rustix::process::umask(Mode::from_raw_mode(identity.umask));
    let own = rustix::process::geteuid().as_raw();
    if own == identity.uid && own != 0 {
        return Ok(());
    }
    let groups: Vec<_> = identity.groups.iter().map(|&gid| rustix::fs::Gid::from_raw(gid)).collect();
    rustix::thread::set_thread_groups(&groups)?;
    // These two tell no failure, but what was set before: so ask again.
    setfsgid(Gid::from_raw(identity.gid));
    setfsuid(Uid::from_raw(identity.uid));
    if plain::acting() == (identity.uid, identity.gid) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn files_are_the_users_and_roots_rights_are_gone() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, b"x").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(dir.path().join("before"), b"z").unwrap();
        let identity = Identity { uid: 12345, gid: 12346, groups: vec![12346, 12347], umask: 0o027 };
        let user = UserThread::start(&identity).unwrap();
        let made = dir.path().join("made");
        let path = made.clone();
        user.run(move || std::fs::write(path, b"y")).unwrap().unwrap();
        let meta = std::fs::metadata(&made).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (12345, 12346, 0o640));
        let path = secret.clone();
        let refused = user.run(move || std::fs::read(path)).unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // The rest of the process kept its rights, and its umask.
        assert_eq!(std::fs::read(&secret).unwrap(), b"x");
        std::fs::write(dir.path().join("after"), b"z").unwrap();
        let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
        assert_eq!(mode("after"), mode("before"));
    }

    #[test]
    fn a_known_users_groups_are_found() {
        let identity = Identity::of(0, 0);
        assert!(identity.groups.contains(&0));
        let nobody = Identity::of(54_321, 77);
        assert_eq!((&nobody.groups[..], nobody.umask), (&[77][..], 0o077));
        let mut peer = Peer { pid: 1, uid: 54_321, gid: 77, groups: Some(vec![5, 6]), process: None };
        assert_eq!(
            Identity::of_peer(&peer).groups,
            [5, 6],
            "what the process has, not what the database says"
        );
        peer.groups = None;
        assert_eq!(Identity::of_peer(&peer), nobody, "a process that is not held may be another");
        peer.pid = i32::try_from(std::process::id()).unwrap();
        let own = rustix::process::Pid::from_raw(peer.pid).unwrap();
        let held = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap();
        peer.process = Some(std::sync::Arc::new(held));
        let told = std::fs::read_to_string("/proc/self/status").unwrap();
        let told = told.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap().trim().to_owned();
        assert_eq!(format!("{:04o}", Identity::of_peer(&peer).umask), told);
    }
}
