//! The daemon from its start to its end, with all of its threads, run one at a time in an order that a seed picks:
//! signals, clients of the control socket, reloads that are refused half way, restarts over a service manager that
//! keeps the sockets, and take-overs. Control sockets, sockets and the manager are the kernel's; time is simulated, and
//! calls of the disk fail or hang on order.
//!
//! What a refused reload leaves is read in the kernel's table of sockets. In the end the ledgers of all processes are
//! held against what was sent and what the files have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::sys::signal::Signal;
use seeds::{Chance, Run, Simulation};
use tempfile::TempDir;

use super::manager::Manager;
use super::*;
use udpd_base::ledger::{SinkTally, Snapshot};
use udpd_base::seams::disk::DiskCall;
use udpd_base::seams::{clock, waits};
use udpd_base::testing::scheduler::Scheduler;
use udpd_base::testing::simulated::Simulated;
use udpd_engine::config::HostView;

const LISTENERS: [&str; 3] = ["a", "b", "c"];
const SENDERS: usize = 3;
const STEPS: u64 = 12;

/// The longest that anything may take once the faults have stopped.
const PATIENCE: Duration = Duration::from_secs(200);

/// A disk that is full, hangs, or fails at one of the next calls, while the driver says so.
#[derive(Debug, Default)]
struct Disk {
    is_full: AtomicBool,
    hangs: AtomicBool,
    /// Of the next calls that open a file the one with this number fails; 0 for none.
    fails_at: AtomicU64,
}

impl Disk {
    fn heal(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        self.hangs.store(false, Ordering::Relaxed);
        self.fails_at.store(0, Ordering::Relaxed);
    }
}

impl Simulated for Disk {
    fn before(&self, call: &DiskCall<'_>) -> io::Result<()> {
        if !matches!(call, DiskCall::Open(_)) {
            return Ok(());
        }
        while self.hangs.load(Ordering::Relaxed) {
            clock::sleep(Duration::from_millis(20));
        }
        let left = self.fails_at.load(Ordering::Relaxed);
        self.fails_at.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn write(&self, file: &File, bytes: &[u8], at: Option<u64>) -> (usize, io::Result<()>) {
        let length = file.metadata().map_or(0, |found| found.len());
        let grows = at.is_none_or(|at| at + bytes.len() as u64 > length);
        match grows && self.is_full.load(Ordering::Relaxed) {
            true => (bytes.len() / 2, Err(io::ErrorKind::StorageFull.into())),
            false => (bytes.len(), Ok(())),
        }
    }
}

/// The sockets of the senders, and an address for each listener: the same for every run of the process, so that the
/// kernel deals the senders to the same lanes.
fn network() -> &'static (Vec<UdpSocket>, Vec<SocketAddr>) {
    static NETWORK: OnceLock<(Vec<UdpSocket>, Vec<SocketAddr>)> = OnceLock::new();
    NETWORK.get_or_init(|| {
        let socket = || UdpSocket::bind("127.0.0.1:0").expect("a port");
        let addresses = LISTENERS.map(|_| socket().local_addr().expect("bound"));
        ((0..SENDERS).map(|_| socket()).collect(), addresses.to_vec())
    })
}

/// The tests here have the same addresses, so one runs at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The sockets at the addresses of the listeners, as the kernel shows them: port and inode.
fn bound() -> BTreeSet<(u16, u64)> {
    let ports: Vec<u16> = network().1.iter().map(SocketAddr::port).collect();
    let table = fs::read_to_string("/proc/self/net/udp").expect("the kernel's table");
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let port = u16::from_str_radix(fields[1].split_once(':')?.1, 16).ok()?;
        Some((port, fields[9].parse().ok()?))
    };
    table.lines().skip(1).filter_map(socket).filter(|(port, _)| ports.contains(port)).collect()
}

