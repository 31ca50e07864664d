//! The sender threads from the first socket to the report.
//!
//! [`run`] is the library call: a [`SendLoad`], a stop flag, and a closure that is told of each second. Every flow has
//! a connected socket of its own: its own source port, one look-up of its route, and its ICMP answers. A flow belongs
//! to one thread, so its sequence never overtakes itself. A thread reads the clock once, stamps what is due into a
//! batch and hands the batch to the kernel.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use crossbeam_utils::CachePadded;
use hdrhistogram::Histogram;
use mmsg::{Family, SendBatch, Socket};
use nix::errno::Errno;
use nix::sys::prctl;
use serde::Serialize;

use super::load::SendLoad;
use super::report::{Sampler, SendSecond, SenderReport};
use crate::clock::{self, Monotonic, PacingClock};
use crate::pacer::{Pacer, Rate, Schedule, SendAmount};
use crate::payload::{self, HeaderStamp, SendTime};
use crate::sizes::Picker;
use udpd_base::exit::{ExitCode, Failure};

/// Sends the load until it is done or `stop` is raised, and tells `each_second` what was sent in each.
pub fn run(
    load: &SendLoad,
    stop: &Arc<AtomicBool>,
    each_second: &mut dyn FnMut(&SendSecond),
) -> Result<SenderReport, Failure> {
    load.check()?;
    let run = load.run.unwrap_or_else(|| random_run(clock::realtime_ns(), std::process::id()));
    let schedule = Schedule::new(load.rate, load.amount, load.unit() as u64);
    let mut flows = open_flows(load)?;
    let progress: Arc<[Progress]> = (0..load.threads).map(|_| Progress::default()).collect();
    // Raised when one of the threads fails: the others end then too.
    let end = Arc::new(AtomicBool::new(false));
    let make = |index: usize| {
        let own = flows.iter_mut().skip(index).step_by(load.threads).filter_map(Option::take).collect();
        let pacer = Pacer::new(schedule, index, load.threads);
        let stop = [Arc::clone(stop), Arc::clone(&end)];
        Worker::new(load, run, WorkerTask { index, pacer, flows: own, progress: Arc::clone(&progress), stop })
    };
    let workers: Vec<Worker> = (0..load.threads).map(make).collect::<Result<_, _>>()?;
    let bodies = workers.into_iter().map(|worker| Box::new(move |start_ns| worker.run(start_ns)) as Body).collect();
    drive(run, schedule, bodies, &progress, &end, each_second)
}

/// What a sender thread does: it is told when the schedule begins.
pub(super) type Body = Box<dyn FnOnce(u64) -> Result<Done, Failure> + Send>;

/// Starts a thread for each body, tells of each second, and makes the report when all have ended. `end` is raised when
/// one of them fails.
pub(super) fn drive(
    run: u16,
    schedule: Schedule,
    bodies: Vec<Body>,
    progress: &Arc<[Progress]>,
    end: &AtomicBool,
    each_second: &mut dyn FnMut(&SendSecond),
) -> Result<SenderReport, Failure> {
    let count = bodies.len();
    let (done_sender, done) = bounded(count);
    let start_ns = Monotonic.now_ns();
    let mut threads = Vec::with_capacity(count);
    for (index, body) in bodies.into_iter().enumerate() {
        let sender = done_sender.clone();
        let body = move || {
            let _ = sender.send(body(start_ns));
        };
        let spawned = thread::Builder::new().name(format!("send{index}")).spawn(body);
        threads.push(spawned.map_err(|error| {
            end.store(true, Ordering::Relaxed);
            Failure::new(ExitCode::Failure, format!("cannot start sender thread {index}: {error}"))
        })?);
    }
    drop(done_sender);
    let mut sampler = Sampler::new(schedule, progress, start_ns);
    let mut ended: Vec<Done> = Vec::new();
    let mut failure = None;
    while ended.len() < count && failure.is_none() {
        match done.recv_timeout(sampler.until_next()) {
            Ok(Ok(one)) => ended.push(one),
            Ok(Err(error)) => failure = Some(error),
            Err(RecvTimeoutError::Timeout) => each_second(sampler.sample()),
            Err(RecvTimeoutError::Disconnected) => {
                failure = Some(Failure::new(ExitCode::Failure, "a sender thread has panicked, which is a bug of udpd"));
            }
        }
    }
    end.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread.join();
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(sampler.finish(run, ended, each_second)),
    }
}

