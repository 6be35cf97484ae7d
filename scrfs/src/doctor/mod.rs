//! `scrfs doctor`: is this node fit for scrfs, and if not, what is to be done. In reading order:
//!
//! * [`facts`]: what is known of the node, as values.
//! * [`checks`]: from facts to findings; pure.
//! * [`gather`]: how the facts are had, each within a bounded time.
//! * [`remote_shell`]: how other hosts are asked.
//! * [`Report`]: the findings as people and programs read them.

pub mod checks;
pub mod facts;
pub mod gather;
pub mod remote_shell;
pub mod skew;

use serde::Serialize;

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Nothing to do.
    Ok,
    /// It works, and something will be missed.
    Warn,
    /// It does not work.
    Fail,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; the same name may come more than once.
    pub name: &'static str,
    /// How it is.
    pub grade: Grade,
    /// What was found.
    pub says: String,
    /// What to do about it; `None` with [`Grade::Ok`] only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The worst of them.
    pub grade: Grade,
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Of these findings.
    pub fn new(findings: Vec<Finding>) -> Self {
        let grade = findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Ok);
        Self { grade, findings }
    }

    /// A line each, and a line with what to do.
    pub fn for_people(&self) -> String {
        let width = self.findings.iter().map(|finding| finding.name.len()).max().unwrap_or_default();
        self.findings.iter().fold(String::new(), |text, finding| {
            let Finding { name, says, .. } = finding;
            let grade = match finding.grade {
                Grade::Ok => "ok  ",
                Grade::Warn => "warn",
                Grade::Fail => "FAIL",
            };
            let line = format!("{grade}  {name:width$}  {}\n", one_line(says));
            let hint = finding.remedy.iter().map(|remedy| format!("{:1$}hint: {remedy}\n", "", width + 8));
            text + &line + &hint.collect::<String>()
        })
    }

    /// One JSON object.
    pub fn for_programs(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// What a program said may have several lines.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_counts_and_each_has_a_line() {
        let finding = |name, grade, remedy: Option<&str>| Finding {
            name,
            grade,
            says: "a\n b".into(),
            remedy: remedy.map(str::to_owned),
        };
        let report = Report::new(vec![
            finding("kernel", Grade::Ok, None),
            finding("mpi", Grade::Fail, Some("install it")),
            finding("x", Grade::Warn, Some("y")),
        ]);
        assert_eq!(report.grade, Grade::Fail);
        let expected = "ok    kernel  a; b\nFAIL  mpi     a; b\n              hint: install it\nwarn  x       a; b\n              hint: y\n";
        assert_eq!(report.for_people(), expected);
        assert!(report.for_programs().starts_with("{\"grade\":\"fail\",\"findings\":[{\"name\":\"kernel\""));
        assert_eq!(Report::new(Vec::new()).grade, Grade::Ok);
    }
}