/// A configuration in the making.
#[derive(Debug, Clone)]
struct Shape {
    /// The lanes of each listener; 0 for one that is not there.
    lanes: [usize; 3],
    /// One file, a file for each lane, a file for each source.
    files: [bool; 3],
    rotates: bool,
    decides_gro: bool,
    /// What makes it one that can never be in force.
    flaw: Option<Flaw>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// The text is no configuration.
    Text,
    /// A file is in a directory that is not there, and cannot be made.
    Directory,
    /// Another process has the address of a fourth listener.
    Address,
}

impl Shape {
    fn of(chance: &mut Chance, may_be_wrong: bool) -> Self {
        let mut lanes = [0; 3].map(|_| *chance.pick(&[0, 0, 1, 1, 2, 3]));
        lanes[0] = lanes[0].max(1);
        let files = [(); 3].map(|()| chance.happens(1, 2));
        let [rotates, decides_gro, is_wrong] = [(1, 3), (1, 3), (1, 3)].map(|(times, of)| chance.happens(times, of));
        let flaw = *chance.pick(&[Flaw::Text, Flaw::Directory, Flaw::Address]);
        Self { lanes, files, rotates, decides_gro, flaw: (is_wrong && may_be_wrong).then_some(flaw) }
    }

    fn listeners(&self) -> BTreeSet<usize> {
        (0..3).filter(|place| self.lanes[*place] > 0).collect()
    }

    fn text(&self, directory: &Path, process: usize, taken: SocketAddr) -> String {
        let directory = directory.display();
        let mut text = format!(
            "[daemon]\npool_bytes = '2MiB'\ncontrol_socket = '{directory}/control'\nmetrics_address = ''\n\
             sandbox = 'off'\nuser = 'root'\nlog_level = 'error'\nstats_on_exit = '{directory}/stats{process}'\n"
        );
        let names: Vec<&str> = ["one", "lanes", "sources"]
            .into_iter()
            .zip(self.files)
            .filter_map(|(name, is_there)| is_there.then_some(name))
            .chain(["none"])
            .collect();
        let others = (self.flaw == Some(Flaw::Address)).then_some(("z", taken, 1));
        let own = self.listeners().into_iter().map(|place| (LISTENERS[place], network().1[place], self.lanes[place]));
        for (name, address, lanes) in own.chain(others) {
            let gro = if self.decides_gro { "auto" } else { "off" };
            let _ = writeln!(
                text,
                "[[listener]]\nname = '{name}'\naddress = '{address}'\nlanes = {lanes}\nbatch_size = 8\n\
                 engine = 'recvmmsg'\nreceive_buffer = '64KiB'\nmax_length = '256'\ngro = '{gro}'\nsinks = {names:?}"
            );
        }
        let rotate = if self.rotates { "64KiB" } else { "1GiB" };
        let below = if self.flaw == Some(Flaw::Directory) { "/udpd.toml/x" } else { "" };
        for name in names {
            let _ = match name {
                "one" => writeln!(
                    text,
                    "[sink.one]\ntype = 'file'\npath = '{directory}{below}/log-one'\nrotate = {{ bytes = '{rotate}' }}"
                ),
                "lanes" => writeln!(
                    text,
                    "[sink.lanes]\ntype = 'file'\nconsumers = 'per_lane'\nsync = 'never'\n\
                     path = '{directory}{below}/log-{{listener}}-{{lane}}'"
                ),
                "sources" => {
                    writeln!(text, "[sink.sources]\ntype = 'file'\npath = '{directory}{below}/log-of-{{source}}'")
                }
                _ => writeln!(text, "[sink.none]\ntype = 'null'"),
            };
        }
        if self.flaw == Some(Flaw::Text) {
            text.push_str("[sink.one]\nrotate = 7 7\n");
        }
        text
    }

    /// Whether nothing of it touches the directory that cannot be made.
    fn is_wrong(&self) -> bool {
        match self.flaw {
            None => false,
            Some(Flaw::Directory) => self.files.contains(&true),
            Some(_) => true,
        }
    }
}

/// A daemon: its threads are those of this process.
struct Process {
    number: usize,
    registry: ThreadRegistry,
    thread: JoinHandle<Result<(), Failure>>,
    shape: Shape,
}

