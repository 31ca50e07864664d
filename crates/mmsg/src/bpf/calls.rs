//! The calls of `bpf(2)`: maps, programs, what they are attached to, and runs of a program on order.
//!
//! A map knows how long its keys and values are, so nobody can hand the kernel less memory than it reads or writes. All
//! of the calls pass the gate of `sys` like every other call of this crate. The numbers of map and program types stand
//! where they are used.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::assembler::Instruction;
pub(crate) use super::layouts::Name;
use super::layouts::{
    LinkCreate, LinkUpdate, MapCreate, MapElement, MapElements, ProgramLoad, ProgramRun, RawTracepointOpen,
};
use crate::sys::{Call, gate};

// Commands of `bpf(2)`, which libc does not have, each with its name in linux/bpf.h.
/// `BPF_MAP_CREATE`
const MAP_CREATE: c_int = 0;
/// `BPF_MAP_LOOKUP_ELEM`
const MAP_LOOKUP: c_int = 1;
/// `BPF_MAP_UPDATE_ELEM`
const MAP_UPDATE: c_int = 2;
/// `BPF_MAP_DELETE_ELEM`
const MAP_DELETE: c_int = 3;
/// `BPF_PROG_LOAD`
const PROGRAM_LOAD: c_int = 5;
/// `BPF_PROG_TEST_RUN`
const PROGRAM_RUN: c_int = 10;
/// `BPF_RAW_TRACEPOINT_OPEN`
const RAW_TRACEPOINT_OPEN: c_int = 17;
/// `BPF_MAP_UPDATE_BATCH`
const MAP_UPDATE_MANY: c_int = 26;
/// `BPF_LINK_CREATE`
const LINK_CREATE: c_int = 28;
/// `BPF_LINK_UPDATE`
#[cfg_attr(not(feature = "af_xdp"), allow(dead_code))]
const LINK_UPDATE: c_int = 29;
/// `BPF_XDP`, what a program at an interface is attached to.
pub(crate) const AT_INTERFACE: u32 = 37;
/// `BPF_PROG_TYPE_XDP`, the kind of such a program.
pub(crate) const PROGRAM_AT_INTERFACE: u32 = 6;
/// `XDP_FLAGS_SKB_MODE`
pub(crate) const ABOVE_DRIVER: u32 = 1 << 1;

/// The kinds of maps that have values of their own on each core: `BPF_MAP_TYPE_PERCPU_HASH`, `..._PERCPU_ARRAY`,
/// `..._LRU_PERCPU_HASH` and `..._PERCPU_CGROUP_STORAGE`.
const PER_CORE_KINDS: [u32; 4] = [5, PER_CORE_ARRAY, 10, 21];
pub(crate) const PER_CORE_ARRAY: u32 = 6;

/// No kernel is built for more cores (`CONFIG_NR_CPUS`).
pub(crate) const CORES_MAX: usize = 8192;

/// How much of the verifier's log is kept: it ends with why, after all that went well.
const LOG_BYTES: usize = 1 << 20;
const LOG_SHOWN_BYTES: usize = 600;

/// The name, cut to what fits.
pub(crate) const fn name(text: &str) -> Name {
    let (mut name, mut place) = ([0; 16], 0);
    while place < text.len() && place < 15 {
        name[place] = text.as_bytes()[place];
        place += 1;
    }
    name
}

/// A map to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// A number of `BPF_MAP_TYPE_...`.
    pub(crate) kind: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
    pub(crate) name: Name,
}

/// A map of the kernel, and how long its keys and values are.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    /// Of the values of all cores together where each core has its own.
    value_bytes: usize,
}

/// A run on order.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    /// The packet that the program finds.
    pub(crate) data: &'a [u8],
    /// Where it goes when the program has ended; empty: nobody wants it.
    pub(crate) data_out: &'a mut [u8],
    /// How often.
    pub(crate) repeat: u32,
    /// `BPF_F_TEST_...`
    pub(crate) flags: u32,
    /// How many at a time, with live frames.
    pub(crate) batch: u32,
}

