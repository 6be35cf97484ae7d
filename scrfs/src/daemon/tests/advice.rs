//! What programs are advised, and how often they ask: under the next lead, the next worker, the
//! next program.

use super::*;
use crate::control::Advice;

const SAID: Advice =
    Advice { need_checkpoint: true, should_exit: false, begun_us: 5, sealed_us: 7, waited_us: 1 };

fn asks(bench: &Bench, tid: u32) -> Vec<u8> {
    bench.node.look_at(Eye::NeedCheckpoint, Caller { tid, ..Caller::default() }).unwrap()
}

#[test]
fn the_next_lead_hears_of_it() {
    let mut bench = Bench::new();
    let mut lead = bench.serving(1);
    // Answered after it serves.
    assert_eq!(lead.inventory().advice, None);
    lead.send(Command::Advise(Advice { need_checkpoint: false, ..SAID }));
    lead.inventory();
    for times in 1..=3 {
        assert_eq!(asks(&bench, 7), b"0\n");
        assert_eq!(lead.next(), Event::Asked { times });
    }
    lead.send(Command::Advise(SAID));
    lead.inventory();
    drop(lead);
    // Nobody is there to hear it.
    asks(&bench, 7);
    let mut lead = bench.lead(2, Start::Attach);
    assert_eq!(lead.inventory().advice, Some(SAID));
    lead.send(Command::Serve);
    assert_eq!(lead.next(), Event::Asked { times: 4 });
    lead.send(Command::Advise(Advice { need_checkpoint: false, should_exit: true, ..SAID }));
    lead.inventory();
    bench.restart();
    let shown = |eye| bench.node.look_at(eye, Caller::default()).unwrap();
    assert_eq!((shown(Eye::NeedCheckpoint), shown(Eye::ShouldExit)), (b"0\n".to_vec(), b"1\n".to_vec()));
}

#[test]
fn the_next_program_begins_anew() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    lead.send(Command::Advise(SAID));
    lead.inventory();
    for _ in 0..20 {
        asks(&bench, 7);
    }
    let mut lead = bench.lead(2, Start::Restart);
    assert_eq!(lead.inventory().advice, None);
    lead.send(Command::Serve);
    lead.inventory();
    for times in 1..=2 {
        asks(&bench, 8);
        assert_eq!(lead.next(), Event::Asked { times });
    }
}

#[test]
fn a_seal_that_only_the_next_lead_ends_is_the_end_of_the_count() {
    let bench = Bench::new();
    let mut lead = bench.serving(1);
    bench.write("ck/f", b"x");
    let files = lead.freeze(1, "ck").unwrap();
    let part = encode(&mut lead.data(), 1, &files).unwrap();
    lead.commit(&catalog(1, 1, "ck", &part)).unwrap();
    asks(&bench, 7);
    assert_eq!(lead.next(), Event::Asked { times: 1 });
    let mut lead = bench.serving(2);
    lead.inventory();
    asks(&bench, 8);
    assert_eq!(lead.next(), Event::Asked { times: 1 });
}
