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
//!
//! And twice more in the native mode, for the one interface that is there then: only a program that is bound to an
//! interface may ask its driver for the VLAN tag that is on a frame no more. It dies with that interface.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use bpf::{Map, Program, ProgramKind, Types, XDP_GENERIC, XDP_NATIVE};

use super::options::{Mode, Wanted};
use super::program::{Filter, Hidden, KEY_BYTES, Key, LICENSE, Maps, PASS, assemble, key};
use super::refusal::{Refusal, Step};
use super::witness::Witness;

// Flags, each with its name in linux/bpf.h.
/// `BPF_F_XDP_HAS_FRAGS`: frames in several pieces are not made one for the program, which costs what is not for it
/// nothing. From this Linux on the pieces are joined in a chunk.
const IN_PIECES: u32 = 1 << 5;
const JOINS_PIECES: (u32, u32) = (6, 6);
/// `BPF_F_XDP_DEV_BOUND_ONLY`, Linux 6.3
const FOR_ONE_INTERFACE: u32 = 1 << 6;

/// The most addresses of a listener.
const ADDRESSES_MAX: usize = 4096;
/// The most queues of an interface.
const QUEUES_MAX: u32 = 1024;

/// The function of the kernel that asks a driver for a tag, Linux 6.8.
const ASKS_FOR_TAG: &str = "bpf_xdp_metadata_rx_vlan_tag";

/// The program of a [`Redirect`](super::Redirect) and its maps, with or without an interface that it stands at.
pub struct Loaded {
    wanted: Wanted,
    /// Twice the same.
    programs: Pair,
    /// In the native mode those that ask the driver of one interface, or why there are none.
    asking: Option<Result<Asking, String>>,
    /// In the generic mode what notes down what a frame does not show, or why it cannot.
    witness: Option<Result<Witness, String>>,
    sockets: Map,
    /// The longest frame for each of the sockets.
    longest: Map,
    addresses: Map,
    /// What is in that map.
    known: Mutex<HashSet<Key>>,
}

type Pair = [OwnedFd; 2];

struct Asking {
    interface: u32,
    programs: Pair,
}

/// A program that stands at an interface, until this is dropped.
pub(super) struct Standing {
    link: OwnedFd,
    /// Which of the pair it is.
    number: usize,
    /// It is one of those that ask.
    is_asking: bool,
}

impl Loaded {
    /// Loads it, for the interface of this number and those that may follow it.
    pub(super) fn load(wanted: &Wanted, interface: u32) -> Result<Arc<Loaded>, Refusal> {
        let refuse = |error| Refusal::of(Step::Load, &wanted.interface, error);
        let sockets = Map::of_sockets("mmsg_sockets", QUEUES_MAX).map_err(refuse)?;
        let longest = Map::array("mmsg_longest", 4, QUEUES_MAX).map_err(refuse)?;
        let addresses = Map::hash("mmsg_addresses", KEY_BYTES, 1, ADDRESSES_MAX as u32).map_err(refuse)?;
        let maps = Maps { addresses: addresses.as_fd(), sockets: sockets.as_fd(), longest: longest.as_fd() };
        let is_native = wanted.mode == Mode::Native;
        let witness = (!is_native).then(|| Witness::attach().map_err(|error| error.to_string()));
        let hidden = match &witness {
            None => Hidden::Unseen,
            Some(Ok(witness)) => Hidden::Noted(witness.notes()),
            Some(Err(_)) => Hidden::Guessed,
        };
        let programs = pair(wanted, &maps, hidden, 0).map_err(refuse)?;
        let asking = is_native.then(|| Asking::load(wanted, &maps, interface));
        let (wanted, known) = (wanted.clone(), Mutex::default());
        Ok(Arc::new(Loaded { wanted, programs, asking, witness, sockets, longest, addresses, known }))
    }

    /// What was asked for.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Attaches it to the interface of this number.
    pub(super) fn stand_at(&self, interface: u32) -> Result<Standing, Refusal> {
        let (step, flags) = match self.wanted.mode {
            Mode::Native => (Step::AttachNative, XDP_NATIVE),
            Mode::Generic => (Step::AttachGeneric, XDP_GENERIC),
        };
        let attach = |programs: &Pair| bpf::attach_to_interface(programs[0].as_fd(), interface, flags);
        let asking = self.asking().filter(|asking| asking.interface == interface);
        if let Some(link) = asking.and_then(|asking| attach(&asking.programs).ok()) {
            return Ok(Standing { link, number: 0, is_asking: true });
        }
        let link = attach(&self.programs).map_err(|error| Refusal::of(step, &self.wanted.interface, error))?;
        Ok(Standing { link, number: 0, is_asking: false })
    }

