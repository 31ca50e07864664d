//! The thread that sends frames, from the interface to the report.
//!
//! It asks for as many frames as are due in one call, and the kernel makes and sends them; what it took and what it
//! refused is known when the call returns. At the highest rate a call is some milliseconds long, so that whoever
//! interrupts it is heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use framegen::{FrameSpec, LiveError, LiveFrames, LiveSent, LiveStep, PacketFrames};
use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::sys::prctl;

use super::frames::{Engine, FrameLoad};
use super::link::{self, Link};
use super::report::{InterfaceSent, Report, Second};
use super::run::{Body, drive, random_run};
use super::worker::{CATCH_UP, Done, LATENESS_MAX_NS, OFFSET_EVERY_NS, Progress};
use crate::clock;
use crate::clock::{Clock, Monotonic};
use crate::pacer::{Amount, Pacer, Schedule};
use crate::rate::Rate;
use udpd_base::exit::{ExitCode, Failure};

/// Frames of the first call, after which it is known whether the interface takes any.
const FIRST_CALL: u64 = 16;

/// Frames of one call at most: a few milliseconds, or where each call has to wait ten times as long, some more.
const LIVE_FRAMES_PER_CALL: u64 = 8_192;
const LIVE_FRAMES_PER_LONG_CALL: u64 = 262_144;
const PACKET_FRAMES_PER_CALL: u64 = 512;

/// How long to wait before another try when the kernel has no memory for pages.
const MEMORY_REST: Duration = Duration::from_millis(1);

/// How long the interface's own counters may take to agree.
const SETTLE_TRIES: u32 = 50;
const SETTLE_REST: Duration = Duration::from_millis(4);

/// Sends the load until it is done or `stop` is raised, and tells `each_second` what was sent in each.
pub fn run_frames(
    task: &FrameLoad,
    stop: &Arc<AtomicBool>,
    each_second: &mut dyn FnMut(&Second),
) -> Result<Report, Failure> {
    task.check()?;
    let load = &task.load;
    let run = load.run.unwrap_or_else(|| random_run(clock::realtime_ns(), std::process::id()));
    let (index, link) = find(&task.interface)?;
    let spec = task.spec(run, &link)?;
    let frames = Frames::new(task, index, &spec)?;
    let schedule = Schedule::new(load.rate, load.amount, load.unit() as u64);
    let progress: Arc<[Progress]> = Arc::new([Progress::default()]);
    let end = Arc::new(AtomicBool::new(false));
    let sender = Sender {
        frames,
        interface: task.interface.clone(),
        pacer: Pacer::new(schedule, 0, 1),
        progress: Arc::clone(&progress),
        stop: [Arc::clone(stop), Arc::clone(&end)],
        core: load.cpus.first().copied(),
        limit_ns: limit_ns(load.rate, load.amount),
        lateness: (load.rate != Rate::Max).then(|| Histogram::new_with_bounds(1, LATENESS_MAX_NS, 3).ok()).flatten(),
        repeated: BTreeMap::new(),
        offered: 0,
        taken: 0,
        bytes: 0,
    };
    let has_long_calls = matches!(&sender.frames, Frames::Live(frames) if !frames.has_short_calls());
    let before = link::sent_by(&task.interface);
    let body: Body = Box::new(move |start_ns| sender.run(start_ns));
    let mut report = drive(run, schedule, vec![body], &progress, &end, each_second)?;
    report.long_calls = has_long_calls;
    report.interface = before.and_then(|before| settled(&task.interface, before, report.sent));
    Ok(report)
}

fn find(interface: &str) -> Result<(u32, Link), Failure> {
    let unavailable = |why: String| Failure::new(ExitCode::Unavailable, format!("--interface: {why}"));
    let index = nix::net::if_::if_nametoindex(interface)
        .map_err(|_| unavailable(format!("there is no {interface}; `ip link` lists them")))?;
    let link =
        Link::read(index).map_err(|error| unavailable(format!("cannot ask the kernel about {interface}: {error}")))?;
    Ok((index, link))
}

fn limit_ns(rate: Rate, amount: Amount) -> u64 {
    match amount {
        Amount::Seconds(duration) => {
            let grace = if rate == Rate::Max { Duration::ZERO } else { CATCH_UP };
            u64::try_from((duration + grace).as_nanos()).unwrap_or(u64::MAX)
        }
        Amount::Count(_) | Amount::UntilStopped => u64::MAX,
    }
}

/// What the interface itself has counted. A virtual cable counts what its other end has taken up, a moment later.
fn settled(interface: &str, before: link::Sent, sent: u64) -> Option<InterfaceSent> {
    let mut tries = 0;
    loop {
        let now = link::sent_by(interface)?;
        let packets = now.packets.wrapping_sub(before.packets);
        if packets >= sent || tries == SETTLE_TRIES {
            return Some(InterfaceSent {
                name: interface.to_owned(),
                packets,
                errors: now.errors.wrapping_sub(before.errors),
                dropped: now.dropped.wrapping_sub(before.dropped),
            });
        }
        tries += 1;
        std::thread::sleep(SETTLE_REST);
    }
}

