//! What never reached this host: `sequence` names the number that a protocol's header carries, and the numbers that do
//! not come are what was lost before the card, or by the exporter itself.
//!
//! ```text
//! receiver --> observer --> ring --\
//! receiver --> observer --> ring ----> tracker: table of streams --> ledger
//! ```
//!
//! A receiver reads the header of each datagram after trains are split and before anything is dropped, and leaves a
//! note for each run of numbers of a batch in a ring (`observer`, `runs`, `note`, `ring`). One thread for the listener
//! takes the notes of all lanes (`tracker`) and keeps a bounded `table` of streams: what one of them lacks is in
//! `gaps`, what is a loss and what a new start is decided in `stream`, and how exporters of IPFIX count is learnt in
//! `convention`.

mod convention;
mod gaps;
mod handle;
mod header;
mod ipfix;
mod note;
mod observer;
mod ring;
mod runs;
mod settings;
mod shared;
#[cfg(test)]
mod simulation;
mod stream;
mod table;
mod templates;
#[cfg(test)]
mod tests;
mod tracker;

pub use gaps::WINDOW;
pub use handle::Upstream;
pub use observer::Observer;
pub use settings::AnySequence;
pub use settings::{Fixed, Order, Sequence, Unit};

pub use table::STREAMS_MAX;
