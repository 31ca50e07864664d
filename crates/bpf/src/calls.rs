//! The calls of `bpf(2)`: maps, programs, what programs are attached to, and test runs.
//!
//! A map knows how long its keys and values are, so the kernel is never handed less memory than it reads or writes. All
//! calls pass [`fault_gate`].
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::assembler::Instruction;
use crate::fault_gate::{Call, gate};

// Commands of `bpf(2)`, which libc does not have, each with its name in linux/bpf.h.
const MAP_CREATE: c_int = 0; // BPF_MAP_CREATE
const MAP_LOOKUP: c_int = 1; // BPF_MAP_LOOKUP_ELEM
const MAP_UPDATE: c_int = 2; // BPF_MAP_UPDATE_ELEM
const MAP_DELETE: c_int = 3; // BPF_MAP_DELETE_ELEM
const MAP_NEXT_KEY: c_int = 4; // BPF_MAP_GET_NEXT_KEY
const PROGRAM_LOAD: c_int = 5; // BPF_PROG_LOAD
const PROGRAM_RUN: c_int = 10; // BPF_PROG_TEST_RUN
const RAW_TRACEPOINT_OPEN: c_int = 17; // BPF_RAW_TRACEPOINT_OPEN
const MAP_UPDATE_MANY: c_int = 26; // BPF_MAP_UPDATE_BATCH
const LINK_CREATE: c_int = 28; // BPF_LINK_CREATE
const LINK_UPDATE: c_int = 29; // BPF_LINK_UPDATE

// Kinds of maps and their flags, with their names in linux/bpf.h.
const HASH: u32 = 1; // BPF_MAP_TYPE_HASH
const ARRAY: u32 = 2; // BPF_MAP_TYPE_ARRAY
const PER_CORE_ARRAY: u32 = 6; // BPF_MAP_TYPE_PERCPU_ARRAY
const SOCKETS: u32 = 17; // BPF_MAP_TYPE_XSKMAP
const MAPPABLE: u32 = 1 << 10; // BPF_F_MMAPABLE