/// Who makes and sends the frames.
enum Frames {
    Live(Box<LiveFrames>),
    Packet(Box<PacketFrames>),
}

impl Frames {
    fn new(task: &FrameLoad, index: u32, spec: &FrameSpec) -> Result<Self, Failure> {
        match task.engine {
            Engine::Packet => match PacketFrames::new(index, spec) {
                Ok(frames) => Ok(Self::Packet(Box::new(frames))),
                Err(error) => Err(no_packets(&error)),
            },
            Engine::Xdp | Engine::Socket => match LiveFrames::new(index, spec) {
                Ok(frames) => Ok(Self::Live(Box::new(frames))),
                Err(error) => Err(no_live_frames(&error)),
            },
        }
    }

    fn per_call(&self) -> u64 {
        match self {
            Self::Live(frames) if frames.has_short_calls() => LIVE_FRAMES_PER_CALL,
            Self::Live(_) => LIVE_FRAMES_PER_LONG_CALL,
            Self::Packet(_) => PACKET_FRAMES_PER_CALL,
        }
    }

    fn set_clock_offset(&mut self, offset_ns: i64) -> std::io::Result<()> {
        match self {
            Self::Live(frames) => frames.set_clock_offset(offset_ns),
            Self::Packet(frames) => {
                frames.set_clock_offset(offset_ns);
                Ok(())
            }
        }
    }

    fn send(&mut self, count: u32, now_ns: u64) -> std::io::Result<LiveSent> {
        match self {
            Self::Live(frames) => frames.send(count),
            Self::Packet(frames) => Ok(frames.send(count, now_ns)),
        }
    }

    /// By error number; a driver that had no room gives none.
    fn refusals(&self) -> std::io::Result<Vec<(i32, u64)>> {
        let refusals = match self {
            Self::Live(frames) => frames.refusals()?,
            Self::Packet(frames) => frames.refusals(),
        };
        let named = |(errno, count)| (if errno == 0 { Errno::ENOBUFS as i32 } else { errno }, count);
        Ok(refusals.into_iter().map(named).collect())
    }
}

/// Why there are no live frames, and what helps.
fn no_live_frames(failed: &LiveError) -> Failure {
    let is_right = matches!(failed.error.kind(), std::io::ErrorKind::PermissionDenied);
    let (code, cure) = match failed.step {
        LiveStep::Spec => (ExitCode::Usage, "correct --flows, --sources or --size"),
        LiveStep::Count if is_right => {
            (ExitCode::Permission, "it needs CAP_PERFMON besides, or CAP_SYS_ADMIN: run it as root")
        }
        _ if is_right => (
            ExitCode::Permission,
            "it needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN: run it as root; --engine packet needs CAP_NET_RAW only",
        ),
        LiveStep::Run => {
            (ExitCode::Unavailable, "it needs Linux 5.18 or later; --engine packet works with every kernel")
        }
        LiveStep::Count => (
            ExitCode::Unavailable,
            "without that nobody knows what was sent, and this kernel may lack CONFIG_BPF_EVENTS; use --engine packet",
        ),
        LiveStep::Map | LiveStep::Program => (ExitCode::Unavailable, "use --engine packet"),
    };
    Failure::new(code, format!("--engine xdp: {failed}; {cure}"))
}

fn no_packets(error: &std::io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        std::io::ErrorKind::PermissionDenied => (ExitCode::Permission, "it needs CAP_NET_RAW: run it as root"),
        std::io::ErrorKind::InvalidInput => (ExitCode::Usage, "correct --flows, --sources or --size"),
        _ => (ExitCode::Unavailable, "leave out --engine to send from sockets"),
    };
    Failure::new(code, format!("--engine packet: cannot make a packet socket: {error}; {cure}"))
}

/// Everything the thread owns.
struct Sender {
    frames: Frames,
    interface: String,
    pacer: Pacer,
    progress: Arc<[Progress]>,
    stop: [Arc<AtomicBool>; 2],
    core: Option<usize>,
    limit_ns: u64,
    lateness: Option<Histogram<u64>>,
    repeated: BTreeMap<i32, u64>,
    offered: u64,
    taken: u64,
    bytes: u64,
}

