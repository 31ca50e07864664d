//! A fuzz target: the tracepoints as the kernel describes them, and the records that it writes.

use super::records::{PerfRecord, PerfRecords, filter_of_named, filter_of_unnamed, pieces};
use super::tracepoints::Tracepoints;
use super::watch::{Fired, TallyTables};

const FREED: &str = include_str!("../formats/kfree_skb-6.18");
const NOT_QUEUED: &str = include_str!("../formats/udp_fail_queue_rcv_skb-6.18");

/// Before a zero byte stands the text of a `format` file, behind it are records. No more is counted than there are.
pub(crate) fn records(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(0);
    let (text, bytes) = input.split_at(end);
    let text = String::from_utf8_lossy(text);
    let own = [Tracepoints::parse(Some(&text), None), Tracepoints::parse(None, Some(&text))];
    let known = Tracepoints::parse(Some(NOT_QUEUED), Some(FREED));
    for tracepoints in own.into_iter().flatten().chain(known) {
        let mut tables = TallyTables::default();
        let mut samples = 0;
        for record in PerfRecords::of(bytes) {
            if let PerfRecord::Sample(record) = record {
                samples += 1;
                tables.count(record, &tracepoints);
            }
        }
        assert!(samples <= bytes.len() / 12);
        let tally = tables.tally(Fired::default(), &tracepoints);
        let named: u64 = tally.by_reason.iter().map(|reason| reason.count).sum();
        let at_ports: u64 = tally.by_port.iter().map(|port| port.count).sum();
        assert!(named + at_ports <= samples as u64);
        if let Some(freed) = &tracepoints.freed {
            assert!(!filter_of_named(&freed.names).is_empty());
            let _ = filter_of_unnamed(&freed.names);
        }
    }
    if let Some((numbers, _)) = input.split_first_chunk::<17>() {
        let eight = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| numbers[at + byte]));
        let ring = 1_usize << (numbers[16] % 20);
        for to in [eight(8), eight(0).wrapping_add(eight(8) % (ring as u64 + 1))] {
            if let Some((first, second)) = pieces(eight(0), to, ring) {
                assert!(first.end <= ring && second.end <= ring);
                assert_eq!((first.len() + second.len()) as u64, to.wrapping_sub(eight(0)));
            }
        }
    }
}
