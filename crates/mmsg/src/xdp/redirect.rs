//! The program at an interface, attached as a link. The kernel detaches it when the last descriptor of the link is
//! closed, so also when the process ends, however that happens.
//!
//! There is one for each interface, shared by the engines of its queues. An engine puts its socket into the map of
//! sockets when it can receive, and takes it out before it ends; the kernel's stack receives a queue without a socket.
//!
//! An interface that is removed takes along what is attached to it, and not what was loaded ([`Loaded`]). To attach
//! that again takes no right: a process that has the descriptor of an XDP program was permitted to load it. So a
//! process that has given up its rights can go on when its interface comes back.
//!
//! The program is loaded twice. A driver runs it for the queues that an interface has when it is attached, and some
//! (veth) for none that is added later. When another program replaces it every driver looks at all queues, and the
//! kernel ignores a program that would replace itself.
//!
//! In the native mode it is loaded twice more, for the one interface that is there then: only a program that is bound
//! to an interface may ask its driver for the VLAN tag that was taken off a frame. It dies with that interface.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bpf::{Map, Program, ProgramKind, Types, XDP_GENERIC, XDP_NATIVE};

use super::options::{Mode, Wanted};
use super::program::{Filter, Hidden, KEY_BYTES, Key, LICENSE, Maps, PASS, assemble, key};
use super::refusal::Step;
use super::umem::Umem;
use super::witness::Witness;
use crate::refusal::Refusal;
use crate::sys;

/// `ARPHRD_ETHER`: frames begin with two Ethernet addresses.
const ETHERNET: u16 = 1;

/// Hands whole UDP datagrams to one port over to the [engines](crate::Engine::af_xdp) of an interface's queues.
///
/// Everything else passes to the kernel as if nothing were there: other ports and addresses, ARP, ICMP, fragments, IP
/// options, extension headers, broadcast and multicast, what is longer than a chunk, and in the generic mode trains of
/// datagrams that are one frame. Bind an ordinary socket to the port as well: it gets what passes, such as fragments,
/// and everything while a queue has no engine. Datagrams with wrong lengths or checksums are
/// handed over and refused by the engine, which counts them; the kernel would have dropped them.
///
/// It is there as long as this value or one of those engines. When the process ends, however that comes about, the
/// kernel takes it away.
///
/// What is handed over has not been seen by the stack: no packet filter (nftables, iptables), no reverse path filter,
/// no option or filter of the ordinary socket has had a say in it. When the interface gets another Ethernet address,
/// everything passes until [`look_at_card`](Self::look_at_card) has been called and the addresses were set again.
///
/// An interface that is removed takes the program off. What it is made of stays, and can be attached to the interface
/// that comes in its place: see [`attach_again`](Self::attach_again).
///
/// It needs `CAP_BPF` and `CAP_NET_ADMIN` (an engine `CAP_NET_RAW` besides) and Linux 5.10.
#[derive(Debug)]
pub struct Redirect {
    loaded: Arc<Loaded>,
    index: u32,
    /// The interface, as of the last look.
    card: Mutex<Card>,
    /// What engines are made from before they make sockets of their own.
    laid_in: Mutex<Vec<OwnedFd>>,
    /// The highest MTU whose frames all fit into the chunks of the last engine; 0 before there was one.
    mtu_of_chunks: AtomicUsize,
    /// Dropped with this value, and the program is gone.
    standing: Mutex<Standing>,
}

impl Redirect {
    /// Puts the program at the interface. Nothing is handed over until a queue has an engine.
    ///
    /// # Errors
    /// The [`Refusal`] says why not, and what to do.
    pub fn attach(wanted: &Wanted, addresses: &[IpAddr]) -> Result<Redirect, Refusal> {
        let name = wanted.interface.as_str();
        check_number(addresses).map_err(|text| Refusal::unfit(format!("AF_XDP on {name:?}"), text))?;
        // What is no interface for it needs no program.
        let index = Card::look(name)?.index;
        Redirect::attach_again(Loaded::load(wanted, index)?, addresses)
    }

