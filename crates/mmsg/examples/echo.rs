//! An echo server that answers from the address it was asked at, on a host with any number of them.
//!
//! ```text
//! cargo run -p mmsg --example echo -- 0.0.0.0:7007
//! ```
//!
//! A socket on the unspecified address sends from whichever address the route of the answer has; a client that asked
//! another one takes the answer for a stranger's. So the address that was asked is received with each datagram, and
//! given back to the kernel with the answer. Not for the open network: two echo servers can be made to talk to each
//! other for ever.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;

use mmsg::{BatchShape, Control, Family, RecvBatch, SendBatch, Socket, Wait};

/// How many are answered at once.
const SLOTS: usize = 64;
/// The longest datagram there is fits.
const SLOT_BYTES: usize = 65_536;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: echo ADDRESS:PORT")?;
    let address: SocketAddr = address.parse().map_err(|error| format!("{address}: {error}, as in 0.0.0.0:7007"))?;
    let mut echo = Echo::new(address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
    writeln!(io::stdout(), "listening on {}", echo.socket.local_addr()?)?;
    loop {
        echo.answer()?;
    }
}

/// A socket with the memory for questions and answers.
pub(crate) struct Echo {
    /// Where it listens.
    pub(crate) socket: Socket,
    questions: RecvBatch,
    answers: SendBatch,
}

impl Echo {
    /// Listens on `address`.
    pub(crate) fn new(address: SocketAddr) -> io::Result<Echo> {
        let socket = Socket::new(if address.is_ipv4() { Family::V4 } else { Family::V6 })?;
        socket.set_packet_info(true)?;
        socket.bind(address)?;
        let shape = BatchShape::new(SLOTS, SLOT_BYTES).control(Control::new().packet_info(true));
        Ok(Echo { socket, questions: RecvBatch::new(&shape)?, answers: SendBatch::new(SLOTS, SLOT_BYTES)? })
    }

    /// Waits for questions, answers all that are there, and returns how many answers the kernel took.
    pub(crate) fn answer(&mut self) -> io::Result<usize> {
        self.questions.receive(&self.socket, Wait::Block)?;
        for question in &self.questions {
            let Some(to) = question.source() else { continue };
            match question.local_address() {
                Some(from) => self.answers.push_from(question.payload(), from, to)?,
                // It was sent to a group: that has no address to answer from.
                None => self.answers.push(question.payload(), Some(to))?,
            }
        }
        // An answer that cannot be sent is lost to its asker alone.
        Ok(self.answers.flush(&self.socket)?.sent)
    }
}
