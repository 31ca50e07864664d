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
pub(crate) fn run(
    load: &SendLoad,
    stop: &Arc<AtomicBool>,
    each_second: &mut dyn FnMut(&SendSecond),
) -> Result<SenderReport, Failure> {
    load.check()?;
    let mut flows = open_flows(load)?;
    let threads = SenderThreads::new(load, stop);
    let body = |index: usize| -> Result<SenderBody, Failure> {
        let own = flows.iter_mut().skip(index).step_by(load.threads).filter_map(Option::take).collect();
        let (thread, worker) = (threads.thread(index), Worker::new(load, threads.run, index, own)?);
        Ok(Box::new(move |start_ns| worker.run(thread, start_ns)))
    };
    let bodies = (0..load.threads).map(body).collect::<Result<_, _>>()?;
    threads.run(bodies, each_second)
}

/// The body of a sender thread; its argument is the start of the schedule.
pub(super) type SenderBody = Box<dyn FnOnce(u64) -> Result<Done, Failure> + Send>;

/// What the threads of one run share, of datagrams or of frames.
pub(super) struct SenderThreads<'a> {
    load: &'a SendLoad,
    stop: &'a Arc<AtomicBool>,
    /// The number of the run in every payload.
    pub(super) run: u16,
    schedule: Schedule,
    progress: Arc<[Progress]>,
    /// Raised when one of the threads fails: the others end then too.
    end: Arc<AtomicBool>,
}

impl<'a> SenderThreads<'a> {
    pub(super) fn new(load: &'a SendLoad, stop: &'a Arc<AtomicBool>) -> Self {
        Self {
            load,
            stop,
            run: load.run.unwrap_or_else(|| random_run(clock::realtime_ns(), std::process::id())),
            schedule: Schedule::new(load.rate, load.amount, load.unit() as u64),
            progress: (0..load.threads).map(|_| Progress::default()).collect(),
            end: Arc::default(),
        }
    }

    /// The schedule of one thread.
    pub(super) fn thread(&self, index: usize) -> PacedThread {
        let SendLoad { rate, amount, cpus, threads, .. } = self.load;
        let is_paced = *rate != Rate::Max;
        let limit_ns = match amount {
            SendAmount::Seconds(duration) => {
                let grace = if is_paced { CATCH_UP } else { Duration::ZERO };
                u64::try_from((*duration + grace).as_nanos()).unwrap_or(u64::MAX)
            }
            SendAmount::Count(_) | SendAmount::UntilStopped => u64::MAX,
        };
        PacedThread {
            pacer: Pacer::new(self.schedule, index, *threads),
            index,
            progress: Arc::clone(&self.progress),
            stop: [Arc::clone(self.stop), Arc::clone(&self.end)],
            core: (!cpus.is_empty()).then(|| cpus[index % cpus.len()]),
            limit_ns,
            deadline_ns: 0,
            lateness: is_paced.then(|| Histogram::new_with_bounds(1, LATENESS_MAX_NS, 3).ok()).flatten(),
        }
    }

    /// Starts a thread for each body, tells of each second, and makes the report when all have ended.
    pub(super) fn run(
        &self,
        bodies: Vec<SenderBody>,
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
                self.end.store(true, Ordering::Relaxed);
                Failure::new(ExitCode::Failure, format!("cannot start sender thread {index}: {error}"))
            })?);
        }
        drop(done_sender);
        let mut sampler = Sampler::new(self.schedule, &self.progress, start_ns);
        let mut ended: Vec<Done> = Vec::new();
        let mut failure = None;
        while ended.len() < count && failure.is_none() {
            match done.recv_timeout(sampler.until_next()) {
                Ok(Ok(one)) => ended.push(one),
                Ok(Err(error)) => failure = Some(error),
                Err(RecvTimeoutError::Timeout) => each_second(sampler.sample()),
                Err(RecvTimeoutError::Disconnected) => {
                    let text = "a sender thread has panicked, which is a bug of udpd";
                    failure = Some(Failure::new(ExitCode::Failure, text));
                }
            }
        }
        self.end.store(true, Ordering::Relaxed);
        for thread in threads {
            let _ = thread.join();
        }
        failure.map_or_else(|| Ok(sampler.finish(self.run, ended, each_second)), Err)
    }
}

/// A thread that keeps a schedule, whatever it sends.
pub(super) struct PacedThread {
    pacer: Pacer,
    index: usize,
    progress: Arc<[Progress]>,
    stop: [Arc<AtomicBool>; 2],
    core: Option<usize>,
    /// How long it may take, the time to catch up included.
    limit_ns: u64,
    deadline_ns: u64,
    lateness: Option<Histogram<u64>>,
}

