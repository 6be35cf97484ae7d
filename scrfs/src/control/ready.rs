//! The words that all coordinators have met, that programs may start, that a dataset is complete,
//! and that programs are to end: lines on the lead coordinator's standard output, which its
//! launcher forwards; and the words that a coordinator was told to end, or cannot go on, on its
//! own.
//!
//! `scrfs-met epoch=3;`, `scrfs-ready epoch=3 current=ck%201 id=2;`, `scrfs-sealed id=2;`,
//! `scrfs-halt reason=no%20checkpoints;`, `scrfs-leaving signal=15;` or `scrfs-failed
//! reason=n1%3A%20full;`, and a line break. Launchers may put marks of their own before and after.
//! All bytes of the name that are not plain are written as `%` and two digits, so a line is ASCII
//! and short.

use std::fmt;

use crate::ids::{DatasetId, Epoch};
use crate::path::RelPath;

const MARK: &[u8] = b"scrfs-ready ";
const HALT_MARK: &[u8] = b"scrfs-halt ";
const SEALED_MARK: &[u8] = b"scrfs-sealed ";
const MET_MARK: &[u8] = b"scrfs-met ";
const FAILED_MARK: &[u8] = b"scrfs-failed ";
const LEAVING_MARK: &[u8] = b"scrfs-leaving ";
/// Reasons that are longer are cut.
const REASON_BYTES_MAX: usize = 500;
/// Names are no longer (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;

/// A line that holds a [`Ready`] is no longer than this, marks of launchers included.
pub const LINE_BYTES_MAX: usize = 4096;

/// MPI has brought all coordinators together, and their epoch opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    /// The epoch.
    pub epoch: Epoch,
}

impl fmt::Display for Met {
    /// Without the line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scrfs-met epoch={};", self.epoch.0)
    }
}

impl Met {
    /// Finds it in a line; `None` when the line is about something else, or is damaged.
    pub fn find(line: &[u8]) -> Option<Self> {
        let epoch = after(line, MET_MARK)?.strip_prefix("epoch=")?.parse().ok()?;
        Some(Self { epoch: Epoch(epoch) })
    }
}

/// A dataset has become complete on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Which.
    pub id: DatasetId,
}

impl fmt::Display for Sealed {
    /// Without the line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scrfs-sealed id={};", self.id.0)
    }
}

impl Sealed {
    /// Finds it in a line; `None` when the line is about something else, or is damaged.
    pub fn find(line: &[u8]) -> Option<Self> {
        let id = after(line, SEALED_MARK)?.strip_prefix("id=")?.parse().ok()?;
        Some(Self { id: DatasetId(id) })
    }
}

/// A signal asks this coordinator to end, and it does, with all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Which.
    pub signal: i32,
}

impl fmt::Display for Leaving {
    /// Without the line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scrfs-leaving signal={};", self.signal)
    }
}

impl Leaving {
    /// Finds it in a line; `None` when the line is about something else, or is damaged.
    pub fn find(line: &[u8]) -> Option<Self> {
        let signal = after(line, LEAVING_MARK)?.strip_prefix("signal=")?.parse().ok()?;
        Some(Self { signal })
    }
}

/// A halt condition is due: the program is to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaltDue {
    /// Why, for people.
    pub reason: String,
}

impl fmt::Display for HaltDue {
    /// Without the line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_reason(f, "scrfs-halt", &self.reason)
    }
}

impl HaltDue {
    /// Finds it in a line; `None` when the line is about something else, or is damaged.
    pub fn find(line: &[u8]) -> Option<Self> {
        reason_after(line, HALT_MARK).map(|reason| Self { reason })
    }
}

/// This coordinator cannot go on, and ends with all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Why, and on which host, for people.
    pub reason: String,
}

impl fmt::Display for Failed {
    /// Without the line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_reason(f, "scrfs-failed", &self.reason)
    }
}

impl Failed {
    /// Finds it in a line; `None` when the line is about something else, or is damaged.
    pub fn find(line: &[u8]) -> Option<Self> {
        reason_after(line, FAILED_MARK).map(|reason| Self { reason })
    }
}

