//! Receives on an address and prints, once a second while something arrives, how much it was.
//!
//! ```text
//! cargo run -p mmsg --example count -- 127.0.0.1:5140
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Control, Family, RecvBatch, Socket, Wait};

fn main() -> Result<(), Box<dyn Error>> {
    let Some(address) = std::env::args().nth(1) else {
        return Err("usage: count ADDRESS:PORT".into());
    };
    let address: SocketAddr = address.parse().map_err(|error| format!("{address}: {error}, as in 127.0.0.1:5140"))?;
    let socket = Socket::new(if address.is_ipv4() { Family::V4 } else { Family::V6 })?;
    socket.set_gro(true)?;
    let buffer = socket.set_receive_buffer(16 << 20)?;
    socket.bind(address).map_err(|error| format!("cannot bind {address}: {error}"))?;

    let control = Control::new().gro(true);
    let (mut batches, backing) = RecvBatch::pool(1, &BatchShape::new(64, 2048).control(control).huge_pages(true))?;
    let mut batch = batches.remove(0);
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {}, buffer {} bytes, {backing:?}", socket.local_addr()?, buffer.granted_bytes)?;
    count(&socket, &mut batch, &mut out)
}

/// Runs until something fails.
fn count(socket: &Socket, batch: &mut RecvBatch, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut drops_before = socket.memory_info()?.drops;
    loop {
        let start = Instant::now();
        let (mut datagrams, mut bytes, mut calls) = (0, 0, 0_u64);
        while start.elapsed() < Duration::from_secs(1) {
            if batch.receive(socket, Wait::No)? == 0 {
                socket.wait_readable(Duration::from_secs(1).saturating_sub(start.elapsed()))?;
                continue;
            }
            calls += 1;
            datagrams += batch.summary().datagrams;
            bytes += batch.summary().bytes;
        }
        let drops = socket.memory_info()?.drops;
        if datagrams > 0 || drops != drops_before {
            let dropped = drops.wrapping_sub(drops_before);
            writeln!(out, "{datagrams} datagrams, {bytes} bytes, {calls} calls, {dropped} dropped by the kernel")?;
            out.flush()?;
        }
        drops_before = drops;
    }
}