/// What is due when a thread reads the clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) datagrams: u64,
    pub(super) time: SendTime,
}

impl PacedThread {
    /// Calls `send` whenever something is due, until everything is sent or the thread is told to stop. `send` returns
    /// how many datagrams it has dealt with.
    pub(super) fn run(
        mut self,
        start_ns: u64,
        mut send: impl FnMut(&Self, Due) -> Result<u64, Failure>,
    ) -> Result<Done, Failure> {
        self.deadline_ns = start_ns.saturating_add(self.limit_ns);
        if let Some(core) = self.core {
            steer::pin_current_thread(core).map_err(|error| {
                Failure::new(ExitCode::Usage, format!("--cpu: {error}; write cores that this process may use"))
            })?;
        }
        // Otherwise the kernel may wake a sleeper 50 us later, to wake several at once. Not essential.
        let _ = prctl::set_timerslack(1);
        let cpu_before_ns = clock::thread_cpu_ns();
        let (mut realtime_offset_ns, mut offset_due_ns) = (0, 0);
        while !self.is_stopped() {
            let now_ns = Monotonic.now_ns();
            if now_ns >= self.deadline_ns {
                break;
            }
            let elapsed_ns = now_ns.saturating_sub(start_ns);
            let datagrams = self.pacer.owed(elapsed_ns);
            if datagrams == 0 {
                let Some(due_ns) = self.pacer.next_due_ns() else { break };
                Monotonic.approach(start_ns.saturating_add(due_ns).min(self.deadline_ns));
                continue;
            }
            if now_ns >= offset_due_ns {
                (realtime_offset_ns, offset_due_ns) = (clock::realtime_offset_ns(), now_ns + OFFSET_EVERY_NS);
            }
            if let (Some(lateness), Some(due_ns)) = (&mut self.lateness, self.pacer.next_due_ns()) {
                lateness.saturating_record(elapsed_ns.saturating_sub(due_ns));
            }
            let time = SendTime { monotonic_ns: now_ns, realtime_offset_ns };
            let sent = send(&self, Due { datagrams, time })?;
            self.pacer.advance(sent);
        }
        let cpu_ns = clock::thread_cpu_ns() - cpu_before_ns;
        Ok(Done { ended_ns: Monotonic.now_ns(), cpu_ns, lateness: self.lateness, ..Done::default() })
    }

    fn is_stopped(&self) -> bool {
        self.stop.iter().any(|stop| stop.load(Ordering::Relaxed))
    }

