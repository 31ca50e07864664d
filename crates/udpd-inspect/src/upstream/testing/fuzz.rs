//! A fuzz target: datagrams from the socket through the PROXY headers to the streams that are tracked.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use mmsg::{BatchShape, Family, RecvBatch, Socket, Wait, proxy};

use super::note_ring::NOTES;
use super::tracker::StreamTracker;
use super::{Fixed, NumberOrder, Sequence, UpstreamMonitor};
use crate::policy::{Proxies, ProxyProtocol, Unwrapper};
use udpd_base::ledger::LaneTally;

/// A socket of this thread, and who sends to it: both are trusted, or none.
struct Loopback {
    receiver: Socket,
    senders: [UdpSocket; 2],
    batch: RecvBatch,
}

impl Loopback {
    fn new() -> Self {
        let receiver = Socket::new(Family::V4).expect("a socket");
        receiver.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let sender = || {
            let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
            sender.connect(receiver.local_addr().expect("bound")).expect("connected");
            sender
        };
        let senders = [sender(), sender()];
        Self { receiver, senders, batch: RecvBatch::new(&BatchShape::new(64, 512)).expect("memory") }
    }
}

thread_local! {
    static LOOPBACK: RefCell<Loopback> = RefCell::new(Loopback::new());
}

/// The first byte picks the protocol and whether there are proxies; then each datagram stands behind a byte of its
/// length, of which the highest bit picks its sender. Every datagram is counted once, and bounds are never crossed.
pub(crate) fn received(input: &[u8]) {
    let Some((&kind, mut rest)) = input.split_first() else { return };
    let sequence = match kind % 8 {
        0 if kind & 32 != 0 => Sequence::NetFlow,
        0 => Sequence::NetFlow5,
        1 => Sequence::NetFlow9,
        2 | 3 => Sequence::Ipfix,
        4 => Sequence::Sflow,
        5 => Sequence::Rtp,
        6 => Sequence::Fixed(Fixed { offset: 2, bytes: 1 + usize::from(kind >> 5), order: NumberOrder::Little }),
        _ => Sequence::Fixed(Fixed { offset: 0, bytes: 8, order: NumberOrder::Big }),
    };
    let from = if kind & 16 == 0 { "127.0.0.0/8" } else { "10.0.0.0/8" };
    let protocol = if kind & 8 != 0 { ProxyProtocol::V2 } else { ProxyProtocol::Off };
    let proxies = Proxies { protocol, from: vec![from.parse().expect("a network")] };
    let unwrapper = Unwrapper::new("fuzz", &proxies);
    let upstream = UpstreamMonitor::new(sequence, 1, sequence.reads_drops(false), Duration::ZERO);
    let mut observer = upstream.observer(0, ([0, 0, 0, 0], 0).into());
    let mut tracker = StreamTracker::with_limit(&upstream.0, 3);
    let mut tally = LaneTally::default();
    let (mut sent, mut kept) = (0, 0);
    LOOPBACK.with_borrow_mut(|Loopback { receiver, senders, batch }| {
        while let Some((&head, more)) = rest.split_first() {
            let (payload, more) = more.split_at(usize::from(head & 0x7f).min(more.len()));
            rest = more;
            senders[usize::from(head >> 7)].send(payload).expect("sent to this host");
            sent += 1;
            let is_last = rest.is_empty();
            let expected = match (proxies.protocol.is_on(), proxy::read(payload)) {
                (true, Ok(_)) => from.starts_with("127"),
                (true, Err(proxy::Flaw::Missing)) => !from.starts_with("127"),
                (true, Err(proxy::Flaw::Malformed)) => false,
                (false, _) => true,
            };
            kept += u64::from(expected);
            if sent % 32 != 0 && !is_last {
                continue;
            }
            // What was sent to this host is in the socket by now.
            batch.receive(receiver, Wait::No).expect("received");
            if let Some(unwrapper) = &unwrapper {
                unwrapper.apply(batch, &mut tally);
            }
            observer.observe(batch);
            kept -= batch.summary().datagrams;
            assert_eq!(kept, 0, "as many are kept as have the right header");
            tracker.take_notes(NOTES);
            if head & 1 == 1 {
                tracker.sweep();
            }
            tracker.publish();
            let read = upstream.read([Some(0)].into_iter(), false, 0);
            assert!(read.missing_at_least <= read.missing_at_most, "{read:?}");
            assert!(read.missing.is_none_or(|missing| missing == read.missing_at_least));
            assert!(read.unnumbered <= sent && read.unseen == 0 && read.counts.streams <= 3);
        }
    });
    tracker.settle_all();
    tracker.publish();
    let read = upstream.read([Some(0)].into_iter(), false, 0);
    assert!(read.missing_at_least <= read.missing_at_most, "{read:?}");
    let refused = tally.dropped.of_proxies();
    assert!(refused <= sent && (proxies.protocol.is_on() || refused == 0));
}