/// What a run on order came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    /// What the program returned.
    pub(crate) returned: u32,
    /// How long the packet is now.
    pub(crate) data_bytes: usize,
}

/// How often a call is tried while signals come in between.
const TRIES: usize = 20;

/// Calls `bpf(2)`, and again where a signal came before it did anything. Only a run comes back half done, and whoever
/// ordered it wants to know.
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
    let mut result = call();
    for _ in 1..TRIES {
        match &result {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) && command != PROGRAM_RUN => result = call(),
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
    // SAFETY: the kernel has just returned this descriptor to us and nobody else knows it.
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
fn length_of<T>(values: &[T]) -> io::Result<u32> {
    u32::try_from(values.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))
}

impl Map {
    /// A map with one value for each key. Kinds that have one on each core are refused.
    pub(crate) fn create(shape: &Shape) -> io::Result<Self> {
        if PER_CORE_KINDS.contains(&shape.kind) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Self::with_values(shape, shape.value_bytes as usize)
    }

    /// A map that has a value of its own on each core (`BPF_MAP_TYPE_PERCPU_...`), and how many cores that are; what is
    /// read from it has the values of all of them, each at a multiple of 8 bytes.
    pub(crate) fn create_per_core(shape: &Shape) -> io::Result<(Self, usize)> {
        let cores = cores_of_kernel()?;
        let map = Self::with_values(shape, (shape.value_bytes as usize).next_multiple_of(8) * cores)?;
        Ok((map, cores))
    }

    /// A map from which so many bytes are read for a key.
    fn with_values(shape: &Shape, value_bytes: usize) -> io::Result<Self> {
        let mut attributes = MapCreate {
            kind: shape.kind,
            key_bytes: shape.key_bytes,
            value_bytes: shape.value_bytes,
            entries: shape.entries,
            flags: shape.flags,
            inner_map: 0,
            node: 0,
            name: shape.name,
        };
        // SAFETY: the layout is the kernel's, u32 and bytes only, and holds no addresses.
        let fd = unsafe { bpf_descriptor(MAP_CREATE, &mut attributes) }?;
        Ok(Self { fd, key_bytes: shape.key_bytes as usize, value_bytes })
    }

    /// Only the map, for a program or somebody else.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Reads the value of `key` into `value`, which has to be as long as the map's values are, or longer.
    pub(crate) fn look_up(&self, key: &[u8], value: &mut [u8]) -> io::Result<()> {
        let mut attributes = self.element(key, address(value.as_mut_ptr()), value.len())?;
        // SAFETY: the layout is the kernel's and has no gaps. It reads the key and writes the value, which are as long
        // as the map was made for.
        unsafe { bpf(MAP_LOOKUP, &mut attributes) }.map(drop)
    }

