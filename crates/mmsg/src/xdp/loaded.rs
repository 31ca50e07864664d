//! The program with its two maps, as the kernel has them: loaded by somebody with the right to, and attached to an
//! interface as often as there is one.
//!
//! An interface that is removed takes what is attached to it along, and not what was loaded. To attach that again takes
//! no right: whoever holds the descriptor of a program for interfaces has had it when it was loaded. So a process that
//! has given up its rights can go on when its interface comes back.
//!
//! It is loaded twice. A driver runs the program for the queues that an interface has when it is attached, and some
//! (veth) for no other that comes later. To have another program take its place is what every driver looks at all
//! queues for, and the kernel ignores a program that takes its own.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bpf::calls::{self, ABOVE_DRIVER, AT_INTERFACE, Map, PROGRAM_AT_INTERFACE, Program, Shape};

use super::options::{Mode, Wanted};
use super::program::{Filter, KEY_BYTES, Key, PASS, assemble, key};
use super::refusal::{Refusal, Step};

// Kinds of maps and a flag, each with its name in linux/bpf.h or linux/if_link.h.
/// `BPF_MAP_TYPE_HASH`
const MAP_OF_KEYS: u32 = 1;
/// `BPF_MAP_TYPE_XSKMAP`
const MAP_OF_SOCKETS: u32 = 17;
/// `XDP_FLAGS_DRV_MODE`
const IN_DRIVER: u32 = 1 << 2;

/// The most addresses of a listener.
const ADDRESSES_MAX: usize = 4096;
/// The most queues of an interface.
const QUEUES_MAX: u32 = 1024;

/// The program of a [`Redirect`](super::Redirect) and its maps, with or without an interface that it stands at.
pub struct Loaded {
    wanted: Wanted,
    /// Twice the same.
    programs: [OwnedFd; 2],
    sockets: Map,
    addresses: Map,
    /// What is in that map.
    known: Mutex<HashSet<Key>>,
}

impl Loaded {
    pub(super) fn load(wanted: &Wanted) -> Result<Arc<Loaded>, Refusal> {
        let load = |error| Refusal::of(Step::Load, &wanted.interface, error);
        let map = |kind, key_bytes, value_bytes, entries, name| {
            let name = calls::name(name);
            Map::create(&Shape { kind, key_bytes, value_bytes, entries, flags: 0, name }).map_err(load)
        };
        let sockets = map(MAP_OF_SOCKETS, 4, 4, QUEUES_MAX, "mmsg_sockets")?;
        let addresses = map(MAP_OF_KEYS, KEY_BYTES as u32, 1, ADDRESSES_MAX as u32, "mmsg_addresses")?;
        let filter = Filter { port: wanted.port, tagged: wanted.tagged, otherwise: PASS };
        let program = Program {
            kind: PROGRAM_AT_INTERFACE,
            name: calls::name("mmsg_xdp"),
            // The helpers it calls ask for no particular licence.
            license: c"MIT",
            instructions: &assemble(&filter, addresses.as_fd(), sockets.as_fd()),
            attach_kind: AT_INTERFACE,
        };
        let programs = [program.load().map_err(load)?, program.load().map_err(load)?];
        Ok(Arc::new(Loaded { wanted: wanted.clone(), programs, sockets, addresses, known: Mutex::default() }))
    }

    /// What was asked for.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Attaches it to the interface of this number, for as long as what is returned is open.
    pub(super) fn link(&self, index: u32) -> Result<OwnedFd, Refusal> {
        let (step, flags) = match self.wanted.mode {
            Mode::Native => (Step::AttachNative, IN_DRIVER),
            Mode::Generic => (Step::AttachGeneric, ABOVE_DRIVER),
        };
        let link = calls::attach_to_interface(self.programs[0].as_fd(), index, flags);
        link.map_err(|error| Refusal::of(step, &self.wanted.interface, error))
    }

    /// Has the other of the two programs stand there: 1 is the other one of what was attached.
    pub(super) fn replace(&self, link: BorrowedFd<'_>, number: usize) -> Result<(), Refusal> {
        let replaced = calls::replace_program(link, self.programs[number].as_fd());
        replaced.map_err(|error| Refusal::of(Step::Replace, &self.wanted.interface, error))
    }

    /// See [`Redirect::set_addresses`](super::Redirect::set_addresses); `card` is the Ethernet address that they are
    /// reached by.
    pub(super) fn set_addresses(&self, card: [u8; 6], addresses: &[IpAddr]) -> io::Result<()> {
        check_number(addresses).map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // By their keys: an IPv4 address and the same in IPv6 clothes are one.
        let wanted: HashSet<Key> = addresses.iter().map(|address| key(card, *address)).collect();
        // Old and new ones together may be more than there is room for, so what goes makes room first.
        let going: Vec<Key> = known.difference(&wanted).copied().collect();
        for key in going {
            taken_out(self.addresses.remove(&key))?;
            known.remove(&key);
        }
        for key in wanted {
            if !known.contains(&key) {
                self.addresses.update(&key, &[1])?;
                known.insert(key);
            }
        }
        Ok(())
    }

    /// From now on the frames of a queue go to this socket.
    pub(super) fn hand_over(&self, queue: u32, socket: [u8; 4]) -> io::Result<()> {
        self.sockets.update(&queue.to_ne_bytes(), &socket)
    }

    /// From now on the frames of a queue go to the stack.
    pub(super) fn let_pass(&self, queue: u32) -> io::Result<()> {
        // The kernel itself takes a socket out that is bound to nothing any more.
        taken_out(self.sockets.remove(&queue.to_ne_bytes()))
    }
}

pub(super) fn check_number(addresses: &[IpAddr]) -> Result<(), String> {
    let number = addresses.len();
    if number <= ADDRESSES_MAX {
        return Ok(());
    }
    Err(format!("{number} addresses are too many to look for: name up to {ADDRESSES_MAX}"))
}

/// What is out already has been taken out.
fn taken_out(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Loaded").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}
