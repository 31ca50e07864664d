//! A sink that writes everything to its spill first, before a server that comes and goes, on a disk that fails, through
//! kills, power losses and restarts. The server of the model remembers the ids of batches, as ClickHouse does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mmsg::PackedBatch;
use nix::errno::Errno;
use seeds::{Chance, Run, Simulation};
use tempfile::TempDir;

use super::super::destination::{address, numbers_of, payload};
use super::super::settings::SpillLocation;
use super::*;
use crate::{SpillLane, SpillLanes};
use udpd_base::ledger::{CounterTable as _, SinkTally};
use udpd_base::os::threads::lock;
use udpd_base::testing::simulated::{self, Entered};
use udpd_base::testing::simulated_disk::{Call, SimulatedDisk, When};

const CORPUS: &str = include_str!("spill_first.seeds");

const SEEDS: u64 = 250;
const STEPS: u64 = 80;

const EVERY: Duration = Duration::from_secs(1);

/// The lanes: listener, name and address.
const LANES: [(usize, &str, &str); 3] = [(0, "in", "127.0.0.1:1"), (0, "in", "127.0.0.1:2"), (1, "flows", "[::]:3")];
const LISTENERS: usize = 2;

/// What the server has, and what it does next.
#[derive(Debug)]
struct Server {
    chance: Chance,
    is_down: bool,
    /// It does everything that is asked.
    is_good: bool,
    /// The batches that it knows by their ids, with their content.
    known: BTreeMap<(u64, u64, usize), Vec<u32>>,
    /// How often it has each datagram, if it takes a batch that it knows again, and if it does not.
    taken: BTreeMap<u32, u64>,
    taken_once: BTreeMap<u32, u64>,
    last: BTreeMap<usize, u32>,
    is_ordered: bool,
}

impl Server {
    /// It gets a batch and takes it. The same id has the same content, always.
    fn take(&mut self, batch: &SentBatch) {
        let ids: Vec<u32> = batch.datagrams.iter().map(|(_, id, _)| *id).collect();
        ids.iter().for_each(|id| *self.taken.entry(*id).or_default() += 1);
        let name = (batch.name.0, batch.name.1, ids.len());
        if let Some(known) = self.known.get(&name) {
            return assert_eq!(*known, ids, "a batch that comes again has the same content");
        }
        for (_, id, sender) in &batch.datagrams {
            let again = self.taken_once.entry(*id).or_default();
            *again += 1;
            let last = self.last.entry(*sender).or_default();
            assert!(!self.is_ordered || *again > 1 || *last < *id, "{id} of {sender} came behind {last}");
            *last = (*last).max(*id);
        }
        self.known.insert(name, ids);
    }
}

/// Datagrams with their listener, number and sender.
#[derive(Debug, Clone, Default)]
struct SentBatch {
    name: (u64, u64),
    datagrams: Vec<(usize, u32, usize)>,
}

#[derive(Debug)]
struct Destination {
    server: Arc<Mutex<Server>>,
    connections: usize,
    datagrams_max: usize,
    filling: SentBatch,
    on_the_way: Vec<(u64, SentBatch)>,
    answers: VecDeque<BatchAnswer>,
    next: u64,
    is_stopped: bool,
}

impl Destination {
    /// The network moves something.
    fn happen(&mut self) {
        let mut server = lock(&self.server);
        if self.on_the_way.is_empty() || server.is_down {
            return;
        }
        let place = server.chance.index(self.on_the_way.len());
        let arrives = server.is_good || server.chance.happens(7, 8);
        if !arrives {
            return;
        }
        let (ticket, batch) = &self.on_the_way[place];
        let mut answer = BatchAnswer { ticket: *ticket, is_decided: true, ..BatchAnswer::default() };
        if !server.is_good && server.chance.happens(1, 12) {
            batch.datagrams.iter().for_each(|(listener, ..)| add_count(&mut answer.refused, *listener, 1));
        } else {
            server.take(batch);
        }
        if !server.is_good && answer.refused.is_empty() && server.chance.happens(1, 6) {
            // The answer is lost, and the batch is sent again.
            let mut repeats = Vec::new();
            batch.datagrams.iter().for_each(|(listener, ..)| add_count(&mut repeats, *listener, 1));
            let ticket = u64::MAX;
            return self.answers.push_back(BatchAnswer { ticket, repeats, ..BatchAnswer::default() });
        }
        self.on_the_way.remove(place);
        self.answers.push_back(answer);
    }