    /// Gives `key` this value.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let mut attributes = self.element(key, address(value.as_ptr()), value.len())?;
        // SAFETY: as in `look_up`, and the value is only read.
        unsafe { bpf(MAP_UPDATE, &mut attributes) }.map(drop)
    }

    /// Takes `key` out; an array keeps all of its keys and refuses.
    #[cfg_attr(not(feature = "af_xdp"), allow(dead_code))]
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        let mut attributes = self.element(key, 0, self.value_bytes)?;
        // SAFETY: as in `look_up`, and there is no value.
        unsafe { bpf(MAP_DELETE, &mut attributes) }.map(drop)
    }

    /// Gives many keys their values by one call (Linux 5.6 and later); both lie one behind the other.
    pub(crate) fn update_many(&self, keys: &[u8], values: &[u8]) -> io::Result<()> {
        let count = keys.len() / self.key_bytes.max(1);
        if count * self.key_bytes != keys.len() || count * self.value_bytes != values.len() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut attributes = MapElements {
            in_batch: 0,
            out_batch: 0,
            keys: address(keys.as_ptr()),
            values: address(values.as_ptr()),
            count: u32::try_from(count).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
            map: number(self.fd.as_fd()),
            element_flags: 0,
            flags: 0,
        };
        // SAFETY: the layout is the kernel's and has no gaps. It reads `count` keys and values of the lengths that the
        // map was made with, and so many there are.
        unsafe { bpf(MAP_UPDATE_MANY, &mut attributes) }.map(drop)
    }

    /// What names an element, and where its value is.
    fn element(&self, key: &[u8], value: u64, value_bytes: usize) -> io::Result<MapElement> {
        if key.len() != self.key_bytes || value_bytes < self.value_bytes {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(MapElement { map: number(self.fd.as_fd()), padding: 0, key: address(key.as_ptr()), value, flags: 0 })
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many cores the kernel keeps a value for; it never changes. What sysfs says does not count here: inside a
/// container that may be somebody's idea of the machine and not the machine. So a map is filled with ones.
fn cores_of_kernel() -> io::Result<usize> {
    const ONE: [u8; 8] = 1_u64.to_ne_bytes();
    let (kind, key) = (PER_CORE_ARRAY, [0; 4]);
    let shape = Shape { kind, key_bytes: 4, value_bytes: 8, entries: 1, flags: 0, name: name("mmsg_cores") };
    // It has as many cores as any kernel could ever have, so that there is room for those that this one has.
    let map = Map::with_values(&shape, CORES_MAX * ONE.len())?;
    map.update(&key, &ONE.repeat(CORES_MAX))?;
    let mut found = vec![0; CORES_MAX * ONE.len()];
    map.look_up(&key, &mut found)?;
    Ok(found.as_chunks().0.iter().filter(|value: &&[u8; 8]| **value == ONE).count())
}

/// A program to be loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    /// A number of `BPF_PROG_TYPE_...`.
    pub(crate) kind: u32,
    pub(crate) name: Name,
    /// Some helpers ask for one that is compatible with the GPL.
    pub(crate) license: &'a CStr,
    pub(crate) instructions: &'a [Instruction],
    /// What it will be attached to, a number of `BPF_...` of the attach types; 0 where that is not asked.
    pub(crate) attach_kind: u32,
    /// `BPF_F_...`
    pub(crate) flags: u32,
    /// The interface that it is for and no other, or 0.
    pub(crate) interface: u32,
}

impl Program<'_> {
    /// Loads it. An error of the kernel is returned unchanged, unless the verifier has refused the program: then the
    /// error has its last words in it.
    pub(crate) fn load(&self) -> io::Result<OwnedFd> {
        let mut loaded = self.load_with_log(&mut []);
        // The verifier gives up when a signal comes, and asks to be called again.
        for _ in 1..TRIES {
            match &loaded {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => loaded = self.load_with_log(&mut []),
                _ => break,
            }
        }
        let error = match loaded {
            Ok(fd) => return Ok(fd),
            Err(error) => error,
        };
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) {
            return Err(error);
        }
        // With a log it takes longer, so only who failed is asked why.
        let mut log = vec![0; LOG_BYTES];
        match self.load_with_log(&mut log) {
            Ok(fd) => Ok(fd),
            Err(_) => Err(match last_words(&log) {
                Some(words) => io::Error::new(error.kind(), format!("the verifier refuses the program: {words}")),
                None => error,
            }),
        }
    }

    fn load_with_log(&self, log: &mut [u8]) -> io::Result<OwnedFd> {
        let mut attributes = ProgramLoad {
            kind: self.kind,
            count: length_of(self.instructions)?,
            instructions: address(self.instructions.as_ptr()),
            license: address(self.license.as_ptr()),
            log_level: u32::from(!log.is_empty()),
            log_bytes: length_of(log)?,
            log: if log.is_empty() { 0 } else { address(log.as_mut_ptr()) },
            kernel_version: 0,
            flags: self.flags,
            name: self.name,
            interface: self.interface,
            attach_kind: self.attach_kind,
        };
        // SAFETY: the layout is the kernel's and has no gaps; `instructions` is readable for `count` instructions and
        // `license` up to its zero, `log` is writable for its length; all live through the call.
        unsafe { bpf_descriptor(PROGRAM_LOAD, &mut attributes) }
    }
}

