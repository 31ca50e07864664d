//! What a frame above the driver does not show and the kernel knows: whether it had a VLAN tag, and whether it is a
//! train of datagrams. A program at the tracepoint `net:netif_receive_skb`, which runs just before the program at the
//! interface and on the same core, notes both in a map of that core.
//!
//! It runs for each packet of every interface, which costs some tens of nanoseconds, so only the generic mode has it.
//! It needs `CAP_PERFMON` and the kernel's description of its types, and outlives the interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use Register::{R0, R1, R2, R3, R6, R7, R8, R10};
use bpf::{Assembler, Instruction, Map, Operation, Program, ProgramKind, Register, Types, When, Width, helper};

use super::program::{HAS_TAG, IS_TRAIN, LICENSE};

/// The map, and the program that fills it until this is dropped.
#[derive(Debug)]
pub(super) struct HiddenStateProgram {
    notes: Map,
    _attached: OwnedFd,
}

/// Where the kernel keeps what is noted.
#[derive(Clone, Copy, Debug)]
struct FieldOffsets {
    /// In `struct sk_buff`: the tag and its kind, as one word that is 0 without one.
    tag: usize,
    head: usize,
    end: usize,
    /// In `struct skb_shared_info`, which lies at `head` + `end`.
    segment: usize,
}

impl HiddenStateProgram {
    /// Begins to note.
    pub(super) fn attach() -> io::Result<HiddenStateProgram> {
        let unknown = || io::Error::new(io::ErrorKind::Unsupported, "this kernel does not say where it keeps that");
        let described = Types::of_kernel()?;
        let places = Types::parse(&described).and_then(|types| FieldOffsets::read(&types)).ok_or_else(unknown)?;
        let (notes, _) = Map::array_per_core("mmsg_xdp_notes", 4)?;
        let instructions = &assemble(&places, notes.as_fd());
        let program = Program::new(ProgramKind::RawTracepoint, "mmsg_xdp_notes", instructions);
        let program = Program { license: LICENSE, ..program }.load()?;
        let attached = bpf::attach_to_tracepoint(program.as_fd(), c"netif_receive_skb")?;
        Ok(HiddenStateProgram { notes, _attached: attached })
    }

    /// The map of notes.
    pub(super) fn notes(&self) -> BorrowedFd<'_> {
        self.notes.as_fd()
    }
}

impl FieldOffsets {
    fn read(types: &Types<'_>) -> Option<FieldOffsets> {
        // With 32 bits `end` is a pointer.
        if cfg!(not(target_pointer_width = "64")) {
            return None;
        }
        // Before Linux 6.2 there is no such word, and its parts may hold older values: then too much passes to the
        // stack, and never too little.
        let tag = types.field("sk_buff", "vlan_all").or_else(|| types.field("sk_buff", "vlan_proto"))?;
        let (head, end) = (types.field("sk_buff", "head")?, types.field("sk_buff", "end")?);
        Some(FieldOffsets { tag, head, end, segment: types.field("skb_shared_info", "gso_size")? })
    }
}

// Where things lie on the stack, below register 10.
const WORD: i16 = -8;
const POINTER: i16 = -16;
const KEY: i16 = -24;

/// Register 6 has the packet, 7 the note, 8 the shared information.
fn assemble(places: &FieldOffsets, notes: BorrowedFd<'_>) -> Vec<Instruction> {
    let mut program = Assembler::new();
    let [untagged, note, end] = std::array::from_fn(|_| program.label());
    program.load(Width::Double, R6, R1, 0).set(R7, 0);
    read(&mut program, (R6, places.tag), (WORD, 4));
    program.load(Width::Word, R1, R10, WORD).jump_if(R1, When::Equal, 0, untagged);
    program.compute_value(Operation::Or, R7, HAS_TAG).place(untagged);
    read(&mut program, (R6, places.head), (POINTER, 8));
    read(&mut program, (R6, places.end), (WORD, 4));
    program.load(Width::Double, R8, R10, POINTER).load(Width::Word, R1, R10, WORD);
    program.compute(Operation::Add, R8, R1);
    read(&mut program, (R8, places.segment), (WORD, 2));
    program.load(Width::Half, R1, R10, WORD).jump_if(R1, When::Equal, 0, note);
    program.compute_value(Operation::Or, R7, IS_TRAIN).place(note);
    program.store_value(Width::Word, R10, KEY, 0).look_up(notes, KEY, end);
    program.store(Width::Word, R0, 0, R7).place(end).set(R0, 0).exit();
    program.finish()
}

/// Copies kernel memory onto the stack; unreadable memory gives zeroes.
fn read(program: &mut Assembler, (base, offset): (Register, usize), (to, bytes): (i16, i32)) {
    let offset = i32::try_from(offset).expect("structures of packets are short");
    program.copy(R1, R10).compute_value(Operation::Add, R1, to.into()).set(R2, bytes);
    program.copy(R3, base).compute_value(Operation::Add, R3, offset).call(helper::READ_KERNEL);
}
