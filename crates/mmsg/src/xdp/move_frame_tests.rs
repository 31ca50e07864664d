//! Frames laid into chunks as the kernel would, and taken into batches: what a reader finds there, and that no block is
//! ever in two places. Without a kernel, so that an interpreter can check every pointer.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::batch::RecvBatch;
use crate::shape::{BatchShape, Control};
use crate::testing::rounds;
use crate::xdp::rings::FilledChunk;
use crate::xdp::testing::Sample;

const PAGE: usize = 4096;
const EVERYTHING: Control = Control::new().timestamps(true).packet_info(true).hop_limit(true).traffic_class(true);

/// A batch, a reserve, and the blocks that are the kernel's.
struct Bench {
    mover: FrameMover,
    batch: RecvBatch,
    _reserve: RecvBatch,
    chunks: Vec<*mut u8>,
    facts: BatchFacts,
    tally: Tally,
}

impl Bench {
    fn new(slots: usize, slot_bytes: usize, copy_up_to: usize, wanted: Control) -> Bench {
        let shape = BatchShape::new(slots, slot_bytes).control(wanted);
        let (mut batches, _) = RecvBatch::pool(2, &shape).expect("memory");
        let (reserve, batch) = (batches.remove(1), batches.remove(0));
        let layout = *batch.region().layout();
        let umem = Umem::new(&layout, batch.region().arena(), PAGE).expect("long enough");
        // SAFETY: existing slots.
        let chunks = (0..slots).map(|slot| unsafe { reserve.region().block(slot) }).collect();
        let copy_up_to = copy_up_to.min(slot_bytes);
        let mover = FrameMover { umem, layout, copy_up_to, checksums: Checksums::default(), any_page: true };
        let facts = BatchFacts { wanted, interface: 7, arrival: Duration::new(1_700_000_000, 42) };
        Bench { mover, batch, _reserve: reserve, chunks, facts, tally: Tally::default() }
    }

    /// Plays the kernel: lays a frame into the next chunk, and says where.
    fn arrive(&mut self, frame: &[u8]) -> FramePlace {
        let chunk = self.chunks.remove(0);
        let offset = 256 + self.mover.umem.headroom;
        assert!(frame.len() <= self.mover.umem.frame_bytes());
        // SAFETY: the chunk is the kernel's, and the frame fits behind the headroom.
        unsafe { ptr::copy_nonoverlapping(frame.as_ptr(), chunk.add(offset), frame.len()) };
        let address = self.mover.umem.address(chunk) | (offset as u64) << 48;
        let filled = FilledChunk { address, bytes: frame.len() as u32, options: 0 };
        self.mover.umem.place(&filled).expect("in a chunk")
    }

    /// Takes frames into the batch, as the engine does, and returns how many were datagrams.
    fn take(&mut self, frames: &[Vec<u8>]) -> usize {
        let places: Vec<FramePlace> = frames.iter().map(|frame| self.arrive(frame)).collect();
        let Bench { mover, batch, chunks, facts, tally, .. } = self;
        let filled = batch.fill(|headers, count| {
            let mut taken = 0;
            for place in &places {
                assert!(taken < count);
                // SAFETY: the header is one of those that `fill` has armed; the chunk is no longer the kernel's.
                let moved = unsafe { mover.move_frame(headers.add(taken), place, facts, tally) };
                taken += usize::from(moved.is_taken);
                chunks.push(moved.block);
            }
            Ok(taken)
        });
        filled.expect("the closure never fails")
    }

    /// Every block is in one place: under a slot of the batch, or the kernel's.
    fn check_blocks(&self) {
        let slots = self.batch.slots();
        // SAFETY: existing slots.
        let under_slots = (0..slots).map(|slot| unsafe { self.batch.region().block(slot) });
        let all: BTreeSet<usize> = under_slots.chain(self.chunks.iter().copied()).map(|block| block.addr()).collect();
        assert_eq!(all.len(), 2 * slots);
        assert!(all.iter().zip(all.iter().skip(1)).all(|(one, next)| next - one >= self.mover.umem.chunk_bytes));
    }
}

