//! How facts are had. Whatever may hang, on a file system or in a program, is asked in bounded
//! time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Access;
use rustix::process::{PidfdFlags, Resource, Signal, pidfd_open, pidfd_send_signal};

use super::facts::{Facts, Kind, Leftovers, Parameters, Prefix, Program, Reason, Rights, Room, Store};
use super::skew::Skew;
use crate::allocation::{self, PMIX_QUESTIONS};
use crate::beside::beside;
use crate::bounded;
use crate::config::{self, Config, NO_JOB, SYSTEM_FILE, Sources};
use crate::control::directory::{SUPERVISOR_LOCK, WORKER_LOCK, holder};
use crate::mount::{device, table};
use crate::prefix::strangers;
use crate::priority::threads;
use crate::store::private;
use crate::transfer::user::{Identity, UserThread};

/// Bound on one question.
const LIMIT: Duration = Duration::from_secs(5);
/// Left by ended jobs: looked for so far, and no further.
const DIRECTORIES_MAX: usize = 10_000;
/// What a program says is read so far.
const ANSWER_MAX: usize = 4096;

/// What is asked for beside this node.
#[derive(Debug)]
pub struct Questions {
    /// The words of a shell that reaches other hosts.
    pub remote_shell: Vec<String>,
    /// Hosts whose clocks are to be compared.
    pub hosts: Vec<String>,
    /// Directories that programs are looked for in.
    pub path: Vec<PathBuf>,
}

/// Everything about this node.
pub fn facts(sources: &Sources, questions: &Questions) -> Facts {
    let config = Config::load(sources, config::read_file);
    let usable = config.as_ref().ok();
    let beside = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned));
    let beside: Vec<PathBuf> = beside.into_iter().collect();
    let descriptors = rustix::process::getrlimit(Resource::Nofile);
    Facts {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        device: fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").map(drop).map_err(reason),
        rights: rights(&questions.path),
        parameters: config.as_ref().map(|config| parameters(config, sources)).map_err(ToString::to_string),
        launchers: ["mpirun", "srun"].map(|name| program(name, &questions.path)).into(),
        mpi_types: find("srun", &questions.path).map(|srun| {
            // Which of the two it prints to depends on its version. The controller may refuse, or
            // be away.
            let asked =
                PMIX_QUESTIONS.map(|words| format!("timeout 2 \"$0\" {}", words.join(" "))).join("; ");
            answer(Command::new("sh").args(["-c", &format!("exec 2>&1; {asked}; true")]).arg(srun))
        }),
        programs: ["scrfs-coordinator", "scrfs-ctl", "scrfs-run"].map(|name| program(name, &beside)).into(),
        version: env!("CARGO_PKG_VERSION"),
        prefix: usable.filter(|config| config.prefix_is_named).map(prefix),
        stores: usable
            .map(|config| config.cache_bases.iter().map(|base| store(base)).collect())
            .unwrap_or_default(),
        control: usable.map(|config| store(&config.control_base)),
        memory: memory(),
        cgroup: cgroup_limit(),
        leftovers: usable.map(leftovers).unwrap_or_default(),
        priority: threads::possible().map_err(reason),
        descriptors: (descriptors.current.unwrap_or(u64::MAX), descriptors.maximum.unwrap_or(u64::MAX)),
        clocks: clocks(questions),
        now: allocation::now(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn reason(error: io::Error) -> Reason {
    error.to_string()
}

fn rights(path: &[PathBuf]) -> Rights {
    let admin = caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN);
    let helper = find("fusermount3", path).and_then(|path| {
        let meta = fs::metadata(&path).ok()?;
        let raises = meta.uid() == 0 && meta.permissions().mode() & 0o4000 != 0;
        Some((path, raises))
    });
    Rights { root: rustix::process::geteuid().is_root(), admin: admin.unwrap_or(false), helper }
}

fn parameters(config: &Config, sources: &Sources) -> Parameters {
    let mut warnings = config.warnings.clone();
    if nix::unistd::User::from_name(&config.user).is_ok_and(|user| user.is_none()) {
        warnings.push(format!("there is no user {} on this node", config.user));
    }
    Parameters {
        system_file: Path::new(SYSTEM_FILE).exists(),
        warnings,
        user: config.user.clone(),
        job_id: config.job_id.clone(),
        in_job: config.job_id != NO_JOB && !sources.environment.contains_key("SCR_JOB_ID"),
        end_time: end_time(config, sources),
        cache_bytes: config.cache_bytes,
    }
}

/// As scrfs-run finds it.
fn end_time(config: &Config, sources: &Sources) -> Result<Option<u64>, Reason> {
    let environment = sources.environment.iter().map(|(name, value)| (name.into(), value.clone()));
    let environment: BTreeMap<OsString, OsString> = environment.collect();
    let known = config.advice.end_time;
    if known > allocation::now() || allocation::is_users(known, &environment) {
        return Ok(Some(known));
    }
    let question = allocation::question(&environment);
    let question =
        question.ok_or_else(|| "neither SCRFS_END_TIME nor the scheduler's environment has it".to_owned())?;
    allocation::end_time(&question, environment)
}

fn find(name: &str, path: &[PathBuf]) -> Option<PathBuf> {
    let executable = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    path.iter().map(|directory| directory.join(name)).find(executable)
}

fn program(name: &'static str, path: &[PathBuf]) -> Program {
    let path = find(name, path);
    let says = match &path {
        Some(path) => answer(Command::new(path).arg("--version")),
        None => Err("not found".to_owned()),
    };
    let says = says.map(|text| text.lines().next().unwrap_or_default().trim().to_owned());
    Program { name, path, says }
}

/// Standard output of a program that is given [`LIMIT`]; why there is none, in its own words if it
/// has any.
fn answer(command: &mut Command) -> Result<String, Reason> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(reason)?;
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let output = match bounded::within(LIMIT, move || child.wait_with_output()) {
        Ok(output) => output,
        Err(error) => {
            if let Some(handle) = handle {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
            return Err(reason(error));
        }
    };
    let text =
        |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(ANSWER_MAX)]).trim().to_owned();
    match text(&output.stderr) {
        _ if output.status.success() => Ok(text(&output.stdout)),
        said if said.is_empty() => Err(output.status.to_string()),
        said => Err(said),
    }
}

