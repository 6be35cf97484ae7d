//! Who calls, as /proc tells. Nothing here touches a path of the mount: that would wait for the
//! daemon itself.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use super::bound::Bound;
use crate::caller::Caller;
use crate::caller::is_dying;
use crate::lock::Mutex;

/// Longest environment that is searched for a rank.
const ENVIRON_BYTES_MAX: u64 = 256 * 1024;
/// More than the kernel writes into a status.
const STATUS_BYTES_MAX: u64 = 64 * 1024;
/// What most texts of /proc fit in. Each read makes the kernel write the text anew: one read is all
/// it should take.
const TEXT_BYTES: usize = 8 * 1024;
/// Of the text about a descriptor: position, flags, mount and inode come first.
const INFO_BYTES: usize = 512;
/// More than the kernel keeps of a command's name.
const COMMAND_BYTES_MAX: usize = 64;
/// Threads remembered, each with a descriptor, before the memory is emptied.
const REMEMBERED_MAX: usize = 128;
/// The task is ending (`PF_EXITING`).
const EXITING: u64 = 0x4;

/// A process that opens files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Process {
    /// Process id; 0 = unknown.
    pub(crate) pid: u32,
    /// Command name.
    pub(crate) command: String,
    /// MPI rank, where its environment tells.
    pub(crate) rank: Option<u32>,
}

/// A thread's process, and how to see that it is still that.
#[derive(Debug)]
struct Known {
    /// The command's name of this very thread: when it is gone there is none, though another may
    /// have its number.
    name: fs::File,
    process: Arc<Process>,
}

impl Known {
    fn find(tid: u32) -> Option<Self> {
        let name = fs::File::open(format!("/proc/{tid}/comm")).ok()?;
        let command = String::from_utf8_lossy(&command_of(&name)?).into_owned();
        let process = Process { pid: process_id(tid).unwrap_or(tid), command, rank: rank_of(tid) };
        Some(Self { name, process: Arc::new(process) })
    }

    /// It lives, and has begun no other program since.
    fn holds(&self) -> bool {
        command_of(&self.name).is_some_and(|name| String::from_utf8_lossy(&name) == self.process.command)
    }
}

fn command_of(name: &fs::File) -> Option<Vec<u8>> {
    let mut text = [0; COMMAND_BYTES_MAX];
    let length = name.read_at(&mut text, 0).ok()?;
    Some(text.get(..length)?.strip_suffix(b"\n")?.to_vec())
}

/// Remembers processes by thread, because reading an environment costs more than an open.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    known: Mutex<HashMap<u32, Arc<Known>>>,
    bound: Bound,
    /// The mount's, `MAJOR:MINOR`.
    device: OnceLock<String>,
}

impl Processes {
    /// Tells the device of the mount, by which descriptors of its files are known from others;
    /// once.
    pub(crate) fn set_device(&self, device: String) {
        let _ = self.device.set(device);
    }

    /// The file with inode number `number` and this name, among the descriptors of processes.
    pub(crate) fn sought<'a>(&'a self, number: u64, name: &'a [u8]) -> Sought<'a> {
        Sought { number, name, device: self.device.get().map(String::as_str) }
    }

    /// The process of `caller`.
    pub(crate) fn of(&self, caller: Caller) -> Arc<Process> {
        if caller.tid == 0 {
            return Arc::default();
        }
        let known = self.known.lock().get(&caller.tid).map(Arc::clone);
        if let Some(known) = known.filter(|known| known.holds()) {
            return Arc::clone(&known.process);
        }
        let Some(found) = Known::find(caller.tid) else { return Arc::default() };
        let process = Arc::clone(&found.process);
        if !self.bound.admits(&found.name) {
            return process;
        }
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(caller.tid, Arc::new(found));
        process
    }
}

#[derive(Debug, PartialEq, Eq)]
struct TaskStat {
    flags: u64,
    exit_code: i32,
}

impl TaskStat {
    fn read(tid: u32) -> Option<Self> {
        Self::parse(&text_of(tid, "stat", STATUS_BYTES_MAX)?)
    }

    /// The command's name may have blanks and parentheses: the last `)` ends it.
    fn parse(stat: &[u8]) -> Option<Self> {
        let close = stat.iter().rposition(|&b| b == b')')?;
        let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
        // Fields from the third on: proc(5) numbers flags 9, exit_code 52.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        Some(Self {
            flags: field(9)?.parse().ok()?,
            exit_code: field(52).and_then(|f| f.parse().ok()).unwrap_or(0),
        })
    }
}

fn status_field(status: &str, name: &str) -> Option<String> {
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// The first `most` bytes of a text about a thread.
fn text_of(tid: u32, name: &str, most: u64) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(TEXT_BYTES);
    let file = fs::File::open(format!("/proc/{tid}/{name}")).ok()?;
    file.take(most).read_to_end(&mut text).ok()?;
    Some(text)
}

fn process_id(tid: u32) -> Option<u32> {
    let status = text_of(tid, "status", STATUS_BYTES_MAX)?;
    status_field(&String::from_utf8_lossy(&status), "Tgid")?.parse().ok()
}

