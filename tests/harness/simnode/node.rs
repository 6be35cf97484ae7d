//! Process 1 of the cluster and of each node.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Signal, WaitOptions};

use super::{Outcome, While, root};
use crate::place::{BIN, Place, State};
use crate::shell::environment;

/// The namespaces that a place has besides its PID namespace.
fn own_namespaces() -> CloneFlags {
    CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWNET
}

/// The head's process 1: bridge, door, reaping. Dies with the keeper, and the cluster with it.
pub(super) fn head(state: &State) -> Outcome<u8> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).during("binding to the keeper")?;
    unshare(own_namespaces()).during("the head's namespaces")?;
    nix::unistd::sethostname("head").during("the head's name")?;
    root::build(state, Place::Head)?;
    let address = Place::Head.address();
    network(&format!(
        "link set lo up\nlink add br0 address 02:00:0a:4d:00:fe type bridge\naddr add {address}/24 dev br0\nlink set br0 up\n"
    ))?;
    let mut door = program("door");
    door.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut door = door.spawn().during("starting the door")?;
    expect_line(door.stdout.take(), "open")?;
    writeln!(io::stdout(), "ready").during("telling the keeper")?;
    reap()
}

/// Starts a node's process 1 and connects it; runs in the head, prints the pid that the head knows
/// it by.
pub(super) fn start(place: Place) -> Outcome<u8> {
    let Place::Node(k) = place else { return Err("the head is no node".to_owned()) };
    let log = File::create(State::inside().log(place)).during("the node's log")?;
    // Of a former life of the node: it goes by itself, but later.
    let _ = network(&format!("link del v{k}\n"));
    let mut init = program("init");
    init.arg(place.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    // Signals to whoever boots it are not for the node.
    init.process_group(0);
    // In a thread of its own, for only the one that unshares has its children in the new namespace:
    // `ip` below resolves the pid in the namespace that it runs in, which must stay the head's.
    let born = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWPID).during("the node's PID namespace")?;
        init.spawn().during("starting the node")
    });
    let mut init = born.join().map_err(|_| "starting the node")??;
    let mut output = init.stdout.take();
    let mut connect = || {
        expect_line(output.as_mut(), "network")?;
        let pid = init.id();
        // The hardware address is the same after a reboot, as on real nodes: peers remember it.
        network(&format!(
            "link add v{k} type veth peer name eth0 address 02:00:00:00:00:{k:02x} netns {pid}\n\
             link set v{k} master br0 up\n"
        ))?;
        drop(init.stdin.take());
        expect_line(output.as_mut(), "ready")?;
        writeln!(io::stdout(), "{pid}").during("telling the pid")
    };
    let outcome = connect();
    if outcome.is_err() {
        let _ = init.kill();
    }
    outcome.map(|()| 0)
}

/// A node's process 1.
pub(super) fn init(place: Place) -> Outcome<u8> {
    unshare(own_namespaces()).during("the node's namespaces")?;
    let say = |word: &str| writeln!(io::stdout(), "{word}").during("telling the head");
    say("network")?;
    nix::unistd::sethostname(place.to_string()).during("the node's name")?;
    root::build(&State::inside(), place)?;
    io::stdin().read_line(&mut String::new()).during("waiting for the network")?;
    network(&format!("link set lo up\naddr add {}/24 dev eth0\nlink set eth0 up\n", place.address()))?;
    say("ready")?;
    reap()
}

/// Lets orphans rest, for ever.
fn reap() -> Outcome<u8> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGCHLD])
        .during("listening for children")?;
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        signals.wait().for_each(drop);
    }
}

/// This program in another mode, from where every place of the cluster sees it.
fn program(mode: &str) -> Command {
    let mut command = Command::new(format!("{BIN}/scrfs-simnode"));
    environment(&mut command, 0);
    command.arg(mode);
    command
}

/// Carries out lines of `ip`. It waits for its turn while namespaces of other clusters are removed.
fn network(lines: &str) -> Outcome<()> {
    let mut command = Command::new("/usr/bin/timeout");
    environment(&mut command, 0);
    command.args(["-k", "2", "40", "ip", "-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    command.stderr(Stdio::piped());
    let mut child = command.spawn().during("starting ip")?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.as_bytes()).during("telling ip")?;
    }
    let output = child.wait_with_output().during("waiting for ip")?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip: {}\n{lines}", String::from_utf8_lossy(&output.stderr)))
}

/// Reads a line, which must be `word`.
fn expect_line(from: Option<impl io::Read>, word: &str) -> Outcome<()> {
    let mut line = String::new();
    let mut from = from.ok_or("no pipe")?;
    // Byte by byte: what follows the line is for the next reader.
    let mut byte = [0];
    while matches!(from.read(&mut byte), Ok(1)) && byte[0] != b'\n' {
        line.push(char::from(byte[0]));
    }
    if line == word { Ok(()) } else { Err(format!("expected {word:?}, heard {line:?}")) }
}
