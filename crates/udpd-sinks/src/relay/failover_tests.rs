//! A relay against a simulated kernel and network: destinations refuse, take nothing, take a part, have no route and
//! come back, while sources send. Each datagram is in one place, and once the faults end all arrive again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use mmsg::PackedBatch;
use nix::libc;
use seeds::{Run, Simulation};

use super::simulated::{Network, PeerState};
use super::*;
use crate::weights;
use udpd_base::ledger::SinkTally;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::testing::scenes;
use udpd_base::testing::simulated::{Simulated, enter};

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

/// A clock that moves when it is told.
#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    passed: Mutex<Duration>,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), passed: Mutex::default() }
    }
}

impl Simulated for Clock {
    fn now(&self) -> Instant {
        self.start + *self.passed.lock().expect("one thread")
    }

    fn sleep(&self, length: Duration) {
        *self.passed.lock().expect("one thread") += length;
    }
}

const PROBE: Duration = Duration::from_secs(10);

fn source(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, number).into()
}

/// A datagram of NetFlow 9, some with a template before its record, of one of two lengths.
fn export(from: usize, number: u32, chance: &mut seeds::Chance) -> Vec<u8> {
    let numbers = [70_000, 1_700_000_000, number, from as u32].map(u32::to_be_bytes).concat();
    let template: &[u16] = if chance.happens(1, 4) { &[0, 12, 256, 1, 8, 4] } else { &[] };
    let sets = [template, if chance.happens(1, 3) { &[256, 8, 7, 7] } else { &[256, 4] }].concat();
    let short = |numbers: &[u16]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>();
    [short(&[9, 1]), numbers, short(&sets)].concat()
}

/// Whether the relay has made a datagram: a template alone.
fn is_repeat(datagram: &[u8]) -> bool {
    datagram[20..22] == [0, 0] && datagram.len() == 32
}

fn count_exports(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().filter(|datagram| !is_repeat(datagram)).count()
}

/// How many runs have begun.
static RUNS: AtomicU64 = AtomicU64::new(0);

struct World {
    clock: Arc<Clock>,
    network: Network,
    relay: RelaySink,
    ledgers: Vec<Arc<DestinationLedger>>,
    tallies: Tallies,
    peers: Vec<SocketAddr>,
    /// So many of the last destinations are for the sources of the route.
    routed: usize,
    is_failover: bool,
    /// By source: how many it has sent.
    sent: [u32; 8],
    /// How many of each destination's datagrams were looked at, and the last of each source there.
    seen: Vec<(usize, [Option<u32>; 8])>,
    offered: u64,
}

/// The first source of the route, which the others behind it belong to.
const ROUTED: usize = 4;

impl World {
    /// The places of the destinations of a source.
    fn group(&self, source: usize) -> Range<usize> {
        let first = self.peers.len() - self.routed;
        if self.routed > 0 && source >= ROUTED { first..self.peers.len() } else { 0..first }
    }

    /// The sources that the route leaves out.
    fn unrouted(&self) -> Range<usize> {
        0..if self.routed > 0 { ROUTED } else { self.sent.len() }
    }

    /// So many datagrams come from any of these sources.
    fn send(&mut self, count: u64, from: Range<usize>, chance: &mut seeds::Chance) {
        let mut packed = Vec::new();
        for _ in 0..count {
            let from = from.start + chance.index(from.len());
            self.sent[from] += 1;
            let payload = export(from, self.sent[from], chance);
            let address = SocketAddr::new(source(from as u8), 5000);
            mmsg::pack_known(address, None, (&payload, payload.len()), &mut packed);
        }
        let block = PackedBatch::pool(1, packed.len().max(4096), false).expect("memory").0.remove(0);
        let mut batch = LaneBatch::unpacked(block);
        assert!(batch.unpack((0, 0), &packed, |_| true));
        self.tallies[0].pending += count;
        self.offered += count;
        self.relay.accept(&batch, &mut self.tallies);
        Sink::flush(&mut self.relay, &mut self.tallies);
    }

    fn pass(&mut self, time: Duration) {
        self.clock.sleep(time);
        if Sink::due(&self.relay).is_some_and(|due| due <= self.clock.now()) {
            Sink::when_due(&mut self.relay, &mut self.tallies);
        }
    }

