//! `udpd bench send`: numbered, timed datagrams at a rate that is kept, and a report of what was really sent.
//!
//! [`run`] is the library call: a [`Load`], a stop flag, and a closure that hears of each second. Every flow has a
//! socket of its own, connected, so that it has its own source port, the kernel looks its route up once, and an ICMP
//! answer is heard. A flow belongs to one thread, so its sequence never overtakes itself.

mod command;
mod report;
mod worker;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use mmsg::{Family, MAX_SEGMENTS, Socket};

pub use command::{Arguments, execute};
pub use report::{FlowSent, Lateness, Report, Second};

use super::clock::{self, Clock, Monotonic};
use super::pacer::{Amount, Pacer, Schedule};
use super::payload::PAYLOAD_MAX;
use super::rate::Rate;
use super::sizes::Sizes;
use crate::exit::{ExitCode, Failure};
use report::Sampler;
use worker::{Done, Flow, Post, Progress, Worker};

/// Messages in one call at the highest rate, and the most of what a smooth sender owes.
pub const MESSAGES_PER_CALL: usize = 64;

/// The most messages of a burst that go in one call.
const MESSAGES_PER_CALL_MAX: usize = 1024;

/// Flows are numbered in 16 bits.
pub const FLOWS_MAX: usize = 1 << 16;

/// The most sender threads.
const THREADS_MAX: usize = 256;

/// What is to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Where to.
    pub to: SocketAddr,
    /// How fast.
    pub rate: Rate,
    /// How much.
    pub amount: Amount,
    /// How long the payloads are.
    pub sizes: Sizes,
    /// How many flows, each from a source port of its own.
    pub flows: usize,
    /// The local addresses that they take in turn; empty: the kernel chooses.
    pub sources: Vec<IpAddr>,
    /// Datagrams in a UDP_SEGMENT train.
    pub gso: Option<NonZeroUsize>,
    /// How many threads share the flows and the rate.
    pub threads: usize,
    /// Datagrams that are sent together; `None`: each when it is due.
    pub burst: Option<NonZeroUsize>,
    /// The cores of the threads, in turn; empty: any.
    pub cpus: Vec<usize>,
    /// The number of the run in every payload; `None`: a random one.
    pub run: Option<u16>,
}

impl Load {
    /// 64-byte payloads in 16 flows from one thread, smooth.
    pub fn new(to: SocketAddr, rate: Rate, amount: Amount) -> Self {
        Self {
            to,
            rate,
            amount,
            sizes: Sizes::Fixed(64),
            flows: 16,
            sources: Vec::new(),
            gso: None,
            threads: 1,
            burst: None,
            cpus: Vec::new(),
            run: None,
        }
    }

    /// Whether this can be done at all; [`run`] asks it first.
    pub fn check(&self) -> Result<(), Failure> {
        let Self { flows, threads, sizes, .. } = self;
        let refuse = |text: String| Err(Failure::new(ExitCode::Usage, text));
        if self.to.port() == 0 {
            return refuse(format!(
                "--to: {} has port 0, which nobody can listen on; write the receiver's port",
                self.to
            ));
        }
        if !(1..=FLOWS_MAX).contains(flows) {
            return refuse(format!("--flows: {flows} is outside 1 to {FLOWS_MAX}; 16 is the default"));
        }
        if !(1..=THREADS_MAX).contains(threads) {
            return refuse(format!("--threads: {threads} is outside 1 to {THREADS_MAX}; 1 is the default"));
        }
        if threads > flows {
            return refuse(format!(
                "--threads: {threads} threads cannot share {flows} flows; write --flows {threads} or more"
            ));
        }
        if let Some(source) = self.sources.iter().find(|source| source.is_ipv4() != self.to.is_ipv4()) {
            return refuse(format!(
                "--sources: {source} and --to {} are of different families; use one family",
                self.to
            ));
        }
        if matches!(self.rate, Rate::Ramp(..)) && self.amount == Amount::UntilStopped {
            return refuse(format!("--rate: the ramp {} needs an end; add --seconds or --count", self.rate));
        }
        if let Some(gso) = self.gso {
            let Sizes::Fixed(size) = *sizes else {
                return refuse(format!(
                    "--gso: a train has datagrams of one size, and --size is {sizes}; write one size"
                ));
            };
            let most = PAYLOAD_MAX.checked_div(size).map_or(1, |fitting| fitting.min(MAX_SEGMENTS));
            if gso.get() > most {
                return refuse(format!(
                    "--gso: a train of {gso} datagrams of {size} bytes is too long; write {most} or less"
                ));
            }
        }
        Ok(())
    }

    /// Datagrams in a message.
    fn train(&self) -> usize {
        self.gso.map_or(1, NonZeroUsize::get)
    }

