//! A collector: every datagram as a line with its time and its sender, and a line on standard error whenever the kernel
//! had to drop some.
//!
//! ```text
//! cargo run -p mmsg --example collector -- 127.0.0.1:5140
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mmsg::{BatchShape, Control, Engine, Family, RecvBatch, Socket, Wait};

/// Lets datagrams gather for so long, which saves most of the system calls.
const GATHER: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: collector ADDRESS:PORT")?;
    let address: SocketAddr = address.parse().map_err(|error| format!("{address}: {error}, as in 127.0.0.1:5140"))?;
    let mut collector = Collector::new(address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
    let (mut lines, mut notes) = (io::stdout().lock(), io::stderr().lock());
    loop {
        collector.collect(&mut lines, &mut notes)?;
    }
}

/// A socket, what receives from it, and where to.
pub(crate) struct Collector {
    /// Where it listens.
    pub(crate) socket: Arc<Socket>,
    engine: Engine,
    batch: RecvBatch,
    drops: u32,
}

impl Collector {
    /// Listens on `address`.
    pub(crate) fn new(address: SocketAddr) -> io::Result<Collector> {
        let socket = Socket::new(if address.is_ipv4() { Family::V4 } else { Family::V6 })?;
        socket.set_receive_buffer(16 << 20)?;
        socket.set_timestamps(true)?;
        socket.bind(address)?;
        let socket = Arc::new(socket);
        let shape = BatchShape::new(64, 2048).control(Control::new().timestamps(true));
        let (engine, batch) = (Engine::recvmmsg(Arc::clone(&socket)), RecvBatch::new(&shape)?);
        Ok(Collector { socket, engine, batch, drops: 0 })
    }

    /// Waits for datagrams, writes all that are there to `lines`, and to `notes` what was lost.
    pub(crate) fn collect(&mut self, lines: &mut impl Write, notes: &mut impl Write) -> io::Result<()> {
        self.engine.receive(&mut self.batch, Wait::Gather(GATHER))?;
        for datagram in &self.batch {
            let time = datagram.arrival().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            let seconds = time.unwrap_or_default().as_secs_f64();
            let source = datagram.source().map_or_else(|| "?".to_owned(), |source| source.to_string());
            let cut = if datagram.is_truncated() { " [cut]" } else { "" };
            writeln!(lines, "{seconds:.6} {source} {}{cut}", datagram.payload().escape_ascii())?;
        }
        lines.flush()?;
        let drops = self.socket.memory_info()?.drops;
        if drops != self.drops {
            writeln!(notes, "the kernel dropped {} datagrams: too fast for this", drops.wrapping_sub(self.drops))?;
            self.drops = drops;
        }
        Ok(())
    }
}
