//! The names of senders, for `{host}` in a path: asked of the C library, as every program of the host would, so of
//! /etc/hosts too. Threads ask it, and no datagram ever waits for them.
//!
//! Until the name of an address is known, its records go to the file that `{source}` would name. Records gather for up
//! to a second before they are written, and which file they go to is decided then: so the first ones mostly go to the
//! file with the name. A record is in one file, whatever is answered later.
//!
//! A name counts only if it leads back to the address: who rules the reverse zone of an address can write any name
//! there, but not make the name lead to it. It also has to be a name that no address or other file of a sink can have,
//! see [`usable`]. An answer holds for an hour; it is replaced by the next answer and not by a resolver that fails.
//! Addresses that are known are bounded; for others there is no name.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use dns_lookup::{LookupError, LookupErrorKind, getnameinfo, lookup_host};

use super::key::is_address_name;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_base::seams::clock;

/// Several, so that one zone whose servers do not answer delays few others.
pub(crate) const THREADS: usize = 4;

/// How many addresses may wait for a thread; for others it is asked when they send again.
const WAITING_MAX: usize = 1024;

/// How long an answer holds: a name, that there is none, and that nothing answered.
const NAMED: Duration = Duration::from_secs(3600);
const NAMELESS: Duration = Duration::from_secs(600);
const FAILED: Duration = Duration::from_secs(30);

/// The longest name that is used: a file system takes 255 bytes, and more stands beside it.
const BYTES_MAX: usize = 200;

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Name(String),
    Nameless,
    /// It has this name, which does not lead back or cannot be the name of a file.
    Refused(String),
    Failed,
}

#[derive(Debug)]
struct KnownAddress {
    /// The number of its name; 0 while none is known.
    number: u32,
    /// When to ask again; `None` while it is being asked.
    due: Option<Instant>,
}

/// The names of one consumer.
#[derive(Debug)]
pub(super) struct HostNames {
    known: HashMap<IpAddr, KnownAddress>,
    addresses_max: usize,
    /// By number, from 1.
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    questions: Sender<IpAddr>,
    answers: Receiver<(IpAddr, Answer)>,
    refusals: LogLimiter,
}

/// The memory for so many addresses, with names of usual length.
pub(super) fn memory_bytes_max(addresses_max: usize) -> usize {
    const NAME_BYTES: usize = 64;
    let slots = (addresses_max * 8 / 7 + 1).next_power_of_two();
    slots * (size_of::<(IpAddr, KnownAddress)>() + size_of::<(String, u32)>()) + addresses_max * 3 * NAME_BYTES
}

impl HostNames {
    /// Starts the threads, which end with it.
    pub(super) fn start(registry: &ThreadRegistry, addresses_max: usize) -> io::Result<Self> {
        Self::with(addresses_max, |questions, answers| {
            for number in 0..THREADS {
                let (questions, answers) = (questions.clone(), answers.clone());
                let body = move || {
                    while let Ok(address) = threads::blocking(|| questions.recv()) {
                        let answer = threads::blocking(|| ask(address, name_of, addresses_of));
                        if answers.send((address, answer)).is_err() {
                            return;
                        }
                    }
                };
                registry.spawn(format!("host names {number}"), ThreadRole::Resolver, body)?;
            }
            Ok(())
        })
    }

