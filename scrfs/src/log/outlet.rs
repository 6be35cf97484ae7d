//! Lines go out whole, or are counted.

use std::io::{self, Write};

/// What could not be written so far.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    lost: u64,
    why: String,
    /// A line ends in its middle.
    torn: bool,
}

impl Outlet {
    /// Writes a line, and before it how many were lost.
    pub(super) fn put(&mut self, line: &[u8], to: &mut impl Write) {
        if self.lost > 0 {
            let end = if self.torn { "\n" } else { "" };
            let note = format!("{end}(log lines lost here: {}; {})\n", self.lost, self.why);
            if !self.write(note.as_bytes(), to) {
                self.lost += 1;
                return;
            }
            self.lost = 0;
        }
        if !self.write(line, to) {
            self.lost += 1;
        }
    }

    fn write(&mut self, mut bytes: &[u8], to: &mut impl Write) -> bool {
        let mut begun = false;
        while !bytes.is_empty() {
            match to.write(bytes) {
                Ok(0) => "nothing is taken".clone_into(&mut self.why),
                Ok(written) => {
                    bytes = &bytes[written.min(bytes.len())..];
                    begun = true;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => self.why = error.to_string(),
            }
            self.torn |= begun;
            return false;
        }
        self.torn = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, then fails.
    struct Disk {
        room: usize,
        written: Vec<u8>,
        errno: i32,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::Error::from_raw_os_error(self.errno));
            }
            let taken = bytes.len().min(self.room);
            self.room -= taken;
            self.written.extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_lost_is_told_when_there_is_room_again() {
        for errno in [libc::ENOSPC, libc::EIO, libc::EPIPE, libc::EAGAIN] {
            // The second line is torn, or not begun.
            for (room, before) in [(6, "first\n"), (9, "first\nsec\n")] {
                let mut disk = Disk { room, written: Vec::new(), errno };
                let mut outlet = Outlet::default();
                for line in ["first\n", "second\n", "third\n"] {
                    outlet.put(line.as_bytes(), &mut disk);
                }
                disk.room = 5;
                outlet.put(b"fourth\n", &mut disk);
                disk.room = 1000;
                outlet.put(b"fifth\n", &mut disk);
                outlet.put(b"sixth\n", &mut disk);
                let told = String::from_utf8(disk.written).unwrap();
                assert!(told.starts_with(before), "{told}");
                let why = io::Error::from_raw_os_error(errno);
                assert!(
                    told.ends_with(&format!("(log lines lost here: 3; {why})\nfifth\nsixth\n")),
                    "{told}"
                );
            }
        }
    }
}
