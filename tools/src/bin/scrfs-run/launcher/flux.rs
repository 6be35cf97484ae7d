//! Flux: `flux run` in the instance that this program is in. Written from the manuals, tested with
//! stand-in commands only.
//!
//! Flux gives cores to one job at a time: the coordinators need one core of each node beside the
//! program's.

use std::ffi::OsString;

use super::{CommandLine, Kind, Launcher, Refusal, Said, Task};

/// The `flux` of a job.
#[derive(Debug, Clone)]
pub(crate) struct Flux {
    /// `flux`, or where it is.
    pub(crate) program: OsString,
    /// More arguments, for the program only.
    pub(crate) extra: Vec<OsString>,
}

impl Launcher for Flux {
    fn name(&self) -> &'static str {
        "flux"
    }

    fn line(&self, task: Task) -> CommandLine {
        let Task { hosts, per_node, command, environment, kind, cpus: _ } = task;
        let mut arguments: Vec<OsString> = [
            "run".to_owned(),
            format!("--requires=hosts:{}", scrfs::config::hosts::list(&hosts)),
            format!("--nodes={}", hosts.len()),
            format!("--tasks-per-node={per_node}"),
            "-o".to_owned(),
            "exit-on-error".to_owned(),
        ]
        .map(OsString::from)
        .to_vec();
        match kind {
            Kind::Program => arguments.extend(self.extra.iter().cloned()),
            Kind::Service | Kind::Tool => arguments.extend(["-o", "cpu-affinity=off"].map(OsString::from)),
        }
        arguments.extend(command);
        CommandLine { program: self.program.clone(), arguments, environment, directory: None }
    }

    fn understand(&self, text: &str, _: u32) -> Option<Said> {
        let text = text.trim_end();
        if !is_own(text) {
            return None;
        }
        // "3.105s: job.exception type=node-failure severity=0 lost contact with node2 (shell rank
        // 1)"
        if text.contains("job.exception") && (text.contains("node-failure") || text.contains("lost contact"))
        {
            let host =
                super::word_after(text, "lost contact with ").or_else(|| super::word_after(text, "on host "));
            return Some(Said::Lost(host.map(str::to_owned).into_iter().collect()));
        }
        let refused = text.contains("unsatisfiable")
            || text.contains("type=alloc")
            || text.contains("command not found");
        if text.contains("job.exception") && refused
            || text.contains("No such file or directory") && text.contains("flux-shell")
        {
            return Some(Said::Refused(Refusal {
                what: format!("flux: {}", text.trim_start_matches("flux-run: ")),
                hint: "the instance needs a core of each node for the coordinators beside the program's; `flux resource list` \
                       says what it has",
            }));
        }
        (text.contains("flux-shell[") || text.contains("job.exception")).then_some(Said::Noise)
    }
}

/// Flux begins its lines with the name of its part, or with the seconds since the job began.
fn is_own(text: &str) -> bool {
    let is_time = |word: &str| word.strip_suffix('s').is_some_and(|number| number.parse::<f64>().is_ok());
    text.starts_with("flux-") || text.split_once(": ").is_some_and(|(first, _)| is_time(first))
}
