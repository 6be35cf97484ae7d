//! The keeper: outlives the harness by the moment that it takes to clear up.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use super::{Outcome, While};
use crate::cluster::Record;
use crate::place::{Place, State};
use crate::wait;

/// Starts the head, says `ready`, waits for the end of standard input or of the head, and clears
/// up.
pub(super) fn keep(state: &State) -> Outcome<u8> {
    let outcome = start_head(state).map(|mut head| {
        // A closed pipe at the other end is no reason to stop: standard input tells.
        let _ = writeln!(io::stdout(), "ready");
        let _ = io::stdin().read_to_end(&mut Vec::new());
        end(&mut head);
        0
    });
    clear(state.dir())?;
    outcome
}

fn start_head(state: &State) -> Outcome<Child> {
    unshare(CloneFlags::CLONE_NEWPID).during("a PID namespace")?;
    let exe = std::env::current_exe().during("own path")?;
    let mut command = Command::new(exe);
    command.arg("head").arg(state.dir()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut head = command.spawn().during("starting the head")?;
    let begin = |head: &mut Child| {
        let mut line = String::new();
        if let Some(out) = head.stdout.take() {
            BufReader::new(out).read_line(&mut line).during("waiting for the head")?;
        }
        if line.trim() != "ready" {
            return Err("the head did not come up".to_owned());
        }
        let pid = i32::try_from(head.id()).during("pid")?;
        let record = Record::head(pid).ok_or("the head is gone")?;
        record.write(&state.record(Place::Head)).during("writing the head's record")
    };
    match begin(&mut head) {
        Ok(()) => Ok(head),
        Err(why) => {
            end(&mut head);
            Err(why)
        }
    }
}

/// The kernel ends all processes of the cluster with the head before `wait` returns.
fn end(head: &mut Child) {
    let _ = head.kill();
    let _ = head.wait();
}

fn clear(dir: &Path) -> Outcome<()> {
    let mut last = Ok(());
    wait::poll(Duration::from_secs(10), || {
        last = match fs::remove_dir_all(dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
        last.is_ok().then_some(())
    });
    last.during(format!("removing {}", dir.display()))
}
