//! O_DIRECT: what a program wrote so is what all others read, also when it was written
//! asynchronously.

use std::fs;

use super::{Mounted, TWO_STORES, both_modes};

/// Native asynchronous I/O (libaio's system calls), direct, while other descriptors read the same
/// bytes through the page cache; what they read after a write has ended is what was written.
const AIO: &str = r#"
import ctypes, mmap, os, platform, struct, threading
SETUP, DESTROY, SUBMIT, EVENTS = (206, 207, 209, 208) if platform.machine() == "x86_64" else (0, 1, 2, 4)
libc = ctypes.CDLL(None, use_errno=True)
PAGE, PAGES = 4096, 16
with open("aio", "wb") as file:
    file.write(b"\0" * PAGE * PAGES)
direct = os.open("aio", os.O_RDWR | os.O_DIRECT)
plain = os.open("aio", os.O_RDONLY)
mapped = mmap.mmap(plain, 0, prot=mmap.PROT_READ)
buffer = mmap.mmap(-1, PAGE * PAGES)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
context = ctypes.c_ulong(0)
assert libc.syscall(SETUP, 8, ctypes.byref(context)) == 0
done = False

def read_on():
    while not done:
        for page in range(PAGES):
            os.pread(plain, PAGE, page * PAGE)

def write(text, length, offset):
    buffer[:length] = text * length
    block = ctypes.create_string_buffer(struct.pack("<QIIHhIQQqQII", 7, 0, 0, 1, 0, direct, address, length, offset, 0, 0, 0))
    blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
    assert libc.syscall(SUBMIT, context, 1, blocks) == 1, os.strerror(ctypes.get_errno())
    event = ctypes.create_string_buffer(32)
    assert libc.syscall(EVENTS, context, 1, 1, event, None) == 1
    written = struct.unpack("<QQqq", event.raw)[2]
    assert written == length, written

reader = threading.Thread(target=read_on)
reader.start()
try:
    for turn in range(400):
        text = bytes([65 + turn % 26])
        pages = 1 + turn % PAGES
        write(text, pages * PAGE, 0)
        seen = os.pread(plain, pages * PAGE, 0)
        assert seen == text * len(seen) and len(seen) == pages * PAGE, (turn, text, set(seen))
        assert mapped[:pages * PAGE] == seen, (turn, "mapped")
    # Beyond the end.
    write(b"z", PAGE, PAGE * PAGES)
    assert os.fstat(plain).st_size == PAGE * (PAGES + 1)
finally:
    done = True
    reader.join()
assert libc.syscall(DESTROY, context) == 0
"#;

#[test]
fn asynchronous_writes_are_seen_by_all() {
    both_modes(|m| {
        fs::create_dir(m.at("d")).unwrap();
        fs::write(m.dir.path().join("aio.py"), AIO).unwrap();
        m.shell(0, &format!("cd d && python3 {}", m.dir.path().join("aio.py").display()));
    });
}

/// `dd oflag=direct` writes a tail that is no whole block after it has taken O_DIRECT from its
/// descriptor.
fn with_a_tail(m: &Mounted) -> bool {
    m.shell(0, "mkdir d && head -c 1000000 /dev/urandom > ../data");
    m.shell(0, "head -c 999424 ../data | dd of=d/whole bs=4096 oflag=direct iflag=fullblock");
    m.shell(0, "head -c 999424 ../data | cmp - d/whole");
    m.shell(0, "dd of=d/tail bs=4096 oflag=direct iflag=fullblock < ../data || touch d/failed");
    // Nothing of what was taken is lost or wrong, and one that reopens its file writes the tail.
    m.shell(0, "head -c 999424 ../data | cmp -n 999424 - d/tail");
    m.shell(0, "dd of=d/again bs=4096 oflag=direct iflag=fullblock count=244 < ../data && tail -c 576 ../data >> d/again");
    m.shell(0, "cmp ../data d/again");
    let failed = m.at("d/failed").exists();
    assert!(failed || fs::metadata(m.at("d/tail")).unwrap().len() == 1_000_000);
    failed
}

#[test]
fn a_tail_that_is_no_block() {
    // tmpfs takes any, natively too.
    both_modes(|m| assert!(!with_a_tail(m)));
    // On a disk's file system the daemon's way takes it; with passthrough the kernel does not
    // (semantics: "Direct I/O").
    for (options, fails) in [(&["--no-passthrough"][..], false), (&[], true)] {
        let thread = std::thread::spawn(move || {
            TWO_STORES.set(true);
            let m = Mounted::new(options);
            assert_eq!(with_a_tail(&m), fails, "{options:?}");
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}