/// One socket a flow; flow i has source address i modulo their number.
fn open_flows(load: &SendLoad) -> Result<Vec<Option<SendFlow>>, Failure> {
    (0..load.flows).map(|number| open_flow(load, number).map(Some)).collect()
}

fn open_flow(load: &SendLoad, number: usize) -> Result<SendFlow, Failure> {
    let family = if load.to.is_ipv4() { Family::V4 } else { Family::V6 };
    let fail = |what: &str, cure: &str, error: std::io::Error| {
        let text = format!("flow {number} of {}: cannot {what}: {error}{cure}", load.flows);
        Failure::new(ExitCode::Unavailable, text)
    };
    let cure = "; each flow needs a file descriptor: raise ulimit -n, or write fewer --flows";
    let socket = Socket::new(family).map_err(|error| fail("make a socket", cure, error))?;
    if !load.sources.is_empty() {
        let source = load.sources[number % load.sources.len()];
        let cure = "; --sources must be addresses of this host, see `ip address`";
        socket.bind((source, 0).into()).map_err(|error| fail(&format!("bind to {source}"), cure, error))?;
    }
    let cure = "; `ip route get ADDRESS` shows the route";
    socket.connect(load.to).map_err(|error| fail(&format!("connect to {}", load.to), cure, error))?;
    let source = socket.local_addr().map_err(|error| fail("read its own address", "", error))?;
    Ok(SendFlow { socket, source, number: u16::try_from(number).unwrap_or(u16::MAX), sequence: 0, sent: 0 })
}

/// A number that two runs hardly share: the bits of clock and process, mixed.
pub(super) fn random_run(now_ns: u64, process_id: u32) -> u16 {
    let mixed = (now_ns ^ (u64::from(process_id) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}

/// How long a run may go on past its end to send what was due before.
pub(super) const CATCH_UP: Duration = Duration::from_millis(100);

/// How long to wait before another try when the kernel has no buffers.
const BUFFER_REST: Duration = Duration::from_micros(100);

/// How often the distance between the two clocks is measured again, because the clock may be set.
pub(super) const OFFSET_EVERY_NS: u64 = 1_000_000_000;

/// The longest lateness that is told apart.
pub(super) const LATENESS_MAX_NS: u64 = 60_000_000_000;

/// One flow: a socket with a source port of its own.
#[derive(Debug)]
pub(super) struct SendFlow {
    pub(super) socket: Socket,
    pub(super) source: SocketAddr,
    pub(super) number: u16,
    pub(super) sequence: u64,
    pub(super) sent: u64,
}

/// What a thread has done so far.
#[derive(Debug, Default)]
pub(super) struct SenderCounters {
    pub(super) sent: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) calls: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Each on its own cache line, because each has one writer.
pub(super) type Progress = CachePadded<SenderCounters>;

/// One flow in the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlowSent {
    pub flow: u16,
    /// Where it came from.
    pub source: SocketAddr,
    pub sent: u64,
    /// Sequences used up, those of refused datagrams included: what a receiver expects.
    pub sequences: u64,
}

/// What a thread leaves behind.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) ended_ns: u64,
    pub(super) cpu_ns: u64,
    pub(super) flows: Vec<FlowSent>,
    pub(super) refused: BTreeMap<i32, u64>,
    /// Calls that the kernel answered with "no buffers", and that were repeated.
    pub(super) repeated: BTreeMap<i32, u64>,
    /// Errors about datagrams that had gone out before.
    pub(super) answers: BTreeMap<i32, u64>,
    pub(super) lateness: Option<Histogram<u64>>,
    pub(super) segmentation_refused: bool,
}

/// What a thread is given.
#[derive(Debug)]
pub(super) struct WorkerTask {
    pub(super) index: usize,
    pub(super) pacer: Pacer,
    /// Its flows, at least one.
    pub(super) flows: Vec<SendFlow>,
    /// The counters of all threads; it writes those of its number.
    pub(super) progress: Arc<[Progress]>,
    /// It ends when one of these is raised.
    pub(super) stop: [Arc<AtomicBool>; 2],
}

/// Everything a sender thread owns.
pub(super) struct Worker {
    run: u16,
    post: WorkerTask,
    picker: Picker,
    batch: SendBatch,
    /// One message, filled with the pattern; headers are written over it.
    message: Box<[u8]>,
    train: usize,
    messages_per_call: usize,
    /// How long it may take, what was due before included.
    limit_ns: u64,
    start_ns: u64,
    deadline_ns: u64,
    core: Option<usize>,
    refused: BTreeMap<i32, u64>,
    repeated: BTreeMap<i32, u64>,
    answers: BTreeMap<i32, u64>,
    lateness: Option<Histogram<u64>>,
    segmentation_refused: bool,
    bytes: u64,
}

