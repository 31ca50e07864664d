//! Refusing sources in the kernel: an eBPF socket filter that looks a datagram's source up in a table, before it takes
//! room in the receive buffer or wakes a reader, and counts exactly what it refuses.
//!
//! The kernel counts what any filter refuses as a drop of the socket, as if the receive buffer had been full. So the
//! filter counts too, and first: drops minus [`Socket::refused`] are the others. `source_program` has the program.
//!
//! Making arrays and programs takes a right, `CAP_BPF`, and using them takes none: tables are written and counters read
//! as memory. So a process without the right may have another one make them, a [`Loader`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bpf::{Map, MappedArray, Program, ProgramKind};

use crate::core_counter::CoreCounter;
use crate::refused::{NUMBERS, RefusedCounter};
use crate::socket::Socket;
use crate::source_program::{FilterMaps, SourceShape, V4_NUMBERS, V6_NUMBERS, assemble};
use crate::sys;

/// What `bpftool` shows.
const NAME: &str = "mmsg_sources";

/// The most turns of a family: 32 MiB of the kernel's memory for IPv4, 64 MiB for IPv6.
pub const TURNS_MAX: usize = 4 << 20;

/// Which sources are kept: the answer for the lowest address, and the addresses from which on the answer changes, in
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRanges<'a> {
    /// Whether 0.0.0.0 is kept.
    pub v4_first: bool,
    /// Where the answer changes for IPv4, also mapped.
    pub v4_turns: &'a [u32],
    /// Whether `::` is kept.
    pub v6_first: bool,
    /// Where the answer changes for IPv6.
    pub v6_turns: &'a [u128],
}

impl SourceRanges<'_> {
    /// Whether there is nothing to refuse, so that no filter is needed.
    pub fn keep_everything(&self) -> bool {
        self.v4_first && self.v4_turns.is_empty() && self.v6_first && self.v6_turns.is_empty()
    }

    /// The kernel memory of a table of them.
    pub fn table_bytes(&self) -> usize {
        (self.v4_turns.len() * V4_NUMBERS + self.v6_turns.len() * V6_NUMBERS) * size_of::<u64>()
    }
}

/// Makes what takes a right, in this process or another one.
pub trait Loader {
    /// Makes what [`make_array`] makes.
    ///
    /// # Errors
    /// Of the kernel; `EPERM` without the right.
    fn make_array(&self, numbers: u32, entries: u32) -> io::Result<OwnedFd>;

