//! What a relay keeps of templates and to whom it sends them, against a simulated network: each destination has the
//! templates of an exporter before the first record that it can read only with them, and no more than that.

use std::net::Ipv4Addr;

use mmsg::PackedBatch;

use super::super::failover_tests::Clock;
use super::super::settings::{Distribute, KeepSource, RelayMode};
use super::super::simulated::{Network, PeerState};
use super::super::*;
use super::*;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{DestinationLedger, DestinationTally, SinkTally, Tallies};
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::Sink;
use udpd_base::sink::testing::scenes;
use udpd_base::testing::simulated::{Simulated, enter};

/// A datagram of NetFlow 9 with this number; with templates or with a record.
fn netflow9(number: u32, has_template: bool) -> Vec<u8> {
    let set: &[u16] = if has_template { &[0, 12, 256, 1, 8, 4] } else { &[256, 8, 7, 7] };
    let header = [9, 1].map(u16::to_be_bytes).concat();
    let numbers = [70_000, 1_700_000_000, number, 5].map(u32::to_be_bytes).concat();
    [header, numbers, set.iter().flat_map(|number| number.to_be_bytes()).collect()].concat()
}

fn exporter(number: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, number), 2055))
}

fn batch(datagrams: &[(SocketAddr, Vec<u8>)]) -> LaneBatch {
    let mut packed = Vec::new();
    datagrams.iter().for_each(|(from, payload)| mmsg::pack_known(*from, None, (payload, payload.len()), &mut packed));
    let block = PackedBatch::pool(1, packed.len().max(4096), false).expect("memory").0.remove(0);
    let mut batch = LaneBatch::unpacked(block);
    assert!(batch.unpack((0, 0), &packed, |_| true));
    batch
}

fn peer(place: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 9, place], 2055))
}

/// A relay of this name, and what it counts.
struct Relay {
    sink: RelaySink,
    ledgers: Vec<Arc<DestinationLedger>>,
    tallies: Tallies,
    offered: u64,
}

impl Relay {
    fn open(name: &str, peers: &[u8], distribute: Distribute, templates: usize) -> Self {
        let probe_every = Duration::from_secs(10);
        let (keep_source, never_waits, spills) = (KeepSource::No, false, false);
        let mode = RelayMode { distribute, weights: &[], probe_every, keep_source, never_waits, spills, templates };
        let (registry, _events) = ThreadRegistry::new();
        let lookup = Lookup { registry: &registry, every: Duration::from_secs(60), sink: name, bound: &[] };
        let peers: Vec<PeerAddress> = peers.iter().map(|place| peer(*place).into()).collect();
        let (sink, ledgers) = RelaySink::open(&peers, &[], mode, lookup, &scenes(1)).expect("opened");
        Self { sink, ledgers, tallies: Tallies::from([SinkTally::default()]), offered: 0 }
    }

    fn begin(mut self) -> Self {
        Sink::begin(&mut self.sink);
        self
    }

    fn send(&mut self, datagrams: &[(SocketAddr, Vec<u8>)]) {
        self.offered += datagrams.len() as u64;
        self.tallies[0].pending += datagrams.len() as u64;
        self.sink.accept(&batch(datagrams), &mut self.tallies);
        Sink::flush(&mut self.sink, &mut self.tallies);
        let SinkTally { delivered, pending, dropped, .. } = self.tallies[0];
        assert_eq!((delivered + dropped.sink_error, pending), (self.offered, 0), "templates are no datagrams");
    }

    fn counts(&self) -> Vec<DestinationTally> {
        DestinationLedger::sum(self.ledgers.iter().map(Arc::as_ref)).into_iter().map(|sum| sum.counts).collect()
    }
}

/// The numbers of what has come to a destination since the last call: of datagrams with templates, and of others.
fn arrived(network: &Network, place: u8) -> Vec<(bool, u32)> {
    let number = |datagram: &Vec<u8>| {
        let is_template = datagram[20..22] == [0, 0];
        (is_template, u32::from_be_bytes(*datagram[12..].first_chunk().expect("a header")))
    };
    network.peer(peer(place), |peer| peer.arrived.drain(..).map(|datagram| number(&datagram)).collect())
}

