//! Exact evidence of where datagrams arrive: a program of a few instructions at the socket that counts by core, and on
//! each core by the receive queue of the device.
//!
//! `SO_INCOMING_CPU` does not say: the kernel updates it for connected UDP sockets only. So this is an eBPF socket
//! filter that keeps everything and adds one to a per-core counter on the way. It is assembled here by hand and loaded
//! with `bpf(2)`, so it needs neither a compiler nor a library, only the right to load it.
//!
//! The counters are one value of the map: an array with a place for each queue, of which the kernel keeps one for each
//! core. So counting finds its place without a search, and one call reads everything.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::socket::Socket;
use crate::sys::{self, Call, gate};

// Commands, types and flags of `bpf(2)`, which libc does not have, each with its name in linux/bpf.h.
/// `BPF_MAP_CREATE`
const MAP_CREATE: c_int = 0;
/// `BPF_MAP_LOOKUP_ELEM`
const MAP_LOOKUP: c_int = 1;
/// `BPF_MAP_UPDATE_ELEM`
const MAP_UPDATE: c_int = 2;
/// `BPF_PROG_LOAD`
const PROGRAM_LOAD: c_int = 5;
/// `BPF_MAP_TYPE_PERCPU_ARRAY`
const MAP_TYPE_PER_CORE_ARRAY: u32 = 6;
/// `BPF_PROG_TYPE_SOCKET_FILTER`
const PROGRAM_TYPE_SOCKET_FILTER: u32 = 1;
/// `BPF_FUNC_map_lookup_elem`
const HELPER_MAP_LOOKUP: i32 = 1;
/// `BPF_PSEUDO_MAP_FD`
const SOURCE_IS_MAP: u8 = 1;

/// What `bpftool` shows.
const NAME: [u8; 16] = *b"mmsg_by_core\0\0\0\0";

/// No kernel is built for more cores (`CONFIG_NR_CPUS`).
const CORES_MAX: usize = 8192;

/// The most queues that are told apart: 8 KiB of the kernel's memory on each core.
const QUEUES_MAX: u32 = 1023;

/// The cores that the machine may ever have.
pub(crate) const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Counts on which core the datagrams of a socket arrive, exactly and from the first one on.
///
/// The core is the one that ran the softirq: after RPS, if that is set up. What is counted is what reaches the socket,
/// also when its receive buffer is then full. It is buffers: with `UDP_GRO` a train counts one.
///
/// Making one needs `CAP_BPF`, or `kernel.unprivileged_bpf_disabled = 0`; otherwise it fails with `EPERM`. A datagram
/// costs fifteen instructions more, and where the device does not verify checksums, verifying it in the softirq instead
/// of while copying it out.
#[derive(Debug)]
pub struct CoreCounter {
    map: OwnedFd,
    program: OwnedFd,
    /// The cores that the kernel keeps counters for, in the order in which it hands them out, as sysfs has them.
    possible: Vec<usize>,
    /// How many cores the kernel itself keeps counters for.
    cores: usize,
    /// How many queues are told apart.
    queues: u32,
}

/// How many datagrams have come from one queue and arrived on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// The core that ran the softirq.
    pub core: usize,
    /// The receive queue of the device, from 0. `None` where the device records none, as loopback and most veth, and
    /// for queues beyond those that the counter tells apart.
    pub queue: Option<u32>,
    /// How many; never 0.
    pub count: u64,
}

impl CoreCounter {
    /// Makes a counter that counts nothing yet, and then by core alone.
    pub fn new() -> io::Result<Self> {
        Self::by_queue(0)
    }

    /// The same for the first `queues` receive queues each, and all others together. It tells 1,023 apart at most.
    pub fn by_queue(queues: u32) -> io::Result<Self> {
        let text = fs::read_to_string(POSSIBLE)?;
        let possible = parse_cores(&text).ok_or_else(|| {
            invalid(format!("{POSSIBLE} holds {text:?}, which is not a list of at most {CORES_MAX} cores"))
        })?;
        let queues = queues.min(QUEUES_MAX);
        let cores = cores_of_kernel()?;
        let map = create_map(queues + 1)?;
        let program = load(&program(map.as_fd(), queues))?;
        Ok(Self { map, program, possible, cores, queues })
    }

