//! The sender threads from the first socket to the report.
//!
//! [`run`] is the library call: a [`Load`], a stop flag, and a closure that hears of each second. Every flow has a
//! socket of its own, connected, so that it has its own source port, the kernel looks its route up once, and an ICMP
//! answer is heard. A flow belongs to one thread, so its sequence never overtakes itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{RecvTimeoutError, bounded};
use mmsg::{Family, Socket};

use super::load::Load;
use super::report::{Report, Sampler, Second};
use super::worker::{Done, Flow, Post, Progress, Worker};
use crate::clock;
use crate::clock::{Clock, Monotonic};
use crate::pacer::{Pacer, Schedule};
use udpd_base::exit::{ExitCode, Failure};

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
    each_second: &mut dyn FnMut(&Second),
) -> Result<Report, Failure> {
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
    let cure = "; `ip route get ADDRESS` shows the route";
    socket.connect(load.to).map_err(|error| fail(&format!("connect to {}", load.to), cure, error))?;
    let source = socket.local_addr().map_err(|error| fail("read its own address", "", error))?;
    Ok(Flow { socket, source, number: u16::try_from(number).unwrap_or(u16::MAX), sequence: 0, sent: 0 })
}

/// A number that two runs hardly share: the bits of clock and process, mixed.
pub(super) fn random_run(now_ns: u64, process_id: u32) -> u16 {
    let mixed = (now_ns ^ (u64::from(process_id) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}
