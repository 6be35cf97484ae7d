//! The word that a node is lost: one line on the standard output of a coordinator that watches it,
//! which its launcher forwards, as it does that of [`super::ready`].
//!
//! `scrfs-lost host=node2 why=network;` and a line break.

use std::fmt;

use crate::config::hosts;

const MARK: &[u8] = b"scrfs-lost ";

/// How it was noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its network does not answer: no power, or no connection.
    Network,
    /// Its network answers, but nothing that runs there does.
    Silent,
}

/// A node is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Its name.
    pub host: String,
    /// How that was noticed.
    pub why: Why,
}

impl fmt::Display for Lost {
    /// Without the line break.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Why::Network => "network",
            Why::Silent => "silent",
        };
        write!(f, "scrfs-lost host={} why={why};", self.host)
    }
}

impl Lost {
    /// Finds it in a line; `None` when the line is about something else, or is damaged.
    pub fn find(line: &[u8]) -> Option<Self> {
        let begin = line.windows(MARK.len()).position(|part| part == MARK)? + MARK.len();
        let (text, _) = std::str::from_utf8(line.get(begin..)?.split_inclusive(|&b| b == b';').next()?)
            .ok()?
            .split_once(';')?;
        let (host, why) = text.strip_prefix("host=")?.split_once(" why=")?;
        let why = match why {
            "network" => Why::Network,
            "silent" => Why::Silent,
            _ => return None,
        };
        let [host] = <[String; 1]>::try_from(hosts::expand(host).ok()?).ok()?;
        Some(Self { host, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_goes_both_ways_and_damage_is_none() {
        for why in [Why::Network, Why::Silent] {
            let lost = Lost { host: "node2.site".into(), why };
            assert_eq!(Lost::find(format!("[1,0]<stdout>:{lost}\r").as_bytes()), Some(lost));
        }
        for line in [
            "",
            "scrfs-lost",
            "scrfs-lost host=n why=network",
            "scrfs-lost host=n why=;",
            "scrfs-lost host= why=silent;",
            "scrfs-lost host=a,b why=silent;",
            "scrfs-lost host=n[1-3] why=silent;",
            "scrfs-lost host=a/b why=silent;",
            "scrfs-lost host=-x why=silent;",
        ] {
            assert_eq!(Lost::find(line.as_bytes()), None, "{line}");
        }
    }
}
