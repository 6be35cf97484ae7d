//! Failures as people read them: what is wrong, and a hint what to do.

use std::fmt::Display;
use std::process::ExitCode;

use scrfs::status::people::printable;

/// Why a tool ends with an exit code other than 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What is wrong, with path, host or dataset.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The exit code.
    pub code: u8,
}

/// What each verb gives.
pub type Outcome<T = ()> = Result<T, Failure>;

/// What is wrong, before it is said what to do about it.
#[derive(Debug)]
#[must_use]
pub struct Problem(String);

impl Problem {
    /// A failure with exit code 1.
    pub fn hint(self, hint: impl Display) -> Failure {
        Failure { message: self.0, hint: hint.to_string(), code: 1 }
    }
}

impl Failure {
    /// What is wrong; the hint makes a failure of it, so that none is without one.
    #[expect(clippy::new_ret_no_self, reason = "there is no failure without a hint")]
    pub fn new(message: impl Display) -> Problem {
        Problem(message.to_string())
    }

    /// What the system refused.
    pub fn system(message: impl Display, error: &std::io::Error) -> Self {
        Self::new(format!("{message}: {error}")).hint(scrfs::remedy::of(error))
    }

    /// The same with another exit code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

/// For people: what of it is a path, or another program's word, no terminal obeys.
fn lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Says why a tool failed and gives its exit code. `tool` is its name.
pub fn exit(tool: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::output::talk(&lines(&format!("{tool}: {}", failure.message)));
            crate::output::talk(&lines(&format!("hint: {}", failure.hint)));
            ExitCode::from(failure.code)
        }
    }
}