fn prefix(config: &Config) -> Prefix {
    let user = nix::unistd::User::from_name(&config.user).ok().flatten();
    let me = rustix::process::geteuid();
    let unknown = me.is_root() && user.is_none();
    let trusted = if me.is_root() { user.as_ref().map_or(0, |user| user.uid.as_raw()) } else { me.as_raw() };
    let identity = user.filter(|user| me.is_root() && user.uid.as_raw() != me.as_raw());
    let identity = identity.map(|user| Identity::of(user.uid.as_raw(), user.gid.as_raw()));
    let path = config.prefix.clone();
    let (at, strange_at, write_at) = (path.clone(), path.clone(), path.clone());
    let kind = bounded::within(LIMIT, move || {
        // What is not a directory is said here.
        fs::read_dir(&at)?;
        Ok(kind(rustix::fs::statfs(&at)?.f_type.cast_unsigned()))
    });
    // What cannot be read is said by the others.
    let strange =
        bounded::within(LIMIT, move || Ok(strangers::made(&strange_at, trusted))).unwrap_or_default();
    let write = match (&kind, identity) {
        (Err(_), _) => Err("not tried".to_owned()),
        _ if unknown => Err(format!("there is no user {} on this node", config.user)),
        (Ok(_), None) => bounded::within(LIMIT, move || write_there(&write_at)).map_err(reason),
        (Ok(_), Some(identity)) => bounded::within(LIMIT, move || {
            UserThread::start(&identity)?.run(move || write_there(&write_at))?
        })
        .map_err(reason),
    };
    let user = if me.is_root() { config.user.clone() } else { "this user".to_owned() };
    Prefix { path, user, kind: kind.map_err(reason), strange, write }
}