    /// Loads what [`load_program`] loads.
    ///
    /// # Errors
    /// As above, and what the verifier says.
    fn load_program(&self, shape: &SourceShape, maps: &[BorrowedFd<'_>]) -> io::Result<OwnedFd>;
}

/// With the rights of this process.
#[derive(Clone, Copy, Debug)]
pub struct OwnRights;

impl Loader for OwnRights {
    fn make_array(&self, numbers: u32, entries: u32) -> io::Result<OwnedFd> {
        make_array(numbers, entries)
    }

    fn load_program(&self, shape: &SourceShape, maps: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        load_program(shape, maps)
    }
}

/// Makes an array of `entries` values with so many numbers each, all of them 0. It takes `CAP_BPF`, or
/// `kernel.unprivileged_bpf_disabled = 0`, and Linux 5.5.
pub fn make_array(numbers: u32, entries: u32) -> io::Result<OwnedFd> {
    Map::mappable_array(NAME, numbers as usize * size_of::<u64>(), entries).map(Map::into_fd)
}

/// Loads the program of this shape. Its maps are the counter, the tables of IPv4 and IPv6 that have turns, and where it
/// counts arrivals. It takes the same right, and Linux 5.12.
pub fn load_program(shape: &SourceShape, maps: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let turns = [shape.v4_turns, shape.v6_turns];
    if maps.len() != shape.maps() || turns.iter().any(|turns| *turns as usize > TURNS_MAX) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut maps = maps.iter().copied();
    let mut next = |is_there: bool| if is_there { maps.next() } else { None };
    let refused = next(true).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let (v4, v6) = (next(shape.v4_turns > 0), next(shape.v6_turns > 0));
    let arrivals = shape.queues.and_then(|queues| Some((next(true)?, queues)));
    let instructions = assemble(shape, &FilterMaps { refused, v4, v6, arrivals });
    Program::new(ProgramKind::SocketFilter, NAME, &instructions).load()
}

/// The sources of a listener in the kernel, shared by the filters of several sockets.
#[derive(Debug)]
pub struct SourceTable {
    shape: SourceShape,
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl SourceTable {
    /// Writes the table, which never changes: other sources make another table with other filters.
    ///
    /// # Errors
    /// More than [`TURNS_MAX`] (`E2BIG`), or of the kernel.
    pub fn new(ranges: &SourceRanges<'_>, loader: &dyn Loader) -> io::Result<Self> {
        let &SourceRanges { v4_first, v4_turns, v6_first, v6_turns } = ranges;
        let count = |turns: usize| match u32::try_from(turns) {
            Ok(count) if turns <= TURNS_MAX => Ok(count),
            _ => Err(io::Error::from_raw_os_error(libc::E2BIG)),
        };
        let (v4_count, v6_count) = (count(v4_turns.len())?, count(v6_turns.len())?);
        let shape = SourceShape { v4_first, v4_turns: v4_count, v6_first, v6_turns: v6_count, queues: None };
        let v4 = table(loader, V4_NUMBERS, v4_turns.len(), v4_turns.iter().map(|turn| u64::from(*turn)))?;
        let v6 = table(loader, V6_NUMBERS, v6_turns.len(), v6_turns.iter().flat_map(|turn| halves(*turn)))?;
        Ok(Self { shape, v4, v6 })
    }

    /// Makes the filter of a socket, without attaching it. It also counts for `arrivals`, whose own filter it replaces.
    ///
    /// # Errors
    /// Of the kernel, and what its verifier says.
    pub fn filter(
        &self,
        socket: &Socket,
        arrivals: Option<&CoreCounter>,
        loader: &dyn Loader,
    ) -> io::Result<SourceFilter> {
        let counter = socket.refused_counter(|| RefusedCounter::new(loader.make_array(NUMBERS as u32, 1)?))?.array();
        let tables = self.v4.iter().chain(&self.v6).map(AsFd::as_fd);
        let arrivals = arrivals.map(CoreCounter::places);
        let shape = SourceShape { queues: arrivals.map(|(_, queues)| queues), ..self.shape };
        let arrivals = arrivals.map(|(map, _)| map);
        let maps: Vec<BorrowedFd<'_>> = std::iter::once(counter).chain(tables).chain(arrivals).collect();
        loader.load_program(&shape, &maps).map(|program| SourceFilter { program })
    }
}

/// A filter that refuses sources.
#[derive(Debug)]
pub struct SourceFilter {
    program: OwnedFd,
}

impl SourceFilter {
    /// Attaches it to the socket that it was made for, in one step, in place of any other filter. The socket keeps it,
    /// also when it changes hands; [`Socket::accept_arrivals`] removes it.
    ///
    /// From then on the kernel verifies checksums that the device has not verified before queueing and not while
    /// copying.
    ///
    /// # Errors
    /// `ENOMEM`: it is larger than `net.core.optmem_max` allows.
    pub fn attach(&self, socket: &Socket) -> io::Result<()> {
        let attach =
            || sys::set_option_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, self.program.as_raw_fd());
        attach().or_else(|error| match error.raw_os_error() {
            // The old filter counts until it is gone, and there may not be room for both.
            Some(libc::ENOMEM) => socket.accept_arrivals().and_then(|()| attach()),
            _ => Err(error),
        })
    }

    #[cfg(test)]
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// An array with a value for each turn; none where there are none.
fn table(
    loader: &dyn Loader,
    numbers: usize,
    turns: usize,
    values: impl Iterator<Item = u64>,
) -> io::Result<Option<OwnedFd>> {
    if turns == 0 {
        return Ok(None);
    }
    let array = loader.make_array(numbers as u32, turns as u32)?;
    // Mapped only while it is written.
    MappedArray::new(array.as_fd(), numbers * turns)?.fill(values);
    Ok(Some(array))
}

/// A turn of IPv6 as the program reads it, the upper half first.
fn halves(turn: u128) -> [u64; V6_NUMBERS] {
    [(turn >> 64) as u64, turn as u64]
}

#[cfg(test)]
#[path = "source_filter_tests.rs"]
mod tests;