impl Sender {
    fn run(mut self, start_ns: u64) -> Result<Done, Failure> {
        let deadline_ns = start_ns.saturating_add(self.limit_ns);
        if let Some(core) = self.core {
            steer::pin_current_thread(core).map_err(|error| {
                Failure::new(ExitCode::Usage, format!("--cpu: {error}; write cores that this process may use"))
            })?;
        }
        // Without it the kernel may let a sleeper lie 50 us longer, to wake several at once. It is a wish, not a need.
        let _ = prctl::set_timerslack(1);
        let cpu_before_ns = clock::thread_cpu_ns();
        let mut offset_due_ns = 0;
        while !self.stop.iter().any(|stop| stop.load(Ordering::Relaxed)) {
            let now_ns = Monotonic.now_ns();
            if now_ns >= deadline_ns {
                break;
            }
            if now_ns >= offset_due_ns {
                let set = self.frames.set_clock_offset(clock::realtime_offset_ns());
                set.map_err(|error| lost_the_program(&error))?;
                offset_due_ns = now_ns + OFFSET_EVERY_NS;
            }
            let elapsed_ns = now_ns.saturating_sub(start_ns);
            let most = if self.taken == 0 { FIRST_CALL } else { self.frames.per_call() };
            let owed = self.pacer.owed(elapsed_ns).min(most);
            if owed == 0 {
                let Some(due_ns) = self.pacer.next_due_ns() else { break };
                Monotonic.approach(start_ns.saturating_add(due_ns).min(deadline_ns));
                continue;
            }
            if let (Some(lateness), Some(due_ns)) = (&mut self.lateness, self.pacer.next_due_ns()) {
                lateness.saturating_record(elapsed_ns.saturating_sub(due_ns));
            }
            self.send(owed as u32, now_ns)?;
        }
        Ok(Done {
            ended_ns: Monotonic.now_ns(),
            cpu_ns: clock::thread_cpu_ns() - cpu_before_ns,
            flows: Vec::new(),
            refused: self.refused()?,
            repeated: self.repeated,
            answers: BTreeMap::new(),
            lateness: self.lateness,
            segmentation_refused: false,
        })
    }

    fn send(&mut self, count: u32, now_ns: u64) -> Result<(), Failure> {
        let LiveSent { offered, taken, bytes, error, .. } =
            self.frames.send(count, now_ns).map_err(|error| lost_the_program(&error))?;
        self.offered += offered;
        self.taken += taken;
        self.bytes += bytes;
        self.pacer.advance(offered);
        let counters = &self.progress[0];
        counters.sent.store(self.taken, Ordering::Relaxed);
        counters.refused.store(self.offered - self.taken, Ordering::Relaxed);
        counters.calls.fetch_add(1, Ordering::Relaxed);
        counters.bytes.store(self.bytes, Ordering::Relaxed);
        if let Some(error) = error {
            let errno = error.raw_os_error().unwrap_or(0);
            match Errno::from_raw(errno) {
                Errno::ENOMEM => std::thread::sleep(MEMORY_REST),
                // A page came back from the other end in a shape that no frame fits. The kernel throws that page away.
                Errno::ENOSPC => {}
                _ => return Err(lost_the_program(&error)),
            }
            *self.repeated.entry(errno).or_default() += 1;
        }
        if self.taken == 0 && offered > 0 {
            return self.say_why_nothing_leaves();
        }
        Ok(())
    }

    /// An interface that takes nothing at all has a reason that does not go away.
    fn say_why_nothing_leaves(&self) -> Result<(), Failure> {
        let name = &self.interface;
        let refusals = self.frames.refusals().map_err(|error| lost_the_program(&error))?;
        let Some(errno) = refusals.iter().map(|(errno, _)| Errno::from_raw(*errno)).find(|own| *own != Errno::ENOBUFS)
        else {
            return Ok(());
        };
        let why = match errno {
            // A veth says the one or the other, depending on the kernel, when nobody polls at its other end.
            Errno::EOPNOTSUPP | Errno::ENXIO => {
                "it sends no XDP frames; on a veth pair switch GRO on at the other end, `ethtool -K PEER gro on`, on a \
                 network card attach an XDP program to it, or use --engine packet"
                    .to_owned()
            }
            Errno::ENETDOWN => format!("it is down; `ip link set {name} up`, at both ends of a pair"),
            Errno::EMSGSIZE => "frames are longer than its MTU; write a smaller --size".to_owned(),
            other => format!("{}; use --engine packet", other.desc()),
        };
        Err(Failure::new(ExitCode::Unavailable, format!("--interface: {name} takes no frames ({errno:?}): {why}")))
    }

    /// Every frame that was made and not taken, by the name of the error; what nobody has answered for has none.
    fn refused(&self) -> Result<BTreeMap<i32, u64>, Failure> {
        let mut refused = BTreeMap::new();
        for (errno, count) in self.frames.refusals().map_err(|error| lost_the_program(&error))? {
            *refused.entry(errno).or_default() += count;
        }
        let named: u64 = refused.values().sum();
        let unnamed = (self.offered - self.taken).saturating_sub(named);
        if unnamed > 0 {
            refused.insert(0, unnamed);
        }
        Ok(refused)
    }
}

/// The kernel does not answer about its own program any more.
fn lost_the_program(error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Failure, format!("cannot go on sending frames: {error}"))
}