    /// Has the other of the two programs stand there.
    pub(super) fn replace(&self, standing: &mut Standing) -> Result<(), Refusal> {
        let asking = self.asking().filter(|_| standing.is_asking);
        let programs = asking.map_or(&self.programs, |asking| &asking.programs);
        let other = 1 - standing.number;
        let replaced = bpf::replace_program(standing.link.as_fd(), programs[other].as_fd());
        replaced.map_err(|error| Refusal::of(Step::Replace, &self.wanted.interface, error))?;
        standing.number = other;
        Ok(())
    }

    /// See [`Redirect::unseen_tags`](super::Redirect::unseen_tags).
    pub(super) fn unseen_tags(&self, standing: &Standing) -> Option<String> {
        match (&self.witness, &self.asking) {
            (Some(witness), _) => witness.as_ref().err().cloned(),
            _ if standing.is_asking => None,
            (_, Some(Err(why))) => Some(why.clone()),
            _ => {
                Some("what asks the driver for tags was bound to the interface of before, and went with it".to_owned())
            }
        }
    }

    fn asking(&self) -> Option<&Asking> {
        self.asking.as_ref()?.as_ref().ok()
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

    /// From now on the frames of a queue that are no longer than `longest` go to this socket.
    pub(super) fn hand_over(&self, queue: u32, socket: [u8; 4], longest: u32) -> io::Result<()> {
        self.longest.update(&queue.to_ne_bytes(), &longest.to_ne_bytes())?;
        self.sockets.update(&queue.to_ne_bytes(), &socket)
    }

    /// From now on the frames of a queue go to the stack.
    pub(super) fn let_pass(&self, queue: u32) -> io::Result<()> {
        // The kernel itself takes a socket out that is bound to nothing any more.
        taken_out(self.sockets.remove(&queue.to_ne_bytes()))
    }
}

impl Asking {
    fn load(wanted: &Wanted, maps: &Maps<'_>, interface: u32) -> Result<Asking, String> {
        let described = Types::of_kernel().map_err(|error| error.to_string())?;
        let function = Types::parse(&described).and_then(|types| types.function(ASKS_FOR_TAG));
        let function = function.ok_or("this kernel cannot ask a driver for them, Linux 6.8 can")?;
        let programs = pair(wanted, maps, Hidden::Asked(function), interface);
        let programs =
            programs.map_err(|error| format!("the driver of {} cannot be asked: {error}", wanted.interface))?;
        Ok(Asking { interface, programs })
    }
}

/// Loads the same program twice, for any interface or, with its number, for one.
fn pair(wanted: &Wanted, maps: &Maps<'_>, hidden: Hidden<'_>, interface: u32) -> io::Result<Pair> {
    let load = |asks_length, flags| {
        let filter = Filter { port: wanted.port, tagged: wanted.tagged, otherwise: PASS, asks_length, hidden };
        let bound = if interface == 0 { 0 } else { FOR_ONE_INTERFACE };
        let instructions = assemble(&filter, maps);
        let program = Program::new(ProgramKind::Xdp, "mmsg_xdp", &instructions);
        let program = Program { license: LICENSE, flags: bound | flags, interface, ..program };
        Ok([program.load()?, program.load()?])
    };
    let is_older = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let pieces = if is_at_least(&release, JOINS_PIECES) { IN_PIECES } else { 0 };
    match load(true, pieces) {
        Err(error) if is_older(&error) => load(false, 0),
        loaded => loaded,
    }
}

/// Whether the release of a kernel, such as `6.18.44-cloud`, is this one or a later one.
fn is_at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= wanted
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_a_kernel_is_read_by_its_first_two_numbers() {
        for (release, expected) in [
            ("6.18.44-fc-v669\n", true),
            ("6.6", true),
            ("7.0-rc1", true),
            ("6.5.13", false),
            ("5.14.0-427.el9", false),
        ] {
            assert_eq!(is_at_least(release, JOINS_PIECES), expected, "{release}");
        }
        assert!(!is_at_least("", JOINS_PIECES) && !is_at_least("unknown", JOINS_PIECES));
    }
}