/// The MPI rank that the process's environment names.
fn rank_of(tid: u32) -> Option<u32> {
    rank_in(&text_of(tid, "environ", ENVIRON_BYTES_MAX)?)
}

fn rank_in(environ: &[u8]) -> Option<u32> {
    let value = |name: &str| {
        environ.split(|&b| b == 0).find_map(|var| {
            let text = var.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            std::str::from_utf8(text).ok()
        })
    };
    let rank = |name: &str| value(name).and_then(|text| text.parse().ok());
    rank("OMPI_COMM_WORLD_RANK")
        .or_else(|| rank("PMIX_RANK"))
        .or_else(|| rank("PMI_RANK"))
        .or_else(|| value("WORLD_SIZE").and_then(|_| rank("RANK")))
        .or_else(|| rank("SLURM_PROCID"))
}

/// The caller is about to die by a signal, or is gone: nobody waits for the answer.
pub(crate) fn fatal_signal_pending(caller: Caller) -> bool {
    caller.tid != 0 && is_dying(caller.tid)
}

/// The calling thread is being ended by a signal.
pub(crate) fn dying_by_signal(caller: Caller) -> bool {
    caller.tid != 0 && (ended_by_signal(caller.tid) || is_dying(caller.tid))
}

/// A thread that ends has given up its memory before it closes files. One that has memory may be in
/// execve(2), where its stat waits, as the links do (see [`Sought::is_written_by`]).
fn ended_by_signal(tid: u32) -> bool {
    let Some(status) = text_of(tid, "status", STATUS_BYTES_MAX) else { return false };
    let has_memory = status_field(&String::from_utf8_lossy(&status), "VmSize").is_some();
    !has_memory
        && TaskStat::read(tid).is_some_and(|stat| stat.flags & EXITING != 0 && stat.exit_code & 0x7f != 0)
}

/// A file of this mount that is looked for among the descriptors of processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sought<'a> {
    /// Inode number in the mount.
    pub(crate) number: u64,
    /// What its name begins with, for kernels that do not tell inode numbers.
    pub(crate) name: &'a [u8],
    /// Device of the mount, `MAJOR:MINOR`, where that is known.
    pub(crate) device: Option<&'a str>,
}

impl Sought<'_> {
    /// The calling process has another descriptor of it that is open for writing. The close of one
    /// for reading alone tells nothing, so no close is put off to that.
    ///
    /// execve(2) holds a process's `exec_update_lock` while it closes what is close-on-exec, and so
    /// while the kernel waits for this daemon's answer to FUSE_FLUSH. Newer kernels (found on
    /// 6.18.44) let the links below /proc/PID and /proc/PID/stat wait for that lock: a daemon that
    /// reads them then waits for itself. fdinfo and status do not wait.
    pub(crate) fn is_written_by(self, caller: Caller) -> bool {
        self.is_found_in(caller.tid, writes)
    }

    /// Some process has it open for writing: `pid`, which opened it, or one that got the descriptor
    /// from there.
    pub(crate) fn is_written_by_anybody(self, pid: u32) -> bool {
        self.is_found_in(pid, writes) || self.is_written_by_others(Caller::default())
    }

    /// Some other process has it open for writing.
    pub(crate) fn is_written_by_others(self, caller: Caller) -> bool {
        let me = process_id(caller.tid);
        let Ok(processes) = fs::read_dir("/proc") else { return false };
        let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.into_iter().any(|pid| Some(pid) != me && self.is_found_in(pid, writes))
    }

    /// Process `tid` has a descriptor of it, whose fdinfo is as wanted.
    fn is_found_in(self, tid: u32, wanted: impl Fn(&str) -> bool) -> bool {
        let Ok(entries) = fs::read_dir(format!("/proc/{tid}/fdinfo")) else { return false };
        entries.flatten().any(|entry| {
            let Some(info) = info_of(&entry.path()) else { return false };
            let is = match status_field(&info, "ino") {
                Some(number) => number.parse() == Ok(self.number),
                // Kernels before 5.14: there links do not wait.
                None => self.has_link(tid, &entry.file_name()),
            };
            is && wanted(&info) && status_field(&info, "mnt_id").is_some_and(|mount| self.is_on(tid, &mount))
        })
    }

    fn has_link(self, tid: u32, number: &std::ffi::OsStr) -> bool {
        let target = fs::read_link(format!("/proc/{tid}/fd/{}", number.display()));
        target.is_ok_and(|target| {
            target.file_name().is_some_and(|found| found.as_encoded_bytes().starts_with(self.name))
        })
    }

    /// Mount number `mount` is this one: a file elsewhere can have the same number, as that below
    /// it has, and pipes and the like, whose mounts are in no table, have small ones. A descriptor
    /// that has come from outside the process's mount namespace, or from outside its root, is on a
    /// mount of the daemon's own table.
    fn is_on(self, tid: u32, mount: &str) -> bool {
        let tables = [format!("/proc/{tid}/mountinfo"), "/proc/self/mountinfo".to_owned()];
        tables.iter().find_map(|table| self.is_in(&fs::read(table).ok()?, mount)).unwrap_or(false)
    }

    /// `None`: `table` does not have that mount.
    fn is_in(self, table: &[u8], mount: &str) -> Option<bool> {
        let mut lines = table.split(|&b| b == b'\n').map(|line| line.split(|&b| b == b' '));
        let mut fields =
            lines.find_map(|mut fields| (fields.next() == Some(mount.as_bytes())).then_some(fields))?;
        if let Some(device) = self.device {
            return Some(fields.nth(1) == Some(device.as_bytes()));
        }
        // Optional fields end with a lone hyphen; the type follows.
        let kind = fields.skip_while(|field| *field != b"-").nth(1);
        Some(kind.is_some_and(|kind| kind.starts_with(b"fuse")))
    }
}

