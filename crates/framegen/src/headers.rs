//! The part of the program that writes: headers, what differs from frame to frame, marks and checksums. Like `program`
//! it is assembled for one task and leaves out what the task does not need.

use bpf::{Operation, Register, When, Width};

use crate::program::ProgramWriter;
use crate::spec::{FIRST_PORT, NUMBERED_BYTES, TIMED_BYTES};
use crate::state::{OFFSET, TIME, TIME_PART, TIME_SUM};
use crate::writer::first_word;
use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};

/// `struct xdp_md`
const DATA: i16 = 0;
const DATA_END: i16 = 4;

impl ProgramWriter<'_> {
    /// The headers of the template. From here to the cut `R1` is the frame.
    pub(crate) fn write_headers(&mut self) {
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
    pub(crate) fn write_what_differs(&mut self) {
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
    pub(crate) fn write_marks(&mut self) {
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
    pub(crate) fn write_checksum(&mut self) {
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
