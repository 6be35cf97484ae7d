//! `scrfs-ctl scavenge`: what nodes have saved in the prefix when a job ended without its
//! coordinators becomes datasets of the prefix. Works without a job, and without a mount.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use scrfs::ids::{Epoch, Member};
use scrfs::prefix::scavenge::{Adoption, By, Outcome as Became, Progress, adopt, ages};
use scrfs::prefix::strangers;
use scrfs::prefix::{PfsError, Prefix};
use scrfs::status::last::{LastStatus, RENEWED};
use scrfs::transfer::user::{Identity, UserThread};
use scrfs_tools::{Failure, Outcome, output};

use crate::halt;

/// What to do about members that are missing or bad.
const SAVE: &str = "save the parts that are missing or bad on their nodes, where these have them in their caches still \
                    (`scrfs umount --job-id ID --save SECONDS`), and run this again; \
                    or go on from the newest dataset that is on the PFS";
/// Where none is.
const MEND: &str =
    "mend what is named there, and run this again; or go on from the newest dataset that is on the PFS";

/// So many starts of the job meanwhile.
const STARTS_MAX: u32 = 5;

pub(crate) fn scavenge(named: Option<&PathBuf>, json: bool) -> Outcome {
    let prefix = halt::prefix(named)?;
    let adoptions = with_owners_rights(&prefix)?;
    if json {
        let datasets: Vec<_> = adoptions.iter().map(describe).collect();
        output::data(&format!("{}\n", serde_json::json!({ "datasets": datasets })))?;
    } else {
        for adoption in &adoptions {
            output::data(&format!("{adoption}\n"))?;
        }
        if adoptions.is_empty() {
            output::talk(&format!("{}: nothing is there that nodes have saved", prefix.display()));
        }
    }
    let is_waiting =
        |adoption: &&Adoption| matches!(adoption.outcome, Became::Waits { .. } | Became::Hindered(_));
    let lacks_parts = adoptions
        .iter()
        .any(|adoption| matches!(&adoption.outcome, Became::Waits { missing, .. } if !missing.is_empty()));
    match adoptions.iter().filter(is_waiting).count() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} of {} not published", adoptions.len()))
            .hint(if lacks_parts { SAVE } else { MEND })),
    }
}

/// Root works with the rights of whose prefix it is: that user may have put links anywhere in it.
fn with_owners_rights(prefix: &Path) -> Outcome<Vec<Adoption>> {
    let failed = |error: std::io::Error| Failure::system(prefix.display(), &error);
    let meta = std::fs::metadata(prefix).map_err(failed)?;
    // Where everybody, or a group of root's directory, may make one, it is the prefix of whose the
    // state is.
    let is_shared = meta.mode() & 0o002 != 0 || meta.uid() == 0;
    let state = strangers::owner_of_state(prefix).filter(|_| is_shared);
    let (uid, gid) = state.unwrap_or((meta.uid(), meta.gid()));
    if !rustix::process::geteuid().is_root() || uid == 0 {
        return publish(prefix);
    }
    let user = UserThread::start(&Identity::of(uid, gid)).map_err(failed)?;
    let path = prefix.to_owned();
    user.run(move || publish(&path)).map_err(failed)?
}

/// Where the job is started meanwhile, that start publishes some: the rest is looked at again.
fn publish(root: &Path) -> Outcome<Vec<Adoption>> {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let mut starts = 0;
    loop {
        let prefix = Prefix::of_newest(root.as_os_str().as_bytes(), Epoch(0), &host.to_string_lossy());
        match prefix.and_then(|prefix| publish_in(root, &prefix)) {
            Ok(done) => return done,
            Err(PfsError::Superseded(..)) if starts < STARTS_MAX => starts += 1,
            Err(error) => {
                let hint = match error {
                    PfsError::Superseded(..) => "what was saved stays; the start of the job publishes it",
                    _ => "what was saved stays; run this again when that is mended",
                };
                return Err(Failure::new(error).hint(hint));
            }
        }
    }
}

/// Fails when the prefix cannot be read or written, or another start of the job has begun.
fn publish_in(root: &Path, prefix: &Prefix) -> Result<Outcome<Vec<Adoption>>, PfsError> {
    let mut adoptions = Vec::new();
    for age in ages(prefix)? {
        if prefix.is_flushing(age.id)? && has_coordinators(root) {
            return Ok(Err(Failure::new(format!(
                "coordinators have begun to flush dataset {} of this prefix",
                age.id
            ))
            .hint("if they were killed, run this again two minutes later")));
        }
        let tell = |progress: Progress<'_>| {
            if let Progress::Said(text) = progress {
                output::talk(text);
            }
        };
        adoptions.push(match adopt(prefix, age, By::Person(&tell)) {
            Ok(adoption) => adoption,
            Err(error @ (PfsError::Superseded(..) | PfsError::Locked { .. })) => return Err(error),
            // Others may be sound.
            Err(error) => {
                let outcome = Became::Hindered(error.to_string());
                Adoption { age, name: Vec::new(), outcome, note: None }
            }
        });
    }
    Ok(Ok(adoptions))
}

/// They have not said that they end, and not been silent for long.
fn has_coordinators(prefix: &Path) -> bool {
    let now: Duration = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LastStatus::read(prefix).is_ok_and(|last| !last.ended && last.age(now) < 2 * RENEWED)
}

fn describe(adoption: &Adoption) -> serde_json::Value {
    let members = |members: &[(Member, String)]| {
        let listed = members.iter().map(|(m, host)| serde_json::json!({ "member": m.0, "host": host }));
        listed.collect::<Vec<_>>()
    };
    let (state, listed, reason) = match &adoption.outcome {
        Became::Published(rebuilt) => ("published", members(rebuilt), None),
        Became::Stored => ("flushed", Vec::new(), None),
        Became::Superseded { .. } => ("superseded", Vec::new(), None),
        Became::Waits { missing, reason } => ("incomplete", members(missing), Some(reason)),
        Became::Hindered(reason) => ("incomplete", members(&[]), Some(reason)),
    };
    serde_json::json!({
        "id": adoption.age.id.0,
        "epoch": adoption.age.epoch.0,
        "name": String::from_utf8_lossy(&adoption.name),
        "state": state,
        "members": listed,
        "reason": reason,
        "note": adoption.note,
    })
}
