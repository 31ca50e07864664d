//! Receives by AF_XDP what comes to a port of an interface, and by an ordinary socket what passes, and accounts for
//! both.
//!
//! ```text
//! cargo run -p mmsg --example af_xdp -- [OPTIONS] INTERFACE PORT ADDRESS...
//!   --generic         above the driver instead of in it
//!   --tagged          frames with a VLAN tag too
//!   --queues N        so many receive queues (1)
//!   --batches N       memory for so many batches of 64 frames a queue (64)
//!   --copy-up-to N    copy payloads of up to so many bytes (256)
//!   --wire            refuse checksums that were left to the device too
//!   --zero-copy       let the device write into the memory itself, if it can
//!   --pause-ms N      rest after each batch, as a slow reader would
//!   --write FILE      every datagram as a line: who got it, source, destination, payload
//!   --no-engine       the ordinary socket alone
//! ```
//!
//! It says `ready`, and reads its standard input: a line ends the engines, each after what its ring holds, and the end
//! of the input ends the program. At either it prints the account.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mmsg::{BatchShape, Control, Engine, Family, RecvBatch, Socket, Wait, Waker, xdp};

type Failure = Box<dyn Error + Send + Sync>;

/// Slots of a batch.
const SLOTS: usize = 64;

/// What is noted down with each datagram.
const NOTED: Control = Control::new().packet_info(true);

fn main() -> Result<(), Failure> {
    let task = Task::parse(std::env::args().skip(1))?;
    let book = Arc::new(Mutex::new(match &task.write {
        Some(path) => Some(BufWriter::new(File::create(path).map_err(|error| format!("{path}: {error}"))?)),
        None => None,
    }));
    let family = if task.addresses.iter().any(IpAddr::is_ipv6) { Family::V6 } else { Family::V4 };
    let socket = Arc::new(Socket::new(family)?);
    socket.set_packet_info(true)?;
    socket.set_receive_buffer(64 << 20)?;
    let anywhere: IpAddr = if family == Family::V6 { [0_u16; 8].into() } else { [0_u8; 4].into() };
    socket.bind((anywhere, task.wanted.port).into())?;
    let ordinary = {
        let (socket, book) = (Arc::clone(&socket), Arc::clone(&book));
        thread::spawn(move || receive_ordinary(&socket, &book))
    };
    let redirect = match task.engine {
        true => Some(Arc::new(xdp::Redirect::attach(&task.wanted, &task.addresses)?)),
        false => None,
    };
    let queues = if redirect.is_some() { 0..task.queues } else { 0..0 };
    let mut lanes = Vec::new();
    for queue in queues {
        lanes.push(Lane::start(queue, &task, redirect.as_ref(), &book)?);
    }
    say("ready")?;
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? > 0 {
        end(std::mem::take(&mut lanes))?;
        line.clear();
        while io::stdin().read_line(&mut line)? > 0 {}
    }
    end(lanes)?;
    drop(redirect);
    // What arrives from now on is counted and not received; then what is there is the last.
    socket.refuse_arrivals()?;
    mmsg::wait_for_arrivals_under_way()?;
    socket.interrupt()?;
    let datagrams = ordinary.join().map_err(|_| "the ordinary socket's thread panicked")??;
    say(&format!("ordinary {datagrams} dropped {}", socket.memory_info()?.drops))?;
    if let Some(book) = book.lock().map_err(|_| "a writer panicked")?.as_mut() {
        book.flush()?;
    }
    Ok(())
}

/// What the command line asks for.
struct Task {
    wanted: xdp::Wanted,
    addresses: Vec<IpAddr>,
    engine: bool,
    queues: u32,
    batches: usize,
    copy_up_to: usize,
    zero_copy: bool,
    checksums: xdp::Checksums,
    pause: Duration,
    write: Option<String>,
}

impl Task {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Task, Failure> {
        let mut task = Task {
            wanted: xdp::Wanted::new("", 0),
            addresses: Vec::new(),
            engine: true,
            queues: 1,
            batches: 64,
            copy_up_to: 256,
            zero_copy: false,
            checksums: xdp::Checksums::default(),
            pause: Duration::ZERO,
            write: None,
        };
        let mut places = Vec::new();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--generic" => task.wanted.mode = xdp::Mode::Generic,
                "--tagged" => task.wanted.tagged = true,
                "--wire" => task.checksums = xdp::Checksums::Verified,
                "--zero-copy" => task.zero_copy = true,
                "--no-engine" => task.engine = false,
                "--queues" => task.queues = value()?.parse()?,
                "--batches" => task.batches = value()?.parse()?,
                "--copy-up-to" => task.copy_up_to = value()?.parse()?,
                "--pause-ms" => task.pause = Duration::from_millis(value()?.parse()?),
                "--write" => task.write = Some(value()?),
                _ => places.push(argument),
            }
        }
        let [interface, port, addresses @ ..] = places.as_slice() else {
            return Err("usage: af_xdp [OPTIONS] INTERFACE PORT ADDRESS...".into());
        };
        task.wanted.interface.clone_from(interface);
        task.wanted.port = port.parse().map_err(|error| format!("{port}: {error}"))?;
        for address in addresses {
            task.addresses.push(address.parse().map_err(|error| format!("{address}: {error}"))?);
        }
        Ok(task)
    }
}

