//! The program that makes a frame out of the one before: an XDP program, assembled for one task, so that what does not
//! vary in a task costs nothing.
//!
//! It does what `frame_template` does, in the same order and with the same random numbers. The kernel hands it pages
//! that were sent before and may have been changed by their receivers, so it writes all headers each time; of the
//! payload only the marks, because receivers do not change what is behind them.

use std::os::fd::AsFd;

use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use bpf::{Assembler, Instruction, Label, Map, Operation, Register, When, Width, helper};

use crate::draw::{INCREMENT, MULTIPLIER, is_in_turn, threshold};
use crate::frame_template::{FrameTemplate, first_word};
use crate::spec::{FIRST_PORT, FrameSpec, Mix, NUMBERED_BYTES, SizeOrder, TIMED_BYTES};
use crate::state::{
    BYTES, CORE, IN_FLIGHT, NEXT_FLOW, OFFSET, OFFSET_PART, OFFSET_SUM, RAN, RANDOM, ROUND, SIZE_TURN, TIME, TIME_PART,
    TIME_SUM,
};

/// `struct xdp_md`
const DATA: i16 = 0;
const DATA_END: i16 = 4;

/// `XDP_DROP`
pub(crate) const DROP: i32 = 1;

/// The maps of a program.
#[derive(Debug)]
pub(crate) struct FrameMaps {
    pub(crate) state: Map,
    /// Each flow's next sequence; none where flows come in turn.
    pub(crate) sequences: Option<Map>,
    /// The table of a Zipf mix.
    pub(crate) places: Option<Map>,
    /// The sizes and their sums; none where there is one.
    pub(crate) sizes: Option<Map>,
}

/// A program in the making.
struct FrameProgramWriter<'a> {
    assembler: Assembler,
    spec: &'a FrameSpec,
    template: &'a FrameTemplate,
    maps: &'a FrameMaps,
    /// Where a frame goes that cannot be made, which never happens; the verifier wants it.
    drop: Label,
}

/// The program for frames that leave by the interface of this index. While it runs, `R6` is the context, `R7` the
/// state, `R8` the flow and then the number, and `R9` the size with its sums.
pub(crate) fn frame_program(
    spec: &FrameSpec,
    template: &FrameTemplate,
    maps: &FrameMaps,
    interface: u32,
) -> Vec<Instruction> {
    let mut assembler = Assembler::new();
    let drop = assembler.label();
    let mut writing = FrameProgramWriter { assembler, spec, template, maps, drop };
    writing.assembler.copy(R6, R1).set_map_value(R7, maps.state.as_fd(), 0);
    writing.look_at_clock();
    writing.draw_flow();
    writing.draw_size();
    writing.write_headers();
    writing.write_what_differs();
    writing.write_marks();
    writing.write_checksum();
    writing.cut();
    writing.count_and_send(interface);
    writing.assembler.place(drop).set(R0, DROP).exit();
    writing.assembler.finish()
}

