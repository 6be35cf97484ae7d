//! What a person can do about a configuration that cannot be read.

use std::io::ErrorKind;

use super::{ConfigError, Origin, SYSTEM_FILE};

/// For a list of hosts.
pub const HOSTS_HINT: &str = "name hosts such as node1,node[3-5]";
/// For a process that has no user or no working directory.
pub const PROCESS_HINT: &str = "start it in a directory that exists, as a user that this node knows";

/// Parameters whose value is a user of this node.
const USERS: [&str; 4] = ["SCR_USER_NAME", "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_GID"];
/// And lists of hosts.
const HOSTS: [&str; 2] = ["SCR_NODELIST", "SCR_EXCLUDE_NODES"];

impl ConfigError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Value { name, expected, origin, .. } if expected.starts_with("only root") => {
                let said = if let Origin::Option(option) = origin { option } else { name.as_str() };
                format!("leave {said} out, or have root do it")
            }
            Self::Value { name, origin, .. } if USERS.contains(&name.as_str()) => {
                let said = if let Origin::Option(option) = origin { option } else { name.as_str() };
                format!(
                    "name a user of this node with {said}, by name or number: `getent passwd NAME` shows who is known \
                     here"
                )
            }
            Self::Value { name, .. } if HOSTS.contains(&name.as_str()) => HOSTS_HINT.into(),
            Self::Value { name, .. } if !name.starts_with("SCR") => {
                "correct that line; descriptors and stores are in scrfs.conf(5)".into()
            }
            Self::Value { name, origin: Origin::Option(option), .. } => {
                format!("what {option} takes is in scrfs.conf(5), at {name}")
            }
            Self::Value { name, .. } => {
                format!("correct or unset it; what it takes is in scrfs.conf(5), at {name}")
            }
            Self::Blank { option, .. } => {
                format!("leave {option} out for what holds without it; a script's variable may be unset")
            }
            Self::Line { .. } => "correct that line; what can stand in one is in scrfs.conf(5)".into(),
            Self::Unreadable { path, kind, .. } => unreadable(path, *kind),
        }
    }
}

fn unreadable(path: &std::path::Path, kind: ErrorKind) -> String {
    let shown = path.display();
    let is_system = path == std::path::Path::new(SYSTEM_FILE);
    // The variable names the user's file.
    let or = |other: &str| if is_system { String::new() } else { format!("; or {other}: SCR_CONF_FILE") };
    match kind {
        ErrorKind::NotFound => "make that file, or name another: SCR_CONF_FILE".into(),
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => {
            "processes, threads or memory are short: `ulimit -a` shows what this shell may have".into()
        }
        ErrorKind::PermissionDenied if is_system => {
            format!("every user has to read it: chmod 644 {shown}, as root")
        }
        ErrorKind::PermissionDenied => {
            format!("it and its directories must be readable for you: `namei -l {shown}` shows which is not")
        }
        super::INVALID => {
            format!("it is to be a plain file with lines of NAME=VALUE, scrfs.conf(5){}", or("name another"))
        }
        ErrorKind::TimedOut => {
            format!("see that its file system answers{}", or("name a file elsewhere"))
        }
        _ => format!("see that it is a plain file that can be read{}", or("name another")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_for_what_is_wrong() {
        let value = |name: &str, origin, expected: &str| ConfigError::Value {
            origin,
            name: name.into(),
            text: "x".into(),
            expected: expected.into(),
        };
        let unreadable =
            |path: &str, kind| ConfigError::Unreadable { path: path.into(), reason: String::new(), kind };
        let environment = || Origin::Environment;
        for (error, word) in [
            (value("SCR_USER_NAME", Origin::Option("--user"), "there is no such user"), "getent passwd"),
            (value("SLURM_JOB_UID", environment(), "expected the number of a user"), "getent passwd"),
            (value("SCR_USER_NAME", environment(), "only root mounts for others"), "leave SCR_USER_NAME out"),
            (value("SCR_NODELIST", environment(), "unbalanced"), "node[3-5]"),
            (value("STORE", environment(), "expected one of"), "descriptors"),
            (value("SCR_FLUSH", environment(), "expected a number"), "scrfs.conf(5), at SCR_FLUSH"),
            (value("SCR_JOB_ID", Origin::Option("--job-id"), "expected"), "what --job-id takes"),
            (ConfigError::Line { path: "/x".into(), line: 3, problem: String::new() }, "that line"),
            (unreadable("/x/conf", ErrorKind::PermissionDenied), "namei -l /x/conf"),
            (unreadable(SYSTEM_FILE, ErrorKind::PermissionDenied), "chmod 644"),
            (unreadable("/x", ErrorKind::NotFound), "SCR_CONF_FILE"),
            (unreadable("/x", super::super::INVALID), "NAME=VALUE"),
            (unreadable("/x", ErrorKind::TimedOut), "answers"),
            (unreadable("/x", ErrorKind::Other), "plain file"),
            (unreadable("/x", ErrorKind::Other), "SCR_CONF_FILE"),
            (unreadable("/x", ErrorKind::WouldBlock), "ulimit"),
        ] {
            assert!(error.hint().contains(word), "{error}: {}", error.hint());
        }
    }
}