/// A request whose answer has yet to come.
struct Asked {
    thread: JoinHandle<Option<String>>,
    shape: Shape,
    /// The sockets before, where nothing else was under way.
    alone: Option<BTreeSet<(u16, u64)>>,
}

/// All that there is.
struct World {
    /// It ends before its directory does.
    manager: Manager,
    directory: TempDir,
    disk: Arc<Disk>,
    /// The address that another process has.
    taken: UdpSocket,
    processes: usize,
    sent: BTreeMap<usize, u32>,
    numbers: BTreeMap<(usize, usize), u32>,
    ledgers: Vec<Snapshot>,
    /// What processes gave up that ended while the disk hung, and that their threads write when it answers again.
    given_up: u64,
    /// What may have come by listener to sockets of a process that ended for one that failed then.
    left: BTreeMap<usize, u32>,
    /// Counts what was refused, done and begun, for the books.
    told: BTreeMap<&'static str, u32>,
}

/// What comes back over a connection that was asked one thing; `None` where no process answers.
fn ask(path: &Path, question: &str) -> Option<String> {
    let mut stream = UnixStream::connect(path).ok()?;
    stream.set_nonblocking(true).expect("a socket");
    stream.write_all(question.as_bytes()).ok()?;
    let answer = read_until(&mut stream, PATIENCE, |_| false);
    (!answer.is_empty()).then_some(answer)
}