impl Worker {
    pub(super) fn new(load: &SendLoad, run: u16, post: WorkerTask) -> Result<Self, Failure> {
        let (train, messages_per_call) = (load.train(), load.messages_per_call());
        let message_bytes = load.sizes.max() * train;
        // A slot has at least one byte, also for empty payloads.
        let batch = SendBatch::new(messages_per_call, message_bytes.max(1)).map_err(|error| {
            let text = format!("cannot get memory for {messages_per_call} messages of {message_bytes} bytes: {error}");
            Failure::new(ExitCode::Failure, text)
        })?;
        let mut message = vec![0; message_bytes].into_boxed_slice();
        message.chunks_mut(load.sizes.max().max(1)).for_each(payload::fill);
        let limit_ns = match load.amount {
            SendAmount::Seconds(duration) => {
                let grace = if load.rate == Rate::Max { Duration::ZERO } else { CATCH_UP };
                u64::try_from((duration + grace).as_nanos()).unwrap_or(u64::MAX)
            }
            SendAmount::Count(_) | SendAmount::UntilStopped => u64::MAX,
        };
        let is_paced = load.rate != Rate::Max;
        Ok(Self {
            run,
            picker: load.sizes.picker(u64::from(run) << 16 | post.index as u64),
            batch,
            message,
            train,
            messages_per_call,
            limit_ns,
            start_ns: 0,
            deadline_ns: 0,
            core: (!load.cpus.is_empty()).then(|| load.cpus[post.index % load.cpus.len()]),
            refused: BTreeMap::new(),
            repeated: BTreeMap::new(),
            answers: BTreeMap::new(),
            lateness: is_paced.then(|| Histogram::new_with_bounds(1, LATENESS_MAX_NS, 3).ok()).flatten(),
            segmentation_refused: false,
            bytes: 0,
            post,
        })
    }

    /// Sends until everything is sent or it is told to stop. The schedule begins at `start_ns`.
    pub(super) fn run(mut self, start_ns: u64) -> Result<Done, Failure> {
        (self.start_ns, self.deadline_ns) = (start_ns, start_ns.saturating_add(self.limit_ns));
        if let Some(core) = self.core {
            steer::pin_current_thread(core).map_err(|error| {
                Failure::new(ExitCode::Usage, format!("--cpu: {error}; write cores that this process may use"))
            })?;
        }
        // Without it the kernel may let a sleeper lie 50 us longer, to wake several at once. It is a wish, not a need.
        let _ = prctl::set_timerslack(1);
        let cpu_before_ns = clock::thread_cpu_ns();
        let mut offset_ns = clock::realtime_offset_ns();
        let mut offset_age_ns = self.start_ns;
        let mut turn = 0;
        while !self.is_stopped() {
            let now_ns = Monotonic.now_ns();
            if now_ns >= self.deadline_ns {
                break;
            }
            let elapsed_ns = now_ns.saturating_sub(self.start_ns);
            let owed = self.post.pacer.owed(elapsed_ns).min((self.messages_per_call * self.train) as u64);
            if owed == 0 {
                let Some(due_ns) = self.post.pacer.next_due_ns() else { break };
                Monotonic.approach(self.start_ns.saturating_add(due_ns).min(self.deadline_ns));
                continue;
            }
            if now_ns.saturating_sub(offset_age_ns) > OFFSET_EVERY_NS {
                (offset_ns, offset_age_ns) = (clock::realtime_offset_ns(), now_ns);
            }
            self.note_lateness(elapsed_ns);
            let stamp = HeaderStamp::new(self.run, SendTime { monotonic_ns: now_ns, realtime_offset_ns: offset_ns });
            self.send(turn, owed as usize, &stamp)?;
            self.post.pacer.advance(owed);
            turn = (turn + 1) % self.post.flows.len();
        }
        Ok(Done {
            ended_ns: Monotonic.now_ns(),
            cpu_ns: clock::thread_cpu_ns() - cpu_before_ns,
            flows: self.post.flows.iter().map(FlowSent::of).collect(),
            refused: self.refused,
            repeated: self.repeated,
            answers: self.answers,
            lateness: self.lateness,
            segmentation_refused: self.segmentation_refused,
        })
    }

    fn is_stopped(&self) -> bool {
        self.post.stop.iter().any(|stop| stop.load(Ordering::Relaxed))
    }

