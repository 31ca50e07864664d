//! What a frame above the driver does not show and the kernel knows: whether it had a VLAN tag, and whether it is a
//! train of datagrams that are one by now. A program at the tracepoint `net:netif_receive_skb`, which comes just before
//! the program at the interface and on the same core, notes both in a map of that core.
//!
//! It runs for each packet of every interface, which costs some tens of nanoseconds, so it is there in the generic mode
//! only. It needs `CAP_PERFMON` and the kernel's description of its types, and outlives the interface.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::bpf::assembler::{Assembler, Instruction, Operation, Register, When, Width};
use crate::bpf::calls::{self, Map, PER_CORE_ARRAY, Program, Shape};
use crate::bpf::types::{KERNEL_TYPES, Types};
use Register::{R0, R1, R2, R3, R6, R7, R8, R10};

use super::program::{HAS_TAG, IS_TRAIN, LICENSE};

/// `BPF_PROG_TYPE_RAW_TRACEPOINT`
const AT_TRACEPOINT: u32 = 17;
/// `BPF_FUNC_map_lookup_elem`
const LOOK_UP: i32 = 1;
/// `BPF_FUNC_probe_read_kernel`
const READ_KERNEL: i32 = 113;

/// The map, and what fills it as long as this lives.
#[derive(Debug)]
pub(super) struct Witness {
    notes: Map,
    _attached: OwnedFd,
}

/// Where the kernel keeps what is noted.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// In `struct sk_buff`: the tag and its kind, as one word that is 0 without one.
    tag: usize,
    head: usize,
    end: usize,
    /// In `struct skb_shared_info`, which lies at `head` + `end`.
    segment: usize,
}

impl Witness {
    /// Begins to note.
    pub(super) fn attach() -> io::Result<Witness> {
        let unknown = || io::Error::new(io::ErrorKind::Unsupported, "this kernel does not say where it keeps that");
        let described = fs::read(KERNEL_TYPES)?;
        let places = Types::read(&described).and_then(|types| Places::read(&types)).ok_or_else(unknown)?;
        let name = calls::name("mmsg_xdp_notes");
        let shape = Shape { kind: PER_CORE_ARRAY, key_bytes: 4, value_bytes: 4, entries: 1, flags: 0, name };
        let (notes, _) = Map::create_per_core(&shape)?;
        let instructions = &assemble(&places, notes.as_fd());
        let program = Program {
            kind: AT_TRACEPOINT,
            name,
            license: LICENSE,
            instructions,
            attach_kind: 0,
            flags: 0,
            interface: 0,
        };
        let attached = calls::attach_to_tracepoint(program.load()?.as_fd(), c"netif_receive_skb")?;
        Ok(Witness { notes, _attached: attached })
    }

    /// The map of notes.
    pub(super) fn notes(&self) -> BorrowedFd<'_> {
        self.notes.as_fd()
    }
}

impl Places {
    fn read(types: &Types<'_>) -> Option<Places> {
        // Of 32 bits `end` is a pointer.
        if cfg!(not(target_pointer_width = "64")) {
            return None;
        }
        // Before Linux 6.2 there is no such word, and what was there before may stand in its parts: then too much
        // passes to the stack, and never too little.
        let tag = types.field("sk_buff", "vlan_all").or_else(|| types.field("sk_buff", "vlan_proto"))?;
        let (head, end) = (types.field("sk_buff", "head")?, types.field("sk_buff", "end")?);
        Some(Places { tag, head, end, segment: types.field("skb_shared_info", "gso_size")? })
    }
}

// Where things lie on the stack, below register 10.
const WORD: i16 = -8;
const POINTER: i16 = -16;
const KEY: i16 = -24;

/// Register 6 has the packet, 7 what is noted, 8 where its other part lies.
fn assemble(places: &Places, notes: BorrowedFd<'_>) -> Vec<Instruction> {
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
    program.store_value(Width::Word, R10, KEY, 0).copy(R2, R10).compute_value(Operation::Add, R2, KEY.into());
    program.set_map(R1, notes).call(LOOK_UP).jump_if(R0, When::Equal, 0, end);
    program.store(Width::Word, R0, 0, R7).place(end).set(R0, 0).exit();
    program.finish()
}

/// Copies bytes of the kernel onto the stack. What cannot be read is zeroes.
fn read(program: &mut Assembler, (base, offset): (Register, usize), (to, bytes): (i16, i32)) {
    let offset = i32::try_from(offset).expect("structures of packets are short");
    program.copy(R1, R10).compute_value(Operation::Add, R1, to.into()).set(R2, bytes);
    program.copy(R3, base).compute_value(Operation::Add, R3, offset).call(READ_KERNEL);
}