/// Makes a file, which gets the server's time when it is written to, and removes it.
fn write_there(directory: &Path) -> io::Result<Skew> {
    let name = format!(
        ".scrfs-doctor.{}.{}",
        rustix::process::getpid().as_raw_nonzero(),
        seconds(SystemTime::now())
    );
    let path = directory.join(name);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let before = seconds(SystemTime::now());
    let written =
        file.write_all(b"scrfs doctor\n").and_then(|()| file.sync_all()).and_then(|()| file.metadata());
    let after = seconds(SystemTime::now());
    let removed = fs::remove_file(&path);
    let changed = seconds(written?.modified()?);
    removed?;
    // Some file systems keep whole seconds, and kernels take the time of their last tick.
    Ok(Skew::between(before, changed, after, 1.0))
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// By the numbers of statfs(2).
fn kind(number: u64) -> Kind {
    const SHARED: &[(u64, &str)] = &[
        (0x6969, "NFS"),
        (0x0BD0_0BD0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
        (0x00C3_6400, "Ceph"),
        (0x2003_0528, "OrangeFS"),
        (0xAAD7_AAEA, "PanFS"),
        (0x0102_1997, "9p"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB"),
        (0x0116_1970, "GFS2"),
        (0x7461_636F, "OCFS2"),
    ];
    const LOCAL: &[(u64, &str)] = &[
        (0xEF53, "ext4"),
        (0x5846_5342, "XFS"),
        (0x9123_683E, "Btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x794C_7630, "overlay"),
        (0x2FC1_2FC1, "ZFS"),
        (0x8584_58F6, "ramfs"),
        (0xF2F5_2010, "F2FS"),
        (0xCA45_1A4E, "bcachefs"),
    ];
    // statfs gives some of them with their sign.
    let number = number & 0xFFFF_FFFF;
    let named = |table: &[(u64, &'static str)]| {
        table.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
    };
    named(SHARED).map(Kind::Shared).or_else(|| named(LOCAL).map(Kind::Local)).unwrap_or(Kind::Unknown(number))
}

fn store(base: &Path) -> Store {
    let path = base.to_owned();
    let room = bounded::within(LIMIT, move || {
        // It is made at the mount where it is missing, with what is missing above it.
        let there = path.ancestors().find(|above| above.exists()).unwrap_or(&path);
        let stat = rustix::fs::statvfs(there)?;
        let memory =
            matches!(kind(rustix::fs::statfs(there)?.f_type.cast_unsigned()), Kind::Local("tmpfs" | "ramfs"));
        if !there.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        Ok(Room {
            memory,
            writable: rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
            size: stat.f_blocks.saturating_mul(stat.f_frsize),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            inodes: stat.f_files,
            free_inodes: stat.f_favail,
            own: there == path && is_top(&path)?,
            made_in: (there != path).then(|| there.to_owned()),
        })
    });
    Store { path: base.to_owned(), room: room.map_err(reason) }
}

/// Its parent directory is on another file system.
fn is_top(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.dev() != fs::metadata(path.join(".."))?.dev())
}

fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// The least of the bounds on this process's cgroup and those above it.
fn cgroup_limit() -> Option<u64> {
    let table = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_files(&table).iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok()).min()
}

/// Where the bounds are, version 2 and 1. What has no bound says `max`, or a number beyond all
/// memory.
fn limit_files(table: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in table.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, name) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let below = Path::new(path.trim_start_matches('/'));
        files.extend(below.ancestors().map(|group| Path::new(base).join(group).join(name)));
    }
    files
}

/// Directories `BASE/USER/scr.JOB` of this process's user that no daemon holds, and mounts that
/// nobody serves.
fn leftovers(config: &Config) -> Leftovers {
    let base = config.control_base.clone();
    let looked = bounded::within(LIMIT, move || {
        let held = |control: &Path| {
            [SUPERVISOR_LOCK, WORKER_LOCK].iter().any(|lock| holder(control, lock).is_some())
        };
        let mounts = table::all()?
            .into_iter()
            .filter(|mount| mount.control_directory().is_some_and(|control| !held(&control)))
            .map(|mount| mount.mount_point)
            .filter(|point| device::is_dead_at(point))
            .collect();
        let directories = jobs_below(&base).into_iter().filter(|control| !held(control)).collect();
        Ok(Leftovers { directories, mounts, cut_short: None })
    });
    looked.unwrap_or_else(|error| Leftovers { cut_short: Some(reason(error)), ..Leftovers::default() })
}

/// Others' are not looked into: who holds theirs is not known, and what is mounted there may never
/// answer.
fn jobs_below(base: &Path) -> Vec<PathBuf> {
    if private::safe(base).is_err() {
        return Vec::new();
    }
    let list = |directory: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().take(DIRECTORIES_MAX).flatten();
        entries.map(|entry| entry.path()).filter(|path| private::is_ours(path)).collect()
    };
    let is_job =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"scr."));
    let mut jobs: Vec<PathBuf> = list(base).iter().flat_map(|user| list(user)).filter(is_job).collect();
    jobs.sort();
    jobs
}

