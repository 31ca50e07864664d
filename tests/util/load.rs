//! The load generator: datagrams that carry their flow and number, at a rate held on an absolute schedule.
//!
//! Every claim about loss rests on knowing what was sent, so it counts only what `sendmmsg` says it took, and numbers
//! the datagrams of each flow without a gap: the receiver's side can then tell a loss from a repeat from a mix-up. The
//! schedule is absolute (burst k is due at start + k x burst / rate), so a sender that was held up catches up instead
//! of silently offering less.
//!
//! A rate is the most it sends. No test may depend on how fast its machine is, so a load waits while the receiving
//! socket is filling up, and what is lost then is a fault of what is tested. A test of what happens when the receiver
//! falls behind says so with `overruns`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSlice, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};

/// A sleeping thread wakes up late by about this much, so the rest is spun.
const SPIN: Duration = Duration::from_micros(60);
/// How often it looks how full the receiving sockets are. What one core sends in this time fits 2 MiB.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A socket with more bytes than this waiting is filling up.
const WAITING_BYTES_MAX: u64 = 1 << 20;
/// A receiver that took nothing for as long is not slow but stopped, and that is then what is tested.
const STOPPED_AFTER: Duration = Duration::from_secs(10);
/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    /// After this many datagrams.
    Count(u64),
    /// After this long; with a rate that means exactly rate x seconds datagrams.
    Seconds(f64),
}

/// What to send.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Flow f goes to `to[f % to.len()]`.
    pub(crate) to: Vec<SocketAddr>,
    /// The address it is sent from; `None` leaves it to the kernel.
    pub(crate) from: Option<IpAddr>,
    /// Datagrams a second over all flows at most; 0 is as fast as one core can.
    pub(crate) rate_per_second: u64,
    /// Sends on whatever waits in the receiving socket already.
    pub(crate) overruns: bool,
    /// When to stop.
    pub(crate) amount: Amount,
    /// Length of each datagram: room for its header and one more byte at least.
    pub(crate) payload_bytes: usize,
    /// The number of the first flow.
    pub(crate) first_flow: usize,
    /// Sockets, hence source ports.
    pub(crate) flows: usize,
    /// Datagrams in one `sendmmsg`, rounded up to whole trains; the flows take turns burst by burst.
    pub(crate) burst: usize,
    /// Datagrams in one UDP_SEGMENT train; `None` sends each on its own.
    pub(crate) segment: Option<u16>,
    /// Core to pin the sending thread to.
    pub(crate) cpu: Option<usize>,
}

/// What was sent.
#[derive(Debug, Clone)]
pub(crate) struct LoadReport {
    /// Datagrams that the kernel took.
    pub(crate) sent: u64,
    /// From the first burst to the last.
    pub(crate) seconds: f64,
    /// The same by flow; flow f carries the numbers 0 to `per_flow[f] - 1`.
    pub(crate) per_flow: Vec<u64>,
}

impl Load {
    /// 32 bytes of text from 16 flows in bursts of 32, as fast as possible: the usual load, to be changed where a test
    /// needs to.
    pub(crate) fn new(to: SocketAddr, amount: Amount) -> Self {
        Self {
            to: vec![to],
            from: None,
            rate_per_second: 0,
            overruns: false,
            amount,
            payload_bytes: 32,
            first_flow: 0,
            flows: 16,
            burst: 32,
            segment: None,
            cpu: None,
        }
    }

    /// So many at a small rate from 8 ports, which lasts over some restarts.
    pub(crate) fn steady(to: SocketAddr, datagrams: u64) -> Self {
        Self::new(to, Amount::Count(datagrams)).rate(20_000).flows(8)
    }

    /// At most so many a second.
    pub(crate) fn rate(mut self, datagrams: u64) -> Self {
        self.rate_per_second = datagrams;
        self
    }

    /// From so many ports.
    pub(crate) fn flows(mut self, flows: usize) -> Self {
        self.flows = flows;
        self
    }

    /// Datagrams of this length.
    pub(crate) fn bytes(mut self, payload_bytes: usize) -> Self {
        self.payload_bytes = payload_bytes;
        self
    }

    /// From this address of loopback.
    pub(crate) fn from(mut self, address: impl Into<IpAddr>) -> Self {
        self.from = Some(address.into());
        self
    }

    /// In trains of so many.
    pub(crate) fn trains(mut self, datagrams: u16) -> Self {
        self.segment = Some(datagrams);
        self
    }