#[test]
fn a_destination_that_is_new_gets_templates_before_the_first_record_of_each_exporter_and_once() {
    let network = Network::enter();
    let exporters: Vec<SocketAddr> = (1..=50).map(exporter).collect();
    let all = |number, has_template| -> Vec<_> {
        exporters.iter().map(|exporter| (*exporter, netflow9(number, has_template))).collect()
    };
    let mut two = Relay::open("moves", &[1, 2], Distribute::BySource, 100).begin();
    two.send(&all(1, true));
    two.send(&all(2, false));
    for place in [1, 2] {
        assert!(arrived(&network, place).iter().all(|(is_template, number)| *is_template == (*number == 1)));
    }
    // A reload opens the next one before this one has ended.
    let three = Relay::open("moves", &[1, 2, 3], Distribute::BySource, 100);
    two.send(&[(exporters[0], netflow9(3, false))]);
    [1, 2].into_iter().for_each(|place| _ = arrived(&network, place));
    drop(two);
    let mut three = three.begin();
    three.send(&all(900, false));
    three.send(&all(901, false));
    let third = arrived(&network, 3);
    let moved = third.iter().filter(|(is_template, _)| *is_template).count();
    assert!(moved > 0 && third.len() == 3 * moved, "{third:?}");
    // Without the exporter's own address a new socket is a new exporter, so all get them.
    let each = [arrived(&network, 1), arrived(&network, 2), third].concat();
    let of = |wanted| each.iter().filter(|found| **found == wanted).count();
    assert_eq!([of((true, 899)), of((false, 900)), of((false, 901))], [50, 50, 50]);
    for found in each.windows(2) {
        assert!(!found[0].0 || found[1] == (false, 900), "a template is before the record that needs it: {found:?}");
    }
    assert_eq!(three.counts().iter().map(|counts| counts.templates).collect::<Vec<_>>().iter().sum::<u64>(), 50);
    assert_eq!(three.counts().iter().map(|counts| counts.sent).sum::<u64>(), 100, "they are in no other sum");
}

#[test]
fn where_sources_are_kept_only_exporters_that_move_get_their_templates_again() {
    let peers: Vec<PeerAddress> = (1..=3).map(|place| peer(place).into()).collect();
    let peers: Vec<&PeerAddress> = peers.iter().collect();
    let mut before = RelayTemplates::open("kept", 100, &peers[..2]).expect("some");
    before.begin(true, |_| 0);
    let datagrams: Vec<_> = (1..=40).map(|number| (exporter(number), netflow9(1, true))).collect();
    let batch = batch(&datagrams);
    let choose = |source: IpAddr| usize::from(source.to_string().ends_with('7'));
    let mut now = RelayTemplates::open("kept", 100, &peers).expect("some");
    for datagram in batch.datagrams.datagrams() {
        assert_eq!(before.keep(&datagram, choose(headers::source(&datagram).ip())), 0);
    }
    // Those that end in 7 and those that end in 3 change their places.
    let moves = |source: IpAddr| if source.to_string().ends_with('3') { 2 } else { choose(source) };
    now.begin(true, moves);
    let mut owed: Vec<_> = now.owed.iter().map(|owed| owed.address).collect();
    owed.sort();
    assert_eq!(owed, [3, 13, 23, 33].map(exporter));
    now.owe_to(1, moves);
    assert_eq!(now.owed.len(), 8, "and those of a destination that is back");
}

#[test]
fn a_destination_that_is_back_after_an_outage_gets_templates_again_and_so_does_the_next_of_a_failover() {
    let clock = Arc::new(Clock::new());
    let _entered = enter(Arc::clone(&clock) as Arc<dyn Simulated>);
    let network = Network::enter();
    let mut relay = Relay::open("outage", &[1], Distribute::BySource, 10).begin();
    let record = |number| [(exporter(1), netflow9(number, false))];
    relay.send(&[(exporter(1), netflow9(1, true))]);
    network.peer(peer(1), |peer| peer.state = PeerState::Refusing);
    (2..5).for_each(|number| relay.send(&record(number)));
    network.peer(peer(1), |peer| peer.state = PeerState::Up);
    arrived(&network, 1);
    relay.send(&record(5));
    relay.send(&record(6));
    clock.sleep(ANSWER_TIME);
    (7..9).for_each(|number| relay.send(&record(number)));
    assert_eq!(arrived(&network, 1), [(false, 5), (false, 6), (true, 6), (false, 7), (false, 8)]);

    let mut relay = Relay::open("over", &[2, 3], Distribute::Failover, 10).begin();
    relay.send(&[(exporter(1), netflow9(1, true))]);
    network.peer(peer(2), |peer| peer.state = PeerState::Refusing);
    (2..5).for_each(|number| relay.send(&record(number)));
    assert_eq!(
        (arrived(&network, 2), arrived(&network, 3)),
        (vec![(true, 1)], vec![(true, 2), (false, 3), (false, 4)])
    );
    network.peer(peer(2), |peer| peer.state = PeerState::Up);
    clock.sleep(Duration::from_secs(10));
    // It is due to be tried, is tried by one datagram, and has everything again when no error has come.
    (5..8).for_each(|number| relay.send(&record(number)));
    clock.sleep(ANSWER_TIME);
    (8..10).for_each(|number| relay.send(&record(number)));
    let (first, second) = (arrived(&network, 2), arrived(&network, 3));
    let trials = first.iter().take_while(|(is_template, _)| !is_template).count();
    assert_eq!(trials, 1, "{first:?}");
    let at = first[trials + 1].1;
    assert_eq!(first[trials..trials + 2], [(true, at - 1), (false, at)], "{first:?}");
    assert!(second.iter().all(|(is_template, _)| !is_template), "{second:?}");
}