    fn with(
        addresses_max: usize,
        start: impl FnOnce(Receiver<IpAddr>, Sender<(IpAddr, Answer)>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let (questions, asked) = bounded(WAITING_MAX);
        // Each question has room for its answer, so no thread waits for the consumer.
        let (answered, answers) = bounded(WAITING_MAX + THREADS);
        start(asked, answered)?;
        Ok(Self {
            known: HashMap::with_capacity(addresses_max),
            addresses_max,
            names: Vec::new(),
            numbers: HashMap::new(),
            questions,
            answers,
            refusals: LogLimiter::default(),
        })
    }

    /// Takes what was answered since.
    pub(super) fn take_answers(&mut self, now: Instant) {
        while let Ok((address, answer)) = self.answers.try_recv() {
            let number = match &answer {
                Answer::Name(name) => Some(self.number(name)),
                Answer::Nameless | Answer::Refused(_) => Some(0),
                Answer::Failed => None,
            };
            let holds = match answer {
                Answer::Name(_) => NAMED,
                Answer::Nameless | Answer::Refused(_) => NAMELESS,
                Answer::Failed => FAILED,
            };
            if let Some(known) = self.known.get_mut(&address) {
                (known.number, known.due) = (number.unwrap_or(known.number), Some(now + holds));
            }
            if let (Answer::Refused(name), Some(left_out)) = (&answer, self.refusals.pass(clock::now())) {
                log::warn!(
                    "{address} calls itself {name:?}, which does not lead back to it or cannot be the name of a file; \
                     its file is named by its address; see getent hosts {address}{}",
                    repeats(left_out)
                );
            }
        }
    }

    /// The number of a name; 0 for none when there are too many.
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        if self.names.len() >= self.addresses_max {
            return 0;
        }
        self.names.push(name.to_owned());
        // There are no more than addresses.
        let number = self.names.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// The number of an address's name, 0 while it has none. Asks for what is not known or is out of date.
    pub(super) fn of(&mut self, address: IpAddr, now: Instant) -> u32 {
        let is_new = !self.known.contains_key(&address);
        if is_new && self.known.len() >= self.addresses_max {
            return 0;
        }
        let known = self.known.entry(address).or_insert(KnownAddress { number: 0, due: Some(now) });
        if known.due.is_some_and(|due| due <= now) && self.questions.try_send(address).is_ok() {
            known.due = None;
        }
        known.number
    }

    /// The name with this number; empty for 0.
    pub(super) fn name(&self, number: u32) -> &str {
        let place = usize::try_from(number).unwrap_or(0).checked_sub(1);
        place.and_then(|place| self.names.get(place)).map_or("", String::as_str)
    }
}

/// Asks for the name of an address, and whether the name leads back.
fn ask(
    address: IpAddr,
    name_of: impl Fn(IpAddr) -> Result<Option<String>, ()>,
    addresses_of: impl Fn(&str) -> Result<Vec<IpAddr>, ()>,
) -> Answer {
    let name = match name_of(address) {
        Ok(Some(name)) => name,
        Ok(None) => return Answer::Nameless,
        Err(()) => return Answer::Failed,
    };
    let Some(file) = usable(&name) else { return Answer::Refused(shortened(name)) };
    match addresses_of(&name) {
        Ok(addresses) if addresses.iter().any(|own| own.to_canonical() == address) => Answer::Name(file),
        Ok(_) => Answer::Refused(shortened(name)),
        Err(()) => Answer::Failed,
    }
}

fn shortened(name: String) -> String {
    name.chars().take(BYTES_MAX).collect()
}

fn name_of(address: IpAddr) -> Result<Option<String>, ()> {
    let flags = libc::NI_NAMEREQD | libc::NI_NUMERICSERV;
    known(getnameinfo(&SocketAddr::new(address, 0), flags)).map(|found| found.map(|(name, _)| name))
}

fn addresses_of(name: &str) -> Result<Vec<IpAddr>, ()> {
    known(lookup_host(name)).map(|found| found.into_iter().flatten().collect())
}

/// What was answered, which may be that there is none; an error is that nothing answered.
fn known<T>(answer: Result<T, LookupError>) -> Result<Option<T>, ()> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), LookupErrorKind::NoName | LookupErrorKind::NoData) => Ok(None),
        Err(_) => Err(()),
    }
}

