//! One method per request.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::decode::{attr, caller, device_of, errno, kind, set_time};
use super::names::Names;
use super::{Adapter, backing};
use crate::errno::Errno;
use crate::faults;
use crate::fs::{Changes, Data, Done, Entry, NewNode, Opened, Taken, Value};

/// A number is given to another file only when the kernel has forgotten it, so one generation is
/// enough.
const GENERATION: Generation = Generation(0);

thread_local! {
    /// What a session thread reads into, as long as the largest request that it has answered.
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers with what came out, or the error.
macro_rules! answer {
    ($reply:ident, $outcome:expr, $answer:expr) => {
        match $outcome {
            Ok(value) => hand(value, $answer),
            Err(error) => $reply.error(errno(error)),
        }
    };
}

fn hand<T>(value: T, to: impl FnOnce(T)) {
    to(value);
}

fn entry_reply(reply: ReplyEntry) -> Done<Entry> {
    Box::new(move |outcome| {
        answer!(reply, outcome, |entry| {
            reply.entry_with_ttls(&entry.attr_ttl, &entry.entry_ttl, &attr(&entry.attr), GENERATION);
        });
    })
}

fn empty_reply(reply: ReplyEmpty) -> Done<()> {
    Box::new(move |outcome| answer!(reply, outcome, |()| reply.ok()))
}

/// Replies carry 32 bits.
fn narrow(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

fn empty_now(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    empty_reply(reply)(outcome);
}

fn open_flags(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_NOFLUSH, opened.no_flush());
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.data == Data::Direct);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.data == Data::Paged { kept: true });
    flags
}