    /// Counts what arrives at `socket` from now on. Before its `bind` that is everything. A counter may serve several
    /// sockets and then counts them together.
    ///
    /// It takes the place of any other filter of the socket, and gives it up to the next one:
    /// [`Socket::refuse_arrivals`] ends the count.
    pub fn attach(&self, socket: &Socket) -> io::Result<()> {
        sys::set_option_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, self.program.as_raw_fd())
    }

    /// What has arrived, in the order of the cores and on each of its queues, the unknown ones first.
    pub fn read(&self) -> io::Result<Vec<Arrivals>> {
        let places = self.queues as usize + 1;
        let mut counts = vec![0; self.cores * places];
        look_up(self.map.as_fd(), &mut counts)?;
        let mut arrivals = Vec::new();
        for (number, counts) in counts.chunks_exact(places).enumerate() {
            for (place, &count) in (0_u32..).zip(counts).filter(|(_, count)| **count > 0) {
                let core = *self.possible.get(number).ok_or_else(|| {
                    let known = self.possible.len();
                    invalid(format!("the kernel counts for more cores than the {known} that {POSSIBLE} names"))
                })?;
                arrivals.push(Arrivals { core, queue: place.checked_sub(1), count });
            }
        }
        Ok(arrivals)
    }
}

/// One instruction as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    /// Destination and source, four bits each.
    registers: u8,
    offset: i16,
    immediate: i32,
}

fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    let registers = if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source };
    Instruction { code, registers, offset, immediate }
}

