//! The program of a [`SourceFilter`](crate::SourceFilter), instruction by instruction.
//!
//! It counts by halving how many turns of the table are at or before the source: the count begins at 0 and takes steps
//! of falling powers of two, each if the turn there is not beyond the source. An even count gives the first answer, an
//! odd one the other. The steps are written out instead of looped, and take no branch that the verifier would have to
//! follow both ways: then it accepts the program from a process without any right, too.
//!
//! It keeps what it does not understand: the reader of the socket checks again.

use std::os::fd::BorrowedFd;

use bpf::{Assembler, Instruction, Label, Operation, Register, When, Width, helper};

use crate::core_counter;

/// `BPF_HDR_START_NET`
const FROM_NETWORK_HEADER: i32 = 1;

// Offsets in `struct __sk_buff`.
const LENGTH: i16 = 0;
const PROTOCOL: i16 = 16;
const SEGMENT_SIZE: i16 = 176;

/// What comes before the payload in what the program sees.
const UDP_HEADER_BYTES: i32 = 8;

// Where things lie on the stack, below register 10.
const KEY: i16 = -4;
const V4_SOURCE: i16 = -8;
const V6_SOURCE: i16 = -24;

// The numbers of the counter.
const MESSAGES: i16 = 0;
const MORE_DATAGRAMS: i16 = 8;
const BYTES: i16 = 16;

/// Numbers of 64 bits in a turn.
pub(crate) const V4_NUMBERS: usize = 1;
pub(crate) const V6_NUMBERS: usize = 2;

/// What distinguishes a program, besides its maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceShape {
    /// As in [`SourceRanges`](crate::SourceRanges).
    pub v4_first: bool,
    /// How many.
    pub v4_turns: u32,
    /// As in [`SourceRanges`](crate::SourceRanges).
    pub v6_first: bool,
    /// How many.
    pub v6_turns: u32,
    /// It counts arrivals as well, by so many queues.
    pub queues: Option<u32>,
}

impl SourceShape {
    /// How many maps its program is given.
    pub fn maps(&self) -> usize {
        let is_there = [true, self.v4_turns > 0, self.v6_turns > 0, self.queues.is_some()];
        is_there.into_iter().filter(|is_there| *is_there).count()
    }
}

/// What it reads and writes.
pub(crate) struct FilterMaps<'a> {
    pub(crate) refused: BorrowedFd<'a>,
    pub(crate) v4: Option<BorrowedFd<'a>>,
    pub(crate) v6: Option<BorrowedFd<'a>>,
    /// Where arrivals are counted, and how many queues are told apart.
    pub(crate) arrivals: Option<(BorrowedFd<'a>, u32)>,
}

/// Register 6 has the datagram, 7 the count of turns, and 8 an IPv4 source.
pub(crate) fn assemble(shape: &SourceShape, maps: &FilterMaps<'_>) -> Vec<Instruction> {
    use Register::{R0, R1, R6};
    let mut program = Assembler::new();
    let [v4, v4_search, v6_search, refuse, keep] = std::array::from_fn(|_| program.label());
    program.copy(R6, R1);
    if let Some((map, queues)) = maps.arrivals {
        core_counter::count(&mut program, map, queues);
    }
    program.load(Width::Word, R1, R6, PROTOCOL).jump_if(R1, When::Equal, protocol(libc::ETH_P_IP), v4).jump_if(
        R1,
        When::NotEqual,
        protocol(libc::ETH_P_IPV6),
        keep,
    );
    read_v6(&mut program, [v4_search, v6_search, keep]);
    program.place(v6_search);
    search(&mut program, maps.v6, shape.v6_turns, is_v6_beyond);
    answer(&mut program, shape.v6_first, shape.v6_turns, [refuse, keep]);
    program.place(v4);
    read_v4(&mut program, keep);
    program.place(v4_search);
    search(&mut program, maps.v4, shape.v4_turns, is_v4_beyond);
    answer(&mut program, shape.v4_first, shape.v4_turns, [refuse, keep]);
    program.place(refuse);
    count_refused(&mut program, maps.refused);
    program.compute_word_value(Operation::Set, R0, 0).exit();
    program.place(keep).compute_word_value(Operation::Set, R0, -1).exit();
    program.finish()
}

/// A number of a protocol as the kernel has it in a datagram.
fn protocol(number: i32) -> i32 {
    (number as u16).to_be().into()
}

/// Copies bytes of the network header onto the stack.
fn read_header(program: &mut Assembler, from: i32, bytes: i32, to: i16, keep: Label) {
    use Register::{R0, R1, R2, R3, R4, R5, R6, R10};
    program
        .copy(R1, R6)
        .set(R2, from)
        .copy(R3, R10)
        .compute_value(Operation::Add, R3, to.into())
        .set(R4, bytes)
        .set(R5, FROM_NETWORK_HEADER)
        .call(helper::LOAD_BYTES_RELATIVE)
        .jump_if(R0, When::NotEqual, 0, keep);
}

