//! How a job ends: what is saved, for how long, and how the program is asked to end.

use std::time::Duration;

use super::{ConfigError, Layers, defs, value};

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// `SCRFS_END_GRACE`: for bringing the newest protected dataset to the PFS; zero: it is not
    /// brought there.
    pub grace: Duration,
    /// `SCRFS_HALT_SIGNAL`, one of [`defs::SIGNALS`].
    pub signal: &'static str,
    /// `SCRFS_HALT_GRACE`: for the program to end by itself.
    pub halt_grace: Duration,
}

/// Between TERM and KILL for what does not end.
pub const KILL: Duration = Duration::from_secs(4);
/// For what comes after saving: what is not saved is named, coordinators end.
pub const LAST: Duration = Duration::from_secs(8);

impl Ending {
    /// What stopping the program and saving may take of the allocation; zero: nothing is saved. A
    /// program that ignores all that it is told has its grace twice, before the signal and after
    /// it, and is killed then.
    pub fn reserve(&self) -> Duration {
        if self.grace.is_zero() { Duration::ZERO } else { 2 * self.halt_grace + KILL + self.grace + LAST }
    }
}

impl Layers {
    pub(super) fn ending(&self) -> Result<Ending, ConfigError> {
        let signal = self.read("SCRFS_HALT_SIGNAL", |text, _| signal(text))?;
        Ok(Ending {
            grace: self.time("SCRFS_END_GRACE")?,
            signal: signal.unwrap_or(defs::SIGNALS[0]),
            halt_grace: self.time("SCRFS_HALT_GRACE")?,
        })
    }
}

/// One that launchers pass on to the program's processes, or end them at.
fn signal(text: &str) -> Result<&'static str, String> {
    value::word(text, defs::SIGNALS).map_err(|expected| {
        let why = match text.to_ascii_uppercase().as_str() {
            "KILL" | "QUIT" => "it would end the launcher alone, and leave the program's processes behind",
            "INT" => "at one of them srun does no more than say how its tasks are",
            _ => return expected,
        };
        format!("{why}; {expected}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_would_not_reach_the_program_are_refused_with_the_reason() {
        assert_eq!((signal("usr1"), signal("TERM")), (Ok("USR1"), Ok("TERM")));
        for (text, why) in [
            ("KILL", "it would end the launcher alone"),
            ("quit", "it would end the launcher alone"),
            ("INT", "srun does no more than say how its tasks are"),
            ("STOP", "expected one of TERM, HUP, USR1, USR2"),
        ] {
            let wrong = signal(text).unwrap_err();
            assert!(
                wrong.contains(why) && wrong.ends_with("expected one of TERM, HUP, USR1, USR2"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_worst_end_of_a_program_and_the_save_fit_into_what_is_kept_for_them() {
        let secs = Duration::from_secs;
        let ending = Ending { grace: secs(60), signal: "TERM", halt_grace: secs(30) };
        // Itself, the signal, TERM, KILL; then all of the grace; then what is left is named.
        assert_eq!(ending.reserve(), secs(30 + 30) + KILL + secs(60) + LAST);
        assert_eq!(Ending { grace: secs(0), ..ending }.reserve(), secs(0));
    }
}