fn write_reason(f: &mut fmt::Formatter<'_>, word: &str, reason: &str) -> fmt::Result {
    write!(f, "{word} reason=")?;
    let bytes = reason.as_bytes();
    encode(f, &bytes[..bytes.len().min(REASON_BYTES_MAX)])?;
    f.write_str(";")
}

fn reason_after(line: &[u8], mark: &[u8]) -> Option<String> {
    let reason = decode(after(line, mark)?.strip_prefix("reason=")?.as_bytes(), REASON_BYTES_MAX)?;
    Some(String::from_utf8_lossy(&reason).into_owned())
}

/// The mounts present their dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The epoch in which they do.
    pub epoch: Epoch,
    /// The name of current; `None`: there is no dataset to restart from.
    pub current: Option<Vec<u8>>,
    /// Its id; 0: there is none.
    pub id: u64,
}

impl fmt::Display for Ready {
    /// Without the line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scrfs-ready epoch={} current=", self.epoch.0)?;
        encode(f, self.current.as_deref().unwrap_or_default())?;
        match &self.current {
            Some(_) => write!(f, " id={};", self.id),
            None => f.write_str(";"),
        }
    }
}

impl Ready {
    /// Finds it in a line; `None` when the line is about something else, or is damaged.
    pub fn find(line: &[u8]) -> Option<Self> {
        let (epoch, current) = after(line, MARK)?.strip_prefix("epoch=")?.split_once(" current=")?;
        let epoch = Epoch(epoch.parse().ok()?);
        if current.is_empty() {
            return Some(Self { epoch, current: None, id: 0 });
        }
        let (current, id) = current.split_once(" id=")?;
        let name = decode(current.as_bytes(), NAME_BYTES_MAX)?;
        let single = RelPath::new(name.clone()).is_ok_and(|path| path.names().count() == 1);
        let id = id.parse().ok()?;
        single.then_some(Self { epoch, current: Some(name), id })
    }
}

/// What is between a mark and the next `;`.
fn after<'a>(line: &'a [u8], mark: &[u8]) -> Option<&'a str> {
    let begin = line.windows(mark.len()).position(|part| part == mark)? + mark.len();
    let rest = line.get(begin..)?;
    let text = std::str::from_utf8(rest.split(|&byte| byte == b';').next()?).ok()?;
    // Without the end mark it was cut off.
    (text.len() < rest.len()).then_some(text)
}

fn encode(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|&byte| {
        if is_plain(byte) { write!(f, "{}", char::from(byte)) } else { write!(f, "%{byte:02X}") }
    })
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.,+@:=~".contains(&byte)
}

