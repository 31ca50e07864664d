//! A part of the fuzz target of the ledger: what `udpd top` makes of two readings.

use std::time::{Duration, Instant};

use udpd_base::ledger::Snapshot;

use super::draw;
use super::model::Model;

/// A picture of any readings commands no terminal.
pub(crate) fn pictures(readings: Vec<Snapshot>) {
    let (mut model, start) = (Model::default(), Instant::now());
    for (number, snapshot) in (0..).zip(readings) {
        model.read(snapshot, start + Duration::from_secs(number));
        for width in [1, 20, 80] {
            let text = draw::report(&model, width);
            assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
        }
    }
}