    /// Datagrams that are due together.
    fn unit(&self) -> usize {
        self.burst.map_or(1, NonZeroUsize::get).max(self.train())
    }

    /// Messages that go in one call at most.
    fn messages_per_call(&self) -> usize {
        self.unit().div_ceil(self.train()).clamp(MESSAGES_PER_CALL, MESSAGES_PER_CALL_MAX)
    }
}

/// Sends the load until it is done or `stop` is raised, and tells `each_second` what was sent in each.
pub fn run(load: &Load, stop: &Arc<AtomicBool>, each_second: &mut dyn FnMut(&Second)) -> Result<Report, Failure> {
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
        Worker::new(load, run, Post { index, pacer, flows: own, progress: Arc::clone(&progress), stop })
    };
    let workers: Vec<Worker> = (0..load.threads).map(make).collect::<Result<_, _>>()?;
    let (done_sender, done) = bounded(load.threads);
    let start_ns = Monotonic.now_ns();
    let mut threads = Vec::with_capacity(load.threads);
    for (index, worker) in workers.into_iter().enumerate() {
        let sender = done_sender.clone();
        let body = move || {
            let _ = sender.send(worker.run(start_ns));
        };
        let spawned = thread::Builder::new().name(format!("send{index}")).spawn(body);
        threads.push(spawned.map_err(|error| {
            end.store(true, Ordering::Relaxed);
            Failure::new(ExitCode::Failure, format!("cannot start sender thread {index}: {error}"))
        })?);
    }
    drop(done_sender);
    let mut sampler = Sampler::new(schedule, &progress, start_ns);
    let mut ended: Vec<Done> = Vec::new();
    let mut failure = None;
    while ended.len() < load.threads && failure.is_none() {
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
fn open_flows(load: &Load) -> Result<Vec<Option<Flow>>, Failure> {
    (0..load.flows).map(|number| open_flow(load, number).map(Some)).collect()
}

fn open_flow(load: &Load, number: usize) -> Result<Flow, Failure> {
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
    let cure = "; see `ip route get ADDRESS` for the way there";
    socket.connect(load.to).map_err(|error| fail(&format!("connect to {}", load.to), cure, error))?;
    let source = socket.local_addr().map_err(|error| fail("read its own address", "", error))?;
    Ok(Flow { socket, source, number: u16::try_from(number).unwrap_or(u16::MAX), sequence: 0, sent: 0 })
}

/// A number that two runs hardly share: the bits of clock and process, mixed.
fn random_run(now_ns: u64, process_id: u32) -> u16 {
    let mixed = (now_ns ^ (u64::from(process_id) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}

/// How long a run may go on past its end to send what was due before.
const CATCH_UP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load::new("127.0.0.1:9".parse().expect("valid"), Rate::Max, Amount::Count(1))
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_the_option_and_the_cure() {
        let count = |count: usize| NonZeroUsize::new(count);
        for (load, words) in [
            (Load { flows: 0, ..load() }, "--flows"),
            (Load { flows: 65_537, ..load() }, "1 to 65536"),
            (Load { threads: 3, flows: 2, ..load() }, "--flows 3"),
            (Load { threads: 0, ..load() }, "--threads"),
            (Load { to: "127.0.0.1:0".parse().expect("valid"), ..load() }, "port 0"),
            (Load { sources: vec!["::1".parse().expect("valid")], ..load() }, "one family"),
            (Load { gso: count(8), sizes: Sizes::Imix, ..load() }, "write one size"),
            (Load { gso: count(129), ..load() }, "128 or less"),
            (Load { gso: count(44), sizes: Sizes::Fixed(1500), ..load() }, "43 or less"),
            (Load { rate: Rate::Ramp(1, 2), amount: Amount::UntilStopped, ..load() }, "--seconds or --count"),
        ] {
            let failure = load.check().expect_err(words);
            assert_eq!(failure.code, ExitCode::Usage);
            assert!(failure.message.contains(words), "{failure}");
        }
        assert!(load().check().is_ok());
        assert!(Load { gso: count(43), sizes: Sizes::Fixed(1500), ..load() }.check().is_ok());
    }

    #[test]
    fn a_call_holds_a_whole_burst_as_far_as_the_kernel_takes_it() {
        let burst = |burst, gso| Load { burst: NonZeroUsize::new(burst), gso: NonZeroUsize::new(gso), ..load() };
        assert_eq!(burst(0, 0).messages_per_call(), 64);
        assert_eq!(burst(500, 0).messages_per_call(), 500);
        assert_eq!(burst(5000, 0).messages_per_call(), 1024);
        assert_eq!(burst(500, 5).messages_per_call(), 100);
        assert_eq!((burst(0, 20).unit(), burst(32, 20).unit()), (20, 32));
    }
}
