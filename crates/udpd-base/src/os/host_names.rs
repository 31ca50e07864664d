//! What a host's name means now: a thread for each name looks it up again and again, off the way of any datagram.
//!
//! The C library is asked, so a name means here what it means to every other program of the host. It does not tell how
//! long an answer holds, so the period is the operator's. An answer that could not be had changes nothing: the one
//! before stays, because a resolver that is gone says nothing of the host. No thread waits for the one that waits for a
//! resolver: it ends when it next looks up, and at the latest with the process.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::role::ThreadRole;
use super::threads::{self, ThreadRegistry};
use crate::seams::clock;
use crate::text::units::print_duration;

/// How soon a question that had no answer is asked again, at the latest.
const RETRY: Duration = Duration::from_secs(5);

/// What a name means, as far as it is known.
#[derive(Debug, Default)]
struct LookupResult {
    /// In the resolver's order; none before the first answer.
    addresses: Vec<SocketAddr>,
    /// The resolver has answered, or failed to.
    is_asked: bool,
}

/// Shared by the thread that asks and by who sends.
#[derive(Debug, Default)]
struct Board {
    known: Mutex<LookupResult>,
    asked: Condvar,
}

/// A name that is looked up for as long as this lives.
#[derive(Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Clone))]
pub struct FollowedName {
    board: Arc<Board>,
    /// Its end is heard by the thread.
    _life: Sender<Infallible>,
}

/// What is to be looked up, how often, and for which sink.
#[derive(Debug, Clone)]
pub struct LookupRequest {
    pub name: String,
    pub port: u16,
    pub every: Duration,
    /// What the log calls the asker.
    pub asker: String,
}

impl FollowedName {
    /// Starts to look it up. Answers that `is_usable` refuses are left out.
    pub fn follow(
        registry: &ThreadRegistry,
        question: LookupRequest,
        is_usable: impl Fn(SocketAddr) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let board = Arc::new(Board::default());
        let (life, end) = bounded(0);
        let asker = NameThread { question, board: Arc::clone(&board), is_silent: false };
        registry.spawn("lookup", ThreadRole::Resolver, move || asker.run(&end, is_usable, look_up))?;
        Ok(Self { board, _life: life })
    }

    /// One that is never looked up.
    #[cfg(any(test, feature = "testing"))]
    pub fn known(addresses: Vec<SocketAddr>) -> Self {
        let name = Self { board: Arc::default(), _life: bounded(0).0 };
        name.set(addresses);
        name
    }

    /// What its resolver has answered.
    #[cfg(any(test, feature = "testing"))]
    pub fn set(&self, addresses: Vec<SocketAddr>) {
        *self.board.lock() = LookupResult { addresses, is_asked: true };
    }

    /// Its addresses now; none while none are known.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.board.lock().addresses.clone()
    }

    /// Waits for the first answer or failure, and no longer than until `limit`.
    pub fn wait(&self, limit: Instant) {
        let time = limit.saturating_duration_since(clock::now());
        let known = self.board.lock();
        // Neither a poisoned lock nor the end of the time is a reason not to go on.
        let _ = self.board.asked.wait_timeout_while(known, time, |known| !known.is_asked);
    }
}

impl Board {
    fn lock(&self) -> std::sync::MutexGuard<'_, LookupResult> {
        threads::lock(&self.known)
    }
}

fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (name, port).to_socket_addrs().map(Iterator::collect)
}

/// The thread of one name.
struct NameThread {
    question: LookupRequest,
    board: Arc<Board>,
    /// A failure was said that is not over.
    is_silent: bool,
}

