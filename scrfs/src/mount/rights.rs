//! What root's daemon gives up before it serves anybody (`scrfs/docs/security.md`): capabilities
//! that it does not need, gaining new ones, and system calls that a file system's daemon has no use
//! for. A daemon of another user has none of root's to give up, and needs fusermount3, which gains
//! some.

use std::collections::{BTreeMap, HashSet};

use caps::{CapSet, Capability};
use seccompiler::{
    BackendError, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Who gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    /// Mounts, and starts workers, which can have no more than it has.
    Supervisor,
    /// Serves requests.
    Worker,
}

/// What is kept, and what for.
const KEPT: [(Capability, &str); 15] = [
    (Capability::CAP_SYS_ADMIN, "mounting, passthrough, extended attributes of the kernel's"),
    (
        Capability::CAP_DAC_OVERRIDE,
        "files of the job's user, whatever their modes: the kernel has checked the caller",
    ),
    (Capability::CAP_DAC_READ_SEARCH, "the same, and links to files that are open"),
    (Capability::CAP_CHOWN, "what programs make belongs to them"),
    (Capability::CAP_FOWNER, "modes, times and attributes of their files"),
    (Capability::CAP_SETUID, "work on the PFS with the job user's ids"),
    (Capability::CAP_SETGID, "the same, with that user's groups"),
    (Capability::CAP_FSETID, "suid and sgid bits that a program may set; raised for that call alone"),
    (Capability::CAP_SETFCAP, "capabilities that root's programs give to files"),
    (Capability::CAP_SETPCAP, "rights that stay with a thread while it makes files for a user"),
    (Capability::CAP_LEASE, "whether somebody still writes to a file of the user's"),
    (Capability::CAP_MKNOD, "device files of root's programs"),
    (Capability::CAP_SYS_PTRACE, "ranks and descriptors of programs in /proc, descriptors of a predecessor"),
    (Capability::CAP_SYS_NICE, "to run before programs that wait for it"),
    (Capability::CAP_SYS_RESOURCE, "descriptors for every inode; a worker gives it up when it has them"),
];

/// Never: tracing, other kernels and modules, time, keys, namespaces, quotas, and other ways to
/// mount than the one we use.
const REFUSED: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_personality,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
];

/// And by a worker: it starts no program and mounts nothing.
const REFUSED_TO_WORKERS: &[i64] = &[libc::SYS_execve, libc::SYS_execveat, libc::SYS_mount];

/// Gives up what `process` does not need, if it is root's; says what it could not. Before it has
/// threads: each has its own rights.
pub(super) fn give_up(process: Process) -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let steps: [(&str, Result<(), String>); 4] = [
        ("capabilities", reduce(process)),
        ("new privileges", rustix::thread::set_no_new_privs(true).map_err(|e| e.to_string())),
        ("being traced", {
            let never = rustix::process::DumpableBehavior::NotDumpable;
            rustix::process::set_dumpable_behavior(never).map_err(|e| e.to_string())
        }),
        ("system calls", refuse(process)),
    ];
    let failed = steps.into_iter().filter_map(|(what, outcome)| Some((what, outcome.err()?)));
    let told = failed.map(|(what, error)| {
        tracing::warn!(%error, "{what} cannot be given up");
        format!(
            "the daemon keeps {what} that it does not need: {error}; it serves all the same, and whoever could take it over \
             would have them: let it run with CAP_SETPCAP, on a kernel with seccomp"
        )
    });
    told.collect()
}

fn keeps(process: Process, capability: Capability) -> bool {
    let raised = process == Process::Worker && capability == Capability::CAP_SYS_RESOURCE;
    !raised && KEPT.iter().any(|(kept, _)| *kept == capability)
}

fn reduce(process: Process) -> Result<(), String> {
    let told = |error: caps::errors::CapsError| error.to_string();
    let held = caps::read(None, CapSet::Permitted).map_err(told)?;
    for capability in caps::all().into_iter().filter(|capability| !keeps(process, *capability)) {
        // One that this kernel does not know is not there.
        if held.contains(&Capability::CAP_SETPCAP)
            && caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false)
        {
            caps::drop(None, CapSet::Bounding, capability).map_err(told)?;
        }
    }
    let kept: HashSet<Capability> =
        held.into_iter().filter(|capability| keeps(process, *capability)).collect();
    caps::clear(None, CapSet::Inheritable).map_err(told)?;
    caps::set(None, CapSet::Effective, &kept).map_err(told)?;
    caps::set(None, CapSet::Permitted, &kept).map_err(told)
}

fn refuse(process: Process) -> Result<(), String> {
    let calls = REFUSED.iter().chain(if process == Process::Worker { REFUSED_TO_WORKERS } else { &[] });
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_unshare, unshare_rules().map_err(|error| error.to_string())?);
    let architecture = std::env::consts::ARCH.try_into().map_err(|e: BackendError| e.to_string())?;
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture);
    let program: seccompiler::BpfProgram =
        filter.and_then(TryInto::try_into).map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&program).map_err(|error| error.to_string())
}

/// Namespaces are refused. A thread of a worker with the user's rights has a umask of its own
/// (`CLONE_FS` alone); the supervisor's filter is its workers' too.
fn unshare_rules() -> Result<Vec<SeccompRule>, BackendError> {
    let own_umask = u64::from(libc::CLONE_FS.unsigned_abs());
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, own_umask)?;
    Ok(vec![SeccompRule::new(vec![other])?])
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::sched::{CloneFlags, unshare};
    use nix::unistd::{chroot, execv};

    use super::*;

    /// What the calls of a process say that it may do, and those that it may not: tried in a
    /// thread, which alone has the filter.
    fn tried(process: Option<Process>) -> [Result<(), Errno>; 4] {
        let thread = std::thread::spawn(move || {
            if let Some(process) = process {
                rustix::thread::set_no_new_privs(true).unwrap();
                refuse(process).unwrap();
            }
            [
                // A namespace of descriptors, to which everybody has the right.
                unshare(CloneFlags::CLONE_FS),
                unshare(CloneFlags::CLONE_FILES),
                chroot("/no/such/directory"),
                execv(c"/no/such/program", &[c"x"]).map(|_| ()),
            ]
        });
        thread.join().unwrap()
    }

    #[test]
    fn calls_that_are_given_up_are_refused() {
        let none = Err(Errno::ENOENT);
        assert_eq!(tried(None), [Ok(()), Ok(()), none, none]);
        let refused = Err(Errno::EPERM);
        assert_eq!(tried(Some(Process::Supervisor)), [Ok(()), refused, refused, none], "it starts workers");
        assert_eq!(tried(Some(Process::Worker)), [Ok(()), refused, refused, refused]);
    }
}