    pub(super) fn counters(&self) -> &SenderCounters {
        &self.progress[self.index]
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

/// A number that two runs hardly share: clock and process id, mixed.
fn random_run(now_ns: u64, process_id: u32) -> u16 {
    let mixed = (now_ns ^ (u64::from(process_id) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}

/// How long a run may go on past its end to send what was due before.
const CATCH_UP: Duration = Duration::from_millis(100);

/// How long to wait before another try when the kernel has no buffers.
const BUFFER_REST: Duration = Duration::from_micros(100);

/// How often the distance between the two clocks is measured again, because the clock may be set.
const OFFSET_EVERY_NS: u64 = 1_000_000_000;

/// Longer lateness is recorded as this.
const LATENESS_MAX_NS: u64 = 60_000_000_000;

/// One flow: a socket with a source port of its own.
#[derive(Debug)]
pub(super) struct SendFlow {
    pub(super) socket: Socket,
    pub(super) source: SocketAddr,
    pub(super) number: u16,
    pub(super) sequence: u64,
    pub(super) sent: u64,
}

#[derive(Debug, Default)]
pub(super) struct SenderCounters {
    pub(super) sent: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) calls: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Each on its own cache line, because each has one writer.
pub(super) type Progress = CachePadded<SenderCounters>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FlowSent {
    pub flow: u16,
    pub source: SocketAddr,
    pub sent: u64,
    /// Sequences used up, those of refused datagrams included: what a receiver expects.
    pub sequences: u64,
}

#[derive(Debug, Default)]
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

/// Sends the datagrams of a thread's flows.
struct Worker {
    run: u16,
    flows: Vec<SendFlow>,
    /// The flow of the next batch.
    turn: usize,
    picker: Picker,
    batch: SendBatch,
    /// One message, filled with the pattern; headers are written over it.
    message: Box<[u8]>,
    train: usize,
    messages_per_call: usize,
    bytes: u64,
    done: Done,
}

impl Worker {
    fn new(load: &SendLoad, run: u16, index: usize, flows: Vec<SendFlow>) -> Result<Self, Failure> {
        let (train, messages_per_call) = (load.train(), load.messages_per_call());
        let message_bytes = load.sizes.max() * train;
        // A slot has at least one byte, also for empty payloads.
        let batch = SendBatch::new(messages_per_call, message_bytes.max(1)).map_err(|error| {
            let text = format!("cannot get memory for {messages_per_call} messages of {message_bytes} bytes: {error}");
            Failure::new(ExitCode::Failure, text)
        })?;
        let mut message = vec![0; message_bytes].into_boxed_slice();
        message.chunks_mut(load.sizes.max().max(1)).for_each(payload::fill);
        let picker = load.sizes.picker(u64::from(run) << 16 | index as u64);
        let done = Done::default();
        Ok(Self { run, flows, turn: 0, picker, batch, message, train, messages_per_call, bytes: 0, done })
    }

    fn run(mut self, thread: PacedThread, start_ns: u64) -> Result<Done, Failure> {
        let most = (self.messages_per_call * self.train) as u64;
        let Done { ended_ns, cpu_ns, lateness, .. } = thread.run(start_ns, |thread, due| {
            let count = due.datagrams.min(most);
            self.send(thread, count as usize, &HeaderStamp::new(self.run, due.time))?;
            self.turn = (self.turn + 1) % self.flows.len();
            Ok(count)
        })?;
        let flows = self.flows.iter().map(FlowSent::of).collect();
        Ok(Done { ended_ns, cpu_ns, lateness, flows, ..self.done })
    }

    fn send(&mut self, thread: &PacedThread, count: usize, stamp: &HeaderStamp) -> Result<(), Failure> {
        match self.train {
            1 => self.queue_singles(count, stamp),
            _ => self.queue_trains(count, stamp),
        }
        let mut failures: Vec<i32> = Vec::new();
        let mut sent = 0;
        let mut calls = 0;
        loop {
            let outcome = self.batch.flush(&self.flows[self.turn].socket);
            for errno in self.batch.answers() {
                *self.done.answers.entry(*errno).or_default() += 1;
            }
            failures.extend(self.batch.failures().iter().map(|failure| failure.errno));
            match outcome {
                Ok(report) => {
                    sent += report.datagrams;
                    calls += report.calls;
                    self.done.segmentation_refused |= report.segmentation_refused;
                    break;
                }
                Err(refusal) => {
                    sent += refusal.report.datagrams;
                    calls += refusal.report.calls;
                    let errno = refusal.error.raw_os_error().unwrap_or(0);
                    *self.done.repeated.entry(errno).or_default() += 1;
                    if !matches!(Errno::from_raw(errno), Errno::ENOBUFS | Errno::EAGAIN | Errno::ENOMEM) {
                        let text = format!("cannot send to the address of --to: {refusal}");
                        return Err(Failure::new(ExitCode::Failure, text));
                    }
                    if thread.is_stopped() || Monotonic.now_ns() >= thread.deadline_ns {
                        failures.push(errno);
                        self.batch.clear();
                        break;
                    }
                    std::thread::sleep(BUFFER_REST);
                }
            }
        }
        self.flows[self.turn].sent += sent as u64;
        self.account(thread.counters(), count, sent, calls, &failures);
        Ok(())
    }

    fn queue_singles(&mut self, count: usize, stamp: &HeaderStamp) {
        let flow = &mut self.flows[self.turn];
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

    fn queue_trains(&mut self, count: usize, stamp: &HeaderStamp) {
        let flow = &mut self.flows[self.turn];
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
    fn account(&mut self, counters: &SenderCounters, count: usize, sent: usize, calls: usize, failures: &[i32]) {
        let mut left = (count - sent.min(count)) as u64;
        for (place, errno) in failures.iter().enumerate() {
            // A failed train counts with all its datagrams, as far as they are missing; the last answers for the rest.
            let last = place + 1 == failures.len();
            let share = if last { left } else { left.min(self.train as u64) };
            *self.done.refused.entry(*errno).or_default() += share;
            left -= share;
        }
        let add =
            |counter: &AtomicU64, more: u64| counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&counters.sent, sent as u64);
        add(&counters.refused, (count - sent.min(count)) as u64);
        add(&counters.calls, calls as u64);
        counters.bytes.store(self.bytes, Ordering::Relaxed);
    }
}
