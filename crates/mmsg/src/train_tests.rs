//! Trains of any segment size and last length, between single datagrams, cut and damaged ones: each datagram is read as
//! it was sent, and the summary is their sum. The model is a list; the kernel is the closure of the tests beside this.

use super::*;
use crate::datagram::MAX_SEGMENTS;
use crate::packed::PackedBatch;

/// Chance from a seed. This library is built without the crate that runs the other simulations.
#[derive(Clone)]
struct Chance(fastrand::Rng);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    fn index(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }
}

/// One datagram as a reader has to find it: its kept bytes and its length.
type Expected = (Vec<u8>, usize);

/// The room for control messages beside that of trains.
const OTHER_BYTES: usize = 64;

/// Some other control messages, which fit with that of a train.
fn others(chance: &mut Chance) -> Vec<u8> {
    let count = chance.below(3);
    let message = |chance: &mut Chance| {
        let mut data = vec![0; chance.index(9)];
        chance.0.fill(&mut data);
        cmsg::encode(libc::SOL_SOCKET, 9_000 + chance.below(9) as i32, &data)
    };
    (0..count).flat_map(|_| message(chance)).collect()
}

/// What the kernel delivers in one message, and the datagrams that it is; none where it may be a train that nothing can
/// split.
fn message(chance: &mut Chance, slot_bytes: usize, longest: usize, gro: bool) -> (Delivery, Option<Vec<Expected>>) {
    let kept = |payload: &[u8], start: usize, end: usize| {
        let end_kept = end.min(start + longest).min(slot_bytes);
        (payload[start.min(end_kept)..end_kept].to_vec(), end - start)
    };
    let mut control = others(chance);
    let length = |chance: &mut Chance| {
        let most = *chance.clone().pick(&[3, 40, 1_500, 65_000]);
        chance.index(most + 1)
    };
    let bytes = |chance: &mut Chance, length: usize| {
        let mut payload = vec![0; length];
        chance.0.fill(&mut payload);
        payload
    };
    let kind = if gro { *chance.pick(&[0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 3]) } else { 0 };
    let segment = |size: i32| cmsg::encode(libc::SOL_UDP, libc::UDP_GRO, &size.to_ne_bytes());
    match kind {
        0 => {
            let length = length(chance);
            let payload = bytes(chance, length);
            let expected = vec![kept(&payload, 0, payload.len())];
            (Delivery { control, ..single(&payload) }, Some(expected))
        }
        1 => {
            let most = *chance.clone().pick(&[2, 40, 1_500, 60_000]);
            let size = 1 + chance.index(most);
            let segments = 1 + chance.index((66_000 / size).clamp(1, MAX_SEGMENTS));
            // The last one is as long as the others, or shorter.
            let length = size * (segments - 1) + 1 + chance.index(size);
            let payload = bytes(chance, length);
            let starts = (0..length).step_by(size);
            let expected = starts.map(|start| kept(&payload, start, (start + size).min(length))).collect();
            control.extend(segment(size as i32));
            (Delivery { control, ..single(&payload) }, Some(expected))
        }
        2 => {
            let length = length(chance);
            let payload = bytes(chance, length);
            (Delivery { control, control_cut: true, ..single(&payload) }, None)
        }
        _ => {
            // No size, one below 0, or more datagrams than a train has.
            let (size, length) = match chance.below(3) {
                0 => (0, length(chance)),
                1 => (-1 - chance.below(70_000) as i32, length(chance)),
                _ => (1, MAX_SEGMENTS + 1 + chance.index(500)),
            };
            let payload = bytes(chance, length);
            control.extend(segment(size));
            (Delivery { control, ..single(&payload) }, None)
        }
    }
}

fn check(batch: &RecvBatch, model: &[Expected], unsplit: u64, place: &str) {
    let read: Vec<Expected> = batch.datagrams().map(|it| (it.payload().to_vec(), it.length())).collect();
    assert!(read == model, "{place}: {:?} and not {:?}", lengths(&read), lengths(model));
    let truncated = model.iter().filter(|(payload, length)| payload.len() < *length).count() as u64;
    let bytes = model.iter().map(|(payload, _)| payload.len() as u64).sum();
    assert_eq!(*batch.summary(), Summary { datagrams: model.len() as u64, bytes, truncated, unsplit }, "{place}");
    let source = "192.0.2.7:4000".parse().expect("valid");
    assert!(batch.datagrams().all(|it| it.source() == Some(source)), "all of a train have its sender");
}

