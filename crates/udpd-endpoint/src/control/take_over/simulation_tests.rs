//! One process takes over from another, again and again, over a real connection with real sockets that datagrams come
//! to. Each process is a thread, one runs at a time in an order that the seed picks, and time is simulated. Either may
//! be killed at any message or within one, hang, lose the connection or speak as another version, and the new one may
//! fail to begin.
//!
//! What the two do between the messages is a model of `run/handoff.rs` and `run/take_over.rs` of udpd-daemon; the
//! messages, their limits and what is concluded from them are the real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::thread::{Builder, JoinHandle};

use nix::sys::socket::{MsgFlags, recv};
use seeds::{Chance, Run, Simulation};

use super::super::new_side::FirstQuestionError;
use super::super::wire::faults::{self, Fault, Killed};
use super::super::{OldProcess, OldProcessEnd};
use super::*;
use udpd_base::exit::ExitCode;
use udpd_base::seams::waits;
use udpd_base::testing::scheduler::Scheduler;
use udpd_base::testing::simulated::Simulated;

const RECORD: &str = "the record";

/// What a process of another version may say. An error means the same in every version: it does not go on.
const LINES: [&str; 7] =
    ["{\"farewell\":7}\n", "\"gone\"\n", "\"open\"\n", "\"bye\"\n", "{\"sockets\":[\"in.0\"]}\n", "nonsense\n", "\n"];

#[derive(Debug)]
struct AsItIs;

impl Simulated for AsItIs {}

/// What is known of all processes, beside the code.
#[derive(Debug, Default)]
struct Books {
    sent: u32,
    read: BTreeSet<u32>,
    /// What was in sockets when the last process that had them ended.
    may_be_lost: BTreeSet<u32>,
    receiving: BTreeSet<u32>,
    /// How many each process has read.
    by_process: BTreeMap<u32, u32>,
    /// What was read by processes that were killed before the end of the one that they took over from.
    uncounted: u32,
}

type Shared = Arc<Mutex<Books>>;

/// A process with its sockets. All is closed when it is dropped, and `life` last.
#[derive(Debug)]
struct Process {
    number: u32,
    sockets: Vec<(String, Arc<Socket>)>,
    record: File,
    /// What this process and all before it have counted.
    count: u32,
    books: Shared,
    /// The end that others watch closes with this one.
    life: Life,
}

#[derive(Debug)]
struct Life {
    _own: OwnedFd,
    watched: OwnedFd,
}

impl Life {
    fn new() -> Self {
        let (watched, own) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("a pipe");
        Self { _own: own, watched }
    }

    fn peer(&self, number: u32, is_seen: bool) -> PeerProcess {
        let watch = self.watched.try_clone().expect("a descriptor");
        PeerProcess::simulated(geteuid().as_raw(), Some(number).filter(|_| is_seen), Some(watch).filter(|_| is_seen))
    }
}

/// How an attempt has ended for one of the two.
#[derive(Debug)]
enum Fate {
    Killed,
    Receives(Process),
    /// The new process: nothing of it is left.
    Failed(String),
    /// The new process starts as without another.
    StartsAnew,
    /// The old process has left its place.
    Left,
    /// The old process has ended, and the new one could not take its place.
    Stranded,
}

impl Process {
    fn write_record(&self, ended: bool) {
        let text = format!("{:<10} {}\n", self.count, u8::from(ended));
        self.record.write_all_at(text.as_bytes(), 0).expect("a file");
    }

    /// Reads what waits in these.
    fn drain(&mut self, sockets: &[Arc<Socket>]) {
        let mut books = self.books.lock().expect("one thread at a time");
        let mut bytes = [0; 4];
        for socket in sockets {
            while recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT).is_ok() {
                assert!(books.read.insert(u32::from_le_bytes(bytes)), "read twice");
                self.count += 1;
                *books.by_process.entry(self.number).or_default() += 1;
            }
        }
        drop(books);
        self.write_record(false);
    }

    fn all(&self) -> Vec<Arc<Socket>> {
        self.sockets.iter().map(|(_, socket)| Arc::clone(socket)).collect()
    }

    fn begin(&mut self) {
        {
            let mut books = self.books.lock().expect("one thread at a time");
            assert!(books.receiving.is_empty(), "{} begins while {:?} receives", self.number, books.receiving);
            books.receiving.insert(self.number);
            assert_eq!(
                (self.count + books.uncounted) as usize,
                books.read.len(),
                "what was counted before is carried once"
            );
        }
        self.drain(&self.all());
    }

    fn stop(&mut self) {
        self.drain(&self.all());
        self.books.lock().expect("one thread at a time").receiving.remove(&self.number);
    }
}

