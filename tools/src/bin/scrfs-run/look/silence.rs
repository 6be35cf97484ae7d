//! Why a node did not answer.

use std::time::Duration;

use crate::launcher::{Refusal, is_of_a_restart};

#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error("it cannot be reached ({0})")]
    Unreachable(String),
    #[error("no answer in {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("{}", .0.what)]
    Refused(Refusal),
    /// A launcher that dies itself: a defect of its own, or somebody has killed it.
    #[error("{0} was ended by signal {1}, which is not the nodes' fault")]
    Crashed(&'static str, i32),
}

impl Silence {
    /// So it goes while a scheduler that was started anew has not heard of its nodes.
    pub(super) fn is_of_a_restart(&self) -> bool {
        matches!(self, Self::Refused(refusal) if is_of_a_restart(&refusal.what))
    }

    /// What a person can do about it, where that is not about the node.
    pub(super) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Refused(refusal) => Some(refusal.hint),
            Self::Unreachable(_) | Self::TooSlow(_) | Self::Crashed(..) => None,
        }
    }
}

/// What the remote shell of a launcher says about why it did not come to a node.
pub(super) fn shell_says(output: &str) -> Option<&str> {
    let said = |line: &&str| {
        // What was to become it there.
        line.starts_with("scrfs-ctl: mpirun's daemon ")
            || line.starts_with("ssh: ")
            || line.starts_with("rsh: ")
            || line.starts_with("Host key verification failed")
            || line.contains(": Permission denied (")
    };
    output.lines().map(str::trim).find(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_shell_says_why_it_did_not_come() {
        let said =
            "x\nssh: Could not resolve hostname n9: Name or service not known\r\n-----\nORTE was unable";
        assert_eq!(shell_says(said), Some("ssh: Could not resolve hostname n9: Name or service not known"));
        let refused = "ann@n9: Permission denied (publickey,password).";
        assert_eq!((shell_says(refused), shell_says("a rank's words")), (Some(refused), None));
    }
}
