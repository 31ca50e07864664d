//! The end of a pipeline whose threads have died or hang: bounded, with every datagram in some term of the ledger.

use std::net::SocketAddr;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{CounterTable as _, Tallies};
use udpd_base::os::threads::{DaemonEvent, ThreadRegistry};
use udpd_base::sink::{Sink, Supplied};
use udpd_engine::config::{Config, RunArguments, SinkConfig as SinkSettings};
use udpd_engine::pipeline::Pipeline;

use crate::util::pipeline::never;
use crate::util::send;

/// Delivers until it has seen so many datagrams, and then does what is to go wrong.
#[derive(Debug)]
struct Doomed {
    left: u64,
    fate: Fate,
}

#[derive(Debug)]
enum Fate {
    Panics,
    /// Until the other end is dropped.
    Hangs(mpsc::Receiver<()>),
}

impl Sink for Doomed {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let datagrams = batch.datagrams.summary().datagrams;
        self.left = self.left.saturating_sub(datagrams);
        if self.left == 0 {
            match &self.fate {
                Fate::Panics => panic!("on purpose"),
                Fate::Hangs(until) => drop(until.recv()),
            }
        }
        let tally = &mut tallies[batch.listener];
        tally.pending -= datagrams;
        tally.delivered += datagrams;
    }
}

struct Running {
    pipeline: Pipeline,
    events: crossbeam_channel::Receiver<DaemonEvent>,
    address: SocketAddr,
}

fn running(sink: Doomed) -> Running {
    // The kernel chooses the port, which no configuration may leave to it.
    let arguments = RunArguments { lanes: Some(1), ..RunArguments::new("127.0.0.1:5140", "null:") };
    let mut config = Config::from_arguments(&arguments).expect("a configuration");
    config.listeners[0].addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let sink = Mutex::new(Some(sink));
    let take = move || sink.lock().expect("no thread panics here").take().expect("one consumer");
    config.sinks = vec![SinkSettings::new("doomed", Supplied(take))];
    let plan = udpd_engine::plan::make(&config, &Default::default()).expect("a plan");
    let (registry, events) = ThreadRegistry::new();
    let pipeline = Pipeline::start(&config, &plan, Instant::now(), &registry).expect("started");
    let address = pipeline.lanes()[0].address;
    Running { pipeline, events, address }
}

#[test]
fn a_sink_that_panics_is_heard_of_and_what_it_never_took_is_its_failure() {
    let Running { pipeline, events, address } = running(Doomed { left: 100, fate: Fate::Panics });
    send(address, b"datagram", 500);
    assert_eq!(events.recv(), Ok(DaemonEvent::ThreadPanicked("sink0-doomed".into())));
    let ledger = pipeline.stop(Duration::from_secs(20), never);
    let listener = &ledger.listeners[0];
    let sink = &listener.sinks[0];
    assert_eq!((listener.arrived, listener.residual, sink.offered, sink.in_flight), (Some(500), Some(0), 500, 0));
    assert!(sink.counts.delivered < 100, "{sink:?}");
    assert_eq!(sink.counts.delivered + sink.counts.dropped.total(), 500);
}

#[test]
fn a_sink_that_hangs_is_given_up_and_the_ledger_closes_over_it() {
    let (release, until) = mpsc::channel();
    let Running { pipeline, address, .. } = running(Doomed { left: 100, fate: Fate::Hangs(until) });
    send(address, b"datagram", 500);
    // In a hurry at once, as after a second SIGTERM.
    let ledger = pipeline.stop(Duration::from_secs(20), |_| true);
    drop(release);
    let listener = &ledger.listeners[0];
    let sink = &listener.sinks[0];
    assert_eq!((listener.arrived, listener.residual, sink.in_flight), (Some(500), Some(0), 0));
    assert_eq!(sink.counts.delivered + sink.counts.dropped.total(), 500);
}
