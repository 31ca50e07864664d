//! For the tests of sinks: a batch as a receiver would hand it over, filled by real datagrams over loopback.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use mmsg::{BatchShape, Control, Family, RecvBatch, Socket, Wait};

use super::settings::{OpenedSink, Opening, SinkSettings};
use super::{OpenContext, Sink};
use crate::format::Scene;
use crate::handover::Caller;
use crate::handover::batch::LaneBatch;
use crate::handover::route::FullPolicy;
use crate::os::threads::ThreadRegistry;

#[derive(Debug)]
pub struct Received {
    pub batch: LaneBatch,
    pub source: SocketAddr,
}

impl Received {
    /// These payloads, received on loopback by lane 0 of listener 0.
    pub fn over_loopback(payloads: &[&[u8]]) -> Self {
        Self::into_slots(payloads, 65_535)
    }

    /// The same from this address of loopback.
    pub fn from(sender: &str, payloads: &[&[u8]]) -> Self {
        Self::sent_by(sender, payloads, 65_535)
    }

    /// The same with slots of so many bytes.
    pub fn into_slots(payloads: &[&[u8]], slot_bytes: usize) -> Self {
        Self::sent_by("127.0.0.1", payloads, slot_bytes)
    }

    fn sent_by(sender: &str, payloads: &[&[u8]], slot_bytes: usize) -> Self {
        let socket = Socket::new(Family::V4).expect("a socket");
        socket.set_packet_info(true).expect("packet info");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let destination = socket.local_addr().expect("bound");
        let sender = UdpSocket::bind((sender, 0)).expect("a free port");
        let control = Control::new().packet_info(true);
        let shape = BatchShape::new(payloads.len().max(1), slot_bytes).control(control);
        let mut datagrams = RecvBatch::new(&shape).expect("a batch");
        for payload in payloads {
            sender.send_to(payload, destination).expect("loopback takes it");
            datagrams.receive_more(&socket, Wait::Block).expect("it is there");
        }
        let source = sender.local_addr().expect("bound");
        Self { batch: LaneBatch::received(datagrams, 0, 0), source }
    }
}

/// A sink of one consumer, as it begins.
pub fn opened(settings: &dyn SinkSettings) -> Box<dyn Sink> {
    opened_with_ledgers(settings).sink
}

/// The same with what it counts besides datagrams.
pub fn opened_with_ledgers(settings: &dyn SinkSettings) -> OpenedSink {
    let (registry, _events) = ThreadRegistry::new();
    let opening = Opening {
        sink: "s",
        consumer: 0,
        consumers: 1,
        when_full: FullPolicy::Block,
        scenes: &scenes(1),
        feeds: &[true],
        listeners: &["in".to_owned()],
        registry: &registry,
        caller: &Caller::default(),
        shared: &mut None,
        is_inline: false,
        context: &OpenContext::default(),
    };
    let mut opened = settings.open(opening).expect("it opens");
    opened.sink.begin();
    opened
}

/// So many lanes of one listener.
pub fn scenes(lanes: usize) -> Arc<[Scene]> {
    let address = "127.0.0.1:514".parse().expect("an address");
    (0..lanes).map(|lane| Scene { listener: "in".to_owned(), lane, address, has_time_of_batch: false }).collect()
}
