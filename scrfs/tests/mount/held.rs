//! Descriptors that a program holds for reading while it closes others.

use scrfs::control::{Command, Event, MarkerOutcome};

use super::asked_again::program;
use super::both_modes;
use super::lead::Lead;

/// Writes a file, and closes it, while it holds another descriptor of that.
fn written_while_it_is_read(name: &str) -> String {
    format!(
        "python3 -c 'import os
os.open(\"{name}\", os.O_CREAT | os.O_RDONLY, 0o644)
with open(\"{name}\", \"w\") as file:
    file.write(\"text\")
os.stat(\".\")'"
    )
}

#[test]
fn what_is_held_for_reading_alone_puts_nothing_off() {
    both_modes(|m| {
        let mut lead = Lead::attach(&m.control(), 1);
        lead.inventory();
        lead.send(&Command::Serve);
        let makes = program(m, "mkdir ck");
        let request = lead.round(2);
        lead.finish(request, 0);
        assert!(makes.join().unwrap());

        let writes = program(m, &written_while_it_is_read("latest"));
        let Event::LooseRequest { request, entries } = lead.next() else { panic!("not a pointer file") };
        assert_eq!((entries.len(), entries[0].name.as_slice()), (1, &b"latest"[..]));
        assert_eq!(entries[0].bytes, b"text");
        lead.send(&Command::LooseFinish { results: vec![(request, 0)] });
        assert!(writes.join().unwrap());

        let marks = program(m, &written_while_it_is_read("ck/.complete"));
        let requests = vec![lead.marker("ck")];
        lead.send(&Command::MarkersEnd { name: b"ck".to_vec(), requests, outcome: MarkerOutcome::Waived });
        assert!(marks.join().unwrap());
    });
}
