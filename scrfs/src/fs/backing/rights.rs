//! Acting for the caller. The kernel has decided whether it may; left to this process is to whom a
//! new file belongs, and which bits of a mode a change clears, for that depends on who makes it.
//!
//! The daemon runs without `CAP_FSETID`, so that the kernel clears suid and sgid bits at a
//! program's writes as it does natively; it is raised for a single call where the caller has it
//! too.

use std::fs;
use std::os::fd::AsFd;

use caps::{CapSet, Capability};
use nix::unistd::{setfsgid, setfsuid};
use rustix::fs::{AtFlags, CWD, Gid, Mode};
use rustix::thread::{
    CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits, set_thread_groups,
};

use super::trees::Trees;
use crate::caller::Caller;
use crate::errno::Errno;
use crate::fs::attr::stat_of;
use crate::fs::proc_path;

/// Capabilities as bits in /proc.
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;
const SYS_ADMIN: u64 = 1 << 21;

/// A program's rights as /proc tells them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Rights {
    capabilities: u64,
    groups: Vec<u32>,
}

impl Rights {
    /// Of a caller that cannot be seen from here the ids decide.
    fn of(caller: Caller) -> Self {
        let seen = (caller.tid != 0).then(|| fs::read_to_string(format!("/proc/{}/status", caller.tid)).ok());
        seen.flatten().and_then(|status| Self::parse(&status)).unwrap_or_else(|| Self {
            capabilities: if caller.uid == 0 { u64::MAX } else { 0 },
            groups: Vec::new(),
        })
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let groups = field("Groups:")?.split_ascii_whitespace().map(str::parse);
        Some(Self {
            capabilities: u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?,
            groups: groups.collect::<Result<_, _>>().ok()?,
        })
    }
}

/// The caller has `CAP_SYS_ADMIN`.
pub(crate) fn administers(caller: Caller) -> bool {
    Rights::of(caller).capabilities & SYS_ADMIN != 0
}

thread_local! {
    /// Capabilities of this thread stay when its file system user changes.
    static KEEPS_CAPABILITIES: bool = {
        let kept = capabilities_secure_bits()
            .and_then(|bits| set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP));
        if let Err(error) = kept {
            tracing::error!(%error, "rights are lost while files are made for programs");
        }
        kept.is_ok()
    };
}

/// While it lives, what this thread makes belongs to somebody else.
struct Maker;

impl Maker {
    fn new(uid: u32, gid: u32) -> Self {
        KEEPS_CAPABILITIES.with(|_| ());
        // Both always succeed for root; the group first, as everywhere.
        setfsgid(gid.into());
        setfsuid(uid.into());
        Self
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        setfsuid(0.into());
        setfsgid(0.into());
    }
}

impl Trees {
    /// Runs `make`; what it makes, with the bits of `mode`, belongs to `owner`, and to the
    /// directory's group where that has its sgid bit. (The kernel has checked the caller's right to
    /// a sgid bit.)
    pub(crate) fn made_by<T, E: Into<Errno>>(
        &self,
        owner: Caller,
        mode: u32,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Errno> {
        let make = || make().map_err(Into::into);
        if !self.privileged {
            return make();
        }
        let _maker = (owner.uid != 0 || owner.gid != 0).then(|| Maker::new(owner.uid, owner.gid));
        if mode & libc::S_ISGID == 0 { make() } else { with_fsetid(make) }
    }

    /// Gives the directory that was just made the bits of `mode` that mkdir(2) does not take.
    pub(crate) fn complete_mode(&self, made: impl AsFd, mode: u32) -> Result<(), Errno> {
        let missing = mode & !stat_of(&made)?.st_mode & 0o7777;
        if missing == 0 {
            return Ok(());
        }
        change_mode(made, mode & 0o7777, self.privileged)
    }

    /// False when a chown(2) of nobody to nobody is not the caller's to make. It is no error: at a
    /// write the kernel asks for it too, and then the write itself clears the bits.
    pub(crate) fn may_clear(&self, caller: Caller, file: impl AsFd) -> Result<bool, Errno> {
        let stat = stat_of(file)?;
        let owner = !self.privileged || stat.st_uid == caller.uid || stat.st_mode & 0o6000 == 0;
        Ok(owner || Rights::of(caller).capabilities & FOWNER != 0)
    }

    /// Runs `change`, which clears suid and sgid bits of the file as it would for `caller`.
    pub(crate) fn changed_by<T>(
        &self,
        caller: Caller,
        file: impl AsFd,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !self.privileged || stat_of(file)?.st_mode & 0o6000 == 0 {
            return change();
        }
        let rights = Rights::of(caller);
        let groups: Vec<Gid> = rights.groups.iter().map(|&group| Gid::from_raw(group)).collect();
        set_thread_groups(&groups)?;
        setfsgid(caller.gid.into());
        let changed = if rights.capabilities & FSETID != 0 { with_fsetid(change) } else { change() };
        setfsgid(0.into());
        if let Err(error) = set_thread_groups(&[]) {
            tracing::error!(%error, "a program's groups stay with a thread of the daemon");
        }
        changed
    }
}

/// chmod(2). The kernel has checked the caller's right to the sgid bit.
pub(crate) fn change_mode(fd: impl AsFd, mode: u32, privileged: bool) -> Result<(), Errno> {
    let path = proc_path(&fd);
    let change = || Ok(rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode), AtFlags::empty())?);
    if mode & libc::S_ISGID == 0 || !privileged { change() } else { with_fsetid(change) }
}

fn with_fsetid<T>(change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let raised = caps::raise(None, CapSet::Effective, Capability::CAP_FSETID);
    let changed = change();
    if raised.is_ok()
        && let Err(error) = caps::drop(None, CapSet::Effective, Capability::CAP_FSETID)
    {
        tracing::error!(%error, "CAP_FSETID cannot be dropped again");
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_from_proc() {
        let text = "Name:\tx\nGroups:\t4 5000 \nCapEff:\t0000000000000010\n";
        let rights = Rights::parse(text).unwrap();
        assert_eq!((rights.capabilities & FSETID, rights.groups), (FSETID, vec![4, 5000]));
        assert_eq!(Rights::parse("Groups:\nCapEff:\t0\n").unwrap(), Rights::default());
        assert!(Rights::parse("Groups:\tx\nCapEff:\t0\n").is_none());
        let me = Caller { tid: std::process::id(), ..Caller::default() };
        assert_eq!(administers(me), Rights::of(me).capabilities & SYS_ADMIN != 0);
    }
}