#[test]
fn a_sink_for_another_destination_begins_with_what_its_siblings_have_and_another_size_with_what_there_was() {
    let network = Network::enter();
    let mut first = Relay::open("all@127.0.9.1:2055", &[1], Distribute::All, 10).begin();
    first.send(&[(exporter(1), netflow9(1, true)), (exporter(2), netflow9(1, true))]);
    let mut second = Relay::open("all@127.0.9.2:2055", &[2], Distribute::All, 10).begin();
    second.send(&[(exporter(1), netflow9(5, false))]);
    assert_eq!(arrived(&network, 2), [(true, 4), (false, 5)]);
    arrived(&network, 1);
    let mut larger = Relay::open("all@127.0.9.1:2055", &[1], Distribute::All, 20).begin();
    larger.send(&[(exporter(2), netflow9(5, false))]);
    assert_eq!(arrived(&network, 1), [(true, 4), (false, 5)]);
    let mut other = Relay::open("other", &[3], Distribute::All, 10).begin();
    other.send(&[(exporter(1), netflow9(5, false))]);
    assert_eq!(arrived(&network, 3), [(false, 5)], "what another sink keeps is its own");
}

#[test]
fn the_exporter_whose_templates_are_oldest_goes_and_each_of_its_templates_is_counted() {
    let _network = Network::enter();
    let mut relay = Relay::open("bounded", &[1], Distribute::All, 3).begin();
    let from = |number| [(exporter(number), netflow9(1, true))];
    // The first repeats its own before the fourth comes.
    [1, 2, 3, 1, 4].into_iter().for_each(|number| relay.send(&from(number)));
    assert_eq!(relay.tallies[0].templates_forgotten, 1);
    let kept = |relay: &Relay| {
        let templates = relay.sink.templates.as_ref().expect("some");
        let kept = locked(&templates.kept);
        let (mut all, mut place) = (Vec::new(), kept.oldest);
        while place != NONE {
            all.push(kept.exporters[place as usize].exporter.address);
            assert_eq!(count_templates(kept.sets(place)), 1);
            place = kept.exporters[place as usize].newer;
        }
        assert_eq!((all.len(), kept.index.len()), (kept.exporters.len(), all.len()));
        all
    };
    assert_eq!(kept(&relay), [3, 1, 4].map(exporter));
    [5, 6, 7, 8].into_iter().for_each(|number| relay.send(&from(number)));
    assert_eq!((relay.tallies[0].templates_forgotten, kept(&relay)), (5, [6, 7, 8].map(exporter).to_vec()));
    // One that is cut is not kept.
    let mut cut = batch(&[]);
    let mut packed = Vec::new();
    mmsg::pack_known(exporter(9), None, (&netflow9(1, true), 2000), &mut packed);
    assert!(cut.unpack((0, 0), &packed, |_| true));
    relay.tallies[0].pending += 1;
    relay.sink.accept(&cut, &mut relay.tallies);
    assert_eq!(kept(&relay), [6, 7, 8].map(exporter));
}

#[test]
fn what_is_owed_to_an_exporter_that_stays_silent_is_forgotten() {
    let clock = Arc::new(Clock::new());
    let _entered = enter(Arc::clone(&clock) as Arc<dyn Simulated>);
    let network = Network::enter();
    let mut relay = Relay::open("silent", &[1], Distribute::All, 3).begin();
    [1, 2].into_iter().for_each(|number| relay.send(&[(exporter(number), netflow9(1, true))]));
    relay.sink.destinations[0].note_new();
    relay.send(&[(exporter(1), netflow9(5, false))]);
    let are_owed = |relay: &Relay| relay.sink.templates.as_ref().is_some_and(RelayTemplates::are_owed);
    assert!(are_owed(&relay));
    clock.sleep(OWED_FOR);
    relay.send(&[(exporter(2), netflow9(5, false))]);
    assert!(!are_owed(&relay));
    assert_eq!(arrived(&network, 1), [(true, 1), (true, 1), (true, 4), (false, 5), (false, 5)]);
}
