//! A sink with a spill, before a destination that comes and goes and on a disk that fails, through kills, power losses
//! and restarts. What is simulated is the destination (`simulated_destination_tests.rs`) and the disk; the shadow
//! model knows of each datagram only who sent it, and of all together how many may be missing.

use std::cell::Cell;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mmsg::PackedBatch;
use nix::errno::Errno;
use seeds::{Chance, Run, Simulation};
use tempfile::TempDir;

use super::destination::{Destination, Kind, World, address, payload};
use super::settings::SpillLocation;
use super::sink::{FrameLocation, LinkState};
use super::*;
use crate::{FILES_MAX, SpillLane, SpillLanes, SpillStore};
use udpd_base::handover::batch::LaneBatch;
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::{CounterTable as _, SinkTally, Tallies};
use udpd_base::os::threads::lock;
use udpd_base::seams::clock;
use udpd_base::sink::Sink;
use udpd_base::testing::simulated::{self, Entered};
use udpd_base::testing::simulated_disk::{Call, SimulatedDisk, When};

const CORPUS: &str = include_str!("simulation.seeds");

const SEEDS: u64 = 250;
const STEPS: u64 = 60;

/// Longer than everything that a sink waits for.
const HANG: Duration = Duration::from_secs(600);

thread_local! {
    /// From when on the daemon does not wait for the sink.
    static UNAWAITED_FROM: Cell<Option<Duration>> = const { Cell::new(None) };
    static CLOCK_BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn is_unawaited() -> bool {
    let passed = CLOCK_BEGAN.get().map(clock::since).unwrap_or_default();
    UNAWAITED_FROM.get().is_some_and(|from| passed >= from)
}

/// The lanes of each configuration: listener, name and address.
const CONFIGURATIONS: [&[(usize, &str, &str)]; 4] = [
    &[(0, "in", "127.0.0.1:1")],
    &[(0, "in", "127.0.0.1:1"), (0, "in", "127.0.0.1:2"), (1, "flows", "[::]:3")],
    &[(0, "flows", "[::]:3"), (1, "in", "127.0.0.1:2")],
    &[(0, "renamed", "127.0.0.1:1"), (1, "flows", "[::]:3")],
];

fn lanes_of(configuration: usize) -> SpillLanes {
    let lane = |(lane, &(listener, name, bound)): (usize, &(usize, &str, &str))| SpillLane {
        lane,
        listener,
        name: name.to_owned(),
        bound: bound.to_owned(),
    };
    SpillLanes::of(CONFIGURATIONS[configuration].iter().enumerate().map(lane).collect()).expect("a lane")
}

/// The sender that sends to this lane only: it is found again in a configuration that has the same address.
fn sender_of(configuration: usize, lane: usize) -> usize {
    let (_, _, bound) = CONFIGURATIONS[configuration][lane];
    bound.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

fn sum(tallies: &Tallies, listeners: usize, of: impl Fn(&SinkTally) -> u64) -> u64 {
    (0..listeners).map(|listener| of(&tallies[listener])).sum()
}

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Clean,
    Killed,
    PowerLoss,
}

/// What has happened that makes an exact sum a bound.
#[derive(Debug, Clone, Copy, Default)]
struct Happened {
    fault: bool,
    fails_to_read: bool,
    fails_to_remove: bool,
    fails_to_write: bool,
    damage: bool,
    power_loss: bool,
    kill: bool,
}

struct Sim {
    disk: Arc<SimulatedDisk>,
    _entered: Entered,
    root: TempDir,
    world: Arc<std::sync::Mutex<World>>,
    kind: Kind,
    policy: FullPolicy,
    bytes_max: u64,
    sizes: Range<u64>,
    configuration: usize,
    sink: Spilling<Destination>,
    tallies: Tallies,
    packed: Vec<u8>,
    batch: LaneBatch,
    next: u32,
    /// Datagrams that were counted as lost, or may be, of processes that are gone.
    lost: u64,
    happened: Happened,
    /// In the directory of a consumer that is gone.
    elsewhere: u64,
    generation: usize,
    /// How many were in the spill, and how many were decided, when all of it was on the disk the last time.
    safe: (u64, u64),
    /// What was there already when the process began.
    bytes_begun: u64,
    books: String,
}

impl Sim {
    fn new(chance: &mut Chance) -> Self {
        let root = tempfile::tempdir_in(udpd_base::testing::memory()).expect("a directory");
        let disk = SimulatedDisk::of(root.path(), Chance::new(chance.next()));
        let entered = simulated::enter(disk.clone());
        CLOCK_BEGAN.set(Some(clock::now()));
        UNAWAITED_FROM.set(None);
        let kind = chance.weighted(&[
            (4, Kind::AtOnce),
            (1, Kind::Any),
            (3, Kind::Answers(Duration::from_secs(4))),
            (3, Kind::InHand),
        ]);
        let policy = *chance.pick(&[FullPolicy::DropNewest, FullPolicy::DropOldest, FullPolicy::Block]);
        let bytes_max = *chance.pick(&[600 << 10, 1 << 20, 4 << 20]);
        let sizes = chance.weighted(&[(9, (0, 100)), (4, (0, 3_000)), (2, (20_000, 40_000)), (1, (0, 65_508))]);
        if chance.happens(1, 2) {
            disk.without_power_loss();
        }
        let world = Arc::new(std::sync::Mutex::new(World::new(Arc::clone(&disk))));
        let configuration = chance.index(CONFIGURATIONS.len());
        let (sink, tallies) = (
            Self::spilling(root.path(), kind, &world, (policy, bytes_max), configuration),
            Tallies::new(0..lanes_of(configuration).listeners()),
        );
        let batch = PackedBatch::pool(1, 2 << 20, false).expect("memory").0.remove(0);
        let mut new = Self {
            disk,
            _entered: entered,
            root,
            world,
            kind,
            policy,
            bytes_max,
            sizes: sizes.0..sizes.1,
            configuration,
            sink,
            tallies,
            packed: Vec::new(),
            batch: LaneBatch::unpacked(batch),
            next: 1,
            lost: 0,
            happened: Happened::default(),
            elsewhere: 0,
            generation: 0,
            safe: (0, 0),
            bytes_begun: 0,
            books: String::new(),
        };
        new.sink.open_store().expect("it opens");
        new
    }

    fn spilling(
        root: &Path,
        kind: Kind,
        world: &Arc<std::sync::Mutex<World>>,
        (policy, bytes_max): (FullPolicy, u64),
        configuration: usize,
    ) -> Spilling<Destination> {
        let others = [root.join("1")].into_iter().filter(|other| other.exists()).collect();
        let lanes = lanes_of(configuration);
        let location = SpillLocation { directory: root.join("0"), bytes_max, lanes, others };
        let inner = Destination::new(kind, Arc::clone(world));
        let mut sink = Spilling::new(inner, "s", Some(location), policy).expect("memory");
        sink.disk.is_unawaited = is_unawaited;
        sink
    }

    fn listeners(&self) -> usize {
        lanes_of(self.configuration).listeners()
    }

    fn sum(&self, of: impl Fn(&SinkTally) -> u64) -> u64 {
        sum(&self.tallies, self.listeners(), of)
    }

    fn segments(&self) -> Vec<PathBuf> {
        let own = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "spill");
        self.disk.files().into_iter().filter(own).collect()
    }

    /// Packs datagrams of a sender that come now.
    fn pack(&mut self, sender: usize, chance: &mut Chance) -> u64 {
        self.packed.clear();
        let count = 1 + chance.below(if self.sizes.end > 4_000 { 8 } else { 20 });
        for _ in 0..count {
            let length = if chance.happens(1, 400) { 65_507 } else { chance.within(self.sizes.clone()) };
            let id = self.next;
            self.next += 1;
            let payload = payload(id, usize::try_from(length).expect("short"));
            mmsg::pack_known(address(id, sender), None, (payload, payload.len()), &mut self.packed);
            lock(&self.world).accept(id, sender, payload.len());
        }
        count
    }

    fn accept(&mut self, chance: &mut Chance) {
        let lane = chance.index(CONFIGURATIONS[self.configuration].len());
        let listener = CONFIGURATIONS[self.configuration][lane].0;
        let count = self.pack(sender_of(self.configuration, lane), chance);
        assert!(self.batch.unpack((listener, lane), &self.packed, |_| true), "the batch is long enough");
        self.tallies[listener].taken += count;
        self.tallies[listener].pending += count;
        self.sink.accept(&self.batch, &mut self.tallies);
    }

    fn when_due(&mut self) {
        if self.sink.due().is_some_and(|due| due <= clock::now()) {
            self.sink.when_due(&mut self.tallies);
        }
    }

    fn advance_to_due(&mut self) {
        if let Some(due) = self.sink.due() {
            self.disk.clock.advance(due.saturating_duration_since(clock::now()));
            self.sink.when_due(&mut self.tallies);
        }
    }

    /// A consumer that there is no more leaves datagrams in a directory of its own.
    fn leave_elsewhere(&mut self, chance: &mut Chance) {
        let directory = self.root.path().join("1");
        let opened = SpillStore::open(&directory, self.bytes_max, lanes_of(self.configuration), &[]);
        let Ok((mut store, _)) = opened else { return };
        let left = store.left();
        if left + store.bytes() > 0 {
            return;
        }
        let lane = chance.index(CONFIGURATIONS[self.configuration].len());
        // What moves in comes first, so it has senders of its own.
        self.generation += 1;
        for _ in 0..1 + chance.below(3) {
            self.pack(10 * self.generation + sender_of(self.configuration, lane), chance);
            assert!(self.batch.unpack((0, lane), &self.packed, |_| true));
            for datagram in self.batch.datagrams.datagrams() {
                store.push(lane, &datagram);
            }
            if store.write_out(|_, datagrams| self.elsewhere += datagrams).is_err() {
                store.forget_unwritten(|_, datagrams| self.lost += datagrams);
            }
        }
        if store.close(false).is_err() {
            self.happened.fault = true;
        }
    }

    /// The process ends, and the next one begins.
    fn restart(&mut self, end: End, configuration: Option<usize>, chance: &mut Chance) {
        if end == End::Clean {
            UNAWAITED_FROM.set(Some(self.disk.clock.passed() + Duration::from_secs(5)));
            self.disk.must_not_sleep_for(Duration::from_secs(60));
            self.sink.finish(&mut self.tallies, &mut |_| {});
            UNAWAITED_FROM.set(None);
            assert_eq!(self.sum(|tally| tally.pending), 0, "nothing is pending after the end");
            self.check_ledger();
        }
        self.end_of_process();
        self.lost += self.sum(|tally| tally.dropped.total() + tally.pending);
        let (before, decided) =
            (self.sum(|tally| tally.spilled), self.sum(|tally| tally.delivered + tally.dropped.total()));
        let safe = self.safe.0.saturating_sub(decided - self.safe.1);
        // The lock is free again.
        self.sink.disk.store = None;
        let mut is_cut = false;
        match end {
            End::Clean => {}
            End::Killed => {
                self.happened.kill = true;
                if chance.happens(1, 4) {
                    is_cut = self.damage(chance);
                }
            }
            End::PowerLoss => {
                self.happened.power_loss = true;
                // Segments that were given up may be there again.
                let gives_up = self.policy == FullPolicy::DropOldest || self.happened.fails_to_read;
                lock(&self.world).is_ordered &= !gives_up;
                self.disk.lose_power(chance);
            }
        }
        if configuration.is_none() && chance.happens(1, 6) {
            self.leave_elsewhere(chance);
        }
        self.configuration = configuration.unwrap_or_else(|| chance.index(CONFIGURATIONS.len()));
        self.open();
        let (found, torn) = (self.sum(|tally| tally.spilled), self.sum(|tally| tally.dropped.spill_torn));
        let elsewhere = std::mem::take(&mut self.elsewhere);
        let at_least = match end {
            _ if is_cut => 0,
            End::PowerLoss => safe.min(before),
            End::Clean | End::Killed => before + elsewhere,
        };
        assert!(found + torn >= at_least, "{end:?}: {at_least} were there, {found} are found and {torn} are torn");
        // What is found may have been sent, so the number that is found does not tell what is missing.
        self.lost += (before + elsewhere).saturating_sub(at_least);
        let is_intact = !(self.happened.fault || self.happened.damage || self.happened.power_loss);
        assert!(!is_intact || torn == 0, "{torn} are torn without a cause");
        if end == End::Clean && is_intact {
            assert_eq!(found, before + elsewhere, "a clean end leaves what its ledger says");
        }
        self.books += &format!("{end:?} {before} {found} {torn}; ");
        self.safe = (0, 0);
    }

    /// What is on the way to a destination may still come when its sender is gone.
    fn end_of_process(&mut self) {
        self.sink.inner.die();
        let (repeats, bound) = (lock(&self.world).end_of_process(), self.sum(|tally| tally.spill_repeats_at_most));
        let is_known = !(self.happened.power_loss || self.happened.damage);
        assert!(!is_known || repeats <= bound, "{repeats} came again, and {bound} at most were to");
        self.books += &format!("{repeats} again; ");
    }

    /// The next process begins. One whose disk fails ends at once, and is started again.
    fn open(&mut self) {
        for _ in 0..3 {
            self.sink = Self::spilling(
                self.root.path(),
                self.kind,
                &self.world,
                (self.policy, self.bytes_max),
                self.configuration,
            );
            match self.sink.open_store() {
                Ok(()) => break,
                Err(error) => {
                    let (_, faults) = self.disk.calls();
                    assert!(faults > 0, "it does not open: {error}");
                    self.disk.works();
                }
            }
        }
        self.tallies = Tallies::new(0..self.listeners());
        self.sink.count_opened(&mut self.tallies);
        assert!(self.sink.disk.store.is_some(), "it opens on a disk that works");
        self.bytes_begun = self.sink.disk.store.as_ref().map_or(0, SpillStore::bytes);
    }

    /// Changes a byte of a file, or cuts the file there. Returns whether datagrams may be missing for it.
    fn damage(&mut self, chance: &mut Chance) -> bool {
        let segments = self.segments();
        let Some(path) = segments.get(chance.index(segments.len().max(1))) else { return false };
        self.happened.damage = true;
        let mut bytes = fs::read(path).expect("readable");
        let at = chance.index(bytes.len().max(1));
        let is_cut = chance.happens(1, 3) || bytes.is_empty();
        if is_cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << chance.below(8);
        }
        fs::write(path, bytes).expect("written");
        if self.disk.records() {
            self.disk.adopt();
        }
        is_cut || self.happened.fault || self.happened.power_loss
    }

    fn check_ledger(&self) {
        for listener in 0..self.listeners() {
            let tally = &self.tallies[listener];
            let decided = tally.delivered + tally.dropped.total() + tally.pending + tally.spilled;
            assert_eq!(tally.taken + tally.spilled_before + tally.spilled_again, decided, "it closes: {tally:?}");
        }
    }

    fn check(&mut self) {
        self.check_ledger();
        let Some(store) = &self.sink.disk.store else { return };
        let spilled = self.sum(|tally| tally.spilled);
        assert_eq!(spilled, store.left(), "the ledger has what the spill has");
        let detached = self.sink.work.as_ref().is_some_and(|work| work.held == FrameLocation::Nowhere);
        if store.unwritten_bytes() == 0 {
            assert_eq!(self.sum(|tally| tally.pending), u64::from(detached), "nothing else is pending");
        }
        if self.sink.link == LinkState::Up {
            assert!(store.is_empty(), "what is in the spill is sent first");
        }
        if !self.happened.fault {
            let limit = self.bytes_max.max(self.bytes_begun);
            assert!(store.bytes() <= limit, "{} bytes are too many", store.bytes());
            let segments = self.segments();
            if self.happened.power_loss || self.happened.damage || self.root.path().join("1").exists() {
                return;
            }
            let bytes: u64 = segments.iter().map(|path| path.metadata().map_or(0, |found| found.len())).sum();
            assert_eq!(bytes, store.bytes(), "it knows how much is on the disk");
            assert!(segments.len() < FILES_MAX, "{} files are too many", segments.len());
        }
    }

    /// What was on the disk when all was synced is there after a power loss, unless it was decided since.
    fn note_synced(&mut self) {
        let decided = self.sum(|tally| tally.delivered + tally.dropped.total());
        if !self.disk.records() || self.happened.fault || self.sink.disk.next_sync.is_some() {
            return;
        }
        self.safe = (self.sum(|tally| tally.spilled), decided);
    }

    fn act(&mut self, run: &mut Run, chance: &mut Chance) {
        lock(&self.world).chance = Chance::new(chance.next());
        self.disk.must_not_sleep_for(HANG);
        let passed = self.disk.clock.passed();
        match chance.weighted(&[
            (36, 0),
            (10, 1),
            (12, 2),
            (14, 3),
            (6, 4),
            (4, 5),
            (3, 6),
            (4, 7),
            (4, 8),
            (2, 9),
            (3, 10),
            (2, 11),
            (3, 12),
        ]) {
            0 => {
                self.accept(chance);
                run.trace(|| format!("datagrams up to {} come", self.next - 1));
            }
            1 => {
                run.trace(|| "the queue is empty".to_owned());
                self.sink.flush(&mut self.tallies);
            }
            2 => {
                let length = Duration::from_millis(*chance.pick(&[1, 20, 100, 251, 1_001, 4_000]));
                run.trace(|| format!("{length:?} pass"));
                self.disk.clock.advance(length);
                self.when_due();
            }
            3 => {
                run.trace(|| "it is due".to_owned());
                self.advance_to_due();
            }
            4 => {
                let length = Duration::from_millis(*chance.pick(&[10, 300, 2_000, 10_000, 60_000]));
                run.trace(|| format!("the destination is away for {length:?}"));
                lock(&self.world).down_until = passed + length;
            }
            5 => {
                run.trace(|| "the destination is back".to_owned());
                lock(&self.world).down_until = passed;
            }
            6 => {
                let is_narrow = !lock(&self.world).is_narrow;
                run.trace(|| format!("the destination takes parts: {is_narrow}"));
                lock(&self.world).is_narrow = is_narrow;
            }
            7 => {
                let free = chance.below(*chance.clone().pick(&[1, 200, 5_000, 300_000]));
                let error = *chance.pick(&[Errno::ENOSPC, Errno::EDQUOT]);
                run.trace(|| format!("the disk has {free} bytes left, then {error}"));
                self.happened.fault = true;
                self.disk.has_free(free, error as i32);
            }
            8 => {
                let call = *chance.pick(&Call::ALL);
                let when = match chance.happens(2, 3) {
                    true => When::After(chance.below(4)),
                    false => When::Often(1, 1 + chance.within(1..10)),
                };
                run.trace(|| format!("{call:?} fails: {when:?}"));
                self.happened.fault = true;
                self.disk.fail(call, when, Errno::EIO as i32);
                self.happened.fails_to_read |= call == Call::Read;
                self.happened.fails_to_remove |= call == Call::Remove;
                self.happened.fails_to_write |= call == Call::Write;
            }
            9 => {
                let segments = self.segments();
                if let Some(path) = segments.get(chance.index(segments.len().max(1))) {
                    let at = chance.below(path.metadata().map_or(0, |found| found.len()));
                    run.trace(|| format!("{} is bad at {at}", path.file_name().unwrap_or_default().display()));
                    (self.happened.fault, self.happened.fails_to_read) = (true, true);
                    self.disk.is_bad(path, at..at + 1 + chance.below(4_096));
                }
            }
            10 => {
                run.trace(|| "the disk works".to_owned());
                self.disk.works();
            }
            11 => {
                run.trace(|| "it ends in good order".to_owned());
                self.restart(End::Clean, None, chance);
            }
            _ => {
                let is_power = self.disk.records() && chance.happens(1, 2);
                let end = if is_power { End::PowerLoss } else { End::Killed };
                run.trace(|| format!("{end:?}"));
                self.restart(end, None, chance);
            }
        }
        if self.happened.fails_to_remove && self.happened.fails_to_write {
            // What is given up may stay then, and be sent by the next process.
            lock(&self.world).is_ordered = false;
        }
        self.note_synced();
        run.trace(|| {
            let tally = |listener| format!("{:?}", self.tallies[listener]);
            let zero =
                |text: String| text.split(", ").filter(|part| !part.contains(": 0")).collect::<Vec<_>>().join(", ");
            format!("    {:?} {}", self.sink.link, zero((0..self.listeners()).map(tally).collect()))
        });
    }

    /// Faults stop, and the destination takes all.
    fn drain(&mut self) {
        self.disk.works();
        {
            let mut world = lock(&self.world);
            (world.is_narrow, world.is_good, world.down_until) = (false, true, self.disk.clock.passed());
        }
        for _ in 0..2 {
            for turn in 0.. {
                self.sink.flush(&mut self.tallies);
                self.check();
                if self.sink.link == LinkState::Up && self.sum(|tally| tally.pending + tally.spilled) == 0 {
                    break;
                }
                assert!(turn < 5_000, "it does not drain: {:?}", self.sink.link);
                self.advance_to_due();
            }
            // A file that could not be removed then is removed by the next process.
            self.restart(End::Clean, Some(1), &mut Chance::new(1));
        }
    }

    /// A destination that is back is found again although more comes than the spill holds.
    fn flood(&mut self, run: &mut Run) {
        self.disk.works();
        let sizes = std::mem::replace(&mut self.sizes, 20_000..40_000);
        let down_until = self.disk.clock.passed() + Duration::from_secs(1);
        lock(&self.world).down_until = down_until;
        let (delivered, given_up) = (self.sum(|tally| tally.delivered), self.sum(|tally| tally.dropped.spill_full));
        let mut chance = run.setup().clone();
        for turn in 0.. {
            let is_full = self.sum(|tally| tally.dropped.spill_full) > given_up;
            let is_back = self.disk.clock.passed() > down_until;
            if is_back && self.sum(|tally| tally.delivered) > delivered {
                break;
            }
            assert!(turn < 200, "it is not found again: {:?}, full: {is_full}", self.sink.link);
            self.accept(&mut chance);
            self.check();
            if is_full {
                self.disk.clock.advance(Duration::from_millis(250));
                self.when_due();
            }
        }
        self.sizes = sizes;
    }

    fn finish(mut self, run: &mut Run) -> String {
        if matches!(self.kind, Kind::Answers(_)) && self.policy == FullPolicy::DropOldest {
            self.flood(run);
        }
        self.drain();
        self.drain();
        assert_eq!(self.segments(), Vec::<PathBuf>::new(), "the spill is empty");
        self.lost += self.sum(|tally| tally.dropped.total());
        let world = lock(&self.world);
        let missing = world.missing();
        let Happened { fault, fails_to_read, damage, power_loss, kill, .. } = self.happened;
        assert!(missing <= self.lost, "{missing} are missing, and {} are counted", self.lost);
        let is_exact = !(fault || fails_to_read || damage || power_loss || kill);
        if is_exact && matches!(self.kind, Kind::AtOnce | Kind::Any) {
            assert_eq!(missing, self.lost, "each that is counted as lost is missing");
        }
        format!("{}{} sent, {} missing, {} counted", self.books, self.next - 1, missing, self.lost)
    }
}

#[test]
fn a_spill_accounts_for_every_datagram_through_faults_kills_and_power_losses() {
    let simulation =
        Simulation::new("a_spill_accounts_for_every_datagram_through_faults_kills_and_power_losses", SEEDS, STEPS);
    simulation.with_corpus(CORPUS).check(|run| {
        let mut sim = Sim::new(run.setup());
        run.trace(|| format!("{:?}, {:?}, {} bytes, sizes {:?}", sim.kind, sim.policy, sim.bytes_max, sim.sizes));
        while let Some(mut chance) = run.step() {
            sim.act(run, &mut chance);
            sim.check();
        }
        sim.finish(run)
    });
}
