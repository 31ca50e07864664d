//! The pipeline with all of its threads, run one at a time in an order that a seed picks: lanes, pool, channels,
//! consumers, sinks and files, and the main thread that reloads and stops it. Its sockets are the kernel's, on
//! loopback, where a datagram has arrived when its send call returns. Time is simulated, and calls of the disk fail on
//! order.
//!
//! After each run the books are held against what was sent and what the sinks saw. A thread that would wait for ever is
//! found by the scheduler.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use seeds::{Chance, Run, Simulation};

use super::*;
use crate::config::{Config, HostView};
use crate::plan::PipelinePlan;
use udpd_base::exit::Failure;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::{CounterTable as _, Snapshot, Tallies};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry, lock};
use udpd_base::seams::disk::DiskCall;
use udpd_base::seams::{clock, waits};
use udpd_base::sink::settings::{Needs, OpenedSink, Opening, SinkTarget, SpillPlace};
use udpd_base::sink::{ConsumerFeeders, Differs, Sink, SinkSettings, deliver, fail};
use udpd_base::testing::scheduler::{OneCore, Scheduler};
use udpd_base::testing::simulated::Simulated;
use udpd_spill::spilling::{Spill, SpillableSink};

const LISTENERS: [&str; 3] = ["a", "b", "c"];
const SINKS: [&str; 3] = ["x", "y", "z"];
const SENDERS: usize = 4;

/// What a sink does with what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Takes,
    TakesTime,
    Fails,
    /// Its destination answers later.
    Holds,
    Hangs,
}

/// What the driver tells the sinks of one name, and what they have delivered: by listener and sender the numbers.
#[derive(Debug)]
struct Script {
    mood: Mood,
    delivered: BTreeMap<(usize, usize), Vec<u32>>,
}

/// The settings of a sink that follows a script, with a spill or without.
#[derive(Debug)]
struct Scripted {
    script: Arc<Mutex<Script>>,
    spill: Spill,
}

#[derive(Debug)]
struct ScriptedSink {
    script: Arc<Mutex<Script>>,
    held: Vec<(usize, u64)>,
    due: Option<Instant>,
}

impl SinkSettings for Scripted {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Nowhere
    }

    fn needs(&self) -> Needs {
        Needs::only(ThreadRole::Unconfined)
    }

    fn spill(&self) -> Option<SpillPlace<'_>> {
        self.spill.place()
    }

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        self.spill.around(ScriptedSink { script: Arc::clone(&self.script), held: Vec::new(), due: None }, &opening)
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        let is_same = |before: &Self| Arc::ptr_eq(&before.script, &self.script) && before.spill == self.spill;
        before.of_type::<Self>().is_some_and(is_same) && !(self.spill.is_on() && (differs.lanes || differs.listeners))
    }
}

impl SpillableSink for ScriptedSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let mood = self.mood();
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            let takes = match mood {
                Mood::Hangs => false,
                Mood::TakesTime => place % 3 < 2,
                Mood::Takes | Mood::Fails | Mood::Holds => true,
            };
            match mood {
                _ if !takes || !left.is_empty() => left.push(place),
                Mood::Fails => fail(&mut tallies[batch.listener], 1),
                _ => {
                    self.note(datagram.payload());
                    deliver(&mut tallies[batch.listener], 1);
                }
            }
        }
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}

impl ScriptedSink {
    /// Notes what was delivered.
    fn note(&self, payload: &[u8]) {
        let text = std::str::from_utf8(payload).expect("text was sent");
        let mut words = text.split_whitespace().map(|word| word.parse().expect("a number"));
        let key = (words.next().expect("a listener"), words.next().expect("a sender"));
        let number = words.next().expect("a number");
        lock(&self.script).delivered.entry(key).or_default().push(u32::try_from(number).expect("few"));
    }

    fn mood(&self) -> Mood {
        lock(&self.script).mood
    }

    /// Delivers what is held.
    fn let_go(&mut self, tallies: &mut Tallies) {
        for (listener, datagrams) in self.held.drain(..) {
            deliver(&mut tallies[listener], datagrams);
        }
        self.due = None;
    }
}

