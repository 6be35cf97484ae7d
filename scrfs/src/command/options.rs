//! What the processes of a mount are told on their command lines.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use scrfs::checkpoint_path;
use scrfs::config::Account;
use scrfs::mount::Options;
use scrfs::mount::terms::Terms;
use scrfs::path::RelPath;

use super::{CommandError, MountArgs, load};

/// What is to be mounted, by the command line over all that is set.
pub(super) fn options(args: MountArgs) -> Result<Options, CommandError> {
    let account = args.uid.zip(args.gid).zip(args.bases.user.clone());
    let config = load(args.bases, args.job_id, None)?;
    let account = match account {
        Some(((uid, gid), name)) => Account { name: name.to_string_lossy().into_owned(), uid, gid },
        None => Account::of_job(&config.claim)?,
    };
    let protections = config.protections();
    let mount_point = args.mount_point.unwrap_or(config.mount);
    let path = args.checkpoint_path.map(PathBuf::from).or(config.checkpoint_path);
    Ok(Options {
        checkpoint_path: path
            .map_or(Ok(RelPath::root()), |path| checkpoint_path::relative(&path, &mount_point))?,
        mount_point,
        user: account.name,
        uid: account.uid,
        gid: account.gid,
        mode: config.mode,
        operator_group: config.operator_group,
        job_id: config.job_id,
        control_base: config.control_base,
        protections,
        cache_bases: config.cache_bases,
        cache_bytes: config.cache_bytes,
        passthrough: !args.no_passthrough,
        coordinator_wait: config.coordinator_wait,
        seal_timeout: config.seal_timeout,
    })
}

/// What a worker serves by: that with which its mount began, whatever is set now.
pub(super) fn of_worker(args: MountArgs, terms: Option<Terms>) -> Result<Options, CommandError> {
    let (Some(terms), Some(uid), Some(gid)) = (terms, args.uid, args.gid) else { return options(args) };
    let text = |word: Option<OsString>| word.unwrap_or_default().to_string_lossy().into_owned();
    let mount_point = args.mount_point.unwrap_or_default();
    let path = args.checkpoint_path.map(PathBuf::from);
    let bases = args.bases.cache_base.unwrap_or_default();
    let bases =
        bases.as_bytes().split(|&byte| byte == b',').map(|base| PathBuf::from(OsStr::from_bytes(base)));
    Ok(Options {
        checkpoint_path: path
            .map_or(Ok(RelPath::root()), |path| checkpoint_path::relative(&path, &mount_point))?,
        mount_point,
        user: text(args.bases.user),
        uid,
        gid,
        mode: terms.mode,
        operator_group: terms.operator_group,
        job_id: text(args.job_id),
        control_base: args.bases.control_base.unwrap_or_default().into(),
        protections: terms.protections,
        cache_bases: bases.collect(),
        cache_bytes: terms.cache_bytes,
        passthrough: !args.no_passthrough,
        coordinator_wait: terms.coordinator_wait,
        seal_timeout: terms.seal_timeout,
    })
}