    /// The process is gone. What it has sent may still arrive.
    fn die(&mut self) {
        let mut server = lock(&self.server);
        for (_, batch) in std::mem::take(&mut self.on_the_way) {
            if server.chance.happens(1, 2) {
                server.take(&batch);
            }
        }
    }
}

impl BatchDestination for Destination {
    fn triggers(&self) -> BatchTriggers {
        BatchTriggers { datagrams: self.datagrams_max as u64, bytes: 100 << 10, every: EVERY }
    }

    fn has_room(&self) -> bool {
        self.on_the_way.len() < self.connections
    }

    fn is_failing(&self) -> bool {
        lock(&self.server).is_down
    }

    fn begin_batch(&mut self, origin: u64, begin: u64) {
        self.filling = SentBatch { name: (origin, begin), datagrams: Vec::new() };
    }

    fn add(&mut self, listener: usize, lane: usize, datagram: &Datagram<'_>) -> bool {
        let (id, sender) = numbers_of(datagram.source().expect("it has one"));
        assert_eq!(datagram.payload(), payload(id, datagram.payload().len()), "datagram {id} is whole");
        assert_eq!(LANES[lane].0, listener);
        self.filling.datagrams.push((listener, id, sender));
        self.filling.datagrams.len() >= self.datagrams_max
    }

    fn send(&mut self) -> u64 {
        assert!(self.has_room() && !self.filling.datagrams.is_empty());
        self.next += 1;
        self.on_the_way.push((self.next, std::mem::take(&mut self.filling)));
        self.next
    }

    fn take_answer(&mut self) -> Option<BatchAnswer> {
        self.answers.pop_front()
    }

    fn wait(&mut self, limit: Duration) {
        self.happen();
        clock::sleep(limit);
    }

    fn stop(&mut self) {
        self.is_stopped = true;
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}

/// What has happened that makes an exact sum a bound.
#[derive(Debug, Clone, Copy, Default)]
struct Happened {
    fault: bool,
    damage: bool,
    power_loss: bool,
    kill: bool,
}

struct Sim {
    disk: Arc<SimulatedDisk>,
    _entered: Entered,
    root: TempDir,
    server: Arc<Mutex<Server>>,
    connections: usize,
    policy: FullPolicy,
    bytes_max: u64,
    sizes: (u64, u64),
    sink: SpillFirst<Destination>,
    tallies: Tallies,
    packed: Vec<u8>,
    batch: LaneBatch,
    next: u32,
    accepted: BTreeSet<u32>,
    lost: u64,
    repeats_at_most: u64,
    happened: Happened,
    books: String,
}

impl Sim {
    fn new(chance: &mut Chance) -> Self {
        let root = tempfile::tempdir_in(udpd_base::testing::memory()).expect("a directory");
        let disk = SimulatedDisk::of(root.path(), Chance::new(chance.next()));
        let entered = simulated::enter(disk.clone());
        let connections = *chance.pick(&[1, 1, 2, 4, 16]);
        let policy = *chance.pick(&[FullPolicy::DropNewest, FullPolicy::DropOldest, FullPolicy::Block]);
        let bytes_max = *chance.pick(&[600 << 10, 1 << 20, 4 << 20]);
        let sizes = chance.weighted(&[(9, (0, 100)), (4, (0, 3_000)), (2, (20_000, 40_000))]);
        if chance.happens(1, 2) {
            disk.without_power_loss();
        }
        let server = Arc::new(Mutex::new(Server {
            chance: Chance::new(0),
            is_down: false,
            is_good: false,
            known: BTreeMap::new(),
            taken: BTreeMap::new(),
            taken_once: BTreeMap::new(),
            last: BTreeMap::new(),
            is_ordered: connections == 1,
        }));
        let sink = Self::sink(root.path(), &server, connections, (policy, bytes_max), chance);
        let batch = PackedBatch::pool(1, 2 << 20, false).expect("memory").0.remove(0);
        let mut new = Self {
            disk,
            _entered: entered,
            root,
            server,
            connections,
            policy,
            bytes_max,
            sizes,
            sink,
            tallies: Tallies::new(0..LISTENERS),
            packed: Vec::new(),
            batch: LaneBatch::unpacked(batch),
            next: 1,
            accepted: BTreeSet::new(),
            lost: 0,
            repeats_at_most: 0,
            happened: Happened::default(),
            books: String::new(),
        };
        new.sink.begin();
        new
    }