impl FrameProgramWriter<'_> {
    /// When no frame is under way: notes the time, and the core, by which `driver_verdicts` knows its frames.
    fn look_at_clock(&mut self) {
        let under_way = self.assembler.label();
        self.assembler
            .load(Width::Double, R1, R7, IN_FLIGHT)
            .jump_if(R1, When::NotEqual, 0, under_way)
            .call(helper::CORE_NUMBER)
            .store(Width::Double, R7, CORE, R0)
            .call(helper::CLOCK)
            .store(Width::Double, R7, TIME, R0)
            // As its bytes will lie in the payload.
            .copy(R1, R0)
            .to_little_endian(R1, 64)
            .compute_word(Operation::Set, R2, R1)
            .compute_value(Operation::ShiftRight, R1, 32)
            .compute(Operation::Add, R1, R2)
            .load(Width::Double, R2, R7, OFFSET_SUM)
            .compute(Operation::Add, R1, R2)
            .store(Width::Double, R7, TIME_SUM, R1)
            .set_wide(R1, self.spec.marks.factors[2])
            .compute(Operation::Multiply, R0, R1)
            .load(Width::Double, R1, R7, OFFSET_PART)
            .compute(Operation::Add, R0, R1)
            .store(Width::Double, R7, TIME_PART, R0)
            .place(under_way);
    }

    /// `register = 32 bits of chance`; takes R1 to R3.
    fn draw(&mut self, register: Register) {
        self.assembler
            .load(Width::Double, R1, R7, RANDOM)
            .set_wide(R2, MULTIPLIER)
            .compute(Operation::Multiply, R1, R2)
            .set_wide(R3, INCREMENT)
            .compute(Operation::Add, R1, R3)
            .store(Width::Double, R7, RANDOM, R1)
            .copy(register, R1)
            .compute_value(Operation::ShiftRight, register, 32);
    }

    /// `register = one of 0..limit`
    fn draw_below(&mut self, register: Register, limit: u32) {
        self.draw(register);
        // A limit is at most 2^24, so neither has a sign.
        self.assembler.compute_value(Operation::Multiply, register, limit.cast_signed()).compute_value(
            Operation::ShiftRight,
            register,
            32,
        );
    }

    /// `R0 = address of the value of the key in the register`
    fn look_up(&mut self, map: &Map, key: Register) {
        self.assembler.store(Width::Word, R10, -4, key).look_up(map.as_fd(), -4, self.drop);
    }

    /// `R8 = number`
    fn draw_flow(&mut self) {
        let flow_shift = 64 - self.spec.marks.flow_bits.cast_signed();
        let flows = self.spec.flows;
        if is_in_turn(self.spec.mix, flows) {
            let same_round = self.assembler.label();
            self.assembler
                .load(Width::Double, R8, R7, NEXT_FLOW)
                .load(Width::Double, R3, R7, ROUND)
                .copy(R1, R8)
                .compute_value(Operation::Add, R1, 1)
                .copy(R2, R3)
                .jump_if(R1, When::NotEqual, flows.cast_signed(), same_round)
                .set(R1, 0)
                .compute_value(Operation::Add, R2, 1)
                .place(same_round)
                .store(Width::Double, R7, NEXT_FLOW, R1)
                .store(Width::Double, R7, ROUND, R2)
                .compute_value(Operation::ShiftLeft, R8, flow_shift)
                .compute(Operation::Or, R8, R3);
            return;
        }
        match self.spec.mix {
            Mix::Uniform | Mix::RoundRobin => self.draw_below(R8, flows),
            Mix::Hot { share } => {
                let hot = self.assembler.label();
                self.draw(R9);
                self.assembler.set(R8, 0).set_wide(R3, threshold(share)).jump_if_register(R9, When::Below, R3, hot);
                self.draw_below(R8, flows - 1);
                self.assembler.compute_value(Operation::Add, R8, 1).place(hot);
            }
            Mix::Zipf { .. } => {
                let own = self.assembler.label();
                self.draw_below(R8, flows);
                if let Some(places) = &self.maps.places {
                    self.look_up(places, R8);
                }
                self.draw(R9);
                self.assembler
                    .load(Width::Word, R1, R0, 0)
                    .jump_if_register(R9, When::Below, R1, own)
                    .load(Width::Word, R8, R0, 4)
                    .place(own);
            }
        }
        if let Some(sequences) = &self.maps.sequences {
            self.look_up(sequences, R8);
        }
        self.assembler
            .load(Width::Double, R1, R0, 0)
            .copy(R2, R1)
            .compute_value(Operation::Add, R2, 1)
            .store(Width::Double, R0, 0, R2)
            .compute_value(Operation::ShiftLeft, R8, flow_shift)
            .compute(Operation::Or, R8, R1);
    }

    /// `R9 = size with its sums`
    fn draw_size(&mut self) {
        let sizes = &self.template.sizes;
        let Some(map) = &self.maps.sizes else {
            self.assembler.set_wide(R9, sizes[0].packed());
            return;
        };
        let count = sizes.len() as i32;
        match self.spec.size_order {
            SizeOrder::AtRandom => self.draw_below(R9, sizes.len() as u32),
            SizeOrder::InTurn => {
                let same_round = self.assembler.label();
                self.assembler
                    .load(Width::Double, R9, R7, SIZE_TURN)
                    .copy(R1, R9)
                    .compute_value(Operation::Add, R1, 1)
                    .jump_if(R1, When::NotEqual, count, same_round)
                    .set(R1, 0)
                    .place(same_round)
                    .store(Width::Double, R7, SIZE_TURN, R1);
            }
        }
        self.assembler
            .jump_if(R9, When::AtLeast, count, self.drop)
            .compute_value(Operation::ShiftLeft, R9, 3)
            .set_map_value(R1, map.as_fd(), 0)
            .compute(Operation::Add, R1, R9)
            .load(Width::Double, R9, R1, 0);
    }

    /// Frames begin as long as the longest; this cuts them to their length.
    fn cut(&mut self) {
        let longest = self.template.payload_bytes();
        if self.template.sizes.iter().all(|size| usize::from(size.bytes) == longest) {
            return;
        }
        self.assembler
            .copy(R1, R6)
            .copy(R2, R0)
            .compute_value(Operation::Subtract, R2, longest as i32)
            .call(helper::ADJUST_TAIL)
            .jump_if(R0, When::NotEqual, 0, self.drop);
    }

    fn count_and_send(&mut self, interface: u32) {
        self.assembler.compute_value(Operation::And, R9, 0xffff);
        for (place, more) in [(RAN, None), (IN_FLIGHT, None), (BYTES, Some(R9))] {
            self.assembler.load(Width::Double, R1, R7, place);
            match more {
                None => self.assembler.compute_value(Operation::Add, R1, 1),
                Some(register) => self.assembler.compute(Operation::Add, R1, register),
            };
            self.assembler.store(Width::Double, R7, place, R1);
        }
        self.assembler.set(R1, interface.cast_signed()).set(R2, 0).call(helper::REDIRECT).exit();
    }

    /// The headers of the template. From here to the cut `R1` is the frame.
    fn write_headers(&mut self) {
        let payload = self.template.places.payload;
        self.assembler
            .load(Width::Word, R1, R6, DATA)
            .load(Width::Word, R2, R6, DATA_END)
            .copy(R3, R1)
            .compute_value(Operation::Add, R3, (payload + TIMED_BYTES) as i32)
            .jump_if_register(R3, When::Above, R2, self.drop);
        let template = self.template;
        self.write_bytes(0, &template.frame[..payload]);
    }

    fn write_bytes(&mut self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let place = at as i16;
            let done = match *bytes {
                [a, b, c, d, e, f, g, h, ..] => {
                    let value = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                    self.assembler.set_wide(R2, value).store(Width::Double, R1, place, R2);
                    8
                }
                [a, b, c, d, ..] => {
                    self.assembler.store_value(Width::Word, R1, place, i32::from_ne_bytes([a, b, c, d]));
                    4
                }
                [a, b, ..] => {
                    self.assembler.store_value(Width::Half, R1, place, u16::from_ne_bytes([a, b]).into());
                    2
                }
                [a] => {
                    self.assembler.store_value(Width::Byte, R1, place, a.into());
                    1
                }
                [] => 0,
            };
            (at, bytes) = (at + done, &bytes[done..]);
        }
    }

    /// Lengths, source and ports, and the network header's checksum. `R0` becomes the size, `R5` the UDP sum.
    fn write_what_differs(&mut self) {
        let places = self.template.places;
        let bits = self.spec.port_bits();
        self.assembler
            .copy(R0, R9)
            .compute_value(Operation::And, R0, 0xffff)
            .copy(R2, R0)
            .compute_value(Operation::Add, R2, 8)
            .to_big_endian(R2, 16)
            .store(Width::Half, R1, places.udp_length as i16, R2)
            .copy(R2, R0)
            .compute_value(Operation::Add, R2, places.length_beside_payload as i32)
            .to_big_endian(R2, 16)
            .store(Width::Half, R1, places.length as i16, R2)
            .copy(R5, R9)
            .compute_value(Operation::ShiftRight, R5, 16)
            .compute_value(Operation::And, R5, 0xffff)
            // The flow, and of it address and port.
            .copy(R2, R8)
            .compute_value(Operation::ShiftRight, R2, 64 - self.spec.marks.flow_bits.cast_signed())
            .copy(R3, R2)
            .compute_value(Operation::ShiftRight, R3, bits.cast_signed())
            .compute_word_value(Operation::Add, R3, self.spec.first_source_word().cast_signed())
            .to_big_endian(R3, 32)
            .store(Width::Word, R1, places.source as i16, R3)
            .compute(Operation::Add, R5, R3)
            .compute_value(Operation::And, R2, (1 << bits) - 1)
            .compute_value(Operation::Add, R2, FIRST_PORT.cast_signed())
            .to_big_endian(R2, 16)
            .store(Width::Half, R1, places.source_port as i16, R2)
            .compute(Operation::Add, R5, R2);
        if let Some(at) = places.header_sum {
            self.assembler.copy(R4, R9).compute_value(Operation::ShiftRight, R4, 32).compute(Operation::Add, R4, R3);
            self.fold(R4, R2);
            self.assembler.compute_value(Operation::ExclusiveOr, R4, 0xffff).store(Width::Half, R1, at as i16, R4);
        }
    }

    /// Folds a sum: one of few 32-bit numbers is below 2^36, so the third time nothing is carried.
    fn fold(&mut self, sum: Register, other: Register) {
        for _ in 0..3 {
            self.assembler
                .copy(other, sum)
                .compute_value(Operation::ShiftRight, other, 16)
                .compute_value(Operation::And, sum, 0xffff)
                .compute(Operation::Add, sum, other);
        }
    }

    /// As many marks as a payload of this size has room for.
    fn write_marks(&mut self) {
        let has = |from: usize, to: usize| {
            self.template.sizes.iter().any(|size| (from..to).contains(&usize::from(size.bytes)))
        };
        let (short, numbered) = (has(0, NUMBERED_BYTES), has(NUMBERED_BYTES, TIMED_BYTES));
        let timed = has(TIMED_BYTES, usize::MAX);
        let (to_short, to_numbered) = (self.assembler.label(), self.assembler.label());
        let done = self.assembler.label();
        if short && (numbered || timed) {
            self.assembler.jump_if(R0, When::Below, NUMBERED_BYTES as i32, to_short);
        }
        if numbered && timed {
            self.assembler.jump_if(R0, When::Below, TIMED_BYTES as i32, to_numbered);
        }
        if timed {
            self.write_number(true);
            self.assembler.jump(done);
        }
        self.assembler.place(to_numbered);
        if numbered {
            self.write_number(false);
            self.write_body(NUMBERED_BYTES);
            self.assembler.jump(done);
        }
        self.assembler.place(to_short);
        if short {
            self.write_body(0);
        }
        self.assembler.place(done);
    }

    /// The bytes where a longer frame in the same page may have had marks.
    fn write_body(&mut self, from: usize) {
        let spec = self.spec;
        self.write_bytes(self.template.places.payload + from, &spec.body[from..TIMED_BYTES]);
    }

    fn write_number(&mut self, is_timed: bool) {
        let payload = self.template.places.payload as i16;
        let marks = self.spec.marks;
        self.write_bytes(self.template.places.payload, &first_word(self.spec));
        let assembler = &mut self.assembler;
        assembler
            .copy(R2, R0)
            .compute_value(Operation::ShiftLeft, R2, 16)
            .compute_value(Operation::Or, R2, marks.run.into())
            .set_wide(R3, marks.factors[0])
            .compute(Operation::Multiply, R2, R3)
            .set_wide(R3, marks.factors[1])
            .compute(Operation::Multiply, R3, R8)
            .compute(Operation::Add, R2, R3);
        if is_timed {
            assembler
                .load(Width::Double, R3, R7, TIME_PART)
                .compute(Operation::Add, R2, R3)
                .load(Width::Double, R3, R7, TIME)
                .to_little_endian(R3, 64)
                .store(Width::Double, R1, payload + 16, R3)
                .load(Width::Double, R3, R7, OFFSET)
                .to_little_endian(R3, 64)
                .store(Width::Double, R1, payload + 24, R3)
                .load(Width::Double, R3, R7, TIME_SUM)
                .compute(Operation::Add, R5, R3);
        }
        assembler
            .copy(R3, R2)
            .compute_value(Operation::ShiftRight, R3, 32)
            .compute_word(Operation::ExclusiveOr, R2, R3)
            .to_little_endian(R2, 32)
            .store(Width::Word, R1, payload + 4, R2)
            .compute(Operation::Add, R5, R2)
            .copy(R3, R8)
            .to_little_endian(R3, 64)
            .store(Width::Double, R1, payload + 8, R3)
            .compute_word(Operation::Set, R2, R3)
            .compute_value(Operation::ShiftRight, R3, 32)
            .compute(Operation::Add, R5, R2)
            .compute(Operation::Add, R5, R3);
    }

    /// A sum of 0 would mean that there is no checksum, so it is written as 0xffff.
    fn write_checksum(&mut self) {
        let at = self.template.places.udp_sum as i16;
        if self.spec.checksum {
            self.fold(R5, R2);
            let written = self.assembler.label();
            self.assembler
                .jump_if(R5, When::Equal, 0xffff, written)
                .compute_value(Operation::ExclusiveOr, R5, 0xffff)
                .place(written)
                .store(Width::Half, R1, at, R5);
        } else {
            self.assembler.store_value(Width::Half, R1, at, 0);
        }
    }
}
