//! A daemon is asked when one worker has died and the next does not serve yet.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scrfs::control::question;
use scrfs::control::{Answer, Ask};
use scrfs::ids::Epoch;

use super::lead::{Lead, Steady};
use super::{fails, in_namespace, scrfs, wait_until};

/// However busy the machine is.
const WAIT: Duration = Duration::from_secs(25);

/// The half second without a worker is not the end of the daemon: a question waits for the next
/// one, and a mount whose job goes on is not taken away.
#[test]
fn questions_between_two_workers_wait_for_the_next() {
    in_namespace(&[], |m| {
        let lead = Steady::start(&m.control());
        let control = m.control();
        for turn in 0..20 {
            let worker = m.pid("worker.lock");
            kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
            if turn % 2 == 0 {
                let answer = question::ask(&control, &Ask::Status, WAIT);
                assert!(matches!(answer, Ok(Answer::Status(_))), "{answer:?}");
            } else {
                let refused = m.unmount(&[]);
                fails(&refused, 1, "is attached, so its job runs");
            }
            assert!(fs::metadata(&m.mount_point).is_ok(), "the mount is gone");
        }
        // A lead that is lost is awaited.
        lead.end();
        let status = || match question::ask(&control, &Ask::Status, WAIT) {
            Ok(Answer::Status(status)) => status,
            other => panic!("{other:?}"),
        };
        let is_lost = || status().awaited;
        wait_until("the loss of the lead", is_lost);
        let mut unmount = scrfs(&["umount"]);
        let mut asks = unmount.arg(&m.mount_point).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        assert!(asks.try_wait().unwrap().is_none(), "it did not wait");
        let lead = Lead::attach(&control, status().epoch + 1);
        fails(&asks.wait_with_output().unwrap(), 1, "is attached, so its job runs");
        drop(lead);
        wait_until("the loss of the lead", is_lost);
        // Until somebody says that its job has ended; the next worker knows that, too.
        let told = question::ask(&control, &Ask::JobEnded(Epoch(status().epoch)), WAIT);
        assert!(matches!(told, Ok(Answer::Done)), "{told:?}");
        assert!(!status().awaited && status().job_ended);
        kill(Pid::from_raw(m.pid("worker.lock")), Signal::SIGKILL).unwrap();
        assert!(!status().awaited && status().job_ended);
        let ended = m.unmount(&[]);
        assert!(ended.status.success(), "{ended:?}");
    });
}
