//! A sink with a spill: datagrams that its destination does not take now wait on a disk, and are sent before newer
//! ones.
//!
//! The sink below says of each batch what it could not hand on (`attempt`). From the first such datagram on everything
//! goes to the spill, and from there to the sink below, frame by frame, until the spill is empty; then batches go
//! straight through again. So the order stays, and while all is well the spill costs a look at whether it is empty.
//!
//! The consumer's own thread does all of it. Reading and writing are turns of one thread, so neither can wait for the
//! other; each turn sends at least twice what came since the last one, so what waits gets less while something comes.
//!
//! In the ledger a datagram is pending until it is written to the spill, then `spilled` until its destination has it.
//! What is in the spill when the sink begins is the opening balance, `spilled_before`.

mod attempt;
mod log_lines;
mod settings;
mod sink;
#[cfg(test)]
mod tests;

pub use attempt::Attempt;
pub use settings::Spill;
pub use sink::Spilling;