fn read_v4(program: &mut Assembler, keep: Label) {
    use Register::{R8, R10};
    const SOURCE: i32 = 12; // offsetof(struct iphdr, saddr)
    read_header(program, SOURCE, 4, V4_SOURCE, keep);
    program.load(Width::Word, R8, R10, V4_SOURCE).to_big_endian(R8, 32);
}

/// Puts the words of the source into the order of this machine, the uppermost first, and jumps to the right search: a
/// mapped IPv4 address is IPv4.
fn read_v6(program: &mut Assembler, [v4_search, v6_search, keep]: [Label; 3]) {
    use Register::{R1, R8, R10};
    const SOURCE: i32 = 8; // offsetof(struct ipv6hdr, saddr)
    read_header(program, SOURCE, 16, V6_SOURCE, keep);
    for word in words() {
        program.load(Width::Word, R1, R10, word).to_big_endian(R1, 32).store(Width::Word, R10, word, R1);
    }
    let [first, second, third, last] = words();
    program
        .load(Width::Word, R8, R10, last)
        .load(Width::Word, R1, R10, first)
        .jump_if(R1, When::NotEqual, 0, v6_search)
        .load(Width::Word, R1, R10, second)
        .jump_if(R1, When::NotEqual, 0, v6_search)
        .load(Width::Word, R1, R10, third)
        .jump_if(R1, When::Equal, 0xffff, v4_search);
}

/// Where the words of an IPv6 source lie.
fn words() -> [i16; 4] {
    [0, 4, 8, 12].map(|offset| V6_SOURCE + offset)
}

/// Counts in register 7 the turns at or before the source. `is_beyond` compares: all bits of register 1 are set
/// afterwards when the turn that register 0 points to is beyond the source, and none otherwise.
fn search(program: &mut Assembler, table: Option<BorrowedFd<'_>>, turns: u32, is_beyond: fn(&mut Assembler)) {
    use Register::{R1, R7, R10};
    let Some(table) = table else { return };
    program.set(R7, 0);
    for step in (0..=turns.ilog2()).rev().map(|power| 1_i32 << power) {
        let next = program.label();
        program
            .copy(R1, R7)
            .compute_value(Operation::Add, R1, step - 1)
            .store(Width::Word, R10, KEY, R1)
            .look_up(table, KEY, next); // past the end of the table
        is_beyond(program);
        program
            .compute_value(Operation::ExclusiveOr, R1, -1)
            .compute_value(Operation::And, R1, step)
            .compute(Operation::Add, R7, R1)
            .place(next);
    }
}

/// The difference is negative, and its sign fills the register.
fn is_v4_beyond(program: &mut Assembler) {
    use Register::{R0, R1, R2, R8};
    program.load(Width::Double, R2, R0, 0).copy(R1, R8).compute(Operation::Subtract, R1, R2).compute_value(
        Operation::ShiftRightSigned,
        R1,
        63,
    );
}

/// The same word by word from the lowest, with the borrow in register 3.
fn is_v6_beyond(program: &mut Assembler) {
    use Register::{R0, R1, R2, R3, R10};
    // Of two numbers in the order of this machine, the upper one first.
    let in_turn: [i16; 4] = if cfg!(target_endian = "little") { [4, 0, 12, 8] } else { [0, 4, 8, 12] };
    program.set(R3, 0);
    for (word, in_turn) in words().into_iter().zip(in_turn).rev() {
        program
            .load(Width::Word, R1, R10, word)
            .compute(Operation::Add, R1, R3)
            .load(Width::Word, R2, R0, in_turn)
            .compute(Operation::Subtract, R1, R2)
            .compute_value(Operation::ShiftRightSigned, R1, 63)
            .copy(R3, R1);
    }
}

/// Jumps to the answer for the count in register 7; without turns there is only the first.
fn answer(program: &mut Assembler, first: bool, turns: u32, [refuse, keep]: [Label; 2]) {
    if turns == 0 {
        program.jump(if first { keep } else { refuse });
        return;
    }
    let kept_when = i32::from(!first);
    program
        .compute_value(Operation::And, Register::R7, 1)
        .jump_if(Register::R7, When::Equal, kept_when, keep)
        .jump(refuse);
}

/// The messages are added last, with a barrier: a reader who reads the kernel's own count first, which is written after
/// this program, never finds it ahead of them.
fn count_refused(program: &mut Assembler, counter: BorrowedFd<'_>) {
    use Register::{R1, R2, R6, R7};
    let message = program.label();
    program
        .set_map_value(R7, counter, 0)
        .load(Width::Word, R1, R6, LENGTH)
        .compute_value(Operation::Subtract, R1, UDP_HEADER_BYTES)
        .add_atomically(R7, BYTES, R1)
        .load(Width::Word, R2, R6, SEGMENT_SIZE)
        .jump_if(R2, When::Equal, 0, message)
        // A train has as many datagrams as its payload has segments, the last one perhaps short.
        .compute(Operation::Add, R1, R2)
        .compute_value(Operation::Subtract, R1, 1)
        .compute(Operation::Divide, R1, R2)
        .compute_value(Operation::Subtract, R1, 1)
        .add_atomically(R7, MORE_DATAGRAMS, R1)
        .place(message)
        .set(R1, 1)
        .fetch_and_add(R7, MESSAGES, R1);
}
