//! SCR's lines for failure groups, `GROUPS=node7 POWER=psu1 SWITCH=0`: of which groups a host is
//! (manual of SCR 1.2, section 6.2). A host may be a list, `node[0-31]`; a later line adds to
//! what earlier ones say of a host.

use std::collections::BTreeMap;

use super::{ConfigError, Layers, Rank, hosts};
use crate::dataset::NODE;

/// The parameter that stands for a file's lines.
pub(super) const PARAMETER: &str = "SCRFS_GROUPS";
/// Begins such a line, and one of the parameter's.
pub(super) const GROUPS: &str = "GROUPS";
/// Longest name of a kind of groups, or of a group, in bytes.
const NAME_MAX: usize = 64;
/// Kinds at most that a host's lines may name.
const KINDS_MAX: usize = 32;
/// Bytes of lines that programs hand to one another; the kernel bounds one of these texts at twice
/// that.
const HANDED_MAX: usize = 64 << 10;
/// Hosts that all lines together may name.
const HOSTS_MAX: usize = 1_000_000;

const EXPECTED: &str = "expected a host and its groups, such as node7 SWITCH=0";

/// A kind of failure groups, as SCR_GROUP and descriptors name it: in capitals.
pub(super) fn kind(text: &str) -> Result<String, String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(is_word) {
        return Err(format!(
            "expected a word of letters, digits, _ and -, of at most {NAME_MAX} bytes, such as NODE"
        ));
    }
    Ok(text.to_ascii_uppercase())
}

/// One line's hosts, and their groups by kind.
fn line(text: &str) -> Result<(Vec<String>, BTreeMap<String, String>), String> {
    let mut words = text.split_ascii_whitespace();
    let hosts = hosts::expand(words.next().unwrap_or_default())?;
    if hosts.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    let mut groups = BTreeMap::new();
    for word in words {
        let (name, group) = word.split_once('=').ok_or_else(|| format!("{word:?} is not KIND=GROUP"))?;
        let name = kind(name).map_err(|expected| format!("{name:?}: {expected}"))?;
        if name == NODE {
            return Err(format!("{word:?}: each node is a group of the kind {NODE} by itself"));
        }
        if group.is_empty() || group.len() > NAME_MAX || group.contains([';', ',']) {
            return Err(format!(
                "{word:?}: expected a group's name of 1 to {NAME_MAX} bytes without ; and ,"
            ));
        }
        groups.insert(name, group.to_owned());
    }
    if groups.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    Ok((hosts, groups))
}

impl Layers {
    /// The groups of `host`, by kind, as the strongest source says that has such lines. A host is
    /// also meant by its name without the domain.
    pub(super) fn groups(&self, host: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let short = host.split('.').next().unwrap_or(host);
        let mut found = BTreeMap::new();
        let (mut handed, mut named) = (0, 0);
        for listed in self.strongest(GROUPS, PARAMETER)? {
            let wrong = |expected: String| ConfigError::Value {
                origin: listed.origin.clone(),
                name: if listed.by_parameter { PARAMETER } else { GROUPS }.to_owned(),
                text: listed.text.clone(),
                expected,
            };
            let with_word = GROUPS.len() + listed.text.len() + 2;
            handed += if listed.rank == Rank::System { 0 } else { with_word };
            if handed > HANDED_MAX {
                return Err(wrong(format!(
                    "expected at most {HANDED_MAX} bytes of such lines: write lists of hosts, node[0-31]"
                )));
            }
            let (hosts, groups) = line(&listed.text).map_err(wrong)?;
            named += hosts.len();
            if named > HOSTS_MAX {
                return Err(wrong(format!("expected at most {HOSTS_MAX} hosts in all such lines")));
            }
            if hosts.iter().any(|one| one == host || one == short) {
                found.extend(groups);
            }
            if found.len() > KINDS_MAX {
                return Err(wrong(format!("expected at most {KINDS_MAX} kinds of groups of {host}")));
            }
        }
        Ok(found)
    }
}
