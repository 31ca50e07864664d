//! Each instruction against the bytes that the kernel's documentation gives for it, and jumps against counted ones.

use super::{Assembler, Instruction, Operation, Register, When, Width};
use Register::{R0, R1, R2, R3, R6, R10};

fn assembled(write: impl FnOnce(&mut Assembler)) -> Vec<Instruction> {
    let mut assembler = Assembler::new();
    write(&mut assembler);
    assembler.finish()
}

/// Code, destination, source, offset, immediate.
fn parts(instruction: Instruction) -> (u8, u8, u8, i16, i32) {
    let Instruction { code, registers, offset, immediate } = instruction;
    let (low, high) = (registers & 15, registers >> 4);
    let (destination, source) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
    (code, destination, source, offset, immediate)
}

#[test]
fn an_instruction_is_eight_bytes_as_the_kernel_reads_them() {
    assert_eq!(size_of::<Instruction>(), 8);
}

#[test]
fn every_instruction_has_the_code_of_the_instruction_set() {
    let program = assembled(|assembler| {
        assembler
            .copy(R6, R1)
            .set(R0, -1)
            .compute(Operation::Add, R1, R2)
            .compute_value(Operation::ShiftLeft, R1, 3)
            .compute_word(Operation::Remainder, R1, R2)
            .compute_word_value(Operation::ExclusiveOr, R1, 7)
            .to_big_endian(R3, 16)
            .to_little_endian(R3, 64)
            .load(Width::Word, R2, R1, 4)
            .load(Width::Byte, R2, R1, 4)
            .store(Width::Half, R10, -2, R3)
            .store(Width::Double, R10, -8, R3)
            .store_value(Width::Word, R10, -4, 9)
            .add_atomically(R0, 8, R1)
            .call(23)
            .exit();
    });
    let expected = [
        (0xbf, 6, 1, 0, 0),
        (0xb7, 0, 0, 0, -1),
        (0x0f, 1, 2, 0, 0),
        (0x67, 1, 0, 0, 3),
        (0x9c, 1, 2, 0, 0),
        (0xa4, 1, 0, 0, 7),
        (0xdc, 3, 0, 0, 16),
        (0xd4, 3, 0, 0, 64),
        (0x61, 2, 1, 4, 0),
        (0x71, 2, 1, 4, 0),
        (0x6b, 10, 3, -2, 0),
        (0x7b, 10, 3, -8, 0),
        (0x62, 10, 0, -4, 9),
        (0xdb, 0, 1, 8, 0),
        (0x85, 0, 0, 0, 23),
        (0x95, 0, 0, 0, 0),
    ];
    assert_eq!(program.into_iter().map(parts).collect::<Vec<_>>(), expected);
}

#[test]
fn a_wide_value_takes_two_places_and_keeps_all_its_bits() {
    let program = assembled(|assembler| {
        assembler.set_wide(R2, 0x8765_4321_fedc_ba98);
    });
    let low = 0xfedc_ba98_u32.cast_signed();
    let high = 0x8765_4321_u32.cast_signed();
    assert_eq!(program.into_iter().map(parts).collect::<Vec<_>>(), [(0x18, 2, 0, 0, low), (0, 0, 0, 0, high)]);
}

#[test]
fn a_jump_leads_to_its_label_forwards_and_backwards_and_over_wide_values() {
    let program = assembled(|assembler| {
        let (again, end) = (assembler.label(), assembler.label());
        assembler
            .place(again)
            .jump_if(R1, When::Equal, 5, end)
            .set_wide(R0, 1)
            .jump_if_register(R1, When::Below, R2, again)
            .jump_if_word(R1, When::SignedAbove, -1, again)
            .jump(end)
            .place(end)
            .exit();
    });
    let jumps: Vec<_> = [0, 3, 4, 5].map(|at| parts(program[at])).into_iter().collect();
    assert_eq!(jumps, [(0x15, 1, 0, 5, 5), (0xad, 1, 2, -4, 0), (0x66, 1, 0, -5, -1), (0x05, 0, 0, 0, 0)]);
}

#[test]
#[should_panic(expected = "has a place")]
fn a_jump_to_nowhere_is_a_mistake_in_the_program() {
    assembled(|assembler| {
        let nowhere = assembler.label();
        assembler.jump(nowhere);
    });
}
