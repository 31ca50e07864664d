//! Programs for the kernel, instruction by instruction, with labels instead of counted jumps.
//!
//! A constructor is named after what the instruction does, and its arguments stand as in an assignment: destination
//! first. Nothing here calls the kernel; the verifier decides whether a program makes sense.

use std::os::fd::{AsRawFd, BorrowedFd};

/// One instruction as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// Destination and source, four bits each.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register. `R0` has what a call returns and what the program returns, `R1` to `R5` are the arguments of a call and
/// lost in it, `R6` to `R9` survive it, and `R10` is the end of the stack, which grows downwards.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// How many bytes a load or a store moves. The numbers of this and the next two are the bits in the instruction.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// What is done to the destination with the source or the value.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    /// Without a sign; by 0 it gives 0.
    Divide = 0x30,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    /// Zeroes come in from the left.
    ShiftRight = 0x70,
    /// By 0 it leaves the destination as it is.
    Remainder = 0x90,
    ExclusiveOr = 0xa0,
    Set = 0xb0,
    /// The sign comes in from the left.
    ShiftRightSigned = 0xc0,
}

/// When a jump is made. Without a sign unless its name has one.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Equal = 0x10,
    NotEqual = 0x50,
    Above = 0x20,
    AtLeast = 0x30,
    Below = 0xa0,
    AtMost = 0xb0,
    /// The two have a set bit in common.
    AnyBit = 0x40,
    SignedAbove = 0x60,
    SignedBelow = 0xc0,
}

/// The target of jumps, which may be written before its place is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A program in the making.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// Where each label is, once it is placed.
    places: Vec<Option<usize>>,
    /// The jumps, each with its label.
    jumps: Vec<(usize, Label)>,
}

/// Helpers of the kernel that programs call, each with its name in linux/bpf.h.
#[allow(missing_docs)]
pub mod helper {
    pub const MAP_LOOKUP: i32 = 1; // BPF_FUNC_map_lookup_elem
    pub const MAP_UPDATE: i32 = 2; // BPF_FUNC_map_update_elem
    pub const CLOCK: i32 = 5; // BPF_FUNC_ktime_get_ns
    pub const CORE_NUMBER: i32 = 8; // BPF_FUNC_get_smp_processor_id
    pub const REDIRECT: i32 = 23; // BPF_FUNC_redirect
    pub const REDIRECT_MAP: i32 = 51; // BPF_FUNC_redirect_map
    pub const ADJUST_TAIL: i32 = 65; // BPF_FUNC_xdp_adjust_tail
    pub const LOAD_BYTES_RELATIVE: i32 = 68; // BPF_FUNC_skb_load_bytes_relative
    pub const READ_KERNEL: i32 = 113; // BPF_FUNC_probe_read_kernel
    pub const XDP_LENGTH: i32 = 188; // BPF_FUNC_xdp_get_buff_len
}

// The classes of instructions and the bits beside them, each with its name in linux/bpf_common.h and linux/bpf.h.
const CLASS_LOAD_FROM: u8 = 0x01; // BPF_LDX
const CLASS_STORE_VALUE: u8 = 0x02; // BPF_ST
const CLASS_STORE: u8 = 0x03; // BPF_STX
const CLASS_WORD: u8 = 0x04; // BPF_ALU
const CLASS_JUMP: u8 = 0x05; // BPF_JMP
const CLASS_JUMP_WORD: u8 = 0x06; // BPF_JMP32
const CLASS_DOUBLE: u8 = 0x07; // BPF_ALU64
const FROM_REGISTER: u8 = 0x08; // BPF_X
const MODE_MEMORY: u8 = 0x60; // BPF_MEM
const MODE_ATOMIC: u8 = 0xc0; // BPF_ATOMIC
const CONVERT: u8 = 0xd0; // BPF_END
const TO_BIG: u8 = 0x08; // BPF_TO_BE
const WIDE: u8 = 0x18; // BPF_LD | BPF_IMM | BPF_DW
const CALL: u8 = 0x85; // BPF_JMP | BPF_CALL
const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
/// `BPF_PSEUDO_MAP_FD`
const SOURCE_IS_MAP: u8 = 1;
/// `BPF_PSEUDO_KFUNC_CALL`
const TARGET_IS_KERNEL: u8 = 2;
/// `BPF_PSEUDO_MAP_VALUE`
const SOURCE_IS_MAP_VALUE: u8 = 2;