impl Sink for ScriptedSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let datagrams = batch.datagrams.summary().datagrams;
        let mood = self.mood();
        match mood {
            Mood::TakesTime => threads::blocking(|| clock::sleep(Duration::from_millis(3))),
            Mood::Hangs => threads::blocking(|| {
                while self.mood() == Mood::Hangs && !threads::is_given_up() {
                    clock::sleep(Duration::from_millis(5));
                }
            }),
            _ => {}
        }
        if mood == Mood::Fails || threads::is_given_up() {
            return fail(&mut tallies[batch.listener], datagrams);
        }
        batch.datagrams.datagrams().for_each(|datagram| self.note(datagram.payload()));
        match mood {
            Mood::Holds => {
                self.held.push((batch.listener, datagrams));
                self.due = Some(clock::now() + Duration::from_millis(20));
            }
            _ => deliver(&mut tallies[batch.listener], datagrams),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        if self.due.is_some_and(|due| due <= clock::now()) {
            self.let_go(tallies);
        }
    }

    fn finish(&mut self, tallies: &mut Tallies, _: &mut dyn FnMut(&mut Tallies)) {
        self.let_go(tallies);
    }
}

/// A disk that is full while the driver says so.
#[derive(Debug, Default)]
struct Disk {
    is_full: AtomicBool,
}

impl Simulated for Disk {
    fn before(&self, call: &DiskCall<'_>) -> io::Result<()> {
        match call {
            DiskCall::Sync(_) if self.is_full.load(Ordering::Relaxed) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
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

/// The sockets of the senders, and an address for each listener. They stay the same for every run of a thread, so that
/// the kernel deals the senders to the same lanes.
fn network() -> &'static (Vec<UdpSocket>, Vec<SocketAddr>) {
    thread_local! {
        static NETWORK: &'static (Vec<UdpSocket>, Vec<SocketAddr>) = {
            let socket = || UdpSocket::bind("127.0.0.1:0").expect("a port");
            let addresses = LISTENERS.map(|_| socket().local_addr().expect("bound"));
            Box::leak(Box::new(((0..SENDERS).map(|_| socket()).collect(), addresses.to_vec())))
        };
    }
    NETWORK.with(|network| *network)
}

/// A configuration in the making.
#[derive(Debug, Clone)]
struct Shape {
    /// The lanes of each listener; 0 for one that is not there.
    lanes: [usize; 3],
    sinks: [bool; 3],
    when_full: FullPolicy,
    writes_file: bool,
    /// The last sink has a spill.
    spills: bool,
    rotates: bool,
    gathers: bool,
}

impl Shape {
    fn of(chance: &mut Chance) -> Self {
        let mut lanes = [0; 3].map(|_| *chance.pick(&[0, 1, 1, 2]));
        lanes[0] = lanes[0].max(1);
        let mut sinks = [(); 3].map(|()| chance.happens(2, 3));
        let writes_file = chance.happens(1, 2);
        sinks[0] |= !writes_file;
        let when_full = *chance.pick(&[FullPolicy::DropNewest, FullPolicy::DropOldest, FullPolicy::Block]);
        let [rotates, spills, gathers] = [(1, 2), (2, 3), (1, 4)].map(|(times, of)| chance.happens(times, of));
        Self { lanes, sinks, when_full, writes_file, spills, rotates, gathers }
    }

    /// The same where the order of a sender is promised from one configuration to the next: a spill that is taken away
    /// leaves its files, which may come back later; and with another number of lanes a sender may change its lane.
    fn keeping_order(self, first: &Self) -> Self {
        let lanes = [0, 1, 2].map(|place| if self.lanes[place] > 0 { first.lanes[place].max(1) } else { 0 });
        Self { lanes, spills: first.spills, ..self }
    }