/// Reads until the end of the connection, the limit, or until what has come is enough.
fn read_until(stream: &mut UnixStream, limit: Duration, is_enough: impl Fn(&str) -> bool) -> String {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    let more = || loop {
        match stream.read(&mut piece) {
            Ok(0) => return Some(()),
            Ok(count) => {
                answer.extend_from_slice(&piece[..count]);
                if is_enough(&String::from_utf8_lossy(&answer)) {
                    return Some(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => return Some(()),
        }
    };
    waits::until(Some(clock::now() + limit), more, || unreachable!("it is simulated"));
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits in simulated time.
fn await_end<T>(thread: &JoinHandle<T>, what: &str) {
    let deadline = clock::now() + PATIENCE;
    while !thread.is_finished() {
        assert!(clock::now() < deadline, "{what} does not come to an end");
        clock::sleep(Duration::from_millis(50));
    }
}

fn scheduled<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    waits::spawn(Builder::new().name(name.to_owned()), body).expect("a thread")
}

impl World {
    /// One in which no process runs yet. `keeps` is how many descriptors the manager keeps.
    fn new(directory: TempDir, disk: Arc<Disk>, keeps: usize) -> Self {
        Self {
            manager: Manager::new(directory.path(), keeps, keeps),
            directory,
            disk,
            taken: UdpSocket::bind("127.0.0.1:0").expect("a port"),
            processes: 0,
            sent: BTreeMap::new(),
            numbers: BTreeMap::new(),
            ledgers: Vec::new(),
            given_up: 0,
            left: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tell(&mut self, what: &'static str) {
        *self.told.entry(what).or_default() += 1;
    }

    fn write(&self, shape: &Shape, process: usize) {
        let taken = self.taken.local_addr().expect("bound");
        fs::write(self.path("udpd.toml"), shape.text(self.directory.path(), process, taken)).expect("room");
    }

    /// Starts a process, which begins on what the manager has kept, or takes over from the one that runs.
    fn start(&mut self, shape: Shape, takes_over: bool) -> Process {
        self.processes += 1;
        let number = self.processes;
        self.write(&shape, number);
        let (registry, events) = ThreadRegistry::new();
        let nothing = PassedDescriptors { sockets: Default::default(), record: None, lost_process: None };
        let passed = if takes_over { nothing } else { self.manager.passed() };
        let (notifier, file, own) = (self.manager.notifier(), self.path("udpd.toml"), registry.clone());
        let body = move || {
            let (sandbox, registry) = SandboxSetup::prepare(SandboxMode::Off, own)?;
            let config = Config::load(&file, &HostView::default())?;
            let invocation = Invocation { file: Some(file), takes_over, notifier };
            serve(config, invocation, passed, sandbox, &registry, &events)
        };
        let thread = scheduled(&format!("process {number}"), body);
        Process { number, registry, thread, shape }
    }

    /// Starts one on what is left until one runs; the faults are over by then.
    fn start_until_ready(&mut self, run: &mut Run, chance: &mut Chance) -> Process {
        loop {
            let shape = Shape::of(chance, false);
            let process = self.start(shape, false);
            if self.await_ready(&process).is_some() {
                return process;
            }
            let failure = process.thread.join().expect("it ends").expect_err("it has not begun");
            run.trace(|| format!("the start fails: {failure}"));
            assert!(failure.message.contains("full") || failure.message.contains("space"), "{failure}");
            self.collect(process.number);
            self.tell("start failed");
            self.disk.heal();
        }
    }

    /// Waits until it answers; `None` where it has ended.
    fn await_ready(&self, process: &Process) -> Option<Snapshot> {
        let deadline = clock::now() + PATIENCE;
        loop {
            if let Some(ledger) = self.stats().filter(|_| !process.thread.is_finished()) {
                return Some(ledger);
            }
            if process.thread.is_finished() {
                return None;
            }
            assert!(clock::now() < deadline, "it is never ready");
            clock::sleep(Duration::from_millis(20));
        }
    }

    fn stats(&self) -> Option<Snapshot> {
        ask(&self.path("control"), "stats\n").and_then(|text| serde_json::from_str(&text).ok())
    }

    /// Waits until this process has received as much as it was sent: it does receive.
    fn await_arrival(&self, sent: u64) {
        let deadline = clock::now() + PATIENCE;
        let received = |ledger: Snapshot| ledger.listeners.iter().map(|own| own.counts.received).sum::<u64>();
        while self.stats().map_or(0, received) < sent {
            assert!(clock::now() < deadline, "it receives nothing");
            clock::sleep(Duration::from_millis(100));
        }
    }

    /// Takes the last ledger of a process that has ended, where it has one.
    fn collect(&mut self, process: usize) {
        self.collect_of(process, false);
    }

    /// The same. Where its disk hung, what it gave up may be in a call that writes it later.
    fn collect_of(&mut self, process: usize, disk_hung: bool) {
        let Ok(text) = fs::read_to_string(self.path(&format!("stats{process}"))) else { return };
        let ledger: Snapshot = serde_json::from_str(&text).expect("a ledger");
        if disk_hung {
            self.given_up += in_files(&ledger).map(|counts| counts.dropped.sink_error).sum::<u64>();
        }
        self.ledgers.push(ledger);
    }

    fn send(&mut self, chance: &mut Chance, listeners: &BTreeSet<usize>) {
        let listeners: Vec<usize> = listeners.iter().copied().collect();
        let (listener, sender) = (*chance.pick(&listeners), chance.index(SENDERS));
        let count = *chance.pick(&[1, 2, 5, 20, 60]);
        for _ in 0..count {
            let number = self.numbers.entry((listener, sender)).or_default();
            let text = format!("{listener} {sender} {number}");
            network().0[sender].send_to(text.as_bytes(), network().1[listener]).expect("loopback takes it");
            *number += 1;
            *self.sent.entry(listener).or_default() += 1;
        }
    }

    fn ask_for_reload(&self, shape: Shape, is_alone: bool) -> Asked {
        let path = self.path("control");
        let alone = is_alone.then(bound);
        Asked { thread: scheduled("a client", move || ask(&path, "reload\n")), shape, alone }
    }

    /// Hears the answer to a reload.
    fn hear(&mut self, run: &mut Run, asked: Asked, process: &mut Process) {
        await_end(&asked.thread, "a reload");
        let answer = asked.thread.join().expect("it ends");
        run.trace(|| format!("answer: {answer:?}"));
        match answer {
            Some(text) if text.contains("\"ok\"") => {
                self.tell("in force");
                assert!(asked.alone.is_none() || !asked.shape.is_wrong(), "{text}");
            }
            Some(text) => {
                self.tell("refused");
                assert!(text.contains("\"error\""), "{text}");
                // A process that ends by now closes its sockets.
                if let Some(before) = asked.alone.filter(|_| !text.contains("udpd ends")) {
                    assert_eq!(bound(), before, "a refused reload has changed sockets: {text}");
                }
            }
            None => self.tell("unanswered"),
        }
        process.shape = asked.shape;
    }

    /// The listeners that are there.
    fn certain(&self) -> BTreeSet<usize> {
        let ledger = self.stats().expect("it answers");
        let own = ledger.listeners.iter().filter(|listener| !listener.removed);
        own.map(|own| LISTENERS.iter().position(|name| *name == own.name).expect("one of ours")).collect()
    }

    /// Another process takes over, or fails to. Returns which one goes on.
    fn take_over(&mut self, run: &mut Run, chance: &mut Chance, old: Process, is_faulty: bool) -> Process {
        let shape = Shape::of(chance, is_faulty);
        let there = self.certain();
        let certain: BTreeSet<usize> = there.intersection(&shape.listeners()).copied().collect();
        if is_faulty && chance.happens(1, 3) {
            self.disk.fails_at.store(1 + chance.below(6), Ordering::Relaxed);
        }
        let hangs_for = if is_faulty && chance.happens(1, 6) { chance.below(90) } else { 0 };
        self.disk.hangs.store(hangs_for > 0, Ordering::Relaxed);
        let hangs_until = clock::now() + Duration::from_secs(hangs_for);
        run.trace(|| format!("take-over: {shape:?}, disk {:?}", self.disk));
        let before = bound();
        let sent_before = self.sent.clone();
        let is_wrong = shape.is_wrong();
        let new = self.start(shape, true);
        let deadline = clock::now() + PATIENCE + PATIENCE;
        while !old.thread.is_finished() && !new.thread.is_finished() {
            assert!(clock::now() < deadline, "the take-over comes to no end");
            if clock::now() >= hangs_until {
                self.disk.hangs.store(false, Ordering::Relaxed);
            }
            clock::sleep(Duration::from_micros(chance.below(400_000)));
            if !certain.is_empty() && !old.thread.is_finished() && !new.thread.is_finished() {
                self.send(chance, &certain);
            }
        }
        self.disk.heal();
        if new.thread.is_finished() {
            let failure = new.thread.join().expect("it ends").expect_err("nothing has ended it");
            run.trace(|| format!("it fails: {failure}"));
            self.tell("take-over failed");
            self.collect(new.number);
            // The old one receives again, on the sockets of before, or says why it cannot.
            let deadline = clock::now() + PATIENCE;
            while self.stats().is_none() && !old.thread.is_finished() {
                assert!(clock::now() < deadline, "neither answers");
                clock::sleep(Duration::from_millis(100));
            }
            if old.thread.is_finished() {
                // It has ended before the new one failed where an address was to be free first, or a sink took nothing.
                let outcome = old.thread.join().expect("it ends");
                run.trace(|| format!("no way back: {outcome:?}"));
                assert!(outcome.is_err() || !there.is_subset(&certain) || hangs_for > 0, "it was to receive again");
                self.tell("stranded");
                if outcome.is_ok() {
                    self.note_left(&sent_before);
                }
                self.collect_of(old.number, hangs_for > 0);
                return self.start_until_ready(run, chance);
            }
            assert_eq!(bound(), before, "the sockets of before");
            return old;
        }
        let ended = old.thread.join().expect("it ends");
        run.trace(|| format!("the old one ends: {ended:?}"));
        self.collect_of(old.number, hangs_for > 0);
        match self.await_ready(&new) {
            Some(_) => {
                assert!(!is_wrong, "it took over with what is wrong");
                self.tell("taken over");
                new
            }
            None => {
                let failure = new.thread.join().expect("it ends").expect_err("nothing has ended it");
                run.trace(|| format!("it fails after all: {failure}"));
                self.collect(new.number);
                self.tell("both ended");
                if ended.is_ok() {
                    self.note_left(&sent_before);
                }
                self.start_until_ready(run, chance)
            }
        }
    }

    /// A process has ended well for one that failed then: what was sent since may be lost with their sockets.
    fn note_left(&mut self, sent_before: &BTreeMap<usize, u32>) {
        for (listener, sent) in &self.sent {
            *self.left.entry(*listener).or_default() += sent - sent_before.get(listener).copied().unwrap_or(0);
        }
    }

    fn end(&mut self, process: Process) -> Result<(), Failure> {
        await_end(&process.thread, "a process");
        let outcome = process.thread.join().expect("it ends");
        self.collect(process.number);
        outcome
    }
}

/// What the sinks that write files did with the datagrams of each listener.
fn in_files(ledger: &Snapshot) -> impl Iterator<Item = &SinkTally> {
    let sinks = ledger.listeners.iter().flat_map(|own| &own.sinks);
    sinks.filter(|sink| sink.name != "none").map(|sink| &sink.counts)
}

fn signal(process: &Process, signal: Signal) {
    process.registry.report(DaemonEvent::Signal(signal as i32));
    waits::turn();
}

fn simulate(run: &mut Run) -> String {
    let directory = tempfile::tempdir_in(udpd_base::testing::memory()).expect("a directory in memory");
    let disk = Arc::new(Disk::default());
    let inside = Scheduler::enter(Chance::new(run.setup().next()), Arc::clone(&disk) as Arc<dyn Simulated>);
    let keeps = *run.setup().pick(&[0, 4, 64, 64]);
    let mut world = World::new(directory, disk, keeps);
    let mut chance = run.setup().clone();
    let mut process = world.start_until_ready(run, &mut chance);
    let mut certain = world.certain();
    let mut asked: Vec<Asked> = Vec::new();
    while let Some(mut chance) = run.step() {
        let (all, done): (Vec<Asked>, Vec<Asked>) = asked.into_iter().partition(|own| !own.thread.is_finished());
        asked = all;
        let had = !done.is_empty();
        done.into_iter().for_each(|own| world.hear(run, own, &mut process));
        if had && asked.is_empty() {
            certain = world.certain();
        }
        match chance.below(24) {
            0..=7 => world.send(&mut chance, &certain),
            8..=10 => {
                let length = Duration::from_micros(chance.weighted(&[(4, 500), (4, 60_000), (1, 12_000_000)]));
                run.trace(|| format!("{length:?} pass"));
                clock::sleep(length);
            }
            11 | 12 => {
                match chance.below(4) {
                    0 => world.disk.is_full.store(true, Ordering::Relaxed),
                    1 => world.disk.hangs.store(true, Ordering::Relaxed),
                    2 => world.disk.fails_at.store(1 + chance.below(4), Ordering::Relaxed),
                    _ => world.disk.heal(),
                }
                run.trace(|| format!("{:?}", world.disk));
            }
            13..=17 => {
                let shape = if chance.happens(1, 5) { process.shape.clone() } else { Shape::of(&mut chance, true) };
                run.trace(|| format!("reload: {shape:?}"));
                certain = certain.intersection(&shape.listeners()).copied().collect();
                certain.insert(0);
                world.write(&shape, process.number);
                if chance.happens(1, 4) {
                    signal(&process, Signal::SIGHUP);
                }
                let is_alone = asked.is_empty();
                asked.iter_mut().for_each(|own| own.alone = None);
                asked.push(world.ask_for_reload(shape, is_alone));
            }
            18 => {
                let own = *chance.pick(&[Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP, Signal::SIGWINCH]);
                run.trace(|| format!("{own}"));
                if own != Signal::SIGHUP || asked.is_empty() {
                    signal(&process, own);
                }
                if own == Signal::SIGHUP {
                    asked.push(world.ask_for_reload(process.shape.clone(), false));
                }
            }
            19 => {
                let path = world.path("control");
                let name = world.path("log-one");
                if chance.happens(1, 2) && name.exists() {
                    fs::rename(&name, world.path(&format!("log-one-moved{}", run.steps_done()))).expect("it is there");
                }
                run.trace(|| "reopen".to_owned());
                let _ = scheduled("a client", move || ask(&path, "reopen\n"));
            }
            20 | 21 => {
                if chance.happens(1, 2) {
                    world.disk.hangs.store(false, Ordering::Relaxed);
                    std::mem::take(&mut asked).into_iter().for_each(|own| world.hear(run, own, &mut process));
                }
                world.disk.hangs.store(false, Ordering::Relaxed);
                run.trace(|| "restart".to_owned());
                let limit = if chance.happens(1, 4) { Signal::SIGXCPU } else { Signal::SIGTERM };
                signal(&process, limit);
                await_end(&process.thread, "a process");
                std::mem::take(&mut asked).into_iter().for_each(|own| world.hear(run, own, &mut process));
                let outcome = world.end(process);
                assert_eq!(outcome.is_ok(), limit == Signal::SIGTERM, "{outcome:?}");
                world.tell("restarted");
                world.disk.heal();
                if chance.happens(1, 3) {
                    world.disk.fails_at.store(1 + chance.below(3), Ordering::Relaxed);
                }
                process = world.start_until_ready(run, &mut chance);
                certain = world.certain();
            }
            _ => {
                world.disk.heal();
                std::mem::take(&mut asked).into_iter().for_each(|own| world.hear(run, own, &mut process));
                process = world.take_over(run, &mut chance, process, true);
                certain = world.certain();
            }
        }
    }
    // The faults stop. A reload is in force, a take-over works, and the end comes when it is asked for.
    world.disk.heal();
    std::mem::take(&mut asked).into_iter().for_each(|own| world.hear(run, own, &mut process));
    let shape = Shape::of(&mut chance, false);
    world.write(&shape, process.number);
    let last = world.ask_for_reload(shape, false);
    await_end(&last.thread, "the last reload");
    let answer = last.thread.join().expect("it ends").expect("it is answered");
    assert!(answer.contains("\"ok\"") || answer.contains("takes a restart"), "{answer}");
    let before = process.number;
    process = world.take_over(run, &mut chance, process, false);
    assert_ne!(process.number, before, "no fault, and it was not taken over");
    certain = world.certain();
    world.send(&mut chance, &certain);
    // What waits in a socket when the end is asked for is left to a next process, and there is none.
    clock::sleep(Duration::from_secs(2));
    signal(&process, Signal::SIGTERM);
    world.end(process).expect("it ends well");
    let books = closed_books(&world);
    drop(inside);
    books
}

/// Holds the ledgers of all processes against what was sent and what the files have. A start asks the other daemons of
/// this host for their cores, so the order of threads is not the same each time, and the books say only that they
/// close.
fn closed_books(world: &World) -> String {
    let mut books = String::new();
    for (place, name) in LISTENERS.iter().enumerate() {
        let (mut arrived, mut between) = (0, 0);
        for own in world.ledgers.iter().flat_map(|ledger| &ledger.listeners).filter(|own| own.name == *name) {
            assert_eq!(own.residual, Some(0), "{own:?}");
            arrived += own.arrived.expect("known");
            between += own.kernel_dropped_between.unwrap_or(0);
        }
        let [sent, left] = [&world.sent, &world.left].map(|own| u64::from(own.get(&place).copied().unwrap_or(0)));
        let known = sent - left..=sent;
        let is_known = known.contains(&(arrived + between));
        assert!(is_known, "{name}: {arrived} arrived, {between} between of {known:?}: {:?}", world.ledgers);
        let _ = writeln!(books, "{name} closes");
    }
    let mut lines = 0;
    for entry in fs::read_dir(world.directory.path()).expect("the directory") {
        let path = entry.expect("a file").path();
        let is_log = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log"));
        if is_log && path.extension().is_none_or(|suffix| suffix != "torn") {
            let text = fs::read_to_string(&path).expect("text");
            let own: BTreeSet<&str> = text.lines().collect();
            assert_eq!(own.len(), text.lines().count(), "{} has a line twice", path.display());
            lines += own.len() as u64;
        }
    }
    let written: u64 = world.ledgers.iter().flat_map(in_files).map(|counts| counts.delivered).sum();
    let expected = written..=written + world.given_up;
    assert!(expected.contains(&lines), "{lines} lines in the files instead of {expected:?}: {:?}", world.ledgers);
    books
}

#[test]
fn a_daemon_loses_nothing_that_it_does_not_count_over_reloads_restarts_and_take_overs() {
    let _alone = alone();
    Simulation::new("a_daemon_loses_nothing_that_it_does_not_count_over_reloads_restarts_and_take_overs", 4, STEPS)
        .one_at_a_time()
        .with_corpus(include_str!("simulation_tests.seeds"))
        .check(simulate);
}

/// What a process does that asks to take over.
#[derive(Debug, Clone, Copy)]
enum Visit {
    Says(&'static str),
    Hears(&'static str),
    /// Says that it goes on with all sockets of which it has heard.
    IsReady,
    Waits(u64),
}

/// Does this in turn, and hangs up.
fn visit(path: &Path, script: &[Visit]) {
    let mut stream = UnixStream::connect(path).expect("it is served");
    stream.set_nonblocking(true).expect("a socket");
    let mut heard = String::new();
    for step in script {
        match step {
            Visit::Says(line) => stream.write_all(format!("{line}\n").as_bytes()).expect("room"),
            Visit::Hears(what) => {
                heard = read_until(&mut stream, PATIENCE, |text| text.ends_with('\n'));
                assert!(heard.contains(what), "{heard:?} instead of {what} in {script:?}");
            }
            Visit::IsReady => {
                let mut said: serde_json::Value = serde_json::from_str(&heard).expect("a message");
                let names = said["sockets"].take();
                stream.write_all(format!("{}\n", serde_json::json!({ "ready": names })).as_bytes()).expect("room");
            }
            Visit::Waits(seconds) => clock::sleep(Duration::from_secs(*seconds)),
        }
    }
}

#[test]
fn a_process_that_ends_or_hangs_at_any_message_of_a_take_over_leaves_the_daemon_as_it_was() {
    use Visit::{Hears, IsReady, Says, Waits};
    let _alone = alone();
    let (asks, sends) = ([Says("take-over"), Hears("offer")], [Says("\"send_all\""), Hears("sockets")]);
    let stops = [IsReady, Hears("stopped")];
    let opens = [Says("\"open\""), Hears("gone")];
    let up_to = |count: usize| [asks, sends, stops, opens][..count].concat();
    let ends: [&[Visit]; 5] =
        [&[], &[Says("nonsense")], &[Says("{\"error\":\"no\"}")], &[Says("\"gone\"")], &[Waits(70)]];
    for count in 0..=4 {
        for (number, end) in ends.iter().enumerate().filter(|(number, _)| count > 0 && (count < 4 || *number == 2)) {
            let directory = tempfile::tempdir_in(udpd_base::testing::memory()).expect("a directory in memory");
            let disk = Arc::new(Disk::default());
            let inside = Scheduler::enter(Chance::new(number as u64), Arc::clone(&disk) as Arc<dyn Simulated>);
            let mut world = World::new(directory, disk, 64);
            let shape =
                Shape { lanes: [2, 1, 0], files: [true, true, false], rotates: false, decides_gro: false, flaw: None };
            let process = world.start(shape, false);
            world.await_ready(&process).expect("it begins");
            let (before, mut chance) = (bound(), Chance::new(7));
            world.send(&mut chance, &BTreeSet::from([0, 1]));
            let (path, script) = (world.path("control"), [up_to(count), end.to_vec()].concat());
            let visitor = scheduled("a visitor", move || visit(&path, &script));
            await_end(&visitor, "the visitor");
            visitor.join().expect("it was answered as it should be");
            world.await_ready(&process).expect("it goes on");
            assert_eq!(bound(), before, "after {count} messages and {end:?}");
            world.send(&mut chance, &BTreeSet::from([0, 1]));
            world.await_arrival(world.sent.values().map(|sent| u64::from(*sent)).sum());
            signal(&process, Signal::SIGTERM);
            world.end(process).expect("it ends well");
            closed_books(&world);
            drop(inside);
        }
    }
}
