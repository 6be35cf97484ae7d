//! Which nodes answer at all: a connection is asked of each, all at once, before a launcher is
//! started for them.
//!
//! A refusal is an answer. Where a firewall drops what it does not know, no node answers, which
//! says nothing.

use std::collections::BTreeSet;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use scrfs::lock::Mutex;

/// For one connection.
const CONNECT: Duration = Duration::from_secs(1);
/// For all that are asked together; a name may be slow to resolve.
const LIMIT: Duration = Duration::from_millis(1200);
/// Between the first two of a [`Watch`], and half as much more each time: most looks are over by
/// then.
const PAUSE: Duration = Duration::from_secs(1);
/// Asked together.
const AT_ONCE: usize = 256;
/// Slurm's daemon, where there is Slurm; else the remote shell.
const SLURMD: u16 = 6818;
const SSH: u16 = 22;

/// Positions of those that do not answer, while others do; and whether any does.
pub(crate) fn silent(hosts: &[String]) -> (BTreeSet<usize>, bool) {
    let slurm = std::env::var_os("SLURM_JOB_ID").is_some_and(|id| !id.is_empty());
    let port = if slurm { SLURMD } else { SSH };
    let mut answered = BTreeSet::new();
    for (chunk, first) in hosts.chunks(AT_ONCE).zip((0..).step_by(AT_ONCE)) {
        answered.extend(ask(chunk, port).into_iter().map(|at| first + at));
    }
    (judge(hosts.len(), &answered), !answered.is_empty())
}

/// Which hosts of a look do not answer, for as long as the others are asked: one may be lost in the
/// meantime.
#[derive(Debug)]
pub(crate) struct Watch {
    silent: Arc<Mutex<BTreeSet<usize>>>,
    /// The thread ends when this is dropped.
    _end: Sender<()>,
}

impl Watch {
    /// `silent` is the first answer. Without a thread that is the last one, too.
    pub(crate) fn begin(hosts: &[String], silent: BTreeSet<usize>) -> Self {
        let (end, ended) = mpsc::channel();
        let watch = Self { silent: Arc::new(Mutex::leaf(silent)), _end: end };
        let (hosts, known) = (hosts.to_vec(), Arc::clone(&watch.silent));
        let look = move || {
            let mut pause = PAUSE;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let silent = self::silent(&hosts).0;
                *known.lock() = silent;
                pause = pause.mul_f32(1.5);
            }
        };
        drop(std::thread::Builder::new().name("reach".to_owned()).spawn(look));
        watch
    }

    /// The host at this position.
    pub(crate) fn is_silent(&self, at: usize) -> bool {
        self.silent.lock().contains(&at)
    }
}

fn judge(hosts: usize, answered: &BTreeSet<usize>) -> BTreeSet<usize> {
    if answered.is_empty() {
        return BTreeSet::new();
    }
    (0..hosts).filter(|at| !answered.contains(at)).collect()
}

fn ask(hosts: &[String], port: u16) -> BTreeSet<usize> {
    let (tell, told) = mpsc::channel();
    for (at, host) in hosts.iter().enumerate() {
        let (host, tell) = (host.clone(), tell.clone());
        // One that cannot be asked counts as silent, and is asked by the launcher.
        drop(std::thread::Builder::new().name("reach".to_owned()).spawn(move || {
            if answers(&host, port) {
                let _ = tell.send(at);
            }
        }));
    }
    drop(tell);
    let end = Instant::now() + LIMIT;
    let mut answered = BTreeSet::new();
    while let Ok(at) = told.recv_timeout(end.saturating_duration_since(Instant::now())) {
        answered.insert(at);
    }
    answered
}

fn answers(host: &str, port: u16) -> bool {
    let Some(address) = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next()) else {
        return false;
    };
    match TcpStream::connect_timeout(&address, CONNECT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_an_answer_and_no_name_is_none() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(answers("127.0.0.1", port));
        drop(listener);
        assert!(answers("127.0.0.1", port) && !answers("no-such-host.invalid", port));
    }

    #[test]
    fn where_nobody_answers_nobody_is_silent() {
        assert_eq!(judge(3, &BTreeSet::new()), BTreeSet::new());
        assert_eq!(judge(3, &[0, 2].into()), [1].into());
    }
}