impl Assembler {
    /// A program without instructions.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&mut self, code: u8, destination: Register, source: u8, offset: i16, immediate: i32) -> &mut Self {
        let destination = destination as u8;
        let registers =
            if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source };
        self.instructions.push(Instruction { code, registers, offset, immediate });
        self
    }

    /// `destination = source`
    pub fn copy(&mut self, destination: Register, source: Register) -> &mut Self {
        self.compute(Operation::Set, destination, source)
    }

    /// `destination = value`, with its sign.
    pub fn set(&mut self, destination: Register, value: i32) -> &mut Self {
        self.compute_value(Operation::Set, destination, value)
    }

    /// `destination = value`, all 64 bits of it.
    pub fn set_wide(&mut self, destination: Register, value: u64) -> &mut Self {
        self.wide(destination, 0, value as i32, (value >> 32) as i32)
    }

    /// `destination = the map`, as the calls of maps want it.
    pub fn set_map(&mut self, destination: Register, map: BorrowedFd<'_>) -> &mut Self {
        self.wide(destination, SOURCE_IS_MAP, map.as_raw_fd(), 0)
    }

    /// `destination = address of byte offset of the first value of an array map` (Linux 5.2 and later). Takes no call,
    /// and the address is never 0.
    pub fn set_map_value(&mut self, destination: Register, map: BorrowedFd<'_>, offset: i32) -> &mut Self {
        self.wide(destination, SOURCE_IS_MAP_VALUE, map.as_raw_fd(), offset)
    }

    fn wide(&mut self, destination: Register, source: u8, low: i32, high: i32) -> &mut Self {
        self.push(WIDE, destination, source, 0, low);
        self.push(0, Register::R0, 0, 0, high)
    }

    /// `destination = destination operation source`, in 64 bits.
    pub fn compute(&mut self, operation: Operation, destination: Register, source: Register) -> &mut Self {
        self.push(CLASS_DOUBLE | FROM_REGISTER | operation as u8, destination, source as u8, 0, 0)
    }

    /// The same with a value, which is widened with its sign.
    pub fn compute_value(&mut self, operation: Operation, destination: Register, value: i32) -> &mut Self {
        self.push(CLASS_DOUBLE | operation as u8, destination, 0, 0, value)
    }

    /// `destination = destination operation source`, in the lower 32 bits; the upper ones become 0.
    pub fn compute_word(&mut self, operation: Operation, destination: Register, source: Register) -> &mut Self {
        self.push(CLASS_WORD | FROM_REGISTER | operation as u8, destination, source as u8, 0, 0)
    }

    /// The same with a value.
    pub fn compute_word_value(&mut self, operation: Operation, destination: Register, value: i32) -> &mut Self {
        self.push(CLASS_WORD | operation as u8, destination, 0, 0, value)
    }

    /// Puts the lower 16, 32 or 64 bits into the order of the network; the others become 0.
    #[allow(clippy::wrong_self_convention)] // it is the register that becomes big-endian
    pub fn to_big_endian(&mut self, register: Register, bits: i32) -> &mut Self {
        self.push(CLASS_WORD | CONVERT | TO_BIG, register, 0, 0, bits)
    }

    /// The same into the order of most machines.
    #[allow(clippy::wrong_self_convention)] // as above
    pub fn to_little_endian(&mut self, register: Register, bits: i32) -> &mut Self {
        self.push(CLASS_WORD | CONVERT, register, 0, 0, bits)
    }

    /// `destination = [source + offset]`
    pub fn load(&mut self, width: Width, destination: Register, source: Register, offset: i16) -> &mut Self {
        self.push(CLASS_LOAD_FROM | MODE_MEMORY | width as u8, destination, source as u8, offset, 0)
    }

    /// `[destination + offset] = source`
    pub fn store(&mut self, width: Width, destination: Register, offset: i16, source: Register) -> &mut Self {
        self.push(CLASS_STORE | MODE_MEMORY | width as u8, destination, source as u8, offset, 0)
    }

    /// `[destination + offset] = value`
    pub fn store_value(&mut self, width: Width, destination: Register, offset: i16, value: i32) -> &mut Self {
        self.push(CLASS_STORE_VALUE | MODE_MEMORY | width as u8, destination, 0, offset, value)
    }

    /// `[destination + offset] += source`, atomically, in 64 bits.
    pub fn add_atomically(&mut self, destination: Register, offset: i16, source: Register) -> &mut Self {
        // The immediate names the operation: BPF_ADD, which is 0.
        self.push(CLASS_STORE | MODE_ATOMIC | Width::Double as u8, destination, source as u8, offset, 0)
    }

    /// The same, and the source becomes the value before (Linux 5.12 and later). It is a full barrier: a core that sees
    /// what comes after this instruction also sees the sum.
    pub fn fetch_and_add(&mut self, destination: Register, offset: i16, source: Register) -> &mut Self {
        const FETCH: i32 = 1; // BPF_FETCH
        self.push(CLASS_STORE | MODE_ATOMIC | Width::Double as u8, destination, source as u8, offset, FETCH)
    }

    /// `R0 = helper(R1, R2, R3, R4, R5)`; the number is one of [`helper`].
    pub fn call(&mut self, helper: i32) -> &mut Self {
        self.push(CALL, Register::R0, 0, 0, helper)
    }

    /// The same with a function of the kernel, by its number in [`Types`](crate::Types).
    pub fn call_kernel(&mut self, function: i32) -> &mut Self {
        self.push(CALL, Register::R0, TARGET_IS_KERNEL, 0, function)
    }

    /// `R0 = address of the value in map of the key at R10 + key`, or a jump to `missing`. Takes R1 to R5.
    pub fn look_up(&mut self, map: BorrowedFd<'_>, key: i16, missing: Label) -> &mut Self {
        use Register::{R0, R1, R2, R10};
        self.copy(R2, R10).compute_value(Operation::Add, R2, key.into()).set_map(R1, map);
        self.call(helper::MAP_LOOKUP).jump_if(R0, When::Equal, 0, missing)
    }

    /// Ends the program, which returns `R0`.
    pub fn exit(&mut self) -> &mut Self {
        self.push(EXIT, Register::R0, 0, 0, 0)
    }

    /// A new label, without a place.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places the label here: its jumps lead to the next instruction.
    pub fn place(&mut self, label: Label) -> &mut Self {
        self.places[label.0] = Some(self.instructions.len());
        self
    }

    fn jump_by(&mut self, code: u8, left: Register, source: u8, value: i32, label: Label) -> &mut Self {
        self.jumps.push((self.instructions.len(), label));
        self.push(code, left, source, 0, value)
    }

    /// Jumps.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.jump_by(CLASS_JUMP, Register::R0, 0, 0, label)
    }

    /// Jumps if `left when value`, in 64 bits; the value is widened with its sign.
    pub fn jump_if(&mut self, left: Register, when: When, value: i32, label: Label) -> &mut Self {
        self.jump_by(CLASS_JUMP | when as u8, left, 0, value, label)
    }

    /// Jumps if `left when right`, in 64 bits.
    pub fn jump_if_register(&mut self, left: Register, when: When, right: Register, label: Label) -> &mut Self {
        self.jump_by(CLASS_JUMP | FROM_REGISTER | when as u8, left, right as u8, 0, label)
    }

    /// Jumps if `left when value`, of the lower 32 bits (Linux 5.1 and later).
    pub fn jump_if_word(&mut self, left: Register, when: When, value: i32, label: Label) -> &mut Self {
        self.jump_by(CLASS_JUMP_WORD | when as u8, left, 0, value, label)
    }

    /// The instructions, with every jump resolved.
    ///
    /// # Panics
    /// When a label with a jump has no place or is too far away: a mistake in the program's text.
    pub fn finish(mut self) -> Vec<Instruction> {
        for (from, label) in self.jumps {
            let to = self.places[label.0].expect("a label that is jumped to has a place");
            // A jump counts from the instruction behind it.
            let distance = to.cast_signed() - from.cast_signed() - 1;
            self.instructions[from].offset = i16::try_from(distance).expect("no program is so long");
        }
        self.instructions
    }
}

#[cfg(test)]
#[path = "assembler_tests.rs"]
mod tests;