#[test]
fn a_reader_finds_the_same_whether_a_payload_was_copied_or_changed_places() {
    let long: Vec<u8> = (0..1400).map(|byte| byte as u8).collect();
    let samples = [
        Sample::v4(b"short"),
        Sample::v6(b""),
        Sample::v4(&long),
        Sample::v6(&long).tagged(3),
        Sample::v4(b"").tagged(9),
    ];
    let frames: Vec<Vec<u8>> = samples.iter().map(Sample::frame).collect();
    for copy_up_to in [0, 5, 100, usize::MAX] {
        for wanted in [Control::new(), EVERYTHING, EVERYTHING.other_bytes(512)] {
            let mut bench = Bench::new(8, 2048, copy_up_to, wanted);
            let times = if cfg!(miri) { 2 } else { 5 };
            for _ in 0..times {
                bench.batch.clear();
                assert_eq!(bench.take(&frames), frames.len());
                for (datagram, sample) in bench.batch.datagrams().zip(&samples) {
                    assert_eq!(datagram.payload(), sample.payload);
                    assert_eq!(datagram.length(), sample.payload.len());
                    assert_eq!(datagram.source(), Some((sample.source, 4444).into()));
                    assert_eq!(datagram.destination(), wanted.packet_info.then_some(sample.destination));
                    assert_eq!(datagram.traffic_class(), wanted.traffic_class.then_some(0xb9));
                    assert_eq!(datagram.hop_limit(), wanted.hop_limit.then_some(64));
                    let arrival = wanted.timestamps.then_some(bench.facts.arrival);
                    assert_eq!(datagram.arrival_since_epoch(), arrival);
                }
                bench.check_blocks();
            }
            assert_eq!(bench.tally.frames, times * frames.len() as u64);
        }
    }
}

#[test]
fn what_is_longer_than_a_slot_is_cut_and_marked_either_way() {
    let payload = vec![9; 3000];
    for copy_up_to in [0, usize::MAX] {
        let mut bench = Bench::new(2, 4096, copy_up_to, Control::new());
        assert_eq!(bench.take(&[Sample::v4(&payload).frame()]), 1);
        let datagram = bench.batch.datagrams().next().expect("one");
        assert_eq!((datagram.payload().len(), datagram.length()), (3000, 3000));
    }
    for copy_up_to in [0, usize::MAX] {
        let mut bench = Bench::new(2, 2048, copy_up_to, Control::new().other_bytes(1024));
        let longest = bench.mover.umem.frame_bytes() - 42;
        assert!(longest > 1500 && longest <= 2048 + 1024, "{longest}");
        let payload = vec![3; longest];
        assert_eq!(bench.take(&[Sample::v4(&payload).frame()]), 1);
        let datagram = bench.batch.datagrams().next().expect("one");
        assert_eq!(datagram.payload().len(), longest.min(2048));
        assert_eq!((datagram.length(), datagram.is_truncated()), (longest, longest > 2048));
        assert_eq!(bench.batch.summary().truncated, u64::from(longest > 2048));
    }
}

#[test]
fn what_is_no_datagram_takes_no_slot_and_is_counted_by_its_damage() {
    let mut bench = Bench::new(4, 2048, 0, Control::new());
    let (mut wrong, mut none, mut left) = (Sample::v4(b"wrong"), Sample::v6(b"none"), Sample::v4(b"left"));
    (wrong.checksum, none.checksum, left.leave_checksum) = (Some(0x1234), Some(0), true);
    let mut header = Sample::v4(b"header").frame();
    header[22] ^= 1;
    let cut = Sample::v4(b"cut").frame()[..44].to_vec();
    let frames = [wrong.frame(), none.frame(), header, left.frame()];
    assert_eq!(bench.take(&frames), 1);
    assert_eq!(bench.take(&[cut, Sample::v6(b"right").frame()]), 1);
    let payloads: Vec<&[u8]> = bench.batch.datagrams().map(|datagram| datagram.payload()).collect();
    assert_eq!(payloads, [b"left".as_slice(), b"right"]);
    let Tally { malformed, header_checksum, checksum, no_checksum, left_to_device, .. } = bench.tally;
    assert_eq!([malformed, header_checksum, checksum, no_checksum, left_to_device], [1; 5]);
    assert_eq!((bench.tally.frames, bench.tally.waiting), (6, 0));
    bench.check_blocks();
}