fn decode(text: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let byte = match (first, after) {
            (b'%', [high, low, left @ ..]) => {
                rest = left;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?
            }
            (plain, left) if is_plain(*plain) => {
                rest = left;
                *plain
            }
            _ => return None,
        };
        if name.len() == most {
            return None;
        }
        name.push(byte);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_goes_both_ways_in_a_short_plain_line() {
        let all: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
        for name in [b"ck.7".as_slice(), b"ck 1; %41\n", &all, &[0xff; NAME_BYTES_MAX]] {
            let ready = Ready { epoch: Epoch(u64::MAX), current: Some(name.to_vec()), id: u64::MAX };
            let line = ready.to_string();
            assert!(line.is_ascii() && line.len() < LINE_BYTES_MAX / 4 && !line.contains('\n'));
            assert_eq!(Ready::find(line.as_bytes()), Some(ready));
        }
        let none = Ready { epoch: Epoch(3), current: None, id: 0 };
        assert_eq!(none.to_string(), "scrfs-ready epoch=3 current=;");
        assert_eq!(Ready::find(b"scrfs-ready epoch=3 current=;"), Some(none));
    }

    #[test]
    fn launchers_may_mark_the_line() {
        let ready = Some(Ready { epoch: Epoch(4), current: Some(b"a b".to_vec()), id: 7 });
        for line in [
            b"[1,0]<stdout>:scrfs-ready epoch=4 current=a%20b id=7;\r".as_slice(),
            b"<stdout rank=\"0\">scrfs-ready epoch=4 current=a%20b id=7;</stdout>",
            b"\xff\xfe scrfs-ready epoch=4 current=a%20b id=7; \xff",
        ] {
            assert_eq!(Ready::find(line), ready, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn so_does_a_reason_to_end() {
        for reason in ["", "no checkpoints are left; 50% \u{fc}"] {
            let due = HaltDue { reason: reason.to_owned() };
            let line = format!("<stdout>:{due}\n");
            assert_eq!(HaltDue::find(line.as_bytes()), Some(due));
            assert_eq!(Ready::find(line.as_bytes()), None);
        }
        let long = HaltDue { reason: "x".repeat(9999) }.to_string();
        assert!(long.len() < LINE_BYTES_MAX / 4);
        assert_eq!(HaltDue::find(long.as_bytes()).unwrap().reason.len(), REASON_BYTES_MAX);
        assert_eq!(HaltDue::find(b"scrfs-halt reason=cut"), None);
    }

    #[test]
    fn so_does_a_meeting() {
        let met = Met { epoch: Epoch(7) };
        assert_eq!(met.to_string(), "scrfs-met epoch=7;");
        assert_eq!(Met::find(b"[1,0]<stdout>:scrfs-met epoch=7;\r"), Some(met));
        for line in
            ["scrfs-met epoch=7", "scrfs-met epoch=;", "scrfs-met 7;", "scrfs-ready epoch=7 current=;"]
        {
            assert_eq!(Met::find(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn so_does_a_dataset_that_is_complete() {
        let sealed = Sealed { id: DatasetId(12) };
        assert_eq!(sealed.to_string(), "scrfs-sealed id=12;");
        assert_eq!(Sealed::find(b"[1,0]<stdout>:scrfs-sealed id=12;\r"), Some(sealed));
        for line in ["scrfs-sealed id=12", "scrfs-sealed id=;", "scrfs-sealed 12;", "scrfs-met epoch=12;"] {
            assert_eq!(Sealed::find(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn so_does_a_failure() {
        let failed = Failed { reason: "n1: no room; make some\n".to_owned() };
        let line = format!("[1,2]<stdout>:{failed}\r");
        assert_eq!((Failed::find(line.as_bytes()), HaltDue::find(line.as_bytes())), (Some(failed), None));
        assert_eq!(Failed::find(b"scrfs-failed reason=cut"), None);
    }

    #[test]
    fn so_does_a_leave() {
        let leaving = Leaving { signal: 15 };
        assert_eq!(leaving.to_string(), "scrfs-leaving signal=15;");
        assert_eq!(Leaving::find(b"[1,2]<stdout>:scrfs-leaving signal=15;\r"), Some(leaving));
        for line in ["scrfs-leaving signal=15", "scrfs-leaving signal=;", "scrfs-met epoch=15;"] {
            assert_eq!(Leaving::find(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn what_is_damaged_is_no_answer() {
        let long = format!("scrfs-ready epoch=1 current={} id=1;", "a".repeat(NAME_BYTES_MAX + 1));
        for line in [
            "",
            "scrfs-ready",
            "scrfs-ready ",
            "scrfs-ready epoch=1 current=ck.",
            "scrfs-ready epoch=1;",
            "scrfs-ready epoch=-1 current=ck id=1;",
            "scrfs-ready epoch=99999999999999999999 current=ck id=1;",
            "scrfs-ready current=ck epoch=1;",
            "scrfs-ready epoch=1 current=ck;",
            "scrfs-ready epoch=1 current=ck id=;",
            "scrfs-ready epoch=1 current=a b id=1;",
            "scrfs-ready epoch=1 current=a/b id=1;",
            "scrfs-ready epoch=1 current=a%2Fb id=1;",
            "scrfs-ready epoch=1 current=.. id=1;",
            "scrfs-ready epoch=1 current=%00 id=1;",
            "scrfs-ready epoch=1 current=%4 id=1;",
            "scrfs-ready epoch=1 current=%zz id=1;",
            &long,
        ] {
            assert_eq!(Ready::find(line.as_bytes()), None, "{line}");
        }
    }
}