fn ended(books: &Shared, number: u32) {
    books.lock().expect("one thread at a time").receiving.remove(&number);
}

fn read_record(file: &File) -> (u32, bool) {
    let mut bytes = [0; 12];
    file.read_exact_at(&mut bytes, 0).expect("a record");
    let text = String::from_utf8_lossy(&bytes);
    let (count, ended) = text.trim_end().rsplit_once(' ').expect("two numbers");
    (count.trim().parse().expect("a number"), ended == "1")
}

/// What the two do between the messages.
#[derive(Debug, Clone)]
struct Script {
    /// The new process goes on with so many of the sockets; of the others the old one has to end.
    keeps: usize,
    is_drained: bool,
    preparing: Duration,
    opening: Duration,
    draining: Duration,
    fails_to_prepare: bool,
    fails_to_open: bool,
    /// Each sees the process id of the other.
    is_seen: bool,
}

/// The process that runs, see `run/handoff.rs`.
fn hand_off(mut own: Process, stream: UnixStream, peer: PeerProcess, successor: u32, script: &Script) -> Fate {
    let wire = Wire::new(stream).expect("a wire");
    let busy = BusyGuard(Arc::default());
    let mut new_process = NewProcess { wire, peer, _busy: busy };
    let ask = {
        let sockets = own.sockets.clone();
        let (record, count) = (own.record.try_clone().expect("a file"), own.count);
        let offered = Mutex::new(Some((sockets, record)));
        move |request| {
            let TakeOverRequest::Offer(answer) = request else { panic!("asked once") };
            let (sockets, record) = offered.lock().expect("one thread").take().expect("asked once");
            let offer = TakeOverOffer {
                version: "1".to_owned(),
                sockets: sockets.len(),
                memory_bytes: 0,
                manager: None,
                metrics_address: None,
                record: count.into(),
                has_file: true,
            };
            answer
                .send(Ok(OfferedSockets { offer, sockets, file: Some((RECORD.to_owned(), record.into())) }))
                .expect("heard");
        }
    };
    let prepared = new_process.prepare(geteuid().as_raw(), &ask);
    own.drain(&own.all());
    let names = match prepared {
        Ok(names) => names,
        Err(why) => {
            new_process.refuse(&why);
            return Fate::Receives(own);
        }
    };
    if let NewProcessState::Failed(why) = new_process.wait_until_open(Duration::from_millis(1)) {
        new_process.refuse(&why);
        return Fate::Receives(own);
    }
    own.stop();
    clock::sleep(script.draining);
    // What the new process does not go on with is read to its end.
    let (kept, left): (Vec<_>, Vec<_>) = own.sockets.iter().cloned().partition(|(name, _)| names.contains(name));
    let left: Vec<_> = left.into_iter().map(|(_, socket)| socket).collect();
    own.drain(&left);
    let ends = kept.len() < own.sockets.len() || !script.is_drained;
    let stopped = new_process.say_stopped(ends, own.count.into());
    if ends {
        if stopped.is_err() {
            own.drain(&own.all());
        }
        own.write_record(true);
        clock::sleep(script.draining);
        return if stopped.is_ok() { Fate::Left } else { Fate::Stranded };
    }
    let deadline = clock::now() + Duration::from_secs(60);
    let outcome = stopped.and_then(|()| {
        loop {
            match new_process.wait_until_open(Duration::from_millis(20)) {
                NewProcessState::Open => break new_process.say_gone(),
                NewProcessState::Failed(why) => {
                    new_process.refuse(&why);
                    break Err(why);
                }
                NewProcessState::Preparing if clock::now() < deadline => {}
                NewProcessState::Preparing => {
                    new_process.refuse("it takes too long");
                    break Err("it takes too long".to_owned());
                }
            }
        }
    });
    match outcome {
        Ok(()) => {
            own.write_record(true);
            Fate::Left
        }
        Err(_) => {
            new_process.wait_for_end(Duration::from_millis(100));
            {
                let mut books = own.books.lock().expect("one thread at a time");
                let of_killed = books.by_process.remove(&successor).unwrap_or(0);
                books.uncounted += of_killed;
            }
            own.begin();
            Fate::Receives(own)
        }
    }
}

