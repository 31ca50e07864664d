//! The answers to frames: two programs at tracepoints of the kernel count what the driver accepted and what was
//! refused, by the number of the error.
//!
//! The program that makes a frame only asks for it to be sent. The answer comes later, for up to 16 frames together,
//! and only the tracepoints `xdp:xdp_devmap_xmit` and `xdp:xdp_redirect_err` show it. They fire for the frames of all
//! programs. Those of a generator are sent and answered on its core while its softirqs are held back, so an answer
//! belongs to it exactly when it comes on that core while frames are under way.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R10};
use bpf::{
    Assembler, Instruction, Map, Operation, Program, ProgramKind, Register, When, Width, attach_to_tracepoint, helper,
};

use crate::state::{CORE, IN_FLIGHT, TAKEN};

/// Error numbers that are told apart; 0 is "the driver had no room", which has none, and the last one is for all above
/// it.
const ERRORS: u32 = 256;

/// The arguments of a tracepoint, by their number.
const fn argument(number: i16) -> i16 {
    number * 8
}

/// The counters of refusals, filled until this is dropped.
#[derive(Debug)]
pub(crate) struct AnswerCounter {
    refusals: Map,
    _attached: [OwnedFd; 2],
}

impl AnswerCounter {
    pub(crate) fn attach(state: &Map) -> io::Result<Self> {
        let refusals = Map::array("framegen_errors", 8, ERRORS)?;
        let attach = |tracepoint: &CStr, instructions: &[Instruction]| {
            let program = Program::new(ProgramKind::RawTracepoint, "framegen_count", instructions).load()?;
            attach_to_tracepoint(program.as_fd(), tracepoint)
        };
        let sent = attach(c"xdp_devmap_xmit", &answer_program(state, &refusals, Answer::OfDriver))?;
        let refused = attach(c"xdp_redirect_err", &answer_program(state, &refusals, Answer::BeforeDriver))?;
        Ok(Self { refusals, _attached: [sent, refused] })
    }

    /// All refusals so far: error numbers, 0 for "no room", and how often.
    pub(crate) fn refusals(&self) -> io::Result<Vec<(i32, u64)>> {
        let mut counts = Vec::new();
        for error in 0..ERRORS {
            let mut count = [0; 8];
            self.refusals.look_up(&error.to_ne_bytes(), &mut count)?;
            let count = u64::from_ne_bytes(count);
            if count > 0 {
                counts.push((error.cast_signed(), count));
            }
        }
        Ok(counts)
    }
}

/// Which tracepoint it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// `from, to, sent, refused, error` (Linux 5.6 and later)
    OfDriver,
    /// `device, program, target, error, ...`, for one frame
    BeforeDriver,
}

/// `R7` is the state, `R3` how many were taken, `R8` how many refused.
fn answer_program(state: &Map, refusals: &Map, answer: Answer) -> Vec<Instruction> {
    let mut assembler = Assembler::new();
    let (end, known) = (assembler.label(), assembler.label());
    assembler
        .copy(R6, R1)
        .set_map_value(R7, state.as_fd(), 0)
        .call(helper::CORE_NUMBER)
        .load(Width::Double, R1, R7, CORE)
        .jump_if_register(R0, When::NotEqual, R1, end);
    let error = match answer {
        Answer::OfDriver => {
            assembler.load(Width::Double, R3, R6, argument(2)).load(Width::Double, R8, R6, argument(3));
            argument(4)
        }
        Answer::BeforeDriver => {
            assembler.set(R3, 0).set(R8, 1);
            argument(3)
        }
    };
    assembler
        .copy(R4, R3)
        .compute(Operation::Add, R4, R8)
        .load(Width::Double, R1, R7, IN_FLIGHT)
        .jump_if_register(R4, When::Above, R1, end)
        .compute(Operation::Subtract, R1, R4)
        .store(Width::Double, R7, IN_FLIGHT, R1)
        .load(Width::Double, R1, R7, TAKEN)
        .compute(Operation::Add, R1, R3)
        .store(Width::Double, R7, TAKEN, R1)
        .jump_if(R8, When::Equal, 0, end)
        // Errors are negative numbers of 32 bits.
        .load(Width::Double, R1, R6, error)
        .set(R2, 0)
        .compute_word(Operation::Subtract, R2, R1)
        .set(R4, ERRORS.cast_signed())
        .jump_if_register(R4, When::Above, R2, known)
        .set(R2, ERRORS.cast_signed() - 1)
        .place(known)
        .store(Width::Word, R10, -4, R2)
        .look_up(refusals.as_fd(), -4, end)
        .load(Width::Double, R1, R0, 0)
        .compute(Operation::Add, R1, R8)
        .store(Width::Double, R0, 0, R1)
        .place(end)
        .set(R0, 0)
        .exit();
    assembler.finish()
}
