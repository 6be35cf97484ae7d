//! Tells who started the coordinators that programs may start, and that they are to end
//! ([`scrfs::control::ready`]).
//!
//! Standard output belongs to this alone; everything else that a coordinator has to say goes to
//! standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes the line at once: it is shorter than what a pipe takes whole.
pub fn announce(out: &mut impl Write, word: &impl Display) -> io::Result<()> {
    out.write_all(format!("{word}\n").as_bytes())?;
    out.flush()
}

/// The same of a word that comes again and again. Nobody waits for a launcher that does not read:
/// then the word is dropped. Whether the line was written.
pub fn announce_if_room(out: &mut (impl Write + AsFd), word: &impl Display) -> io::Result<bool> {
    let mut wanted = [PollFd::new(out, PollFlags::OUT)];
    let ready = poll(&mut wanted, Some(&Timespec::default()))? > 0;
    let has_room = ready && wanted[0].revents().contains(PollFlags::OUT);
    if has_room {
        announce(out, word)?;
    }
    Ok(has_room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scrfs::control::ready::{Ready, Sealed};
    use scrfs::ids::{DatasetId, Epoch};

    #[test]
    fn it_is_one_write_of_one_line() {
        struct Writes(Vec<Vec<u8>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Writes(Vec::new());
        announce(&mut out, &Ready { epoch: Epoch(3), current: Some(b"ck\n1".to_vec()), id: 2 }).unwrap();
        assert_eq!(out.0, [b"scrfs-ready epoch=3 current=ck%0A1 id=2;\n"]);
    }

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        let (mut read, mut write) = io::pipe().unwrap();
        let word = Sealed { id: DatasetId(7) };
        let mut written = 0;
        while announce_if_room(&mut write, &word).unwrap() {
            written += 1;
        }
        assert!(written > 100, "{written}");
        drop(write);
        let mut text = String::new();
        io::Read::read_to_string(&mut read, &mut text).unwrap();
        assert_eq!(text, "scrfs-sealed id=7;\n".repeat(written));
    }
}
