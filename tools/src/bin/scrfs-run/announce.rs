//! Reads what coordinators print: that they have met, that programs may start, that a dataset is
//! complete, that programs are to end, that a coordinator was told to leave
//! ([`scrfs::control::ready`]), which nodes are lost ([`scrfs::control::lost`]) and, as talk,
//! whatever a library or a launcher has to say besides.
//!
//! The pipe is read until its last writer is gone, so it never fills up and holds nobody back.

use scrfs::control::lost::Lost;
use scrfs::control::ready::{Failed, HaltDue, LINE_BYTES_MAX, Leaving, Met, Ready, Sealed};
use std::io::{self, Read};

/// One read; talk that is passed on is not longer (`PIPE_BUF`: what a pipe with room takes without
/// a wait).
const READ_BYTES: usize = 4096;

/// What is told to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    Met,
    Ready(Ready),
    Sealed,
    Halt(HaltDue),
    Leaving(Leaving),
    Failed(Failed),
    Lost(Lost),
}

/// Calls `tell` for the first word that programs may start, the first that they are to end, the
/// first that a coordinator leaves, and for each dataset and each node that is named as lost; the
/// rest goes to `talk`, line by line. Returns at the end of the output.
pub(crate) fn listen(mut output: impl Read, tell: impl FnMut(Word), talk: impl FnMut(&[u8])) {
    let mut ear = Ear { tell, talk, ready: false, halt: false, leaving: false };
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => lines.feed(&buffer[..read], |line| ear.heard(line)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::debug!(%error, "the coordinators' output cannot be read");
                break;
            }
        }
    }
    lines.end(|line| ear.heard(line));
}

struct Ear<F, T> {
    tell: F,
    talk: T,
    /// These were told.
    ready: bool,
    halt: bool,
    leaving: bool,
}

impl<F: FnMut(Word), T: FnMut(&[u8])> Ear<F, T> {
    fn heard(&mut self, line: Line<'_>) {
        match line {
            Line::Word(word) => {
                let told = match &word {
                    Word::Ready(_) => std::mem::replace(&mut self.ready, true),
                    Word::Halt(_) => std::mem::replace(&mut self.halt, true),
                    Word::Leaving(_) => std::mem::replace(&mut self.leaving, true),
                    Word::Met | Word::Sealed | Word::Failed(_) | Word::Lost(_) => false,
                };
                if !told {
                    (self.tell)(word);
                }
            }
            Line::Talk(bytes) => (self.talk)(bytes),
        }
    }
}

/// A piece of output.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Word(Word),
    /// With its line break, if it has come to one.
    Talk(&'a [u8]),
}