/// The end of the log, which is where it says why, in one line.
fn last_words(log: &[u8]) -> Option<String> {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[end.saturating_sub(LOG_SHOWN_BYTES)..end]).trim().replace('\n', "; ");
    (!text.is_empty()).then_some(text)
}

/// Runs a program on order.
pub(crate) fn run(program: BorrowedFd<'_>, run: &mut Run<'_>) -> io::Result<Ran> {
    let is_wanted = !run.data_out.is_empty();
    let mut attributes = ProgramRun {
        program: number(program),
        returned: 0,
        data_bytes: length_of(run.data)?,
        data_out_bytes: length_of(run.data_out)?,
        data: address(run.data.as_ptr()),
        data_out: if is_wanted { address(run.data_out.as_mut_ptr()) } else { 0 },
        repeat: run.repeat,
        duration_ns: 0,
        context_bytes: 0,
        context_out_bytes: 0,
        context: 0,
        context_out: 0,
        flags: run.flags,
        core: 0,
        batch: run.batch,
        padding: 0,
    };
    // SAFETY: the layout is the kernel's and has no gaps; `data` is readable and `data_out` writable for the lengths
    // given with them.
    unsafe { bpf(PROGRAM_RUN, &mut attributes) }?;
    Ok(Ran { returned: attributes.returned, data_bytes: attributes.data_out_bytes as usize })
}

/// Attaches an XDP program to an interface, by its index. It is detached when the last descriptor of the link is
/// closed, however that comes about. `flags` are `XDP_FLAGS_...`.
pub(crate) fn attach_to_interface(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate { program: number(program), target: interface, attach_kind: AT_INTERFACE, flags };
    // SAFETY: the layout is the kernel's, u32 only, and holds no addresses.
    unsafe { bpf_descriptor(LINK_CREATE, &mut attributes) }
}

/// Has another program of the same kind stand where `link` has one, without a moment in which none does.
#[cfg_attr(not(feature = "af_xdp"), allow(dead_code))]
pub(crate) fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = LinkUpdate { link: number(link), program: number(program), flags: 0, program_before: 0 };
    // SAFETY: the layout is the kernel's, u32 only, and holds no addresses.
    unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
}

/// Attaches a program to a tracepoint, for every core. It is detached when the descriptor is closed.
pub(crate) fn attach_to_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let mut attributes = RawTracepointOpen { name: address(name.as_ptr()), program: number(program), padding: 0 };
    // SAFETY: the layout is the kernel's and has no gaps; `name` is readable up to its zero.
    unsafe { bpf_descriptor(RAW_TRACEPOINT_OPEN, &mut attributes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_to_what_the_kernel_takes() {
        assert_eq!(&name("mmsg_by_core"), b"mmsg_by_core\0\0\0\0");
        assert_eq!(&name("sixteen_letters_"), b"sixteen_letters\0");
    }

    #[test]
    fn the_last_words_of_the_verifier_are_one_line_of_the_end_of_its_log() {
        assert_eq!(last_words(b"0: (95) exit\nR0 !read_ok\n\0\0\0").as_deref(), Some("0: (95) exit; R0 !read_ok"));
        assert_eq!(last_words(&[0; 8]), None);
        let long = [b'x'; 2 * LOG_SHOWN_BYTES];
        assert_eq!(last_words(&long).map(|words| words.len()), Some(LOG_SHOWN_BYTES));
    }
}