    fn sink(
        root: &Path,
        server: &Arc<Mutex<Server>>,
        connections: usize,
        (policy, bytes_max): (FullPolicy, u64),
        chance: &mut Chance,
    ) -> SpillFirst<Destination> {
        let lane = |(lane, &(listener, name, bound)): (usize, &(usize, &str, &str))| SpillLane {
            lane,
            listener,
            name: name.to_owned(),
            bound: bound.to_owned(),
        };
        let lanes = SpillLanes::of(LANES.iter().enumerate().map(lane).collect()).expect("lanes");
        let location = SpillLocation { directory: root.join("0"), bytes_max, lanes, others: Vec::new() };
        let destination = Destination {
            server: Arc::clone(server),
            connections,
            // An operator may change it: what is frozen keeps its limits.
            datagrams_max: *chance.pick(&[1, 7, 40, 200]),
            filling: SentBatch::default(),
            on_the_way: Vec::new(),
            answers: VecDeque::new(),
            next: 0,
            is_stopped: false,
        };
        SpillFirst::around(destination, SpillWriter::new("s", Some(location), policy))
    }

    fn sum(&self, of: impl Fn(&SinkTally) -> u64) -> u64 {
        (0..LISTENERS).map(|listener| of(&self.tallies[listener])).sum()
    }

    fn accept(&mut self, chance: &mut Chance) {
        let lane = chance.index(LANES.len());
        self.packed.clear();
        let count = 1 + chance.below(20);
        for _ in 0..count {
            let length = usize::try_from(chance.within(self.sizes.0..self.sizes.1)).expect("short");
            let payload = payload(self.next, length);
            mmsg::pack_known(address(self.next, lane), None, (payload, length), &mut self.packed);
            self.accepted.insert(self.next);
            self.next += 1;
        }
        let listener = LANES[lane].0;
        assert!(self.batch.unpack((listener, lane), &self.packed, |_| true), "the batch is long enough");
        self.tallies[listener].taken += count;
        self.tallies[listener].pending += count;
        self.sink.accept(&self.batch, &mut self.tallies);
    }

    /// Does what is due; what is due stays so only where the disk or the server is waited for.
    fn when_due(&mut self) {
        if self.sink.due().is_some_and(|due| due <= clock::now()) {
            self.sink.when_due(&mut self.tallies);
            assert!(self.sink.due().is_none_or(|due| due > clock::now()), "it would spin: {:?}", self.sink.unsent());
        }
    }

    fn check(&self) {
        for listener in 0..LISTENERS {
            let tally = &self.tallies[listener];
            let decided = tally.delivered + tally.dropped.total() + tally.pending + tally.spilled;
            assert_eq!(tally.taken + tally.spilled_before + tally.spilled_again, decided, "it closes: {tally:?}");
        }
        let Some(store) = &self.sink.disk.store else { return };
        assert_eq!(self.sum(|tally| tally.spilled), store.left(), "the ledger has what the spill has");
        let detached = self.sink.on_their_way.iter().filter(|batch| batch.held == FrameLocation::Nowhere);
        let detached: u64 = detached.map(BatchOnItsWay::datagrams).sum();
        assert_eq!(self.sum(|tally| tally.pending), store.unwritten_datagrams() + detached, "nothing else is pending");
    }

