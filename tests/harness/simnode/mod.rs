//! The program `scrfs-simnode`: one small mode for each process that holds a cluster up.
//!
//! | mode | runs | what it does |
//! |---|---|---|
//! | `keeper DIR` | on the host | starts the head; ends it all when its standard input closes |
//! | `head DIR` | process 1 of the cluster | the bridge, the door; reaps |
//! | `node NODE` | in the head | starts a node's init, connects it, prints its pid |
//! | `init NODE` | process 1 of a node | builds the node's root; reaps |
//! | `enter DIR PLACE UID PROGRAM ARGS…` | anywhere with rights | runs a program in a place |
//! | `become UID PROGRAM ARGS…` | inside | the last step of `enter`: drops rights, then is the program |
//! | `door` | in the head | runs commands in nodes for their own users, as sshd would |
//! | `rsh HOST COMMAND…` | in any place | asks the door; what Open MPI uses instead of ssh |

mod door;
mod enter;
mod keeper;
mod node;
mod root;

use std::fmt::Display;
use std::process::ExitCode;

use crate::place::{Place, State};

/// A failure as a sentence: these processes only have a log to put it into.
type Outcome<T> = Result<T, String>;

/// Puts before an error what was being done.
trait While<T> {
    fn during(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> While<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Outcome<T> {
        self.map_err(|e| format!("{what}: {e}"))
    }
}

/// Runs the mode that the arguments name.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let args: Vec<String> = args.collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["keeper", dir] => keeper::keep(&State::at(dir)),
        ["head", dir] => node::head(&State::at(dir)),
        ["node", name] => place(name).and_then(node::start),
        ["init", name] => place(name).and_then(node::init),
        ["enter", dir, name, uid, program @ ..] if !program.is_empty() => place(name).and_then(|place| {
            let uid = uid.parse().during("user id")?;
            enter::enter(&State::at(dir), place, uid, program)
        }),
        ["become", uid, program @ ..] if !program.is_empty() => {
            uid.parse().during("user id").and_then(|uid| enter::become_program(uid, program))
        }
        ["door"] => door::serve(),
        ["rsh", words @ ..] => door::ask(words),
        _ => Err("not a command line of scrfs-simnode".to_owned()),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("scrfs-simnode {}: {why}", words.first().unwrap_or(&""));
            ExitCode::from(255)
        }
    }
}

fn place(name: &str) -> Outcome<Place> {
    Place::parse(name).ok_or_else(|| format!("{name} is no node"))
}
