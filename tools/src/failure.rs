//! Failures as people read them: what is wrong, and a hint what to do.

use std::fmt::Display;
use std::process::ExitCode;

/// Why a tool ends with an exit code other than 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What is wrong, with path, host or dataset.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The exit code.
    pub code: u8,
}

/// What each verb gives.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// With exit code 1.
    pub fn new(message: impl Display) -> Self {
        Self { message: message.to_string(), hint: None, code: 1 }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The same with another exit code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

/// Says why a tool failed and gives its exit code. `tool` is its name.
pub fn exit(tool: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            crate::output::talk(&format!("{tool}: {}", failure.message));
            if let Some(hint) = failure.hint {
                crate::output::talk(&format!("hint: {hint}"));
            }
            ExitCode::from(failure.code)
        }
    }
}