    fn check(&mut self) -> SinkTally {
        let tally = self.tallies[0];
        let sum = tally.pending + tally.delivered + tally.dropped.sink_error;
        assert_eq!(sum, self.offered, "each datagram is in one place: {tally:?}");
        let mut taken = 0;
        let is_failover = self.is_failover;
        let groups: Vec<Range<usize>> = (0..self.sent.len()).map(|source| self.group(source)).collect();
        let owner = |(from, group): (usize, &Range<usize>)| {
            let peers: Vec<PeerAddress> = self.peers[group.clone()].iter().copied().map(PeerAddress::from).collect();
            weights::shares(&peers, &[]).place_of(source(from as u8))
        };
        let owners: Vec<usize> = groups.iter().enumerate().map(owner).collect();
        for (place, &peer) in self.peers.iter().enumerate() {
            let (first, last) = &mut self.seen[place];
            self.network.peer(peer, |peer| {
                for datagram in peer.taken[*first..].iter().filter(|datagram| !is_repeat(datagram)) {
                    let from = usize::from(datagram[19]);
                    let number = u32::from_be_bytes(*datagram[12..].first_chunk().expect("a header"));
                    let before = last[from].replace(number);
                    assert!(before.is_none_or(|before| before < number), "{before:?} before {number} of {from}");
                    let group = &groups[from];
                    let own = group.start + owners[from];
                    assert!(is_failover || place == own, "a source has one destination");
                    assert!(group.contains(&place), "{from} has its own destinations");
                }
                *first = peer.taken.len();
                taken += peer.taken.len() as u64;
            });
        }
        let counts = DestinationLedger::sum(self.ledgers.iter().map(Arc::as_ref));
        let templates = counts.iter().map(|sum| sum.counts.templates).sum::<u64>();
        let expected = tally.delivered + templates;
        assert_eq!(taken, expected, "what counts as delivered, or as templates, the kernel has taken: {tally:?}");
        tally
    }
}