    /// From this core.
    pub(crate) fn on_core(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// Whatever waits in the receiving socket already.
    pub(crate) fn overrunning(mut self) -> Self {
        self.overruns = true;
        self
    }

    /// Sends it all and returns when that is done.
    pub(crate) fn send(self) -> LoadReport {
        self.spawn().join().expect("the sending thread panicked, see above")
    }

    /// Starts sending on a thread of its own.
    pub(crate) fn spawn(self) -> JoinHandle<LoadReport> {
        self.check();
        std::thread::Builder::new()
            .name("load".into())
            .spawn(move || self.run())
            .expect("cannot start the sending thread")
    }

    /// A load that cannot be sent as described would be a test that means nothing.
    fn check(&self) {
        assert!(
            !self.to.is_empty() && self.flows > 0 && self.burst > 0,
            "a load needs a destination, a flow and a burst"
        );
        let header = format!("f{:02} s{:010} ", self.flows, 0).len();
        assert!(self.payload_bytes > header, "payload_bytes is {}, and a header takes {header}", self.payload_bytes);
        let train = self.train();
        assert!((1..=128).contains(&train), "a train has 1 to 128 datagrams, not {train}");
        let train_bytes = train * self.payload_bytes;
        assert!(train_bytes <= 65_507, "a train of {train_bytes} bytes does not fit one send, 65,507 at most");
    }

    /// Datagrams in one message.
    fn train(&self) -> usize {
        self.segment.map_or(1, usize::from)
    }

    /// Datagrams to send, when that is known beforehand.
    fn count(&self) -> Option<u64> {
        match self.amount {
            Amount::Count(count) => Some(count),
            Amount::Seconds(_) if self.rate_per_second == 0 => None,
            Amount::Seconds(seconds) => Some((seconds * self.rate_per_second as f64).round() as u64),
        }
    }

    fn run(&self) -> LoadReport {
        if let Some(cpu) = self.cpu {
            assert!(
                core_affinity::set_for_current(core_affinity::CoreId { id: cpu }),
                "cannot pin the sender to CPU {cpu}"
            );
        }
        let sockets: Vec<UdpSocket> =
            (0..self.flows).map(|flow| connected(self.to[flow % self.to.len()], self.from)).collect();
        let mut sender = Sender::new(self);
        let mut receiver = (!self.overruns).then(|| Receiver::new(&self.to));
        let mut per_flow = vec![0_u64; self.flows];
        let burst = self.burst.div_ceil(self.train()) * self.train();
        let (mut sent, mut turn) = (0_u64, 0_usize);
        let start = Instant::now();
        loop {
            let wanted = match (self.count(), self.amount) {
                (Some(count), _) => (count - sent).min(burst as u64) as usize,
                (None, Amount::Seconds(seconds)) if start.elapsed().as_secs_f64() < seconds => burst,
                (None, _) => 0,
            };
            if wanted == 0 {
                break;
            }
            if self.rate_per_second > 0 {
                wait_until(start + Duration::from_secs_f64(sent as f64 / self.rate_per_second as f64));
            }
            if receiver.as_mut().is_some_and(|receiver| !receiver.has_room()) {
                receiver = None;
            }
            let flow = turn % self.flows;
            sender.send(&sockets[flow], self.first_flow + flow, per_flow[flow], wanted);
            per_flow[flow] += wanted as u64;
            sent += wanted as u64;
            turn += 1;
        }
        LoadReport { sent, seconds: start.elapsed().as_secs_f64(), per_flow }
    }
}

impl LoadReport {
    /// Checks that the lines hold each number of each flow exactly once, and nothing else.
    #[track_caller]
    pub(crate) fn assert_each_once(&self, text: &[u8]) {
        let mut missing: Vec<BTreeSet<u64>> = self.per_flow.iter().map(|&count| (0..count).collect()).collect();
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let line = std::str::from_utf8(line).expect("the load is text");
            let (flow, number) = read_text_header(line).unwrap_or_else(|| panic!("not a line of the load: {line:?}"));
            assert!(missing[flow].remove(&number), "flow {flow}: number {number} is there twice, or was never sent");
        }
        assert!(missing.iter().all(BTreeSet::is_empty), "missing: {missing:?}");
    }
}

/// The sockets that a load goes to, as the kernel lists them.
struct Receiver {
    ports: Vec<String>,
    lists: Vec<File>,
    text: Vec<u8>,
    looked: Instant,
}

impl Receiver {
    fn new(to: &[SocketAddr]) -> Self {
        Self {
            ports: to.iter().map(|to| format!(":{:04X}", to.port())).collect(),
            // Without IPv6 there is one list.
            lists: ["/proc/net/udp", "/proc/net/udp6"].iter().filter_map(|path| File::open(path).ok()).collect(),
            text: vec![0; 1 << 16],
            looked: Instant::now(),
        }
    }

    /// Waits until there is room, and says whether there ever was. Looks only now and then.
    fn has_room(&mut self) -> bool {
        if self.looked.elapsed() < LOOK_EVERY {
            return true;
        }
        let (mut least, mut since) = (u64::MAX, Instant::now());
        while since.elapsed() < STOPPED_AFTER {
            let waiting = self.waiting_bytes();
            if waiting <= WAITING_BYTES_MAX {
                self.looked = Instant::now();
                return true;
            }
            if waiting < least {
                (least, since) = (waiting, Instant::now());
            }
            std::thread::sleep(SPIN);
        }
        false
    }