    fn end_of_process(&mut self) {
        self.sink.destination.die();
        // A process that is killed takes with it what it has not counted yet.
        let uncounted = self.sink.destination.answers.drain(..).flat_map(|answer| answer.repeats);
        self.repeats_at_most += uncounted.map(|(_, datagrams)| datagrams).sum::<u64>();
        self.lost += self.sum(|tally| tally.dropped.total() + tally.pending);
        self.repeats_at_most += self.sum(|tally| tally.stream_repeats_at_most + tally.spill_repeats_at_most);
        self.sink.disk.store = None;
    }

    fn restart(&mut self, is_clean: bool, chance: &mut Chance) {
        if is_clean {
            self.disk.must_not_sleep_for(Duration::from_secs(60));
            self.sink.disk.is_unawaited = || true;
            self.sink.finish(&mut self.tallies, &mut |_| {});
            assert_eq!(self.sum(|tally| tally.pending), 0, "nothing is pending after the end");
        }
        let before = self.sum(|tally| tally.spilled);
        self.end_of_process();
        let is_power_loss = !is_clean && self.disk.records() && chance.happens(1, 2);
        if is_power_loss {
            self.happened.power_loss = true;
            lock(&self.server).is_ordered = false;
            self.disk.lose_power(chance);
        }
        self.happened.kill |= !is_clean;
        for _ in 0..3 {
            let (root, server, what) = (self.root.path(), &self.server, (self.policy, self.bytes_max));
            self.sink = Self::sink(root, server, self.connections, what, chance);
            match self.sink.disk.open_store() {
                Ok(()) => break,
                Err(error) => {
                    assert!(self.disk.calls().1 > 0, "it does not open: {error}");
                    self.disk.works();
                }
            }
        }
        self.tallies = Tallies::new(0..LISTENERS);
        self.sink.begin();
        self.sink.disk.count_opened(&mut self.tallies);
        let (found, torn) = (self.sum(|tally| tally.spilled), self.sum(|tally| tally.dropped.spill_torn));
        if is_power_loss {
            self.lost += before;
        } else if !(self.happened.fault || self.happened.power_loss) {
            assert_eq!((found, torn), (before, 0), "the next process finds what the ledger had");
        }
        self.books += &format!("{is_clean} {before} {found} {torn}; ");
    }

    fn act(&mut self, run: &mut Run, chance: &mut Chance) {
        lock(&self.server).chance = Chance::new(chance.next());
        self.disk.must_not_sleep_for(Duration::from_secs(600));
        let is_blocked = self.policy == FullPolicy::Block;
        self.sink.disk.is_unawaited = || false;
        match chance.weighted(&[(36, 0), (10, 1), (12, 2), (30, 3), (5, 4), (3, 5), (3, 6), (3, 7), (5, 8), (3, 9)]) {
            0 => {
                run.trace(|| format!("datagrams from {} on come", self.next));
                if is_blocked && lock(&self.server).is_down {
                    self.sink.disk.is_unawaited = || true;
                }
                self.accept(chance);
                self.sink.disk.is_given_up = false;
            }
            1 => {
                run.trace(|| "the queue is empty".to_owned());
                self.sink.disk.is_unawaited = || true;
                self.sink.flush(&mut self.tallies);
                self.sink.disk.is_given_up = false;
            }
            2 => {
                let length = Duration::from_millis(*chance.pick(&[1, 20, 251, 1_001, 4_000]));
                run.trace(|| format!("{length:?} pass"));
                self.disk.clock.advance(length);
                self.sink.disk.is_unawaited = || true;
                self.when_due();
                self.sink.disk.is_given_up = false;
            }
            3 => {
                run.trace(|| "the network moves something".to_owned());
                self.sink.destination.happen();
            }
            4 => {
                let mut server = lock(&self.server);
                server.is_down = !server.is_down;
                run.trace(|| format!("the server is down: {}", server.is_down));
            }
            5 => {
                let free = chance.below(*chance.clone().pick(&[1, 200, 5_000, 300_000]));
                run.trace(|| format!("the disk has {free} bytes left"));
                self.happened.fault = true;
                self.disk.has_free(free, Errno::ENOSPC as i32);
            }
            6 => {
                let call = *chance.pick(&Call::ALL);
                let when = match chance.happens(2, 3) {
                    true => When::After(chance.below(4)),
                    false => When::Often(1, 1 + chance.within(1..10)),
                };
                run.trace(|| format!("{call:?} fails: {when:?}"));
                self.happened.fault = true;
                self.disk.fail(call, when, Errno::EIO as i32);
            }
            7 => {
                run.trace(|| "the disk works".to_owned());
                self.disk.works();
            }
            8 => {
                run.trace(|| "it ends in good order".to_owned());
                self.restart(true, chance);
            }
            _ => {
                run.trace(|| "it is killed".to_owned());
                self.restart(false, chance);
            }
        }
        if self.happened.fault {
            // What a disk that fails does not remove is sent again, behind what came after it.
            lock(&self.server).is_ordered = false;
        }
        run.trace(|| {
            let tally = |listener| format!("{:?}", self.tallies[listener]);
            let zero =
                |text: String| text.split(", ").filter(|part| !part.contains(": 0")).collect::<Vec<_>>().join(", ");
            format!("    {} on their way, {}", self.sink.on_their_way.len(), zero((0..LISTENERS).map(tally).collect()))
        });
    }