/// The process that starts, see `run/take_over.rs`.
fn take_over(number: u32, life: Life, stream: UnixStream, peer: PeerProcess, books: Shared, script: &Script) -> Fate {
    let wire = Wire::new(stream).expect("a wire");
    let mut asked = None;
    let old = match OldProcess::meet(Path::new("a path"), wire, peer, &mut asked) {
        Ok(old) => old,
        Err(FirstQuestionError::Connection(error)) if super::super::super::client::was_not_heard(&error) => {
            let has_ended = asked.is_some_and(|peer| peer.wait_for_end(Duration::from_secs(15)) == Some(true));
            return if has_ended { Fate::StartsAnew } else { Fate::Failed(error.to_string()) };
        }
        Err(FirstQuestionError::Connection(error)) => return Fate::Failed(error.to_string()),
        Err(FirstQuestionError::Refused(failure)) => return Fate::Failed(failure.message),
    };
    let mut old = old.expect("it was asked");
    let all = match old.sockets() {
        Err(_) if old.has_ended() => return Fate::StartsAnew,
        Err(failure) => {
            old.give_up(&failure);
            return Fate::Failed(failure.message);
        }
        Ok(all) => all,
    };
    assert_eq!(all.len(), old.offer.sockets + 1, "all of them came, and the record");
    let (records, sockets): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| name == RECORD);
    let record = File::from(records.into_iter().next().expect("the record").1);
    let socket = |(name, descriptor)| (name, Arc::new(Socket::try_from(descriptor).expect("a socket")));
    let sockets: Vec<(String, Arc<Socket>)> = sockets.into_iter().map(socket).collect();
    let mut own = Process { number, sockets, record, count: 0, books, life };
    match replace(&mut own, &mut old, script) {
        Ok(true) => {}
        Ok(false) => return Fate::StartsAnew,
        Err(failure) => {
            old.give_up(&failure);
            return Fate::Failed(failure.message);
        }
    }
    own.begin();
    old.let_end();
    own.drain(&own.all());
    Fate::Receives(own)
}

/// Up to the first datagram; false where the old process has ended with all that came to it.
fn replace(own: &mut Process, old: &mut OldProcess, script: &Script) -> Result<bool, Failure> {
    let failure = |what: &str| Failure::new(ExitCode::Failure, what.to_owned());
    clock::sleep(script.preparing);
    if script.fails_to_prepare {
        return Err(failure("it cannot prepare"));
    }
    let left = own.sockets.split_off(script.keeps.min(own.sockets.len()));
    let left: Vec<Arc<Socket>> = left.into_iter().map(|(_, socket)| socket).collect();
    let mut unread = Vec::new();
    match old.let_stop(own.sockets.iter().map(|(name, _)| name.clone()).collect())? {
        OldProcessEnd::Stopped(record) => own.count = number_in(&record),
        OldProcessEnd::Ending(record) => {
            old.wait_for_end()?;
            let (last, has_ended) = read_record(&own.record);
            own.count = if has_ended { number_in(&record) } else { last };
            if !has_ended {
                unread = left;
            }
        }
        OldProcessEnd::Died(_) => {
            let (last, has_ended) = read_record(&own.record);
            if has_ended {
                return Ok(false);
            }
            own.count = last;
            unread = left;
        }
    }
    clock::sleep(script.opening);
    if script.fails_to_open {
        return Err(failure("it cannot open its files"));
    }
    old.take_its_place()?;
    own.drain(&unread);
    Ok(true)
}

fn number_in(record: &Value) -> u32 {
    u32::try_from(record.as_u64().expect("a number")).expect("a count")
}

/// Plays a process until it is killed, if it is.
fn play(
    name: &str,
    number: u32,
    books: &Shared,
    faults: Vec<(u64, Fault)>,
    body: impl FnOnce() -> Fate + Send + 'static,
) -> JoinHandle<Fate> {
    let books = Arc::clone(books);
    let played = move || {
        faults::order(faults);
        let fate = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|why| match why.downcast::<Killed>() {
            Ok(_) => Fate::Killed,
            Err(why) => resume_unwind(why),
        });
        if !matches!(fate, Fate::Receives(_)) {
            ended(&books, number);
        }
        fate
    };
    waits::spawn(Builder::new().name(name.to_owned()), played).expect("a thread")
}

fn faults(chance: &mut Chance, is_seen: bool) -> Vec<(u64, Fault)> {
    let mut fault = || {
        let length =
            Duration::from_millis(*chance.pick(&[1, 500, 3_000, 9_999, 10_001, 29_000, 31_000, 61_000, 100_000]));
        let bytes = chance.index(200);
        let fault = match chance.below(if is_seen { 8 } else { 6 }) {
            0 | 1 => Fault::Killed,
            2 => Fault::KilledWithin(bytes),
            3 | 4 => Fault::Hangs(length),
            5 => Fault::HangsWithin(bytes, length),
            6 => Fault::Closes,
            _ => Fault::Says(chance.pick::<&str>(&LINES)),
        };
        (chance.below(9), fault)
    };
    let first = fault();
    let second = fault();
    match chance.below(6) {
        0..3 => Vec::new(),
        3 | 4 => vec![first],
        _ => vec![first, second],
    }
}

