//! The same random traffic received with GRO, by each engine, and without: not one datagram may differ.
//!
//! Each round sends a few messages to all sockets: trains of 1 to 128 segments up to the longest payload there is,
//! with odd tails, single datagrams of any size, and empty ones between them. Loopback hands a train to a socket with
//! GRO in one piece and cuts it for one without, so the kernel's own cutting is what ours is compared with.
//!
//! `MMSG_TRAINS` sets the number of trains, `MMSG_SEED` the seed that a failure printed.

use std::net::SocketAddr;

use mmsg::{Control, Family, SendBatch, Socket};

use crate::common::{Kind, Received, Receiving, batch, bound, bound_shared, bound_v4, bytes, drops, receive_until};

const MAX_PAYLOAD: usize = 65_507;
const TRAINS_PER_ROUND: usize = 4;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// One message: what is sent, and the segment size if it is a train.
struct Sent {
    start: usize,
    length: usize,
    segment_bytes: Option<u16>,
}

/// A train or, one time in four each, a single or an empty datagram after it.
fn plan(random: &mut fastrand::Rng, pool_bytes: usize) -> Vec<Sent> {
    let mut plan = Vec::new();
    for _ in 0..TRAINS_PER_ROUND {
        let segments = random.usize(1..=128);
        let longest = MAX_PAYLOAD / segments;
        // Small sizes as often as large ones: each has its own edge cases.
        let limit = [longest, longest.min(100), longest.min(1472)][random.usize(0..=2)];
        let segment = random.usize(1..=limit);
        let tail = random.usize(1..=segment);
        let length = (segments - 1) * segment + tail;
        let segment_bytes = Some(u16::try_from(segment).expect("at most 65,507"));
        plan.push(Sent { start: random.usize(0..=pool_bytes - length), length, segment_bytes });
        match random.usize(0..=3) {
            0 => plan.push(Sent { start: 0, length: 0, segment_bytes: None }),
            1 => {
                let length = random.usize(1..=MAX_PAYLOAD);
                plan.push(Sent { start: random.usize(0..=pool_bytes - length), length, segment_bytes: None });
            }
            _ => {}
        }
    }
    plan
}

fn send(plan: &[Sent], pool: &[u8], outgoing: &mut SendBatch, from: &Socket, to: SocketAddr) {
    for sent in plan {
        let payload = &pool[sent.start..sent.start + sent.length];
        match sent.segment_bytes {
            Some(segment_bytes) => outgoing.push_segmented(payload, segment_bytes, Some(to)).expect("a free slot"),
            None => outgoing.push(payload, Some(to)).expect("a free slot"),
        }
    }
    let report = outgoing.flush(from).expect("sent");
    assert_eq!((report.sent, report.failed, report.segmentation_refused), (plan.len(), 0, false));
}

#[test]
fn trains_split_here_equal_datagrams_cut_by_the_kernel() {
    compare(65_536);
}

#[test]
fn what_is_longer_than_is_kept_is_cut_in_a_train_as_it_is_alone() {
    compare(700);
}

/// Receives the same with GRO and without, and keeps `longest` bytes of each datagram.
fn compare(longest: usize) {
    let trains = from_environment("MMSG_TRAINS", if cfg!(debug_assertions) { 5_000 } else { 20_000 });
    let seed = from_environment("MMSG_SEED", 0x6a0_7a1e);
    let mut random = fastrand::Rng::with_seed(seed);
    let pool = bytes(&mut random, 1 << 20);

    // A round is at most a few hundred KiB, though many small datagrams of it cost a page each.
    let prepare = |socket: &Socket, gro| {
        socket.set_gro(gro).expect("GRO");
        let granted = socket.set_receive_buffer(8 << 20).expect("a buffer");
        assert!(granted.granted_bytes >= 2 << 20, "a round needs 2 MiB: raise net.core.rmem_max or run this as root");
    };
    let mut glued = Vec::new();
    for kind in Kind::here() {
        let (socket, address) = bound_shared(Family::V4, |socket| prepare(socket, true));
        let control = Control::new().gro(true);
        glued.push((kind, Receiving::new(kind, &socket, 8, longest, control), socket, address));
    }
    let (plain, plain_address) = bound(Family::V4, |socket| prepare(socket, false));
    let (sender, sender_address) = bound_v4();
    let mut outgoing = SendBatch::new(2 * TRAINS_PER_ROUND, MAX_PAYLOAD).expect("memory");
    let mut plain_batch = batch(64, longest, Control::default());

    let (mut done, mut split) = (0, 0);
    while done < trains {
        let plan = plan(&mut random, pool.len());
        send(&plan, &pool, &mut outgoing, &sender, plain_address);

        let mut expected = Vec::new();
        for sent in &plan {
            let payload = &pool[sent.start..sent.start + sent.length];
            match sent.segment_bytes {
                Some(segment_bytes) => expected.extend(payload.chunks(usize::from(segment_bytes))),
                None => expected.push(payload),
            }
        }
        let (count, expected) = (expected.len(), expected.into_iter());
        let from_plain = receive_until(&plain, &mut plain_batch, |all| all.len() >= count);
        let context = format!("after {done} trains, seed MMSG_SEED={seed}");
        assert!(
            from_plain
                .iter()
                .map(|received| received.payload.as_slice())
                .eq(expected.map(|sent| &sent[..sent.len().min(longest)])),
            "not what was sent {context}"
        );
        for (kind, receiving, _, address) in &mut glued {
            send(&plan, &pool, &mut outgoing, &sender, *address);
            let from_glued = receiving.collect(count, Received::of);
            assert!(from_glued == from_plain, "GRO by {kind:?} and plain receiving differ {context}");
            let kept = |one: &Received| one.length.min(longest) == one.payload.len() && one.source == sender_address;
            assert!(from_glued.iter().all(kept), "{kind:?} {context}");
            split += usize::from(receiving.batch.messages() < from_glued.len());
        }
        done += TRAINS_PER_ROUND as u64;
    }
    assert!(split > 0, "the kernel never glued anything, so nothing was tested");
    assert_eq!(drops(&plain) + glued.iter().map(|(_, _, socket, _)| drops(socket)).sum::<u32>(), 0);
}