    /// Faults stop, and the server takes all.
    fn drain(&mut self) {
        self.disk.works();
        {
            let mut server = lock(&self.server);
            (server.is_down, server.is_good) = (false, true);
        }
        self.sink.disk.is_unawaited = || false;
        for turn in 0.. {
            self.sink.flush(&mut self.tallies);
            self.check();
            if self.sum(|tally| tally.pending + tally.spilled) == 0 {
                break;
            }
            assert!(turn < 5_000, "it does not drain: {:?}", self.sink.on_their_way);
            self.sink.destination.happen();
            self.disk.clock.advance(Duration::from_millis(300));
        }
        self.restart(true, &mut Chance::new(1));
    }

    fn finish(mut self) -> String {
        self.drain();
        self.drain();
        let segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "spill");
        let left: Vec<_> = self.disk.files().into_iter().filter(segment).collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "the spill is empty");
        self.end_of_process();
        let server = lock(&self.server);
        let Happened { fault, damage, power_loss, .. } = self.happened;
        let missing = self.accepted.iter().filter(|id| !server.taken.contains_key(id)).count() as u64;
        assert!(missing <= self.lost, "{missing} are missing, and {} are counted", self.lost);
        let twice = |taken: &BTreeMap<u32, u64>| taken.values().map(|times| times - 1).sum::<u64>();
        let (again, once_again) = (twice(&server.taken), twice(&server.taken_once));
        if !(power_loss || damage || fault) {
            assert_eq!(once_again, 0, "a server that knows ids has each datagram once");
            assert!(again <= self.repeats_at_most, "{again} came again of {} at most", self.repeats_at_most);
        }
        let (sent, lost, repeats) = (self.next - 1, self.lost, self.repeats_at_most);
        format!("{}{sent} sent, {missing} missing, {lost} counted, {again} again of {repeats}", self.books)
    }
}

#[test]
fn a_server_that_knows_ids_has_each_datagram_once_through_kills_and_lost_answers() {
    let simulation =
        Simulation::new("a_server_that_knows_ids_has_each_datagram_once_through_kills_and_lost_answers", SEEDS, STEPS);
    simulation.with_corpus(CORPUS).check(|run| {
        let mut sim = Sim::new(run.setup());
        run.trace(|| format!("{} connections, {:?}, {} bytes", sim.connections, sim.policy, sim.bytes_max));
        while let Some(mut chance) = run.step() {
            sim.act(run, &mut chance);
            sim.check();
        }
        sim.finish()
    });
}
