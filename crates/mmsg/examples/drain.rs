//! What a datagram costs each engine when it is already there: a socket is filled, drained, and every payload looked
//! at. Without a sender at work and without wake-ups this compares the engines themselves, and copying out of a ring
//! with changing places.
//!
//! ```text
//! cargo run --release -p mmsg --example drain -- [BYTES] [DATAGRAMS] [ROUNDS]
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mmsg::{BatchShape, Engine, Family, RecvBatch, SendBatch, Socket, Uring, Wait};

/// How much the engines take from a socket at once.
const SLOTS: usize = 64;

/// As many batches as a pipeline has under way, so that their memory is as cold as it is there.
const BATCHES: usize = 64;

/// The ways to compare: recvmmsg, or a ring that copies payloads of up to so many bytes.
const WAYS: [Option<usize>; 3] = [None, Some(0), Some(usize::MAX)];

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |place: usize, default: usize| match std::env::args().nth(place) {
        Some(text) => text.parse().map_err(|error| format!("{text}: {error}")),
        None => Ok(default),
    };
    let (bytes, datagrams, rounds) = (argument(1, 32)?, argument(2, 1000)?, argument(3, 500)?);
    if let Err(why) = Uring::supported() {
        return Err(format!("nothing to compare: {why}").into());
    }
    let mut lanes = WAYS.iter().map(|way| Lane::new(*way, bytes)).collect::<Result<Vec<_>, _>>()?;
    // Taking turns, so that a machine that changes its pace changes it for all of them.
    for _ in 0..rounds {
        for lane in &mut lanes {
            lane.round(datagrams)?;
        }
    }
    let mut out = io::stdout().lock();
    for lane in &mut lanes {
        lane.times.sort_unstable();
        let median = lane.times[lane.times.len() / 2].as_nanos() as f64 / datagrams as f64;
        writeln!(out, "{:28} {median:7.1} ns per datagram of {bytes} bytes, median of {rounds}", lane.name)?;
    }
    Ok(())
}

struct Lane {
    name: String,
    engine: Engine,
    socket: Arc<Socket>,
    sender: Socket,
    outgoing: SendBatch,
    payload: Vec<u8>,
    batches: Vec<RecvBatch>,
    times: Vec<Duration>,
}

impl Lane {
    fn new(way: Option<usize>, bytes: usize) -> io::Result<Lane> {
        let socket = Socket::new(Family::V4)?;
        socket.set_receive_buffer(64 << 20)?;
        socket.bind(([127, 0, 0, 1], 0).into())?;
        let sender = Socket::new(Family::V4)?;
        sender.connect(socket.local_addr()?)?;
        let socket = Arc::new(socket);
        let shape = BatchShape::new(SLOTS, 2048).huge_pages(true);
        let (mut batches, _) = RecvBatch::pool(BATCHES + Uring::reserve_batches(SLOTS), &shape)?;
        let own = batches.split_off(BATCHES);
        let (name, engine) = match way {
            None => ("recvmmsg".to_owned(), Engine::recvmmsg(Arc::clone(&socket))),
            Some(up_to) => {
                let name = if up_to == 0 { "io_uring, changing places" } else { "io_uring, copying" };
                (name.to_owned(), Engine::uring(Arc::clone(&socket), own, up_to)?)
            }
        };
        let outgoing = SendBatch::new(SLOTS, bytes.max(1))?;
        Ok(Lane { name, engine, socket, sender, outgoing, payload: vec![7; bytes], batches, times: Vec::new() })
    }

    /// Fills the socket, then measures how long it takes to empty it.
    fn round(&mut self, datagrams: usize) -> Result<(), Box<dyn Error>> {
        for number in 1..=datagrams {
            self.outgoing.push(&self.payload, None)?;
            if number % SLOTS == 0 || number == datagrams {
                self.outgoing.flush(&self.sender)?.all_sent()?;
            }
        }
        let (start, mut received, mut sum, mut next) = (Instant::now(), 0, 0_u64, 0);
        while received < datagrams {
            let batch = &mut self.batches[next];
            next = (next + 1) % BATCHES;
            if self.engine.receive(batch, Wait::No)? == 0 {
                let drops = self.socket.memory_info()?.drops;
                return Err(format!("{drops} of the datagrams did not fit the socket: ask for fewer").into());
            }
            received += batch.messages();
            sum += batch.datagrams().flat_map(|datagram| datagram.payload()).map(|byte| u64::from(*byte)).sum::<u64>();
        }
        self.times.push(start.elapsed());
        if sum != 7 * (self.payload.len() * datagrams) as u64 {
            return Err("what was received is not what was sent".into());
        }
        Ok(())
    }
}