    /// How long after its moment the next datagram goes out.
    fn note_lateness(&mut self, elapsed_ns: u64) {
        if let (Some(lateness), Some(due_ns)) = (&mut self.lateness, self.post.pacer.next_due_ns()) {
            lateness.saturating_record(elapsed_ns.saturating_sub(due_ns));
        }
    }

    /// Sends `count` datagrams of one flow.
    fn send(&mut self, turn: usize, count: usize, stamp: &HeaderStamp) -> Result<(), Failure> {
        let first = self.post.flows[turn].sequence;
        if self.train == 1 {
            self.queue_singles(turn, count, stamp)
        } else {
            self.queue_trains(turn, count, stamp)
        }
        debug_assert_eq!(self.post.flows[turn].sequence, first + count as u64);
        let mut failures: Vec<i32> = Vec::new();
        let mut sent = 0;
        let mut calls = 0;
        loop {
            let outcome = self.batch.flush(&self.post.flows[turn].socket);
            for errno in self.batch.answers() {
                *self.answers.entry(*errno).or_default() += 1;
            }
            failures.extend(self.batch.failures().iter().map(|failure| failure.errno));
            match outcome {
                Ok(report) => {
                    sent += report.datagrams;
                    calls += report.calls;
                    self.segmentation_refused |= report.segmentation_refused;
                    break;
                }
                Err(refusal) => {
                    sent += refusal.report.datagrams;
                    calls += refusal.report.calls;
                    let errno = refusal.error.raw_os_error().unwrap_or(0);
                    *self.repeated.entry(errno).or_default() += 1;
                    if !matches!(Errno::from_raw(errno), Errno::ENOBUFS | Errno::EAGAIN | Errno::ENOMEM) {
                        let text = format!("cannot send to the address of --to: {refusal}");
                        return Err(Failure::new(ExitCode::Failure, text));
                    }
                    if self.is_stopped() || Monotonic.now_ns() >= self.deadline_ns {
                        failures.push(errno);
                        self.batch.clear();
                        break;
                    }
                    std::thread::sleep(BUFFER_REST);
                }
            }
        }
        self.post.flows[turn].sent += sent as u64;
        self.account(count, sent, calls, &failures);
        Ok(())
    }

    fn queue_singles(&mut self, turn: usize, count: usize, stamp: &HeaderStamp) {
        let flow = &mut self.post.flows[turn];
        for _ in 0..count {
            let size = self.picker.pick();
            let datagram = &mut self.message[..size];
            stamp.write(datagram, flow.number, flow.sequence);
            flow.sequence += 1;
            self.bytes += size as u64;
            // There is a slot for each: no more are owed than a call holds, and no payload is longer than a slot.
            let _ = self.batch.push(datagram, None);
        }
    }

    fn queue_trains(&mut self, turn: usize, count: usize, stamp: &HeaderStamp) {
        let flow = &mut self.post.flows[turn];
        let size = self.picker.pick();
        let segment_bytes = u16::try_from(size).unwrap_or(u16::MAX);
        let mut left = count;
        while left > 0 {
            let segments = left.min(self.train);
            for segment in 0..segments {
                stamp.write(&mut self.message[segment * size..(segment + 1) * size], flow.number, flow.sequence);
                flow.sequence += 1;
            }
            let train = &self.message[..segments * size];
            self.bytes += train.len() as u64;
            // As above; a segment of 0 bytes has no train, and `check` allows only one datagram a message then.
            let _ = self.batch.push_segmented(train, segment_bytes, None);
            left -= segments;
        }
    }

    /// Counts a batch and publishes the counts. What was refused is what was not sent; the failures say why.
    fn account(&mut self, count: usize, sent: usize, calls: usize, failures: &[i32]) {
        let mut left = (count - sent.min(count)) as u64;
        for (place, errno) in failures.iter().enumerate() {
            // A failed train counts with all its datagrams, as far as they are missing; the last answers for the rest.
            let last = place + 1 == failures.len();
            let share = if last { left } else { left.min(self.train as u64) };
            *self.refused.entry(*errno).or_default() += share;
            left -= share;
        }
        let counters = &self.post.progress[self.post.index];
        let add =
            |counter: &AtomicU64, more: u64| counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&counters.sent, sent as u64);
        add(&counters.refused, (count - sent.min(count)) as u64);
        add(&counters.calls, calls as u64);
        counters.bytes.store(self.bytes, Ordering::Relaxed);
    }
}