/// `BPF_XDP`, the attach type of a program at an interface.
const AT_INTERFACE: u32 = 37;
/// `XDP_FLAGS_SKB_MODE`: the program runs above the driver.
pub const XDP_GENERIC: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`: the program runs in the driver.
pub const XDP_NATIVE: u32 = 1 << 2;

/// The kernel is never built for more cores (`CONFIG_NR_CPUS`).
pub const CORES_MAX: usize = 8192;

/// How much of the verifier's log is read, and how much of its end is shown: the reason comes last.
const LOG_BYTES: usize = 1 << 20;
const LOG_SHOWN_BYTES: usize = 600;

/// How often a call is tried that a signal interrupts.
const TRIES: usize = 20;

// What the commands are given: the parts of the kernel's `union bpf_attr` that are used here. A kernel whose union is
// longer takes the rest as zeroes.

/// What `bpftool` shows: up to 15 letters, digits, `_` and `.`.
type Name = [u8; 16];

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner_map: u32,
    node: u32,
    name: Name,
}

#[repr(C)]
#[derive(Default)]
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
    name: Name,
    interface: u32,
    attach_kind: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct MapElements {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramRun {
    program: u32,
    returned: u32,
    data_bytes: u32,
    data_out_bytes: u32,
    data: u64,
    data_out: u64,
    repeat: u32,
    duration_ns: u32,
    context_bytes: u32,
    context_out_bytes: u32,
    context: u64,
    context_out: u64,
    flags: u32,
    core: u32,
    batch: u32,
    padding: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_kind: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    program_before: u32,
}

#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    program: u32,
    padding: u32,
}

/// The name, cut to what fits.
fn name(text: &str) -> Name {
    let mut name = [0; 16];
    let length = text.len().min(15);
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

/// Calls `bpf(2)`, and again when a signal came before it did anything. Only a test run ends half done; its caller has
/// to know.
///
/// # Safety
/// `Attributes` must be the layout that `command` expects, without padding of its own, and every address in it must be
/// readable, or writable, for as many bytes as `command` will touch there.
unsafe fn bpf<Attributes>(command: c_int, attributes: &mut Attributes) -> io::Result<c_int> {
    let address: *mut Attributes = attributes;
    let call = || {
        gate(Call::Bpf, 0)?;
        // SAFETY: the attributes are readable and writable for their size; the caller vouches for the addresses in
        // them.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, address, size_of::<Attributes>()) };
        c_int::try_from(result).ok().filter(|result| *result >= 0).ok_or_else(io::Error::last_os_error)
    };
    retry(libc::EINTR, if command == PROGRAM_RUN { 1 } else { TRIES }, call)
}

/// Repeats `call` while it fails with `errno`.
fn retry<T>(errno: c_int, tries: usize, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut result = call();
    for _ in 1..tries {
        match &result {
            Err(error) if error.raw_os_error() == Some(errno) => result = call(),
            _ => break,
        }
    }
    result
}

/// The same for commands that return a descriptor.
///
/// # Safety
/// As for [`bpf`], and `command` must be one of those.
unsafe fn bpf_descriptor<Attributes>(command: c_int, attributes: &mut Attributes) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for it.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The address of `value` as the kernel takes it.
fn address<T>(value: *const T) -> u64 {
    value.expose_provenance() as u64
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// A length as the kernel takes it.
fn length(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))
}

/// A map of the kernel. It knows how long its keys and values are.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    /// Of the values of all cores together where each core has its own.
    value_bytes: usize,
}

impl Map {
    /// An array: keys are the numbers below `entries`, 4 bytes each, and all values are there, at first zeroes.
    ///
    /// # Errors
    /// Of the kernel; `EPERM` without `CAP_BPF`, as for all maps.
    pub fn array(name: &str, value_bytes: usize, entries: u32) -> io::Result<Self> {
        Self::create((ARRAY, 0), name, 4, value_bytes, entries)
    }

    /// An array that can be [mapped](crate::MappedArray) (Linux 5.5 and later).
    pub fn mappable_array(name: &str, value_bytes: usize, entries: u32) -> io::Result<Self> {
        Self::create((ARRAY, MAPPABLE), name, 4, value_bytes, entries)
    }

    /// A hash table, at first empty.
    pub fn hash(name: &str, key_bytes: usize, value_bytes: usize, entries: u32) -> io::Result<Self> {
        Self::create((HASH, 0), name, key_bytes, value_bytes, entries)
    }

    /// A map of AF_XDP sockets by queue, for [`helper::REDIRECT_MAP`](crate::helper::REDIRECT_MAP).
    pub fn of_sockets(name: &str, entries: u32) -> io::Result<Self> {
        Self::create((SOCKETS, 0), name, 4, 4, entries)
    }

    /// An array of one value, which each core has a copy of, and how many cores those are. What is read has the values
    /// of all of them, each at a multiple of 8 bytes.
    pub fn array_per_core(name: &str, value_bytes: usize) -> io::Result<(Self, usize)> {
        let cores = cores_of_kernel()?;
        let mut map = Self::create((PER_CORE_ARRAY, 0), name, 4, value_bytes, 1)?;
        map.value_bytes = value_bytes.next_multiple_of(8) * cores;
        Ok((map, cores))
    }

    fn create(
        (kind, flags): (u32, u32),
        text: &str,
        key_bytes: usize,
        value_bytes: usize,
        entries: u32,
    ) -> io::Result<Self> {
        let mut attributes = MapCreate {
            kind,
            key_bytes: length(key_bytes)?,
            value_bytes: length(value_bytes)?,
            entries,
            flags,
            name: name(text),
            ..MapCreate::default()
        };
        // SAFETY: the layout is the kernel's, u32 and bytes only, and holds no addresses.
        let fd = unsafe { bpf_descriptor(MAP_CREATE, &mut attributes) }?;
        Ok(Self { fd, key_bytes, value_bytes })
    }

    /// The descriptor alone.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Reads the value of `key` into `value`, which has to be as long as the map's values are, or longer.
    ///
    /// # Errors
    /// Of the kernel; `EINVAL` for a key or value of another length, here and below.
    pub fn look_up(&self, key: &[u8], value: &mut [u8]) -> io::Result<()> {
        let mut attributes = self.element(key, address(value.as_mut_ptr()), value.len())?;
        // SAFETY: the layout is the kernel's and has no gaps. It reads the key and writes the value, which are as long
        // as the map was made for.
        unsafe { bpf(MAP_LOOKUP, &mut attributes) }.map(drop)
    }

    /// Gives `key` this value.
    pub fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let mut attributes = self.element(key, address(value.as_ptr()), value.len())?;
        // SAFETY: as in `look_up`, and the value is only read.
        unsafe { bpf(MAP_UPDATE, &mut attributes) }.map(drop)
    }

    /// Removes `key`; an array keeps all of its keys and refuses.
    ///
    /// # Errors
    /// Of the kernel; `ENOENT` when the key is not there.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        let mut attributes = self.element(key, 0, self.value_bytes)?;
        // SAFETY: as in `look_up`, and there is no value.
        unsafe { bpf(MAP_DELETE, &mut attributes) }.map(drop)
    }

    /// Reads the key that follows `key` in the kernel's order, or the first one, into `next`; `false` at the end. A key
    /// that is removed meanwhile makes the kernel begin anew.
    pub fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
        if next.len() != self.key_bytes || key.is_some_and(|key| key.len() != self.key_bytes) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut attributes = MapElement {
            map: number(self.fd.as_fd()),
            key: key.map_or(0, |key| address(key.as_ptr())),
            value: address(next.as_mut_ptr()),
            ..MapElement::default()
        };
        // SAFETY: the layout is the kernel's and has no gaps. It reads a key, where there is one, and writes one; both
        // are as long as the map was made for.
        match unsafe { bpf(MAP_NEXT_KEY, &mut attributes) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives many keys their values by one call (Linux 5.6 and later); both lie one behind the other.
    pub fn update_many(&self, keys: &[u8], values: &[u8]) -> io::Result<()> {
        let count = keys.len() / self.key_bytes.max(1);
        if count * self.key_bytes != keys.len() || count * self.value_bytes != values.len() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut attributes = MapElements {
            keys: address(keys.as_ptr()),
            values: address(values.as_ptr()),
            count: length(count)?,
            map: number(self.fd.as_fd()),
            ..MapElements::default()
        };
        // SAFETY: the layout is the kernel's and has no gaps. It reads `count` keys and values of the lengths that the
        // map was made with, and so many there are.
        unsafe { bpf(MAP_UPDATE_MANY, &mut attributes) }.map(drop)
    }

    fn element(&self, key: &[u8], value: u64, value_bytes: usize) -> io::Result<MapElement> {
        if key.len() != self.key_bytes || value_bytes < self.value_bytes {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(MapElement { map: number(self.fd.as_fd()), key: address(key.as_ptr()), value, ..MapElement::default() })
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many cores the kernel keeps a value for; it never changes. Sysfs does not tell: a container may show another
/// machine there. So a map is filled with ones, which are then counted.
fn cores_of_kernel() -> io::Result<usize> {
    const ONE: [u8; 8] = 1_u64.to_ne_bytes();
    let mut map = Map::create((PER_CORE_ARRAY, 0), "bpf_cores", 4, ONE.len(), 1)?;
    // Room for as many cores as any kernel could have.
    map.value_bytes = CORES_MAX * ONE.len();
    map.update(&[0; 4], &ONE.repeat(CORES_MAX))?;
    let mut found = vec![0; CORES_MAX * ONE.len()];
    map.look_up(&[0; 4], &mut found)?;
    Ok(found.as_chunks().0.iter().filter(|value: &&[u8; 8]| **value == ONE).count())
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// `BPF_PROG_TYPE_SOCKET_FILTER`
    SocketFilter = 1,
    /// `BPF_PROG_TYPE_XDP`, at an interface.
    Xdp = 6,
    /// `BPF_PROG_TYPE_RAW_TRACEPOINT`
    RawTracepoint = 17,
}

/// A program to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// What it is for.
    pub kind: ProgramKind,
    /// What `bpftool` shows: up to 15 letters, digits, `_` and `.`.
    pub name: &'a str,
    /// Some helpers ask for one that is compatible with the GPL.
    pub license: &'a CStr,
    /// From an [`Assembler`](crate::Assembler).
    pub instructions: &'a [Instruction],
    /// `BPF_F_...`
    pub flags: u32,
    /// The index of the only interface that it is for, or 0.
    pub interface: u32,
}

impl<'a> Program<'a> {
    /// A program without flags, under the MIT licence.
    pub fn new(kind: ProgramKind, name: &'a str, instructions: &'a [Instruction]) -> Self {
        Self { kind, name, license: c"MIT", instructions, flags: 0, interface: 0 }
    }

    /// Loads it.
    ///
    /// # Errors
    /// Of the kernel, unchanged. When the verifier refuses the program, the error has the end of its log.
    pub fn load(&self) -> io::Result<OwnedFd> {
        // The verifier gives up with EAGAIN when a signal comes.
        let error = match retry(libc::EAGAIN, TRIES, || self.load_with_log(&mut [])) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => error,
            result => return result,
        };
        // Writing a log takes time, so it is asked for only after a refusal.
        let mut log = vec![0; LOG_BYTES];
        self.load_with_log(&mut log).map_err(|_| match end_of_log(&log) {
            Some(end) => io::Error::new(error.kind(), format!("the verifier refuses the program: {end}")),
            None => error,
        })
    }

    fn load_with_log(&self, log: &mut [u8]) -> io::Result<OwnedFd> {
        let mut attributes = ProgramLoad {
            kind: self.kind as u32,
            count: length(self.instructions.len())?,
            instructions: address(self.instructions.as_ptr()),
            license: address(self.license.as_ptr()),
            log_level: u32::from(!log.is_empty()),
            log_bytes: length(log.len())?,
            log: if log.is_empty() { 0 } else { address(log.as_mut_ptr()) },
            flags: self.flags,
            name: name(self.name),
            interface: self.interface,
            attach_kind: if self.kind == ProgramKind::Xdp { AT_INTERFACE } else { 0 },
            ..ProgramLoad::default()
        };
        // SAFETY: the layout is the kernel's and has no gaps; `instructions` is readable for `count` instructions and
        // `license` up to its zero, `log` is writable for its length; all live through the call.
        unsafe { bpf_descriptor(PROGRAM_LOAD, &mut attributes) }
    }
}

/// The end of the log, which has the reason, in one line.
fn end_of_log(log: &[u8]) -> Option<String> {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[end.saturating_sub(LOG_SHOWN_BYTES)..end]).trim().replace('\n', "; ");
    (!text.is_empty()).then_some(text)
}

/// A test run: the kernel runs a program on a packet that does not come from a device.
#[derive(Debug)]
pub struct TestRun<'a> {
    /// The packet that the program finds.
    pub data: &'a [u8],
    /// Receives the packet as the program leaves it, unless it is empty.
    pub data_out: &'a mut [u8],
    /// How often.
    pub repeat: u32,
    /// `BPF_F_TEST_...`
    pub flags: u32,
    /// How many packets at a time, with live frames.
    pub batch: u32,
}

impl<'a> TestRun<'a> {
    /// One run, whose packet is not returned.
    pub fn once(data: &'a [u8]) -> Self {
        Self { data, data_out: &mut [], repeat: 1, flags: 0, batch: 0 }
    }
}

/// What a test run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// What the program returned.
    pub returned: u32,
    /// How long the packet is now.
    pub data_bytes: usize,
}

/// Runs a program.
///
/// # Errors
/// Of the kernel; `EINTR` when a signal ended repeated runs early.
pub fn run(program: BorrowedFd<'_>, run: &mut TestRun<'_>) -> io::Result<Ran> {
    let is_wanted = !run.data_out.is_empty();
    let mut attributes = ProgramRun {
        program: number(program),
        data_bytes: length(run.data.len())?,
        data_out_bytes: length(run.data_out.len())?,
        data: address(run.data.as_ptr()),
        data_out: if is_wanted { address(run.data_out.as_mut_ptr()) } else { 0 },
        repeat: run.repeat,
        flags: run.flags,
        batch: run.batch,
        ..ProgramRun::default()
    };
    // SAFETY: the layout is the kernel's and has no gaps; `data` is readable and `data_out` writable for the lengths
    // given with them.
    unsafe { bpf(PROGRAM_RUN, &mut attributes) }?;
    Ok(Ran { returned: attributes.returned, data_bytes: attributes.data_out_bytes as usize })
}

/// Attaches an XDP program to the interface of this index. The kernel detaches it when the last descriptor of the link
/// is closed, even by `kill -9`. `flags` are [`XDP_GENERIC`] or [`XDP_NATIVE`].
///
/// # Errors
/// Of the kernel; `EBUSY` when another program is there.
pub fn attach_to_interface(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate { program: number(program), target: interface, attach_kind: AT_INTERFACE, flags };
    // SAFETY: the layout is the kernel's, u32 only, and holds no addresses.
    unsafe { bpf_descriptor(LINK_CREATE, &mut attributes) }
}

/// Replaces the program of `link` by another one of the same kind, without a moment in which there is none.
pub fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = LinkUpdate { link: number(link), program: number(program), ..LinkUpdate::default() };
    // SAFETY: the layout is the kernel's, u32 only, and holds no addresses.
    unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
}

/// Attaches a program to a tracepoint, on every core, until the descriptor is closed.
///
/// # Errors
/// Of the kernel; `EPERM` without `CAP_PERFMON`.
pub fn attach_to_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let mut attributes = RawTracepointOpen { name: address(name.as_ptr()), program: number(program), padding: 0 };
    // SAFETY: the layout is the kernel's and has no gaps; `name` is readable up to its zero.
    unsafe { bpf_descriptor(RAW_TRACEPOINT_OPEN, &mut attributes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_are_those_of_the_kernel() {
        assert_eq!(size_of::<MapCreate>(), 44);
        assert_eq!(size_of::<ProgramLoad>(), 72);
        assert_eq!(size_of::<MapElement>(), 32);
        assert_eq!(size_of::<MapElements>(), 56);
        assert_eq!(size_of::<ProgramRun>(), 80);
        assert_eq!(size_of::<LinkCreate>(), 16);
        assert_eq!(size_of::<LinkUpdate>(), 16);
        assert_eq!(size_of::<RawTracepointOpen>(), 16);
    }

    #[test]
    fn a_name_is_cut_to_what_the_kernel_takes() {
        assert_eq!(&name("mmsg_by_core"), b"mmsg_by_core\0\0\0\0");
        assert_eq!(&name("sixteen_letters_"), b"sixteen_letters\0");
    }

    #[test]
    fn the_end_of_the_verifiers_log_is_shown_in_one_line() {
        assert_eq!(end_of_log(b"0: (95) exit\nR0 !read_ok\n\0\0\0").as_deref(), Some("0: (95) exit; R0 !read_ok"));
        assert_eq!(end_of_log(&[0; 8]), None);
        let long = [b'x'; 2 * LOG_SHOWN_BYTES];
        assert_eq!(end_of_log(&long).map(|end| end.len()), Some(LOG_SHOWN_BYTES));
    }
}
