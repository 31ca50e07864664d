//! Taking everything out of a socket only to count it: at the end of a pipeline, and of a socket that an earlier
//! process has left and no lane can go on with.

use std::io;

use mmsg::{BatchShape, Control, RecvBatch, Socket};

/// How many datagrams one look takes.
const SLOTS: usize = 64;

/// Counts out what is in a socket and tells how much each look found. What the socket says beside a datagram has to
/// fit, or trains could not be counted.
pub(super) fn count_out(socket: &Socket, mut found: impl FnMut(u64)) -> io::Result<()> {
    let control = Control::new().packet_info(true).timestamps(true).gro(true).drop_overflow(true);
    let mut batch = RecvBatch::new(&BatchShape::new(SLOTS, 1).control(control))?;
    loop {
        batch.clear();
        if batch.receive_each(socket)? == 0 {
            return Ok(());
        }
        found(batch.summary().datagrams + batch.summary().unsplit);
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