fn lengths(of: &[Expected]) -> Vec<(usize, usize)> {
    of.iter().map(|(payload, length)| (payload.len(), *length)).collect()
}

/// The same datagrams one behind the other, and as bytes.
fn check_packed(batch: &RecvBatch, model: &[Expected]) {
    let bytes: usize = batch.datagrams().map(|it| PackedBatch::bytes_for(&it)).sum();
    let (mut room, _) = PackedBatch::pool(2, bytes.max(8), false).expect("memory");
    let (mut unpacked, mut packed) = (room.remove(0), room.remove(0));
    let mut written = Vec::new();
    for datagram in batch.datagrams() {
        assert!(packed.push(&datagram), "as many bytes as it says");
        crate::packed::pack(&datagram, &mut written);
    }
    assert!(unpacked.unpack(&written, |_| true) && written.len() == bytes);
    assert_eq!((packed.used_bytes(), packed.is_empty()), (bytes, model.is_empty()));
    for room in [&packed, &unpacked] {
        let read: Vec<Expected> = room.datagrams().map(|it| (it.payload().to_vec(), it.length())).collect();
        assert!(read == model, "{:?} and not {:?}", lengths(&read), lengths(model));
        assert_eq!(*room.summary(), Summary { unsplit: 0, ..*batch.summary() });
    }
}

#[test]
#[allow(clippy::print_stdout)]
fn a_train_of_any_segment_size_and_last_length_is_read_as_the_datagrams_that_were_sent() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let (from, seconds) = (number("UDPD_SEEDS_FROM").unwrap_or(0), number("UDPD_SEEDS_FOR"));
    let usual = if cfg!(miri) { 5 } else { 2_500 };
    let seeds = number("UDPD_SEEDS").unwrap_or(seconds.map_or(usual, |_| u64::MAX - from));
    let begun = std::time::Instant::now();
    let is_over = || seconds.is_some_and(|seconds| begun.elapsed().as_secs() >= seconds);
    let mut done = 0;
    for seed in (from..from + seeds).take_while(|_| !is_over()) {
        done += 1;
        let mut chance = Chance(fastrand::Rng::with_seed(seed));
        let (slots, gro) = (1 + chance.index(9), chance.below(5) > 0);
        let longest = 1 + chance.index(*chance.clone().pick(&[3, 100, 2_048, 70_000]));
        let slot_bytes = if gro { longest.max(65_536) } else { longest };
        let control = Control::new().gro(gro).other_bytes(OTHER_BYTES);
        let mut batch = RecvBatch::new(&BatchShape::new(slots, longest).control(control)).expect("memory");
        let (mut model, mut unsplit) = (Vec::new(), 0);
        for step in 0..12 {
            match chance.below(6) {
                0 => {
                    batch.clear();
                    (model, unsplit) = (Vec::new(), 0);
                }
                1 => {
                    let kept = |length: usize| !(length as u64 ^ seed).is_multiple_of(3);
                    let before = model.len();
                    model.retain(|(_, length): &Expected| kept(*length));
                    assert_eq!(batch.retain(|datagram| kept(datagram.length())), before - model.len());
                }
                _ => {
                    let count = 1 + chance.index(3);
                    let sent: Vec<_> = (0..count).map(|_| message(&mut chance, slot_bytes, longest, gro)).collect();
                    let room = slots - batch.messages();
                    let deliveries: Vec<Delivery> = sent.iter().map(|(delivery, _)| delivery.clone()).collect();
                    assert_eq!(deliver(&mut batch, &deliveries), count.min(room), "seed {seed}, step {step}");
                    for (_, datagrams) in sent.into_iter().take(room) {
                        unsplit += u64::from(datagrams.is_none());
                        model.extend(datagrams.unwrap_or_default());
                    }
                }
            }
            check(&batch, &model, unsplit, &format!("seed {seed}, step {step}"));
        }
        check_packed(&batch, &model);
    }
    println!("trains: {done} seeds from {from} on in {:.1} s", begun.elapsed().as_secs_f64());
}
