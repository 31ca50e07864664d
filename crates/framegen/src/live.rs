//! Frames that the kernel sends itself: a program that it runs on order, hundreds of thousands of times in one call,
//! each time with a page that becomes a frame (`BPF_PROG_TEST_RUN` with live frames, Linux 5.18 and later).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{fmt, io, thread};

use bpf::{Assembler, Call, Map, Program, ProgramKind, Register, TestRun, XDP_GENERIC, attach_to_interface, gate, run};
use nix::sched::{CloneFlags, unshare};

use crate::draw::{AliasEntry, is_in_turn, zipf_places};
use crate::driver_verdicts::AnswerCounter;
use crate::frame_template::FrameTemplate;
use crate::program::{DROP, FrameMaps, frame_program};
use crate::spec::{FrameSpec, Mix};
use crate::state::{BYTES, IN_FLIGHT, KEY, ProgramState, RAN, RANDOM, TAKEN};

/// `BPF_F_TEST_XDP_LIVE_FRAMES`
const LIVE_FRAMES: u32 = 1 << 1;
/// How many pages the kernel takes at a time: what a NAPI poll takes.
const KERNEL_BATCH: u32 = 64;
/// Values written by one call.
const VALUES_A_CALL: usize = 1 << 16;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveStep {
    /// The specification is impossible.
    Spec,
    /// Making a map for the state of the program.
    Map,
    /// Loading the program: needs `CAP_BPF` and `CAP_NET_ADMIN`, or `CAP_SYS_ADMIN`.
    Program,
    /// Counting what the driver takes: needs `CAP_PERFMON`, or `CAP_SYS_ADMIN`.
    Count,
    /// A run with live frames: needs Linux 5.18.
    Run,
}

/// Why there are no live frames.
#[derive(Debug)]
pub struct LiveError {
    /// What failed.
    pub step: LiveStep,
    /// The error of the kernel.
    pub error: io::Error,
}

impl fmt::Display for LiveError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.step {
            LiveStep::Spec => return write!(formatter, "{}", self.error),
            LiveStep::Map => "cannot make a map",
            LiveStep::Program => "cannot load the program that makes frames",
            LiveStep::Count => "cannot count what the driver takes",
            LiveStep::Run => "cannot run a program with live frames",
        };
        write!(formatter, "{what}: {}", self.error)
    }
}

impl std::error::Error for LiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl LiveStep {
    fn failed(self) -> impl Fn(io::Error) -> LiveError {
        move |error| LiveError { step: self, error }
    }
}

/// What a call has sent.
#[derive(Debug, Default)]
pub struct LiveSent {
    /// Frames that were made, each with a sequence of its own.
    pub offered: u64,
    /// Of these, what the driver took. The others were refused: see [`LiveFrames::refusals`].
    pub taken: u64,
    /// Payload bytes of the frames made.
    pub bytes: u64,
    /// Why it ended before all were made; what was made counts all the same.
    pub error: Option<io::Error>,
}

/// A generator of frames in the kernel.
///
/// A receiver on the same host does its part on the core that sends, mostly within the call.
#[derive(Debug)]
pub struct LiveFrames {
    program: OwnedFd,
    attachment: Option<Attachment>,
    maps: FrameMaps,
    answers: AnswerCounter,
    frame: Vec<u8>,
    offset_factor: u64,
    state: ProgramState,
}

impl LiveFrames {
    /// Makes everything, and sends nothing yet. Frames leave by the interface of this index, in the network namespace
    /// of the caller.
    pub fn new(interface: u32, spec: &FrameSpec) -> Result<Self, LiveError> {
        spec.check().map_err(LiveStep::Spec.failed())?;
        let template = FrameTemplate::new(spec);
        let maps = FrameMaps::create(spec, &template).map_err(LiveStep::Map.failed())?;
        let program = load(spec, &template, &maps, interface).map_err(LiveStep::Program.failed())?;
        prove_live_frames(&template.frame).map_err(LiveStep::Run.failed())?;
        let answers = AnswerCounter::attach(&maps.state).map_err(LiveStep::Count.failed())?;
        let state = ProgramState::read(&maps.state).map_err(LiveStep::Map.failed())?;
        let offset_factor = spec.marks.factors[3];
        // Without it everything works, in long calls.
        let attachment = Attachment::new(program.as_fd()).ok();
        Ok(Self { program, attachment, maps, answers, frame: template.frame, offset_factor, state })
    }

    /// Whether a call takes no longer than its frames. Otherwise each call waits some ten milliseconds for all cores,
    /// and should send many frames. Short calls need `CAP_SYS_ADMIN`, besides the rights at [`LiveStep`].
    pub fn has_short_calls(&self) -> bool {
        self.attachment.is_some()
    }

    /// From now on frames say that CLOCK_REALTIME is so far ahead of CLOCK_MONOTONIC.
    pub fn set_clock_offset(&mut self, realtime_offset_ns: i64) -> io::Result<()> {
        self.state.set_offset(realtime_offset_ns, self.offset_factor);
        self.state.write(&self.maps.state)
    }