impl NameThread {
    fn run(
        mut self,
        end: &Receiver<Infallible>,
        is_usable: impl Fn(SocketAddr) -> bool,
        look_up: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
    ) {
        loop {
            let found = threads::blocking(|| look_up(&self.question.name, self.question.port));
            let usable = found.and_then(|found| {
                let usable: Vec<SocketAddr> = found.iter().copied().filter(|&address| is_usable(address)).collect();
                let none = || io::Error::other(format!("none of its addresses can be sent to: {found:?}"));
                if usable.is_empty() { Err(none()) } else { Ok(usable) }
            });
            let pause = match usable {
                Ok(addresses) => self.note(addresses),
                Err(error) => self.complain(&error),
            };
            if threads::blocking(|| end.recv_timeout(pause)) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// There is an answer. How long it holds.
    fn note(&mut self, addresses: Vec<SocketAddr>) -> Duration {
        let LookupRequest { name, every, asker, .. } = &self.question;
        if std::mem::take(&mut self.is_silent) {
            log::info!("{asker}: {name} can be looked up again");
        }
        let mut known = self.board.lock();
        known.addresses = addresses;
        known.is_asked = true;
        drop(known);
        self.board.asked.notify_all();
        *every
    }

    /// There is none. How soon it is asked again.
    fn complain(&mut self, error: &io::Error) -> Duration {
        let LookupRequest { name, every, asker, .. } = &self.question;
        let pause = RETRY.min(*every);
        let mut known = self.board.lock();
        known.is_asked = true;
        let has_addresses = !known.addresses.is_empty();
        drop(known);
        self.board.asked.notify_all();
        if !std::mem::replace(&mut self.is_silent, true) {
            let meanwhile = if has_addresses {
                "udpd goes on with the addresses that it knows"
            } else {
                "until it has an address its datagrams count as sink_error"
            };
            log::warn!(
                "{asker}: cannot look up {name}: {error}; {meanwhile}; udpd asks again every {}; see /etc/resolv.conf \
                 and getent ahosts {name}",
                print_duration(pause)
            );
        }
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn asker(board: &Arc<Board>) -> NameThread {
        let every = Duration::from_millis(1);
        let question = LookupRequest { name: "collector".into(), port: 514, every, asker: "sink out".into() };
        NameThread { question, board: Arc::clone(board), is_silent: false }
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_old_answer_stays_while_there_is_no_new_one_and_a_new_one_takes_its_place() {
        let board = Arc::new(Board::default());
        let (life, end) = bounded(0);
        let life = Mutex::new(Some(life));
        let number = AtomicUsize::new(0);
        let seen = Mutex::new(Vec::new());
        asker(&board).run(
            &end,
            |address| address.port() == 514,
            |name, port| {
                assert_eq!((name, port), ("collector", 514));
                seen.lock().expect("one thread").push(board.lock().addresses.clone());
                match number.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(io::Error::other("no resolver yet")),
                    1 => Ok(vec![address("10.0.0.1:514"), address("10.0.0.1:9")]),
                    2 => Err(io::Error::other("no resolver any more")),
                    3 => Ok(vec![address("10.0.0.3:9")]),
                    4 => Ok(vec![address("10.0.0.2:514")]),
                    _ => {
                        life.lock().expect("one thread").take();
                        Err(io::Error::other("gone"))
                    }
                }
            },
        );
        let (one, two) = (vec![address("10.0.0.1:514")], vec![address("10.0.0.2:514")]);
        assert_eq!(*seen.lock().expect("one thread"), [vec![], vec![], one.clone(), one.clone(), one, two.clone()]);
        assert_eq!(board.lock().addresses, two);
    }

    #[test]
    fn whoever_waits_for_the_first_answer_gets_it_or_hears_that_there_is_none() {
        let (registry, _events) = ThreadRegistry::new();
        let question = LookupRequest {
            name: "localhost".into(),
            port: 9,
            every: Duration::from_secs(60),
            asker: "sink out".into(),
        };
        let name = FollowedName::follow(&registry, question.clone(), |_| true).expect("a thread");
        name.wait(Instant::now() + Duration::from_secs(60));
        assert!(name.addresses().iter().all(|address| address.ip().is_loopback()) && !name.addresses().is_empty());
        let none = FollowedName::follow(&registry, question, |_| false).expect("a thread");
        none.wait(Instant::now() + Duration::from_secs(60));
        assert_eq!(none.addresses(), []);
    }
}