fn simulate(run: &mut Run) -> String {
    let clock = Arc::new(Clock::new());
    let _entered = enter(Arc::clone(&clock) as Arc<dyn Simulated>);
    let network = Network::enter();
    let setup = run.setup();
    let count = 2 + setup.below(3) as u8;
    let peers: Vec<SocketAddr> = (1..=count).map(|place| SocketAddr::from(([127, 0, 7, place], 9))).collect();
    let (is_failover, never_waits) = (setup.happens(2, 3), setup.happens(1, 4));
    let distribute = if is_failover { Distribute::Failover } else { Distribute::BySource };
    let (keep_source, spills) = (KeepSource::No, false);
    let templates = setup.below(3) as usize * 4;
    let mode = RelayMode { distribute, weights: &[], probe_every: PROBE, keep_source, never_waits, spills, templates };
    let (registry, _events) = ThreadRegistry::new();
    // Relays of one name share what they keep of templates.
    let sink = format!("relay {}", RUNS.fetch_add(1, Ordering::Relaxed));
    let lookup = Lookup { registry: &registry, every: Duration::from_secs(60), sink: &sink, bound: &[] };
    let addresses: Vec<PeerAddress> = peers.iter().copied().map(PeerAddress::from).collect();
    let route: Vec<SocketAddr> = match setup.happens(1, 2) {
        true => (1..=2).map(|place| SocketAddr::from(([127, 0, 8, place], 9))).collect(),
        false => Vec::new(),
    };
    let network_of_route = "192.0.2.4/30".parse().expect("a network");
    let to = |route: &[SocketAddr]| route.iter().copied().map(PeerAddress::from).collect();
    let routes: Vec<SourceRoute> =
        route.chunks(2).map(|route| SourceRoute { source: network_of_route, to: to(route) }).collect();
    let (mut relay, ledgers) = RelaySink::open(&addresses, &routes, mode, lookup, &scenes(1)).expect("opened");
    let (routed, peers) = (route.len(), [peers, route].concat());
    Sink::begin(&mut relay);
    let seen = vec![(0, [None; 8]); peers.len()];
    let tallies = Tallies::from([SinkTally::default()]);
    let mut world =
        World { clock, network, relay, ledgers, tallies, peers, routed, is_failover, sent: [0; 8], seen, offered: 0 };
    while let Some(mut chance) = run.step() {
        let peer = *chance.pick(&world.peers);
        match chance.below(10) {
            0..=5 => world.send(1 + chance.below(30), 0..8, &mut chance),
            6 => world.pass(Duration::from_millis(chance.weighted(&[(3, 1), (2, 100), (2, 4100), (1, 11_000)]))),
            7 => world.network.peer(peer, |peer| peer.takes = chance.happens(1, 2).then(|| chance.index(4))),
            8 => world.network.peer(peer, |peer| peer.has_no_route = chance.happens(1, 3)),
            _ => {
                let states = [
                    (4, PeerState::Up),
                    (2, PeerState::Refusing),
                    (1, PeerState::Stuck(libc::EAGAIN)),
                    (1, PeerState::Stuck(libc::ENOBUFS)),
                    (1, PeerState::Stuck(libc::ENETDOWN)),
                    (1, PeerState::Unreachable),
                ];
                world.network.peer(peer, |peer| peer.state = chance.weighted(&states));
            }
        }
        let tally = world.check();
        run.trace(|| format!("{tally:?}"));
    }
    // One is good and the others are not: after a while only trials go to those.
    let mut chance = run.setup().clone();
    let (unrouted, count) = (world.unrouted(), world.peers.len() - routed);
    let good = chance.index(count);
    for (place, &peer) in world.peers.iter().enumerate() {
        let bad = *chance.pick(&[PeerState::Refusing, PeerState::Stuck(libc::ENETDOWN), PeerState::Unreachable]);
        let state = if place == good || place >= count { PeerState::Up } else { bad };
        world.network.peer(peer, |peer| (peer.state, peer.takes, peer.has_no_route) = (state, None, false));
    }
    for round in 0..if is_failover { 20 * count + 30 } else { 0 } {
        if routed > 0 && round % 8 == 0 {
            // What is due to be tried is tried by a datagram, and by no other group's.
            for seconds in [11, 5, 1] {
                world.send(1, ROUTED..8, &mut chance);
                world.pass(Duration::from_secs(seconds));
            }
        }
        let before = world.network.peer(world.peers[good], |peer| count_exports(&peer.arrived));
        world.send(5, unrouted.clone(), &mut chance);
        world.pass(Duration::from_secs(1));
        let arrived = world.network.peer(world.peers[good], |peer| count_exports(&peer.arrived));
        assert!(round < 20 * count || arrived - before >= 4, "{arrived} after {before} at {good}");
    }
    // The faults end. Failed ones are tried one after the other, each after its period and with four seconds for an
    // answer.
    for &peer in &world.peers {
        world.network.peer(peer, |peer| (peer.state, peer.takes, peer.has_no_route) = (PeerState::Up, None, false));
    }
    for _ in 0..20 * world.peers.len() {
        world.send(1, unrouted.clone(), &mut chance);
        world.pass(Duration::from_secs(1));
        world.check();
    }
    let before = world.check();
    let arrived =
        |world: &World, place: usize| world.network.peer(world.peers[place], |peer| count_exports(&peer.arrived));
    let all = |world: &World| (0..world.peers.len()).map(|place| arrived(world, place)).sum::<usize>();
    let (first, sum) = (arrived(&world, 0), all(&world));
    world.send(30, unrouted, &mut chance);
    world.pass(Duration::from_millis(2));
    let tally = world.check();
    assert_eq!((tally.delivered, tally.pending), (before.delivered + 30, 0), "everything is delivered again");
    assert_eq!(all(&world), sum + 30, "and arrives");
    assert!(!is_failover || arrived(&world, 0) == first + 30, "at the first of all");
    Sink::finish(&mut world.relay, &mut world.tallies, &mut |_| {});
    format!("{:?} {:?}", world.check(), world.seen)
}

#[test]
fn a_relay_accounts_for_each_datagram_whatever_its_destinations_do_and_finds_them_again() {
    Simulation::new("a_relay_accounts_for_each_datagram_whatever_its_destinations_do_and_finds_them_again", 300, 100)
        .check(simulate);
}