/// All hosts at once, each in bounded time.
fn clocks(questions: &Questions) -> Vec<(String, Result<Skew, Reason>)> {
    let Some((shell, words)) = questions.remote_shell.split_first() else { return Vec::new() };
    let ask = |host: &String| {
        let before = seconds(SystemTime::now());
        let said = answer(Command::new(shell).args(words).arg(host).arg("date +%s.%N"))?;
        let after = seconds(SystemTime::now());
        let shown: f64 = said.parse().map_err(|_| format!("it said {said:?}"))?;
        Ok(Skew::between(before, shown, after, 0.0))
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            questions.hosts.iter().map(|host| (host, beside(scope, move || ask(host)))).collect();
        let answers = asked.into_iter().map(|(host, thread)| {
            let skew = thread.join().unwrap_or_else(|| Err("it could not be asked".to_owned()));
            (host.clone(), skew)
        });
        answers.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::SLURM_JOB;
    use std::time::Instant;

    #[test]
    fn a_program_that_hangs_or_fails_is_a_reason() {
        let shell = |line: &str| answer(Command::new("sh").args(["-c", line]));
        assert_eq!(shell("echo ' 1.2 '"), Ok("1.2".to_owned()));
        assert_eq!(shell("echo no >&2; exit 3"), Err("no".to_owned()));
        assert!(shell("exit 3").unwrap_err().contains('3'));
        assert!(answer(&mut Command::new("/no/such/program")).unwrap_err().contains("No such file"));
        let begun = Instant::now();
        assert!(shell("exec sleep 600").unwrap_err().contains("no answer"));
        assert!(begun.elapsed() < LIMIT * 10);
    }

    #[test]
    fn the_end_of_a_job_is_set_or_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        // Written by another process: what this one has open for writing, a child of another test
        // may have too, and then it cannot be executed.
        let write = "printf '#!/bin/sh\\necho 1:00:00\\n' >squeue && chmod 755 squeue";
        assert!(Command::new("sh").args(["-c", write]).current_dir(&dir).status().unwrap().success());
        let end = |set: &[(&str, &str)]| {
            let path = [("PATH", dir.path().to_str().unwrap())];
            let set = set.iter().chain(&path).map(|(name, value)| (name.into(), value.into()));
            let sources = Sources::of_process(set.collect::<Vec<_>>()).unwrap();
            let config = Config::load(&sources, |_| Ok(None)).unwrap();
            end_time(&config, &sources)
        };
        // Slurm 22.05 does not set it.
        let left = end(&[(SLURM_JOB, "77")]).unwrap().unwrap().saturating_sub(allocation::now());
        assert!((3500..=3600).contains(&left), "{left}");
        assert_eq!(end(&[(SLURM_JOB, "77"), ("SCRFS_END_TIME", "5")]), Ok(Some(5)));
        assert!(end(&[]).unwrap_err().contains("SCRFS_END_TIME"));
    }

    #[test]
    fn bounds_of_cgroups_are_looked_for_upwards() {
        let names = |table: &str| -> Vec<String> {
            limit_files(table).iter().map(|path| path.display().to_string()).collect()
        };
        let two = names("0::/system.slice/slurmd.service\n");
        assert_eq!(
            two,
            [
                "/sys/fs/cgroup/system.slice/slurmd.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(
            names("4:cpu,memory:/a\n3:pids:/a\nnonsense\n"),
            ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
    }

    #[test]
    fn a_directory_is_tried_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let skew = write_there(dir.path()).unwrap();
        assert!(skew.certain() < 1.0, "{skew:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(write_there(&dir.path().join("none")).is_err());
    }

    #[test]
    fn jobs_are_found_by_their_directories() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ann/scr.1", "ann/scr.2", "ann/other", "bob/scr.7"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("scr.9"), "").unwrap();
        let found = jobs_below(dir.path());
        let found: Vec<_> =
            found.iter().map(|path| path.strip_prefix(dir.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(found, ["ann/scr.1", "ann/scr.2", "bob/scr.7"]);
    }

    #[test]
    fn file_systems_are_known_by_number() {
        assert_eq!(kind(0x6969), Kind::Shared("NFS"));
        assert_eq!(kind(0xFFFF_FFFF_9123_683E), Kind::Local("Btrfs"));
        assert_eq!(kind(7), Kind::Unknown(7));
    }
}