fn script(chance: &mut Chance, is_faulty: bool) -> Script {
    let some = |chance: &mut Chance| Duration::from_millis(*chance.pick(&[0, 0, 5, 400, 4_000]));
    let long = Duration::from_secs(70);
    let slow = |chance: &mut Chance| if is_faulty && chance.happens(1, 20) { long } else { some(chance) };
    Script {
        keeps: if chance.happens(1, 4) { chance.index(3) } else { 9 },
        is_drained: !chance.happens(1, 6),
        preparing: slow(chance),
        opening: slow(chance),
        draining: some(chance),
        fails_to_prepare: is_faulty && chance.happens(1, 10),
        fails_to_open: is_faulty && chance.happens(1, 8),
        is_seen: chance.happens(3, 4),
    }
}

/// All processes of a run, one of which receives.
struct World {
    books: Shared,
    current: Process,
    addresses: Vec<SocketAddr>,
    sender: UdpSocket,
    next: u32,
}

fn first_process(number: u32, books: &Shared, sockets: usize) -> (Process, Vec<SocketAddr>) {
    let bound = |index: usize| {
        let socket = Socket::new(mmsg::Family::V4).expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        (format!("in.{index}"), Arc::new(socket))
    };
    let sockets: Vec<_> = (0..sockets).map(bound).collect();
    let addresses = sockets.iter().map(|(_, socket)| socket.local_addr().expect("bound")).collect();
    let count = {
        let books = books.lock().expect("one thread");
        u32::try_from(books.read.len()).expect("few") - books.uncounted
    };
    let record = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).expect("a file");
    let mut own = Process { number, sockets, record, count, books: Arc::clone(books), life: Life::new() };
    own.begin();
    (own, addresses)
}

