//! Two sockets and one thread that sleeps in epoll until either has something.
//!
//! ```text
//! cargo run -p mmsg --example epoll -- 127.0.0.1:5140 127.0.0.1:5141
//! ```
//!
//! epoll says which socket is readable, and a receive with `Wait::No` takes what is there. A socket that still has
//! something is named again by the next wait (level-triggered), so one busy socket cannot keep the other from its turn.
//! `Wait` decides whether a receive waits, so the sockets need not be nonblocking.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;

use mmsg::{BatchShape, Family, RecvBatch, Socket, Wait};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

fn main() -> Result<(), Box<dyn Error>> {
    let addresses: Result<Vec<SocketAddr>, _> = std::env::args().skip(1).map(|address| address.parse()).collect();
    let mut listening = Listening::new(&addresses.map_err(|error| format!("usage: epoll ADDRESS:PORT...: {error}"))?)?;
    let mut lines = io::stdout().lock();
    loop {
        listening.turn(&mut lines)?;
    }
}

/// Sockets, and what waits for all of them.
pub(crate) struct Listening {
    /// In the order of their addresses.
    pub(crate) sockets: Vec<Socket>,
    epoll: Epoll,
    batch: RecvBatch,
}

impl Listening {
    /// Listens on all of the addresses.
    pub(crate) fn new(addresses: &[SocketAddr]) -> io::Result<Listening> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut sockets = Vec::new();
        for (number, &address) in (0..).zip(addresses) {
            let socket = Socket::new(if address.is_ipv4() { Family::V4 } else { Family::V6 })?;
            socket.bind(address)?;
            epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
            sockets.push(socket);
        }
        Ok(Listening { sockets, epoll, batch: RecvBatch::new(&BatchShape::new(64, 2048))? })
    }

    /// Waits until a socket is readable, and writes one batch of each that is.
    pub(crate) fn turn(&mut self, lines: &mut impl Write) -> io::Result<()> {
        let mut ready = [EpollEvent::empty(); 16];
        let count = self.epoll.wait(&mut ready, EpollTimeout::NONE)?;
        for event in &ready[..count] {
            let number = event.data() as usize;
            self.batch.receive(&self.sockets[number], Wait::No)?;
            for datagram in &self.batch {
                writeln!(lines, "{number}: {}", datagram.payload().escape_ascii())?;
            }
        }
        lines.flush()
    }
}