    /// What waits in the fullest of the sockets, as their buffers count it.
    fn waiting_bytes(&mut self) -> u64 {
        let mut fullest = 0;
        for list in &self.lists {
            let length = list.read_at(&mut self.text, 0).expect("the list of sockets is readable");
            let text = std::str::from_utf8(&self.text[..length]).expect("the list of sockets is text");
            // Number, local and remote address, state, and the two queues as "sent:received".
            for line in text.lines().skip(1) {
                let mut words = line.split_whitespace().skip(1);
                let Some(local) = words.next() else { continue };
                let received =
                    words.nth(2).and_then(|queues| queues.split_once(':')).map_or("0", |(_, received)| received);
                if self.ports.iter().any(|port| local.ends_with(port)) {
                    // The last line may be cut off.
                    fullest = fullest.max(u64::from_str_radix(received, 16).unwrap_or(0));
                }
            }
        }
        fullest
    }
}

/// One thread's buffers, filled anew for each burst.
struct Sender {
    payload_bytes: usize,
    train: usize,
    arena: Vec<u8>,
    headers: MultiHeaders<SockaddrStorage>,
    segment_bytes: Option<u16>,
}

impl Sender {
    fn new(load: &Load) -> Self {
        let train = load.train();
        let messages = load.burst.div_ceil(train);
        let segment_bytes = load.segment.map(|_| u16::try_from(load.payload_bytes).expect("checked: fits a send"));
        let control = segment_bytes.map(|_| nix::cmsg_space!(u16));
        Self {
            payload_bytes: load.payload_bytes,
            train,
            arena: vec![b'x'; messages * train * load.payload_bytes],
            headers: MultiHeaders::preallocate(messages, control),
            segment_bytes,
        }
    }

    /// Sends `wanted` datagrams of `flow`, numbered from `first`, however many calls that takes.
    fn send(&mut self, socket: &UdpSocket, flow: usize, first: u64, wanted: usize) {
        let used = wanted * self.payload_bytes;
        for (datagram, number) in self.arena[..used].chunks_exact_mut(self.payload_bytes).zip(first..) {
            write_header(datagram, flow, number);
        }
        let control: Vec<ControlMessage<'_>> = self.segment_bytes.iter().map(ControlMessage::UdpGsoSegments).collect();
        let train_bytes = self.train * self.payload_bytes;
        let messages: Vec<[IoSlice<'_>; 1]> =
            self.arena[..used].chunks(train_bytes).map(|train| [IoSlice::new(train)]).collect();
        // The sockets are connected, so no message has an address of its own.
        let addresses = vec![None; messages.len()];
        let mut done = 0;
        while done < messages.len() {
            let rest = &messages[done..];
            match sendmmsg(socket.as_raw_fd(), &mut self.headers, rest, &addresses, &control, MsgFlags::empty()) {
                Ok(results) => done += results.count(),
                // Refused is the answer to an earlier datagram that met no socket; this one was not sent.
                Err(Errno::ECONNREFUSED | Errno::EINTR | Errno::ENOBUFS | Errno::EAGAIN) => {}
                Err(error) => panic!("sendmmsg of {} messages to {:?}: {error}", rest.len(), socket.peer_addr()),
            }
        }
    }
}

/// A socket with a source port of its own.
fn connected(to: SocketAddr, from: Option<IpAddr>) -> UdpSocket {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let own = from.map_or(any, |from| (from, 0).into());
    let socket = UdpSocket::bind(own).expect("cannot bind a sending socket");
    socket.connect(to).unwrap_or_else(|error| panic!("cannot connect a sending socket to {to}: {error}"));
    socket
}

/// Writes flow and number at the head of a datagram; the rest keeps its filling, which no format has to escape.
fn write_header(mut datagram: &mut [u8], flow: usize, number: u64) {
    write!(datagram, "f{flow:02} s{number:010} ").expect("checked: the header fits the payload");
}

/// The flow and number of a text payload, for the receiving end of a test; `None` when it is not one.
pub(crate) fn read_text_header(line: &str) -> Option<(usize, u64)> {
    let mut words = line.split(' ');
    let flow = words.next()?.strip_prefix('f')?.parse().ok()?;
    let number = words.next()?.strip_prefix('s')?.parse().ok()?;
    Some((flow, number))
}

/// Sleeps while there is time to, then spins.
fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left.checked_sub(SPIN) {
            Some(long) if !long.is_zero() => std::thread::sleep(long),
            _ => std::hint::spin_loop(),
        }
    }
}