impl World {
    /// One attempt. Returns what it came to.
    fn attempt(self, run: &mut Run, chance: &mut Chance, is_faulty: bool) -> (Self, String) {
        let Self { books, current, addresses, sender, next } = self;
        let script = script(chance, is_faulty);
        let (old_number, number, life) = (current.number, next, Life::new());
        let (old_end, new_end) = UnixStream::pair().expect("a pair");
        let (old_peer, new_peer) = (current.life.peer(old_number, script.is_seen), life.peer(number, script.is_seen));
        let ordered = || Vec::new();
        let (of_old, of_new) = if is_faulty {
            (faults(chance, script.is_seen), faults(chance, script.is_seen))
        } else {
            (ordered(), ordered())
        };
        let mut told = format!("{script:?} old {of_old:?} new {of_new:?}");
        run.trace(|| format!("{old_number} and {number}: {told}"));
        // One that lets the other receive in garbled words, and then hears for ten seconds nothing of it, ends.
        let is_garbled = of_old.iter().any(|(_, fault)| matches!(fault, Fault::Says(_))) && !of_new.is_empty();
        let is_quiet = of_old.is_empty() && of_new.is_empty();
        let (first, second) = (script.clone(), script.clone());
        let fails = script.fails_to_prepare || script.fails_to_open;
        let is_slow = script.preparing + script.opening > Duration::from_secs(60);
        let count_before = current.sockets.len();
        let old = play("old", old_number, &books, of_old, move || hand_off(current, old_end, new_peer, number, &first));
        let own = Arc::clone(&books);
        let new = play("new", number, &books, of_new, move || take_over(number, life, new_end, old_peer, own, &second));
        // The current process is moved away, so a part of the world is made for the sender.
        let mut turns = 0;
        while !(old.is_finished() && new.is_finished()) {
            clock::sleep(Duration::from_millis(chance.within(1..3_000)));
            turns += 1;
            assert!(turns < 1_000, "it does not come to an end");
            let mut own = books.lock().expect("one thread");
            if turns < 40 && !addresses.is_empty() {
                own.sent += 1;
                let (sent, place) = (own.sent, chance.index(addresses.len()));
                let is_lost = sender.send_to(&sent.to_le_bytes(), addresses[place]).is_err();
                // Nothing goes on with that socket, and it is closed.
                if is_lost || place >= script.keeps {
                    own.may_be_lost.insert(sent);
                }
            }
        }
        let (old, new) = (old.join().expect("it ends"), new.join().expect("it ends"));
        let name = |fate: &Fate| match fate {
            Fate::Receives(process) => format!("{} receives with {}", process.number, process.sockets.len()),
            Fate::Failed(why) => format!("fails: {why}"),
            other => format!("{other:?}"),
        };
        let _ = write!(told, ": old {}, new {}", name(&old), name(&new));
        let receiving = books.lock().expect("one thread").receiving.clone();
        let expected: BTreeSet<u32> = [&old, &new]
            .into_iter()
            .filter_map(|fate| if let Fate::Receives(own) = fate { Some(own.number) } else { None })
            .collect();
        assert_eq!(receiving, expected, "{told}");
        assert!(expected.len() < 2, "both receive: {told}");
        let is_alone = script.keeps >= count_before && script.is_drained;
        match (&old, &new) {
            // Nothing has changed for the old one, or it is back.
            (Fate::Receives(own), Fate::Failed(_) | Fate::Killed | Fate::StartsAnew) => {
                assert_eq!(own.sockets.len(), count_before, "{told}");
                assert!(!is_quiet || fails || is_slow, "refused for nothing: {told}");
                assert!(!matches!(new, Fate::StartsAnew), "its addresses are taken: {told}");
            }
            (Fate::Left, Fate::Receives(_)) => {}
            // The one that was killed has left all that it had.
            (Fate::Killed, Fate::Receives(_) | Fate::StartsAnew | Fate::Killed) => {}
            (Fate::Killed, Fate::Failed(_)) => {}
            (Fate::Left | Fate::Stranded, Fate::Killed) => {}
            (Fate::Left | Fate::Stranded, other) => {
                assert!(
                    !is_alone || is_garbled || matches!(other, Fate::StartsAnew),
                    "a way back was promised: {told}"
                );
            }
            other => panic!("{other:?}: {told}"),
        }
        let world = |current, addresses| Self {
            books: Arc::clone(&books),
            current,
            addresses,
            sender: sender.try_clone().expect("a socket"),
            next: number + 1,
        };
        let world = match (old, new) {
            (Fate::Receives(current), _) | (_, Fate::Receives(current)) => {
                let addresses = current.sockets.iter().map(|(_, socket)| socket.local_addr().expect("bound")).collect();
                world(current, addresses)
            }
            _ => {
                let (current, addresses) = {
                    let mut own = books.lock().expect("one thread");
                    let unread: Vec<u32> = (1..=own.sent).filter(|number| !own.read.contains(number)).collect();
                    own.may_be_lost.extend(unread);
                    drop(own);
                    first_process(number + 1, &books, count_before.max(1))
                };
                Self { next: number + 2, ..world(current, addresses) }
            }
        };
        (world, told)
    }
}

fn simulate(run: &mut Run) -> String {
    let scheduling = run.setup().clone();
    let _inside = Scheduler::enter(scheduling, Arc::new(AsItIs));
    let books = Shared::default();
    let (current, addresses) = first_process(1, &books, 1 + run.setup().index(3));
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let mut world = World { books, current, addresses, sender, next: 2 };
    let mut told = String::new();
    while let Some(mut chance) = run.step() {
        let done;
        (world, done) = world.attempt(run, &mut chance, true);
        run.trace(|| done.clone());
        told += &done;
        told.push('\n');
        let all = world.current.all();
        world.current.drain(&all);
    }
    // No more faults: the next attempt is one that works, and all that was sent is counted.
    let mut chance = run.setup().clone();
    let number = world.current.number;
    let done;
    (world, done) = world.attempt(run, &mut chance, false);
    run.trace(|| done.clone());
    assert_ne!(world.current.number, number, "no fault, and it was not taken over: {done}");
    let all = world.current.all();
    world.current.drain(&all);
    let books = world.books.lock().expect("one thread");
    let missing: Vec<u32> =
        (1..=books.sent).filter(|number| !books.read.contains(number) && !books.may_be_lost.contains(number)).collect();
    assert!(missing.is_empty(), "of {} sent {missing:?} are lost: {done}", books.sent);
    assert_eq!((world.current.count + books.uncounted) as usize, books.read.len(), "the ledger of all processes");
    format!("{told}{done}\n{} sent, {} read", books.sent, books.read.len())
}

#[test]
fn whatever_happens_to_either_at_any_message_one_process_receives_and_the_books_go_on() {
    Simulation::new("whatever_happens_to_either_at_any_message_one_process_receives_and_the_books_go_on", 300, 5)
        .with_corpus(include_str!("simulation_tests.seeds"))
        .check(simulate);
}
