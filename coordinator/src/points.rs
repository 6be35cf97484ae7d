//! Fault points of the coordinators ([`scrfs::faults`]) that every command, event and task passes.

use scrfs::control::{Command, Event};
use scrfs::prefix::PfsTask;

use crate::run::RunError;

/// Passes it.
///
/// # Errors
/// The injected one.
pub fn passes(point: Option<&'static str>) -> Result<(), RunError> {
    point.map_or(Ok(()), |point| scrfs::faults::hit(point).map_err(|error| RunError::Fault(point, error)))
}

/// Before a command reaches the daemon.
pub fn of_command(command: &Command) -> Option<&'static str> {
    match command {
        Command::DirPrepare { .. } => Some("round.prepare"),
        Command::DirApply { .. } => Some("round.apply"),
        Command::DirFinish { .. } => Some("round.finish"),
        Command::Freeze { .. } => Some("seal.freeze"),
        Command::Carry { .. } => Some("generation.carry"),
        Command::Commit(_) | Command::Revise(_) => Some("commit.send"),
        Command::FlushMember { .. } => Some("flush.member"),
        Command::Present { .. } => Some("present.send"),
        Command::LooseAsk { .. } => Some("loose.ask"),
        Command::LooseStore { .. } => Some("loose.store"),
        Command::LooseBind { .. } => Some("loose.bind"),
        Command::LooseFinish { .. } => Some("loose.finish"),
        _ => None,
    }
}

/// Before an event reaches the lead.
pub fn of_event(event: &Event) -> Option<&'static str> {
    match event {
        Event::DirPrepared { .. } => Some("round.prepared"),
        Event::DirApplied { .. } => Some("round.applied"),
        Event::Frozen { .. } => Some("seal.frozen"),
        Event::Carried { .. } => Some("generation.carried"),
        Event::Committed { .. } => Some("commit.done"),
        Event::FlushedMember { .. } => Some("flush.copied"),
        Event::FetchedMember { .. } => Some("fetch.member"),
        Event::LooseBegun { .. } => Some("loose.begun"),
        Event::LooseStored { .. } => Some("loose.stored"),
        _ => None,
    }
}

/// Before the PFS worker gets a task.
pub fn of_task(task: &PfsTask) -> Option<&'static str> {
    match task {
        PfsTask::BeginFlush(_) => Some("flush.begin"),
        PfsTask::Publish(_) => Some("flush.publish"),
        PfsTask::PutLoose(_) => Some("loose.put"),
        _ => None,
    }
}
