//! Names of events, for notes.

use scrfs::control::Event;

/// An event without its contents, which may be long.
pub(super) fn name_of(event: &Event) -> &'static str {
    match event {
        Event::Inventory(_) => "Inventory",
        Event::Catalog { .. } => "Catalog",
        Event::DirRequest { .. } => "DirRequest",
        Event::DirPrepared { .. } => "DirPrepared",
        Event::DirApplied { .. } => "DirApplied",
        Event::DirUnited => "DirUnited",
        Event::Marker { .. } => "Marker",
        Event::Asked { .. } => "Asked",
        Event::Posted { .. } => "Posted",
        Event::Invalid { .. } => "Invalid",
        Event::Frozen { .. } => "Frozen",
        Event::Changes { .. } => "Changes",
        Event::Carried { .. } => "Carried",
        Event::Dropped(_) => "Dropped",
        Event::Committed { .. } => "Committed",
        Event::Evicted(_) => "Evicted",
        Event::Removed(_) => "Removed",
        Event::Overwritten(_) => "Overwritten",
        Event::RoomShort { .. } => "RoomShort",
        Event::FlushedMember { .. } => "FlushedMember",
        Event::FlushWanted(_) => "FlushWanted",
        Event::ScrubWanted(_) => "ScrubWanted",
        Event::Scrubbed { .. } => "Scrubbed",
        Event::Verified { .. } => "Verified",
        Event::UnsealedRemoved { .. } => "UnsealedRemoved",
        Event::Pong => "Pong",
        Event::FetchedMember { .. } => "FetchedMember",
        Event::Presented { .. } => "Presented",
        Event::Fetch { .. } => "Fetch",
        Event::Saved { .. } => "Saved",
        Event::CopiedFromPrefix { .. } => "CopiedFromPrefix",
        Event::LooseInventory(_) => "LooseInventory",
        Event::LooseRead { .. } => "LooseRead",
        Event::LooseRequest { .. } => "LooseRequest",
        Event::LooseBegun { .. } => "LooseBegun",
        Event::LooseStored { .. } => "LooseStored",
    }
}