#[test]
fn the_next_receive_call_finds_all_the_room_of_a_slot_that_had_changed_places() {
    let mut bench = Bench::new(3, 2048, 0, EVERYTHING);
    assert_eq!(bench.take(&[Sample::v4(b"one").frame(), Sample::v6(b"two").frame()]), 2);
    bench.batch.clear();
    let layout = bench.mover.layout;
    let armed = bench.batch.fill(|headers, count| {
        assert_eq!(count, 3);
        for slot in 0..count {
            // SAFETY: armed headers that `fill` has borrowed mutably.
            unsafe {
                let inner = &(*headers.add(slot)).msg_hdr;
                let block = Layout::block_of(headers.add(slot));
                assert_eq!((*inner.msg_iov).iov_base.addr(), block.addr() + layout.payload_offset());
                assert_eq!((*inner.msg_iov).iov_len, 2048);
                assert_eq!(inner.msg_control.addr(), block.addr() + layout.control_offset());
                assert_eq!(inner.msg_controllen as usize, layout.control_bytes);
                // All of it can be written.
                ptr::write_bytes((*inner.msg_iov).iov_base.cast::<u8>(), 7, 2048);
            }
        }
        Ok(0)
    });
    assert_eq!(armed.expect("the closure never fails"), 0);
    bench.check_blocks();
}

#[test]
fn where_the_device_writes_only_chunks_on_one_page_are_given_to_it() {
    let mut bench = Bench::new(8, 2048, 0, Control::new());
    bench.mover.any_page = false;
    let is_good = |bench: &Bench, block: *mut u8| bench.mover.umem.is_on_one_page(block);
    let good: Vec<*mut u8> = bench.chunks.iter().copied().filter(|block| is_good(&bench, *block)).collect();
    assert!(!good.is_empty() && good.len() < 8, "both kinds are there");
    bench.chunks = good.clone();
    for _ in 0..20 {
        bench.batch.clear();
        let frames: Vec<Vec<u8>> = (0..good.len()).map(|_| Sample::v4(&[5; 900]).frame()).collect();
        assert_eq!(bench.take(&frames), good.len());
        assert!(bench.batch.datagrams().all(|datagram| datagram.payload() == [5; 900]));
        assert_eq!(bench.chunks.len(), good.len());
        assert!(bench.chunks.iter().all(|block| is_good(&bench, *block)));
    }
}

#[test]
fn random_traffic_is_read_as_it_was_sent_and_no_block_is_lost() {
    let mut random = fastrand::Rng::with_seed(0x5eed_0102);
    let mut bench = Bench::new(16, 2048, 300, EVERYTHING);
    for _ in 0..rounds() / 100 {
        bench.batch.clear();
        let samples: Vec<Sample> = (0..1 + random.usize(..16)).map(|_| Sample::random(&mut random, 1400)).collect();
        let frames: Vec<Vec<u8>> = samples.iter().map(Sample::frame).collect();
        assert_eq!(bench.take(&frames), samples.len());
        for (datagram, sample) in bench.batch.datagrams().zip(&samples) {
            assert_eq!(datagram.payload(), sample.payload);
            assert_eq!(datagram.destination(), Some(sample.destination));
        }
        bench.check_blocks();
    }
}