/// The name as a part of a path, in lower case; `None` where it cannot be one, or could be that of another file of the
/// sink: of an address, of what is beyond the limit, or of what becomes of a file.
pub(super) fn usable(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_right = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    let is_taken = is_address_name(&name) || [".gz", ".zst", ".torn", ".failed"].iter().any(|end| name.ends_with(end));
    let is_word = name.bytes().all(is_right) && name.bytes().any(|byte| byte.is_ascii_alphanumeric());
    let is_bare = name.starts_with(|first: char| first.is_ascii_alphanumeric()) && !name.contains("..");
    (is_word && is_bare && !is_taken && name.len() <= BYTES_MAX).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn only_a_name_that_leads_back_to_the_address_counts() {
        let answer = |name: Result<Option<&str>, ()>, back: Result<Vec<IpAddr>, ()>| {
            ask(address("192.0.2.7"), |_| name.map(|name| name.map(str::to_owned)), |_| back.clone())
        };
        let own = || Ok(vec![address("192.0.2.1"), address("192.0.2.7")]);
        assert_eq!(answer(Ok(Some("Web1.Example.")), own()), Answer::Name("web1.example".into()));
        assert_eq!(answer(Ok(Some("web1")), Ok(vec![address("::ffff:192.0.2.7")])), Answer::Name("web1".into()));
        assert_eq!(
            answer(Ok(Some("bank.example")), Ok(vec![address("192.0.2.8")])),
            Answer::Refused("bank.example".into())
        );
        assert_eq!(answer(Ok(Some("gone")), Ok(Vec::new())), Answer::Refused("gone".into()));
        assert_eq!(answer(Ok(Some("web1")), Err(())), Answer::Failed);
        assert_eq!(answer(Ok(Some("../../etc/passwd")), own()), Answer::Refused("../../etc/passwd".into()));
        assert_eq!((answer(Ok(None), own()), answer(Err(()), own())), (Answer::Nameless, Answer::Failed));
    }

    #[test]
    fn no_name_leaves_the_directory_or_is_that_of_another_file() {
        for (name, file) in [("Web-1.Example.COM.", "web-1.example.com"), ("a_b", "a_b"), ("7-up", "7-up")] {
            assert_eq!(usable(name).as_deref(), Some(file));
        }
        for name in [
            "",
            ".",
            "..",
            "a..b",
            ".hidden",
            "-x",
            "a/b",
            "a\0b",
            "a b",
            "ä",
            "a\nb",
            "{lane}",
            "%Y",
            "192.0.2.7",
            "2001-db8--7",
            "0--1",
            "10.0.0.0_24",
            "fe80--1_if3",
            "overflow",
            "OVERFLOW",
            "a.gz",
            "a.log.torn",
            "a.failed",
            "a.ZST",
        ] {
            assert_eq!(usable(name), None, "{name:?}");
        }
        assert!(usable(&"a".repeat(BYTES_MAX)).is_some() && usable(&"a".repeat(BYTES_MAX + 1)).is_none());
    }

    #[test]
    fn a_name_stays_until_another_answer_and_no_answer_takes_it_away_and_what_is_known_is_bounded() {
        let (mut asked, mut answered) = (None, None);
        let mut names = HostNames::with(2, |questions, answers| {
            (asked, answered) = (Some(questions), Some(answers));
            Ok(())
        })
        .expect("nothing fails");
        let (asked, answered) = (asked.expect("made"), answered.expect("made"));
        let (one, now) = (address("192.0.2.7"), clock::now());
        let mut at = now;
        for (answer, pause, number) in [
            (Answer::Failed, FAILED, 0),
            (Answer::Name("a".into()), NAMED, 1),
            (Answer::Failed, FAILED, 1),
            (Answer::Name("b".into()), NAMED, 2),
            (Answer::Name("c".into()), NAMED, 0),
            (Answer::Name("a".into()), NAMED, 1),
            (Answer::Nameless, NAMELESS, 0),
        ] {
            names.of(one, at);
            assert_eq!((asked.try_recv(), asked.len()), (Ok(one), 0), "asked once");
            names.of(one, at + NAMED);
            assert!(asked.is_empty(), "no second question while one is on its way");
            answered.send((one, answer.clone())).expect("it is read");
            names.take_answers(at);
            assert_eq!(names.of(one, at), number, "{answer:?}");
            names.of(one, at + pause - Duration::from_millis(1));
            assert!(asked.is_empty(), "the answer holds");
            at += pause;
        }
        assert_eq!([0, 1, 2, 3].map(|number| names.name(number).to_owned()), ["", "a", "b", ""]);
        names.of(address("192.0.2.8"), now);
        assert_eq!((names.of(address("192.0.2.9"), now), asked.len()), (0, 1), "no third address is asked for");
    }
}