    /// Makes and sends `count` frames. A signal ends it early, which is no error.
    pub fn send(&mut self, count: u32) -> io::Result<LiveSent> {
        if count == 0 {
            return Ok(LiveSent::default());
        }
        let ran = run(self.program.as_fd(), &mut live_run(&self.frame, count));
        let state = ProgramState::read(&self.maps.state)?;
        let since = |place| state.get(place).wrapping_sub(self.state.get(place));
        let sent = LiveSent {
            offered: since(RAN),
            taken: since(TAKEN),
            bytes: since(BYTES),
            error: ran.err().filter(|error| error.raw_os_error() != Some(libc::EINTR)),
        };
        self.state = state;
        // Frames without an answer were lost between the program and the driver. They count as refused, and must not be
        // taken for frames of the next call.
        if state.get(IN_FLIGHT) > 0 {
            self.state.set(IN_FLIGHT, 0);
            self.state.write(&self.maps.state)?;
        }
        Ok(sent)
    }

    /// What was refused since the beginning, by the number of the error; 0 is a driver that had no room.
    pub fn refusals(&self) -> io::Result<Vec<(i32, u64)>> {
        self.answers.refusals()
    }
}

impl FrameMaps {
    fn create(spec: &FrameSpec, template: &FrameTemplate) -> io::Result<Self> {
        let state = ProgramState::create_map()?;
        let mut first = ProgramState::default();
        first.set(RANDOM, spec.seed);
        first.write(&state)?;
        let is_drawn = !is_in_turn(spec.mix, spec.flows);
        let sequences = is_drawn.then(|| Map::array("framegen_seqs", 8, spec.flows)).transpose()?;
        let places = match spec.mix {
            Mix::Zipf { exponent } if is_drawn => {
                let map = Map::array("framegen_places", 8, spec.flows)?;
                fill(&map, &zipf_places(spec.flows, exponent))?;
                Some(map)
            }
            _ => None,
        };
        let has_sizes = template.sizes.len() > 1;
        let sizes = has_sizes.then(|| Map::array("framegen_sizes", 8 * template.sizes.len(), 1)).transpose()?;
        if let Some(map) = &sizes {
            let packed: Vec<u8> = template.sizes.iter().flat_map(|size| size.packed().to_ne_bytes()).collect();
            map.update(&KEY, &packed)?;
        }
        Ok(Self { state, sequences, places, sizes })
    }
}

/// Writes a table into its map.
fn fill(map: &Map, places: &[AliasEntry]) -> io::Result<()> {
    for (part, places) in places.chunks(VALUES_A_CALL).enumerate() {
        let first = (part * VALUES_A_CALL) as u32;
        let keys: Vec<u8> = (first..).take(places.len()).flat_map(u32::to_ne_bytes).collect();
        let words = |place: &AliasEntry| [place.threshold, place.other];
        let values: Vec<u8> = places.iter().flat_map(words).flat_map(u32::to_ne_bytes).collect();
        map.update_many(&keys, &values)?;
    }
    Ok(())
}

fn load(spec: &FrameSpec, template: &FrameTemplate, maps: &FrameMaps, interface: u32) -> io::Result<OwnedFd> {
    Program::new(ProgramKind::Xdp, "framegen", &frame_program(spec, template, maps, interface)).load()
}

fn live_run(frame: &[u8], repeat: u32) -> TestRun<'_> {
    TestRun { repeat, flags: LIVE_FRAMES, batch: KERNEL_BATCH, ..TestRun::once(frame) }
}

/// Whether the kernel runs programs with live frames: tries one that drops its frame.
fn prove_live_frames(frame: &[u8]) -> io::Result<()> {
    let mut assembler = Assembler::new();
    assembler.set(Register::R0, DROP).exit();
    let program = Program::new(ProgramKind::Xdp, "framegen_try", &assembler.finish()).load()?;
    match run(program.as_fd(), &mut live_run(frame, 1)) {
        // A signal meanwhile proves as much.
        Err(error) if error.raw_os_error() != Some(libc::EINTR) => Err(error),
        _ => Ok(()),
    }
}

/// The loopback device of every namespace.
const LOOPBACK: u32 = 1;
/// The namespace of the thread that opens it.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Keeps the program attached to an unused interface until this is dropped, so that each run of it takes no longer than
/// its frames.
///
/// Before the kernel runs an XDP program on order it puts it on a list of programs that it may jump to directly, and
/// afterwards removes it; both wait until every core has seen it, ten milliseconds and more. An attached program is on
/// that list already. So it is attached where no packet ever comes: to the loopback device, which is down, of a new and
/// empty network namespace, which ends with the generator.
#[derive(Debug)]
struct Attachment {
    _link: OwnedFd,
    /// Keeps the namespace, which would otherwise end with the thread that made it.
    _namespace: File,
}

impl Attachment {
    /// Needs `CAP_SYS_ADMIN`, for the namespace. A thread of its own makes it, so that the caller stays in its own.
    fn new(program: BorrowedFd<'_>) -> io::Result<Self> {
        thread::scope(|scope| {
            let attached = thread::Builder::new().name("xdp-namespace".to_owned()).spawn_scoped(scope, || {
                gate(Call::Unshare, 0)?;
                unshare(CloneFlags::CLONE_NEWNET)?;
                let link = attach_to_interface(program, LOOPBACK, XDP_GENERIC)?;
                Ok(Self { _link: link, _namespace: File::open(OWN_NAMESPACE)? })
            })?;
            attached.join().unwrap_or_else(|_| Err(io::Error::other("the thread that attaches a program has panicked")))
        })
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
