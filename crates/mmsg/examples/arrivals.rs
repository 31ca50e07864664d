//! Where datagrams arrive: counts, until its standard input ends, how many have come from each receive queue of the
//! device and on which core the kernel handled them. Needs the right to load a BPF program.
//!
//! ```text
//! cargo run -p mmsg --example arrivals -- 192.0.2.1:5140
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;

use mmsg::{CoreCounter, Family, Socket};

/// How many queues are told apart.
const QUEUES: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: arrivals ADDRESS:PORT")?;
    let address: SocketAddr = address.parse().map_err(|error| format!("{address}: {error}, as in 192.0.2.1:5140"))?;
    let counter = CoreCounter::by_queue(QUEUES).map_err(|error| format!("cannot load a program: {error}"))?;
    let socket = Socket::new(if address.is_ipv4() { Family::V4 } else { Family::V6 })?;
    counter.attach(&socket)?;
    socket.bind(address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
    let mut out = io::stdout().lock();
    writeln!(out, "counting")?;
    // What arrives is counted whether or not it is read.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    for found in counter.read()? {
        let queue = found.queue.map_or("none".to_owned(), |queue| queue.to_string());
        writeln!(out, "queue {queue} core {}: {}", found.core, found.count)?;
    }
    Ok(())
}