/// `counters of this core[queue + 1, or 0] += 1; return everything`. The kernel keeps the queue as queue + 1, so that 0
/// can mean that none is recorded, and that is the order of the places. The key lies on the stack, below register 10.
/// The addition is the atomic one because some kernels let one softirq preempt another.
fn program(map: BorrowedFd<'_>, queues: u32) -> [Instruction; 16] {
    const STORE_WORD_VALUE: u8 = 0x62; // BPF_ST | BPF_MEM | BPF_W
    const LOAD_WORD: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
    const COPY: u8 = 0xbf; // BPF_ALU64 | BPF_MOV | BPF_X
    const ADD: u8 = 0x0f; // BPF_ALU64 | BPF_ADD | BPF_X
    const ADD_VALUE: u8 = 0x07; // BPF_ALU64 | BPF_ADD | BPF_K
    const SHIFT_LEFT: u8 = 0x67; // BPF_ALU64 | BPF_LSH | BPF_K
    const LOAD_WIDE_VALUE: u8 = 0x18; // BPF_LD | BPF_IMM | BPF_DW
    const CALL: u8 = 0x85; // BPF_JMP | BPF_CALL
    const JUMP_IF_EQUAL: u8 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const JUMP_IF_MORE: u8 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
    const SET: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
    const ATOMIC_ADD: u8 = 0xdb; // BPF_STX | BPF_ATOMIC | BPF_DW, with BPF_ADD as its value
    const SET_WORD: u8 = 0xb4; // BPF_ALU | BPF_MOV | BPF_K
    const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
    const QUEUE_MAPPING: i16 = 12; // offsetof(struct __sk_buff, queue_mapping)
    [
        instruction(COPY, 6, 1, 0, 0), // the datagram, which the call would forget
        instruction(STORE_WORD_VALUE, 10, 0, -4, 0),
        instruction(COPY, 2, 10, 0, 0),
        instruction(ADD_VALUE, 2, 0, 0, -4),
        instruction(LOAD_WIDE_VALUE, 1, SOURCE_IS_MAP, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0), // the upper half of the wide value
        instruction(CALL, 0, 0, 0, HELPER_MAP_LOOKUP),
        instruction(JUMP_IF_EQUAL, 0, 0, 6, 0), // never: the key is in range; the verifier wants to see it asked
        instruction(LOAD_WORD, 1, 6, QUEUE_MAPPING, 0),
        // Past the addition and not with a place of 0: to a process without CAP_PERFMON the verifier refuses one that
        // is reached with a constant on one way and a variable on another.
        instruction(JUMP_IF_MORE, 1, 0, 2, queues.cast_signed()),
        instruction(SHIFT_LEFT, 1, 0, 0, 3), // places are 8 bytes wide
        instruction(ADD, 0, 1, 0, 0),
        instruction(SET, 1, 0, 0, 1),
        instruction(ATOMIC_ADD, 0, 1, 0, 0),
        instruction(SET_WORD, 0, 0, 0, -1),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner_map: u32,
    node: u32,
    name: [u8; 16],
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Calls `bpf(2)`.
///
/// # Safety
/// `Attributes` must be the layout that `command` expects, without padding of its own, and every address in it must be
/// readable, or writable, for as many bytes as `command` will touch there.
unsafe fn bpf<Attributes>(command: c_int, attributes: &Attributes) -> io::Result<c_int> {
    gate(Call::Bpf, 0)?;
    let address: *const Attributes = attributes;
    // SAFETY: the attributes are readable for their size and copied; the caller vouches for the addresses in them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, address, size_of::<Attributes>()) };
    c_int::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(io::Error::last_os_error)
}

/// The address of `value` as the kernel takes it.
fn address<T>(value: *const T) -> u64 {
    value.expose_provenance() as u64
}

/// A map of one value, which has so many places on each core.
fn create_map(places: u32) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        kind: MAP_TYPE_PER_CORE_ARRAY,
        key_bytes: size_of::<u32>() as u32,
        value_bytes: places * size_of::<u64>() as u32,
        entries: 1,
        flags: 0,
        inner_map: 0,
        node: 0,
        name: NAME,
    };
    // SAFETY: the layout is the kernel's, u32 and bytes only, and holds no addresses.
    let fd = unsafe { bpf(MAP_CREATE, &attributes) }?;
    // SAFETY: the kernel has just returned this descriptor to us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    // The helper it calls asks for no particular licence.
    let license = c"MIT";
    let attributes = ProgramLoad {
        kind: PROGRAM_TYPE_SOCKET_FILTER,
        count: u32::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        instructions: address(program.as_ptr()),
        license: address(license.as_ptr()),
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: NAME,
    };
    // SAFETY: the layout is the kernel's and has no gaps; `instructions` is readable for `count` instructions and
    // `license` up to its zero; both live through the call, which copies them.
    let fd = unsafe { bpf(PROGRAM_LOAD, &attributes) }?;
    // SAFETY: as in `create_map`.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// How many cores the kernel keeps a value for; it never changes. What sysfs says does not count here: inside a
/// container that may be somebody's idea of the machine and not the machine. So a map is filled with ones.
fn cores_of_kernel() -> io::Result<usize> {
    let map = create_map(1)?;
    let ones = vec![1_u64; CORES_MAX];
    let mut found = vec![0_u64; CORES_MAX];
    let key = 0_u32;
    let attributes = element(map.as_fd(), &raw const key, address(ones.as_ptr()));
    // SAFETY: the layout is the kernel's and has no gaps. It reads the 4 bytes of `key`, and of `ones` 8 bytes for each
    // core that it could ever have, which are no more than `CORES_MAX`.
    unsafe { bpf(MAP_UPDATE, &attributes) }?;
    let attributes = element(map.as_fd(), &raw const key, address(found.as_mut_ptr()));
    // SAFETY: as above, and it writes to `found` as much as it has read from `ones`.
    unsafe { bpf(MAP_LOOKUP, &attributes) }?;
    Ok(found.iter().filter(|&&count| count == 1).count())
}

/// Reads the value of a map of this file; `counts` has all places of the first core, then of the second, and so on.
fn look_up(map: BorrowedFd<'_>, counts: &mut [u64]) -> io::Result<()> {
    let key = 0_u32;
    let attributes = element(map, &raw const key, address(counts.as_mut_ptr()));
    // SAFETY: the layout is the kernel's and has no gaps. It reads the 4 bytes of `key` and writes the places of each
    // core that it has, 8 bytes each, to memory aligned for them. `read`, the only caller, made `counts` for so many
    // places and so many cores: the places are those that the map was made with, and of the cores the kernel has told.
    unsafe { bpf(MAP_LOOKUP, &attributes) }?;
    Ok(())
}

/// What names an element of a map, and where its value is.
fn element(map: BorrowedFd<'_>, key: *const u32, value: u64) -> MapElement {
    MapElement { map: map.as_raw_fd().cast_unsigned(), padding: 0, key: address(key), value, flags: 0 }
}

/// Reads a list such as `0-3,8`; `None` when it is none, is empty, or names more than [`CORES_MAX`] cores.
pub(crate) fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= CORES_MAX || first > last {
            return None;
        }
        cores.extend(first..=last);
    }
    (cores.len() <= CORES_MAX).then_some(cores)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_possible_cores_is_read_and_nonsense_is_not() {
        assert_eq!(parse_cores("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cores("0\n"), Some(vec![0]));
        for nonsense in ["", "\n", "a", "3-1", "0-8192", "0-99999999999999999999", "0,,1"] {
            assert_eq!(parse_cores(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn the_layouts_are_those_of_the_kernel() {
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!(size_of::<MapCreate>(), 44);
        assert_eq!(size_of::<ProgramLoad>(), 64);
        assert_eq!(size_of::<MapElement>(), 32);
    }
}