/// Where datagrams are written down, if they are.
type Book = Mutex<Option<BufWriter<File>>>;

/// One receive queue with its engine, on a thread of its own.
struct Lane {
    queue: u32,
    waker: Waker,
    thread: JoinHandle<io::Result<Account>>,
}

/// What came of a queue.
#[derive(Default)]
struct Account {
    datagrams: u64,
    tally: xdp::Tally,
    statistics: xdp::Statistics,
}

impl Lane {
    fn start(
        queue: u32,
        task: &Task,
        redirect: Option<&Arc<xdp::Redirect>>,
        book: &Arc<Book>,
    ) -> Result<Lane, Failure> {
        let (redirect, book) = (Arc::clone(redirect.ok_or("no engine without a redirect")?), Arc::clone(book));
        let (batches, pause) = (task.batches, task.pause);
        let options = xdp::Options::new(queue).copy_up_to(task.copy_up_to).zero_copy(task.zero_copy);
        let options = options.checksums(task.checksums).control(NOTED);
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let start = || -> io::Result<_> {
                let (mut reserve, _) = RecvBatch::pool(batches + 1, &BatchShape::new(SLOTS, 2048).control(NOTED))?;
                let batch = reserve.remove(0);
                let engine = Engine::af_xdp(redirect, reserve, &options)?;
                let waker = engine.waker()?;
                Ok((engine, batch, waker))
            };
            match start() {
                Ok((engine, batch, waker)) => {
                    // The thread that started this one waits for it.
                    let _ = sender.send(Ok(waker));
                    let account = receive_queue(engine, batch, pause, &book);
                    account.inspect_err(|error| drop(say(&format!("queue {queue} failed: {error}"))))
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                    Ok(Account::default())
                }
            }
        });
        let waker = started(&receiver)?;
        Ok(Lane { queue, waker, thread })
    }
}

fn started(receiver: &Receiver<io::Result<Waker>>) -> Result<Waker, Failure> {
    Ok(receiver.recv().map_err(|_| "the thread of a queue panicked")??)
}

/// Receives until it is woken, then what the ring still holds.
fn receive_queue(mut engine: Engine, mut batch: RecvBatch, pause: Duration, book: &Book) -> io::Result<Account> {
    let mut datagrams = 0;
    while engine.receive(&mut batch, Wait::Block)? > 0 {
        datagrams += batch.summary().datagrams;
        note(book, "engine", &batch)?;
        if !pause.is_zero() {
            thread::sleep(pause);
        }
    }
    while engine.receive_held(&mut batch)? > 0 {
        datagrams += batch.summary().datagrams;
        note(book, "engine", &batch)?;
    }
    let statistics = engine.xdp_statistics()?.unwrap_or_default();
    Ok(Account { datagrams, tally: engine.xdp_tally().unwrap_or_default(), statistics })
}

/// Receives what the program lets pass, until the socket's end.
fn receive_ordinary(socket: &Socket, book: &Book) -> io::Result<u64> {
    let mut batch = RecvBatch::new(&BatchShape::new(SLOTS, 65_536).control(NOTED))?;
    let mut datagrams = 0;
    while batch.receive(socket, Wait::Block)? > 0 {
        datagrams += batch.summary().datagrams;
        note(book, "ordinary", &batch)?;
    }
    Ok(datagrams)
}

fn note(book: &Book, who: &str, batch: &RecvBatch) -> io::Result<()> {
    let mut book = book.lock().map_err(|_| io::Error::other("a writer panicked"))?;
    let Some(book) = book.as_mut() else { return Ok(()) };
    let mut line = String::new();
    for datagram in batch {
        line.clear();
        let (source, destination) = (datagram.source(), datagram.destination());
        if let (Some(source), Some(destination)) = (source, destination) {
            let _ = write!(line, "{who} {source} {destination} ");
        }
        for byte in datagram.payload() {
            let _ = write!(line, "{byte:02x}");
        }
        writeln!(book, "{line}")?;
    }
    Ok(())
}

/// Ends engines, and prints what came of each.
fn end(lanes: Vec<Lane>) -> Result<(), Failure> {
    for lane in lanes {
        // A call that was just about to sleep misses it, so it is said until it is heard.
        while !lane.thread.is_finished() {
            lane.waker.wake()?;
            thread::sleep(Duration::from_millis(1));
        }
        let account = lane.thread.join().map_err(|_| "the thread of a queue panicked")??;
        let told = account.statistics;
        say(&format!(
            "queue {} datagrams {} refused {} lost {} fill_ring_empty {} left_to_device {}",
            lane.queue,
            account.datagrams,
            account.tally.refused(),
            told.lost().map_or("unknown".to_owned(), |lost| lost.to_string()),
            told.rx_fill_ring_empty_descs,
            account.tally.left_to_device
        ))?;
    }
    Ok(())
}

/// Prints a line now.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
