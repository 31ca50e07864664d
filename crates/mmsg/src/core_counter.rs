//! Counts exactly where datagrams arrive: a program of a few instructions at the socket counts by core, and on each
//! core by the receive queue of the device.
//!
//! `SO_INCOMING_CPU` does not tell: the kernel updates it for connected UDP sockets only. So this is an eBPF socket
//! filter that keeps everything and adds one to a per-core counter.
//!
//! The counters are one value of the map: an array with a place for each queue, of which the kernel keeps one for each
//! core. So counting needs no search, and one call reads everything.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bpf::{Assembler, CORES_MAX, Instruction, Map, Operation, Program, ProgramKind, Register, When, Width};

use crate::socket::Socket;
use crate::sys;

/// The key of the only value.
const KEY: [u8; 4] = [0; 4];

const COUNT_BYTES: usize = size_of::<u64>();

/// What `bpftool` shows.
const NAME: &str = "mmsg_by_core";

/// The most queues that are told apart: 8 KiB of the kernel's memory on each core.
const QUEUES_MAX: u32 = 1023;

/// The cores that the machine may ever have.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Counts on which core the datagrams of a socket arrive, exactly and from the first one on.
///
/// The core is the one that ran the softirq: after RPS, if that is set up. It counts what reaches the socket, also when
/// its receive buffer is then full. With `UDP_GRO` a train counts one.
///
/// Making one needs `CAP_BPF`, or `kernel.unprivileged_bpf_disabled = 0`; otherwise it fails with `EPERM`. A datagram
/// costs fifteen instructions more; a checksum that the device does not verify is verified in the softirq and not while
/// it is copied.
#[derive(Debug)]
pub struct CoreCounter {
    map: Map,
    program: OwnedFd,
    /// The cores that the kernel keeps counters for, in its order, as sysfs has them.
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
    /// for queues that the counter does not tell apart.
    pub queue: Option<u32>,
    /// How many; never 0.
    pub count: u64,
}

impl CoreCounter {
    /// A counter by core alone.
    pub fn new() -> io::Result<Self> {
        Self::by_queue(0)
    }

    /// The same for each of the first `queues` receive queues, at most 1,023, and all others together.
    pub fn by_queue(queues: u32) -> io::Result<Self> {
        let text = fs::read_to_string(POSSIBLE)?;
        let possible = parse_cores(&text).ok_or_else(|| {
            invalid(format!("{POSSIBLE} holds {text:?}, which is not a list of at most {CORES_MAX} cores"))
        })?;
        let queues = queues.min(QUEUES_MAX);
        // One value, which has so many places on each core.
        let (map, cores) = Map::array_per_core(NAME, (queues as usize + 1) * COUNT_BYTES)?;
        let program = Program::new(ProgramKind::SocketFilter, NAME, &program(map.as_fd(), queues)).load()?;
        Ok(Self { map, program, possible, cores, queues })
    }

    /// Counts what arrives at `socket` from now on; attached before `bind` it counts everything. A counter may serve
    /// several sockets and then counts them together.
    ///
    /// It replaces any other filter of the socket, and the next one replaces it: [`Socket::refuse_arrivals`] ends the
    /// count.
    pub fn attach(&self, socket: &Socket) -> io::Result<()> {
        sys::set_option_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, self.program.as_raw_fd())
    }

    /// Where it counts, and how many queues it tells apart.
    pub(crate) fn places(&self) -> (BorrowedFd<'_>, u32) {
        (self.map.as_fd(), self.queues)
    }

    /// What has arrived, in the order of the cores and, for each, of the queues, the unknown ones first.
    pub fn read(&self) -> io::Result<Vec<Arrivals>> {
        let places = self.queues as usize + 1;
        let mut bytes = vec![0; self.cores * places * COUNT_BYTES];
        self.map.look_up(&KEY, &mut bytes)?;
        let counts: Vec<u64> = counts_in(&bytes).collect();
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

/// Counts, and returns everything.
fn program(map: BorrowedFd<'_>, queues: u32) -> Vec<Instruction> {
    let mut assembler = Assembler::new();
    assembler.copy(Register::R6, Register::R1); // the datagram, which a call would forget
    count(&mut assembler, map, queues);
    assembler.compute_word_value(Operation::Set, Register::R0, -1).exit();
    assembler.finish()
}

/// `counters of this core[queue + 1, or 0] += 1`, with the datagram in register 6. The kernel keeps the number after
/// the queue's, and 0 for "none recorded", and that is the order of the places. The key lies below register 10. The
/// addition is atomic because some kernels let one softirq preempt another.
pub(crate) fn count(assembler: &mut Assembler, map: BorrowedFd<'_>, queues: u32) {
    use Register::{R0, R1, R6, R10};
    const QUEUE_MAPPING: i16 = 12; // offsetof(struct __sk_buff, queue_mapping)
    let (count, done) = (assembler.label(), assembler.label());
    assembler
        .store_value(Width::Word, R10, -4, 0)
        .look_up(map, -4, done) // it is always there: the key is in range
        .load(Width::Word, R1, R6, QUEUE_MAPPING)
        // It jumps over the addition instead of using place 0: to a process without CAP_PERFMON the verifier refuses an
        // access that is reached with a constant on one way and a variable on another.
        .jump_if(R1, When::Above, queues.cast_signed(), count)
        .compute_value(Operation::ShiftLeft, R1, 3) // places are 8 bytes wide
        .compute(Operation::Add, R0, R1)
        .place(count)
        .set(R1, 1)
        .add_atomically(R0, 0, R1)
        .place(done);
}

fn counts_in(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// Reads a list such as `0-3,8`; `None` when it is empty, malformed, or names more than [`CORES_MAX`] cores.
fn parse_cores(text: &str) -> Option<Vec<usize>> {
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
}