    fn made(&self, scripts: &[Arc<Mutex<Script>>], directory: &Path) -> (Arc<Config>, Arc<PipelinePlan>) {
        let mut text = "[daemon]\npool_bytes = '2MiB'\n".to_owned();
        let scripted = SINKS.into_iter().zip(self.sinks).filter(|(_, is_there)| *is_there).map(|(name, _)| name);
        let names: Vec<&str> = scripted.chain(self.writes_file.then_some("file")).collect();
        for (index, lanes) in self.lanes.into_iter().enumerate().filter(|(_, lanes)| *lanes > 0) {
            let (name, address) = (LISTENERS[index], network().1[index]);
            let gather = if self.gathers { "1ms" } else { "0ms" };
            let _ = writeln!(
                text,
                "[[listener]]\nname = '{name}'\naddress = '{address}'\nlanes = {lanes}\nbatch_size = 8\n\
                 engine = 'recvmmsg'\nreceive_buffer = '64KiB'\nmax_length = '256'\ngather = '{gather}'\n\
                 sinks = {names:?}"
            );
        }
        for name in &names {
            let _ = writeln!(text, "[sink.{name}]\nqueue_bytes = '64KiB'");
            let _ = match *name {
                "file" => writeln!(
                    text,
                    "type = 'file'\npath = '{}/log'\nrotate = {{ bytes = '{}' }}",
                    directory.display(),
                    if self.rotates { "4KiB" } else { "1GiB" }
                ),
                _ => writeln!(text, "type = 'null'"),
            };
        }
        let text = text.replace("rotate = { bytes = '4KiB' }", "rotate = { bytes = '64KiB' }");
        let mut config = Config::parse(&text, "simulated.toml", &HostView::default())
            .unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
        for sink in &mut config.sinks {
            sink.when_full = self.when_full;
            if let Some(place) = SINKS.iter().position(|name| *name == sink.name) {
                let spill = match place == 2 && self.spills {
                    true => Spill::at(directory.join("spill"), 4 << 20),
                    false => Spill::default(),
                };
                sink.settings = Arc::new(Scripted { script: Arc::clone(&scripts[place]), spill });
            }
        }
        let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
        (Arc::new(config), Arc::new(plan))
    }
}

/// Waits in simulated time, and is in no hurry.
fn patiently(wait: Duration) -> bool {
    clock::sleep(wait);
    false
}

/// Checks one reading: nothing is taken that was not offered, and nothing was made up.
fn assert_sound(snapshot: &Snapshot, sent: &BTreeMap<usize, u32>) {
    for listener in &snapshot.listeners {
        let place = LISTENERS.iter().position(|name| *name == listener.name).expect("one of ours");
        let sent = u64::from(sent.get(&place).copied().unwrap_or(0));
        assert!(listener.arrived.is_some_and(|arrived| arrived <= sent), "{sent} sent: {listener:?}");
        for sink in &listener.sinks {
            let decided = sink.counts.delivered + sink.counts.dropped.total();
            let had = sink.offered + sink.counts.spilled_again;
            assert!(decided <= had && sink.offered <= listener.counts.received, "{sink:?}");
            // A file that goes on through a reload is in one ledger or the other.
            assert!(sink.name != "file" || sink.removed || sink.files.is_some(), "{sink:?}");
        }
    }
}

/// A thread that reads the ledger as often as it is asked to, beside all others. The second channel is disconnected
/// when it has ended.
fn read_when_asked(
    registry: &ThreadRegistry,
    ledger: Arc<CumulativeLedger>,
    sent: &Arc<Mutex<BTreeMap<usize, u32>>>,
) -> (Sender<u64>, Receiver<()>) {
    let ((ask, asked), (alive, ended)) = (unbounded::<u64>(), bounded(0));
    let sent = Arc::clone(sent);
    let read = move || {
        let _alive: Sender<()> = alive;
        while let Ok(times) = waits::recv(&asked) {
            for _ in 0..times {
                let snapshot = ledger.snapshot();
                assert_sound(&snapshot, &lock(&sent));
                clock::sleep(Duration::from_micros(3));
            }
        }
    };
    registry.spawn("reader", ThreadRole::Unconfined, read).expect("a thread");
    (ask, ended)
}

fn simulate(run: &mut Run) -> String {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let disk = Arc::new(Disk::default());
    let _core = OneCore::take();
    let inside = Scheduler::enter(Chance::new(run.setup().next()), Arc::clone(&disk) as Arc<dyn Simulated>);
    let script = |_| Arc::new(Mutex::new(Script { mood: Mood::Takes, delivered: BTreeMap::new() }));
    let scripts = SINKS.map(script);
    let first = Shape::of(run.setup());
    let mut shape = first.clone();
    let (config, plan) = shape.made(&scripts, directory.path());
    let (registry, _events) = ThreadRegistry::new();
    let mut pipeline = Pipeline::start(&config, &plan, clock::now(), &registry).expect("started");
    let sent = Arc::new(Mutex::new(BTreeMap::<usize, u32>::new()));
    let (ask, reader) = read_when_asked(&registry, pipeline.ledger(), &sent);
    let mut numbers: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    while let Some(mut chance) = run.step() {
        match chance.below(20) {
            0..=7 => {
                let there: Vec<usize> = (0..3).filter(|listener| shape.lanes[*listener] > 0).collect();
                let (listener, sender) = (*chance.pick(&there), chance.index(SENDERS));
                let count = chance.weighted(&[(6, 1 + chance.clone().below(4)), (3, 20), (1, 200)]);
                run.trace(|| format!("sender {sender} sends {count} to {}", LISTENERS[listener]));
                for _ in 0..count {
                    let number = numbers.entry((listener, sender)).or_default();
                    let text = format!("{listener} {sender} {number}");
                    // A reading in between may see it arrived.
                    *lock(&sent).entry(listener).or_default() += 1;
                    network().0[sender].send_to(text.as_bytes(), network().1[listener]).expect("loopback takes it");
                    *number += 1;
                }
            }
            8..=12 => {
                let length =
                    Duration::from_micros(chance.weighted(&[(4, 50), (4, 2_000), (2, 60_000), (1, 3_000_000)]));
                run.trace(|| format!("{length:?} pass"));
                clock::sleep(length);
            }
            13..=15 => {
                let sink = chance.index(3);
                let mood = chance.weighted(&[
                    (4, Mood::Takes),
                    (2, Mood::TakesTime),
                    (1, Mood::Fails),
                    (2, Mood::Holds),
                    (2, Mood::Hangs),
                ]);
                run.trace(|| format!("sink {} {mood:?}", SINKS[sink]));
                lock(&scripts[sink]).mood = mood;
            }
            16 => {
                let is_full = chance.happens(1, 2);
                run.trace(|| format!("the disk is full: {is_full}"));
                disk.is_full.store(is_full, Ordering::Relaxed);
            }
            17 => {
                run.trace(|| "a reading".to_owned());
                assert_sound(&pipeline.ledger().snapshot(), &lock(&sent));
            }
            _ => {
                let next = Shape::of(&mut chance).keeping_order(&first);
                run.trace(|| format!("reload: {next:?}"));
                let limit = Duration::from_millis(chance.below(50));
                let (config, plan) = next.made(&scripts, directory.path());
                let context = pipeline.reload_context();
                let waited = context.wait_for_earlier_pipelines(limit, 10 * limit);
                let built = waited.and_then(|()| context.build_replacement(&config, &plan, &registry));
                if chance.happens(1, 2) {
                    // The ledger is read meanwhile.
                    let _ = ask.send(chance.below(40));
                }
                // What hangs ends when it is given up, so nothing stands in the way.
                let replacement = built.unwrap_or_else(|failure| panic!("a reload is refused: {failure}"));
                pipeline = pipeline.hand_over_to(replacement, patiently);
                shape = next;
            }
        }
        pipeline.close_drained();
    }
    // The faults stop, and everything drains.
    disk.is_full.store(false, Ordering::Relaxed);
    scripts.iter().for_each(|script| lock(script).mood = Mood::Takes);
    clock::sleep(Duration::from_secs(5));
    pipeline.wait_for_earlier_pipelines(Duration::from_secs(20));
    assert!(pipeline.earlier_pipelines_are_closed(), "{:?} drain for ever", pipeline.draining_sinks());
    drop(ask);
    waits::recv(&reader).expect_err("it ends without a word");
    let snapshot = pipeline.stop(Duration::from_secs(20), patiently);
    let books = closed_books(&snapshot, &shape, &lock(&sent), &scripts, directory.path());
    drop(inside);
    books
}

/// Checks the last ledger against what was sent, and what sinks and files have. Returns what has to be the same each
/// time.
fn closed_books(
    snapshot: &Snapshot,
    shape: &Shape,
    sent: &BTreeMap<usize, u32>,
    scripts: &[Arc<Mutex<Script>>],
    directory: &Path,
) -> String {
    let mut books = String::new();
    let mut in_file = 0;
    let mut delivered = [(0, 0); 3];
    let (mut spilled, mut spilled_again) = (0, 0);
    let has_spilled = directory.join("spill").exists();
    for listener in &snapshot.listeners {
        let place = LISTENERS.iter().position(|name| *name == listener.name).expect("one of ours");
        let sent = u64::from(sent.get(&place).copied().unwrap_or(0));
        let residual = (listener.arrived, listener.residual);
        assert_eq!(residual, (Some(sent), Some(0)), "{listener:?}");
        let _ = writeln!(books, "{} {:?} {:?}", listener.name, listener.kernel_dropped, listener.counts);
        for sink in &listener.sinks {
            let decided = sink.counts.delivered + sink.counts.dropped.total();
            // What a listener that is gone has left in a spill counts again for the first one that is there.
            let known = (decided + sink.counts.spilled).checked_sub(sink.counts.spilled_again);
            assert_eq!((Some(sink.offered), sink.in_flight), (known, 0), "{}: {sink:?}", listener.name);
            spilled += sink.counts.spilled - sink.counts.spilled_again.min(sink.counts.spilled);
            spilled_again += sink.counts.spilled_again - sink.counts.spilled_again.min(sink.counts.spilled);
            let _ = writeln!(books, "{} {} {:?}", sink.name, sink.offered, sink.counts);
            match SINKS.iter().position(|name| *name == sink.name) {
                None => in_file += sink.counts.delivered,
                Some(own) => {
                    let script = lock(&scripts[own]);
                    let of_listener = script.delivered.iter().filter(|((listener, _), _)| *listener == place);
                    let seen: usize = of_listener.map(|(_, numbers)| numbers.len()).sum();
                    delivered[own].0 += seen as u64;
                    delivered[own].1 += sink.counts.delivered;
                    let is_exact = seen as u64 == sink.counts.delivered;
                    assert!(is_exact || own == 2 && has_spilled, "{} of {}", sink.name, listener.name);
                }
            }
        }
    }
    if shape.sinks[2] && shape.spills {
        assert_eq!(spilled, spilled_again, "the spill has drained");
    }
    assert!(delivered.iter().all(|(seen, told)| seen == told), "delivered and told: {delivered:?}");
    for (name, script) in SINKS.iter().zip(scripts) {
        for (source, numbers) in &lock(script).delivered {
            assert!(numbers.is_sorted_by(|before, after| before < after), "{name} of {source:?}: {numbers:?}");
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for entry in fs::read_dir(directory).expect("the directory") {
        let path = entry.expect("a file").path();
        let is_log = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log"));
        if is_log && path.extension().is_none_or(|suffix| suffix != "torn") {
            let text = fs::read_to_string(&path).expect("text");
            lines.extend(text.lines().map(str::to_owned));
        }
    }
    assert_eq!(lines.len() as u64, in_file, "lines in the files");
    lines.sort_unstable();
    let all = lines.len();
    lines.dedup();
    assert_eq!(lines.len(), all, "a line is twice in the files");
    books
}

#[test]
fn a_pipeline_loses_nothing_that_it_does_not_count_whichever_thread_goes_on_next() {
    Simulation::new("whichever_thread_goes_on_next", 160, 40)
        .with_corpus(include_str!("simulation_tests.seeds"))
        .check(simulate);
}