fn xattr_reply(reply: ReplyXattr, outcome: Result<Value, Errno>) {
    match outcome {
        Ok(Value::Length(length)) => reply.size(narrow(length)),
        Ok(Value::Bytes(bytes)) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

impl Adapter {
    /// Gives the answer and then takes the request's intent back: from here on it is not sent
    /// again.
    fn answering<T: 'static>(&self, request: &Request, give: Done<T>) -> Done<T> {
        let (fs, unique) = (self.fs.clone(), request.unique().0);
        Box::new(move |outcome| {
            // Nothing but death or delay is injected here.
            let _ = faults::hit("request.done");
            give(outcome);
            let _ = faults::hit("request.answered");
            fs.answered(unique);
        })
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry_reply(reply)(self.fs.lookup(parent.0, name.as_bytes()));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.forget(ino.0, nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.fs.getattr(ino.0), |(found, ttl)| reply.attr(&ttl, &attr(&found)));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            handle: fh.map(|fh| fh.0),
        };
        let done: Done<(_, Duration)> = Box::new(move |outcome| {
            answer!(reply, outcome, |(changed, ttl)| reply.attr(&ttl, &attr(&changed)));
        });
        self.fs.setattr(caller(request), ino.0, changes, done);
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        answer!(reply, self.fs.readlink(ino.0), |target| reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let node = NewNode::Node { mode, device: device_of(rdev) };
        self.fs.make_node(
            caller(request),
            parent.0,
            name.as_bytes(),
            node,
            self.answering(request, entry_reply(reply)),
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.fs.mkdir(
            caller(request),
            parent.0,
            name.as_bytes(),
            mode,
            self.answering(request, entry_reply(reply)),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.fs.unlink(
            caller(request),
            parent.0,
            name.as_bytes(),
            self.answering(request, empty_reply(reply)),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.fs.rmdir(
            caller(request),
            parent.0,
            name.as_bytes(),
            self.answering(request, empty_reply(reply)),
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let node = NewNode::Symlink(target.as_os_str().as_bytes().to_vec());
        self.fs.make_node(
            caller(request),
            parent.0,
            link_name.as_bytes(),
            node,
            self.answering(request, entry_reply(reply)),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        self.fs.rename(caller(request), from, to, flags.bits(), self.answering(request, empty_reply(reply)));
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.fs.link(
            caller(request),
            ino.0,
            newparent.0,
            newname.as_bytes(),
            self.answering(request, entry_reply(reply)),
        );
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, registrations) = (self.fs.clone(), self.registrations.clone());
        let done: Done<Opened> = Box::new(move |outcome| match outcome {
            Ok(opened) if opened.data == Data::Passthrough => match registrations.of(&opened.handle) {
                Ok(id) => backing::opened(reply, FileHandle(opened.fh), open_flags(&opened), &id),
                Err(error) => {
                    fs.release(opened.fh);
                    reply.error(fuser::Errno::from(error));
                }
            },
            Ok(opened) => reply.opened(FileHandle(opened.fh), open_flags(&opened)),
            Err(error) => reply.error(errno(error)),
        });
        self.fs.open(caller(request), ino.0, flags.0, done);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (fs, registrations) = (self.fs.clone(), self.registrations.clone());
        let done: Done<(Entry, Opened)> = Box::new(move |outcome| {
            let (entry, opened) = match outcome {
                Ok(made) => made,
                Err(error) => return reply.error(errno(error)),
            };
            // One time for both in this reply.
            let ttl = entry.entry_ttl.min(entry.attr_ttl);
            let (made, fh, flags) = (attr(&entry.attr), FileHandle(opened.fh), open_flags(&opened));
            if opened.data != Data::Passthrough {
                return reply.created(&ttl, &made, GENERATION, fh, flags);
            }
            match registrations.of(&opened.handle) {
                Ok(id) => backing::created(reply, (&ttl, &made), fh, flags, &id),
                Err(error) => {
                    fs.release(opened.fh);
                    fs.forget(entry.attr.nodeid, 1);
                    reply.error(fuser::Errno::from(error));
                }
            }
        });
        let done = self.answering(request, done);
        self.fs.create(caller(request), parent.0, name.as_bytes(), mode, flags, done);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let filled = self.fs.read(fh.0, offset, &mut buffer[..size]);
            answer!(reply, filled, |filled| reply.data(&buffer[..filled]));
        });
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        answer!(reply, self.fs.write(caller(request), fh.0, offset, data), |written| reply
            .written(narrow(written)));
    }

    fn flush(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.fs.flush(caller(request), fh.0, empty_reply(reply));
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.release(fh.0);
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        empty_now(reply, self.fs.fsync(fh.0, datasync));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let outcome = self.fs.opendir(caller(request), ino.0);
        answer!(reply, outcome, |fh| reply.opened(FileHandle(fh), FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let outcome = self.fs.readdir(fh.0, offset, false, &mut |listed, _, next| {
            let name = OsStr::from_bytes(&listed.name);
            let full = reply.add(INodeNo(listed.ino), next, kind(listed.kind), name);
            if full { Taken::Full } else { Taken::Name }
        });
        answer!(reply, outcome, |()| reply.ok());
    }

    fn readdirplus(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (mut names, mut begun) = (Names::default(), false);
        let outcome = self.fs.readdir(fh.0, offset, true, &mut |listed, entry, next| {
            let shared = entry.is_some_and(|entry| entry.shared);
            if shared && begun {
                return Taken::Full;
            }
            if shared || !names.is_empty() {
                return if names.add(listed, next) { Taken::Name } else { Taken::Full };
            }
            begun = true;
            let name = OsStr::from_bytes(&listed.name);
            let (ttl, found) = match entry {
                Some(entry) => (entry.entry_ttl.min(entry.attr_ttl), attr(&entry.attr)),
                // The kernel looks at number and type of `.` and `..`, and at nothing else.
                None => (Duration::ZERO, super::decode::dots(listed)),
            };
            let full = reply.add(found.ino, next, name, &ttl, &found, GENERATION);
            if full { Taken::Full } else { Taken::Entry }
        });
        match outcome {
            Ok(()) if !names.is_empty() => names.answer(&self.device, request.unique().0, reply),
            outcome => answer!(reply, outcome, |()| reply.ok()),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.releasedir(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        empty_now(reply, self.fs.fsync_directory(fh.0, datasync));
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        answer!(reply, self.fs.statfs(ino.0), |room| {
            reply.statfs(
                room.f_blocks,
                room.f_bfree,
                room.f_bavail,
                room.f_files,
                room.f_ffree,
                narrow(room.f_bsize),
                narrow(room.f_namemax),
                narrow(room.f_frsize),
            );
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let outcome = self.fs.setxattr(caller(request), ino.0, name.as_bytes(), value, flags);
        self.answering(request, empty_reply(reply))(outcome);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr_reply(reply, self.fs.getxattr(ino.0, name.as_bytes(), size));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        xattr_reply(reply, self.fs.listxattr(caller(request), ino.0, size));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let outcome = self.fs.removexattr(caller(request), ino.0, name.as_bytes());
        self.answering(request, empty_reply(reply))(outcome);
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let outcome = self.fs.fallocate(caller(request), fh.0, offset, length, mode);
        self.answering(request, empty_reply(reply))(outcome);
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        answer!(reply, self.fs.seek(fh.0, offset, whence), |found| reply.offset(found));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.fs.copy_range(caller(request), (fh_in.0, offset_in), (fh_out.0, offset_out), len);
        answer!(reply, copied, |copied| reply.written(narrow(copied)));
    }
}