    /// Puts a program that is loaded already at the interface of that name as it is now. The one of before must be
    /// gone, with its engines. From Linux 6.0 on this takes no right.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    pub fn attach_again(loaded: Arc<Loaded>, addresses: &[IpAddr]) -> Result<Redirect, Refusal> {
        let card = Card::look(&loaded.wanted().interface)?;
        let redirect = Redirect {
            standing: Mutex::new(loaded.stand_at(card.index)?),
            loaded,
            index: card.index,
            card: Mutex::new(card),
            laid_in: Mutex::default(),
            mtu_of_chunks: AtomicUsize::default(),
        };
        let refuse = |error| Refusal::of(Step::Load, &redirect.wanted().interface, error);
        redirect.set_addresses(addresses).map_err(refuse)?;
        Ok(redirect)
    }

    /// What was loaded for it.
    pub fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded)
    }

    /// Sees to it that the driver runs the program for every queue that the interface has now: to be called when it has
    /// got more. No frame passes for it. From Linux 6.0 on this takes no right.
    ///
    /// # Errors
    /// The [`Refusal`] says why not; then queues that came later pass to the stack.
    pub fn cover_all_queues(&self) -> Result<(), Refusal> {
        self.loaded.replace(&mut self.standing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why the program does not see VLAN tags that were taken off frames before it; `None` where it does. A frame of
    /// any VLAN then looks like one of none, and is handed over. What can be done: have the device leave tags where
    /// they are (`ethtool -K INTERFACE rxvlan off`), or use addresses that no VLAN has.
    pub fn unseen_tags(&self) -> Option<String> {
        self.loaded.unseen_tags(&self.standing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The MTU of the interface, as of the last [look](Self::look_at_card), and the highest one whose frames all fit
    /// into the chunks of the engines, where the first is above the second. What is longer passes to the stack.
    pub fn mtu_beyond_chunks(&self) -> Option<(usize, usize)> {
        let (mtu, fits) = (self.card().mtu, self.mtu_of_chunks.load(Ordering::Relaxed));
        (fits > 0 && mtu > fits).then_some((mtu, fits))
    }

    /// Hands over what comes to these addresses from now on, and to no others. Those that stay are never without.
    ///
    /// # Errors
    /// There are more than 4,096: then nothing changes. Or the kernel refuses: then what was changed by then stays so,
    /// and the next call goes on from there.
    pub fn set_addresses(&self, addresses: &[IpAddr]) -> io::Result<()> {
        self.loaded.set_addresses(self.card().address, addresses)
    }

    /// Looks whether the interface has another Ethernet address than at the last look. Then the program knows none of
    /// its addresses any more: [set them](Self::set_addresses) again. An interface that is gone has none.
    pub fn look_at_card(&self) -> bool {
        let same = |found: &Card| found.index == self.index;
        let Some(now) = Card::look(&self.wanted().interface).ok().filter(same) else { return false };
        let address = now.address;
        std::mem::replace(&mut *self.card(), now).address != address
    }

    fn card(&self) -> MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays in a socket of [`xdp::socket`](crate::xdp::socket), which another process may have made: the next engine is
    /// made from it, and then takes no right.
    pub fn lay_in(&self, socket: OwnedFd) {
        self.laid_in.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
    }

    pub(super) fn take_socket(&self) -> Option<OwnedFd> {
        self.laid_in.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// The number of the interface.
    pub fn interface_index(&self) -> u32 {
        self.index
    }

    /// What was asked for.
    pub fn wanted(&self) -> &Wanted {
        self.loaded.wanted()
    }

    /// What a refusal is about.
    pub(super) fn subject(&self, queue: u32) -> String {
        format!("{}, receive queue {queue}", self.wanted().interface)
    }

    /// From now on the frames of a queue that fit into this memory go to this socket, which is bound to it.
    pub(super) fn hand_over(&self, queue: u32, socket: [u8; 4], umem: &Umem) -> Result<(), Refusal> {
        let refuse = |error| Refusal::of(Step::Redirect, &self.subject(queue), error);
        self.loaded.hand_over(queue, socket, umem.frame_bytes() as u32).map_err(refuse)?;
        self.mtu_of_chunks.store(umem.mtu(), Ordering::Relaxed);
        Ok(())
    }

    /// From now on the frames of a queue go to the stack.
    pub(super) fn let_pass(&self, queue: u32) -> io::Result<()> {
        self.loaded.let_pass(queue)
    }
}

/// What the program has to know of an interface.
#[derive(Debug)]
struct Card {
    index: u32,
    mtu: usize,
    address: [u8; 6],
}

impl Card {
    fn look(name: &str) -> Result<Card, Refusal> {
        let refuse = |error| Refusal::of(Step::Ask, &format!("{name:?}"), error);
        // Any socket will do to ask by. It is bound to nothing: where loopback is down, nothing can be.
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map_err(refuse)?;
        let ask = |request| sys::ask_interface(socket.as_fd(), name, request).map_err(refuse);
        let index = ask(libc::SIOCGIFINDEX)?;
        let mtu = ask(libc::SIOCGIFMTU)?;
        let number = |answer: &[u8; 24]| u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]);
        // A socket address: its family says what kind of interface it is.
        let hardware = ask(libc::SIOCGIFHWADDR)?;
        if u16::from_ne_bytes([hardware[0], hardware[1]]) != ETHERNET {
            return Err(Refusal::unfit(
                format!("AF_XDP on {name:?}"),
                "it is no Ethernet interface, and frames of other kinds are not read: use another engine there",
            ));
        }
        let address = std::array::from_fn(|byte| hardware[2 + byte]);
        Ok(Card { index: number(&index), mtu: number(&mtu) as usize, address })
    }
}

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
#[derive(Debug)]
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

#[derive(Debug)]
struct Asking {
    interface: u32,
    programs: Pair,
}

/// A program that stands at an interface, until this is dropped.
#[derive(Debug)]
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