/// Cuts output into lines. Holds at most [`LINE_BYTES_MAX`] bytes: a longer line goes on as talk,
/// piece by piece.
#[derive(Debug, Default)]
struct Lines {
    held: Vec<u8>,
    /// What is held is not the line's beginning.
    torn: bool,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8], mut to: impl FnMut(Line<'_>)) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let mut rest = part;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(LINE_BYTES_MAX - self.held.len()));
                self.held.extend_from_slice(now);
                rest = later;
                if self.held.last() == Some(&b'\n') {
                    self.end(&mut to);
                    self.torn = false;
                } else if self.held.len() == LINE_BYTES_MAX {
                    to(Line::Talk(&self.held));
                    self.held.clear();
                    self.torn = true;
                }
            }
        }
    }

    /// What is held is all of its line.
    fn end(&mut self, mut to: impl FnMut(Line<'_>)) {
        if self.held.is_empty() {
            return;
        }
        let ready = || Ready::find(&self.held).map(Word::Ready);
        let halt = || HaltDue::find(&self.held).map(Word::Halt);
        let lost = || Lost::find(&self.held).map(Word::Lost);
        let sealed = || Sealed::find(&self.held).map(|_| Word::Sealed);
        let met = || Met::find(&self.held).map(|_| Word::Met);
        let leaving = || Leaving::find(&self.held).map(Word::Leaving);
        let failed = || Failed::find(&self.held).map(Word::Failed);
        let end = || halt().or_else(leaving).or_else(failed);
        match met().or_else(ready).or_else(sealed).or_else(end).or_else(lost).filter(|_| !self.torn) {
            Some(word) => to(Line::Word(word)),
            None => to(Line::Talk(&self.held)),
        }
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scrfs::ids::Epoch;

    /// What comes of it, when `text` arrives in pieces of `size` bytes.
    fn cut(text: &[u8], size: usize) -> Vec<String> {
        let mut lines = Lines::default();
        let mut got = Vec::new();
        let mut to = |line: Line<'_>| {
            got.push(match line {
                Line::Word(Word::Met) => "<met>".to_owned(),
                Line::Word(Word::Sealed) => "<sealed>".to_owned(),
                Line::Word(Word::Ready(ready)) => format!("<{ready}>"),
                Line::Word(Word::Halt(due)) => format!("<{due}>"),
                Line::Word(Word::Leaving(leaving)) => format!("<{leaving}>"),
                Line::Word(Word::Failed(failed)) => format!("<{failed}>"),
                Line::Word(Word::Lost(lost)) => format!("<{lost}>"),
                Line::Talk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            });
        };
        for piece in text.chunks(size) {
            lines.feed(piece, &mut to);
            assert!(lines.held.len() <= LINE_BYTES_MAX);
        }
        lines.end(&mut to);
        got
    }

    #[test]
    fn the_announcement_is_found_among_talk_however_it_arrives() {
        let text = b"hello\n\n[1,0]<stdout>:scrfs-met epoch=7;\n[1,0]<stdout>:scrfs-ready epoch=7 current=ck%201 id=1;\n\xff no line break";
        for size in [1, 2, 7, 4096] {
            assert_eq!(
                cut(text, size),
                [
                    "hello\n",
                    "\n",
                    "<met>",
                    "<scrfs-ready epoch=7 current=ck%201 id=1;>",
                    "\u{fffd} no line break"
                ]
            );
        }
        assert_eq!(cut(b"", 1), Vec::<String>::new());
        assert_eq!(cut(b"scrfs-ready epoch=7 current=;", 3), ["<scrfs-ready epoch=7 current=;>"]);
    }

    #[test]
    fn a_line_without_end_is_talk_and_nothing_in_it_counts() {
        let mut text = vec![b'x'; 3 * LINE_BYTES_MAX];
        text.extend_from_slice(b"scrfs-ready epoch=1 current=;\nscrfs-ready epoch=2 current=;\n");
        for size in [1000, LINE_BYTES_MAX, usize::MAX] {
            let got = cut(&text, size);
            assert_eq!(got.len(), 5, "{got:?}");
            assert_eq!(got[3], "scrfs-ready epoch=1 current=;\n");
            assert_eq!(got[4], "<scrfs-ready epoch=2 current=;>");
        }
    }

    #[test]
    fn the_first_of_each_kind_counts_and_every_lost_node_and_all_is_read() {
        let text = b"scrfs-ready epoch=1 current=a id=3;\nscrfs-ready epoch=2 current=b id=4;\nscrfs-halt reason=x;\n\
            scrfs-leaving signal=15;\n\
            scrfs-lost host=n1 why=silent;\n";
        let text = text.repeat(10_000);
        let mut output = text.as_slice();
        let mut heard = Vec::new();
        listen(&mut output, |word| heard.push(word), |_| ());
        let ready = Ready { epoch: Epoch(1), current: Some(b"a".to_vec()), id: 3 };
        let halt = Word::Halt(HaltDue { reason: "x".to_owned() });
        assert_eq!(heard[..3], [Word::Ready(ready), halt, Word::Leaving(Leaving { signal: 15 })]);
        let lost = |word: &Word| matches!(word, Word::Lost(Lost { host, .. }) if host == "n1");
        assert_eq!((heard.len(), heard[3..].iter().all(lost)), (10_003, true));
        assert!(output.is_empty());
    }
}