/// The beginning of a descriptor's fdinfo, which has all that is looked for here.
fn info_of(path: &std::path::Path) -> Option<String> {
    let mut text = [0; INFO_BYTES];
    let length = fs::File::open(path).ok()?.read(&mut text).ok()?;
    Some(String::from_utf8_lossy(text.get(..length)?).into_owned())
}

fn writes(info: &str) -> bool {
    let flags = status_field(info, "flags").and_then(|text| i32::from_str_radix(&text, 8).ok());
    flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::MARKER;

    #[test]
    fn a_stat_line_with_a_hostile_name() {
        let mut line = b"12 (a) b (c) R".to_vec();
        for field in 4..=52 {
            line.extend_from_slice(format!(" {field}").as_bytes());
        }
        let stat = TaskStat::parse(&line).unwrap();
        assert_eq!((stat.flags, stat.exit_code), (9, 52));
        assert!(TaskStat::parse(b"12 (x").is_none());
    }

    #[test]
    fn ranks_in_their_order() {
        assert_eq!(rank_in(b"SLURM_PROCID=4\0PMIX_RANK=2\0"), Some(2));
        assert_eq!(rank_in(b"RANK=3\0"), None);
        assert_eq!(rank_in(b"RANK=3\0WORLD_SIZE=8"), Some(3));
        assert_eq!(rank_in(b"XPMI_RANK=3\0PMI_RANK=x"), None);
    }

    #[test]
    fn a_file_elsewhere_is_not_the_marker() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join(".complete")).unwrap();
        let number = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        let me = Caller { tid: std::process::id(), ..Caller::default() };
        let sought = Sought { number, name: MARKER, device: None };
        assert!(!sought.is_written_by(me));
        assert!(!Sought { device: Some("0:0"), ..sought }.is_written_by(me));
        // On a mount that no table has.
        let (pipe, _) = std::io::pipe().unwrap();
        let number = rustix::fs::fstat(&pipe).unwrap().st_ino;
        assert!(!Sought { number, ..sought }.is_written_by(me));
        let table =
            b"36 35 0:48 / /scr rw shared:1 - fuse.scrfs scrfs@/x rw\n37 35 0:4 / /proc rw - proc proc rw\n";
        let known = Sought { device: Some("0:48"), ..sought };
        assert_eq!(["36", "37", "3"].map(|mount| known.is_in(table, mount)), [Some(true), Some(false), None]);
        assert_eq!(
            ["36", "37", "3"].map(|mount| sought.is_in(table, mount)),
            [Some(true), Some(false), None]
        );
    }

    #[test]
    fn a_descriptor_for_reading_alone_puts_no_close_off() {
        use std::os::fd::AsRawFd;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latest");
        let written = fs::File::create(&path).unwrap();
        let number = std::os::unix::fs::MetadataExt::ino(&written.metadata().unwrap());
        let info = info_of(format!("/proc/self/fdinfo/{}", written.as_raw_fd()).as_ref()).unwrap();
        let mount = status_field(&info, "mnt_id").unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount.as_str())).unwrap();
        let sought = Sought { number, name: b"latest", device: line.split(' ').nth(2) };
        let me = Caller { tid: std::process::id(), ..Caller::default() };
        assert!(sought.is_written_by(me));
        let _read = fs::File::open(&path).unwrap();
        drop(written);
        assert!(!sought.is_written_by(me));
    }

    #[test]
    fn another_program_and_the_end_are_seen() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo; read line; exec cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let processes = Processes::default();
        let caller = Caller { tid: child.id(), ..Caller::default() };
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        output.read_exact(&mut [0]).unwrap();
        assert_eq!(processes.of(caller).command, "sh");
        std::io::Write::write_all(&mut input, b"go\nx").unwrap();
        output.read_exact(&mut [0]).unwrap();
        assert_eq!(processes.of(caller).command, "cat");
        drop(input);
        child.wait().unwrap();
        assert_eq!(*processes.of(caller), Process::default());
    }

    #[test]
    fn own_process() {
        let me = Caller { tid: std::process::id(), ..Caller::default() };
        let processes = Processes::default();
        let process = processes.of(me);
        assert_eq!(process.pid, std::process::id());
        assert!(Arc::ptr_eq(&process, &processes.of(me)), "read once");
        assert!(!dying_by_signal(me));
    }
}
