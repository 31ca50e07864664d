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

use super::frame_metadata::HiddenStateProgram;
use super::options::{Mode, Wanted};
use super::program::{Filter, HiddenState, KEY_BYTES, Key, LICENSE, PASS, ProgramMaps, assemble, key};
use super::refusal::Step;
use super::umem::Umem;
use crate::refusal::Refusal;
use crate::sys;

/// `ARPHRD_ETHER`: frames begin with two Ethernet addresses.
const ETHERNET: u16 = 1;

/// Hands whole UDP datagrams to one port over to the [engines](crate::Engine::af_xdp) of an interface's queues.
///
/// Everything else passes to the kernel: other ports and addresses, ARP, ICMP, fragments, IP options, extension
/// headers, broadcast and multicast, what is longer than a chunk, and in the generic mode trains of datagrams that are
/// one frame. Bind an ordinary socket to the port as well: it gets what passes, and everything while a queue has no
/// engine. Datagrams with wrong lengths or checksums are handed over and refused by the engine, which counts them; the
/// kernel would have dropped them.
///
/// The program stays as long as this value or one of those engines, and the kernel removes it when the process ends,
/// however that happens.
///
/// The stack does not see what is handed over: no packet filter (nftables, iptables), no reverse path filter, no option
/// or filter of the ordinary socket applies to it. When the interface gets another Ethernet address, everything passes
/// until [`look_at_card`](Self::look_at_card) has been called and the addresses were set again.
///
/// An interface that is removed takes the program off. What was loaded stays, and can be attached to the interface that
/// comes in its place: see [`attach_again`](Self::attach_again).
///
/// It needs `CAP_BPF` and `CAP_NET_ADMIN` (an engine `CAP_NET_RAW` besides) and Linux 5.10.
#[derive(Debug)]
pub struct Redirect {
    loaded: Arc<Loaded>,
    index: u32,
    /// The interface, when it was last looked at.
    card: Mutex<InterfaceState>,
    /// Sockets for the next engines, before those make their own.
    laid_in: Mutex<Vec<OwnedFd>>,
    /// The highest MTU whose frames all fit into the chunks of the last engine; 0 before there was one.
    mtu_of_chunks: AtomicUsize,
    /// Dropping it detaches the program.
    attached: Mutex<Attached>,
}

impl Redirect {
    /// Attaches the program to the interface. Nothing is handed over until a queue has an engine.
    ///
    /// # Errors
    /// The [`Refusal`] says why not, and what to do.
    pub fn attach(wanted: &Wanted, addresses: &[IpAddr]) -> Result<Redirect, Refusal> {
        let name = wanted.interface.as_str();
        check_number(addresses).map_err(|text| Refusal::unfit(format!("AF_XDP on {name:?}"), text))?;
        // An unsuitable interface needs no program.
        let index = InterfaceState::look(name)?.index;
        Redirect::attach_again(Loaded::load(wanted, index)?, addresses)
    }

    /// Attaches a program that is already loaded to the interface of that name as it is now. The previous [`Redirect`]
    /// and its engines must be gone. From Linux 6.0 on this takes no right.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    pub fn attach_again(loaded: Arc<Loaded>, addresses: &[IpAddr]) -> Result<Redirect, Refusal> {
        let card = InterfaceState::look(&loaded.wanted().interface)?;
        let redirect = Redirect {
            attached: Mutex::new(loaded.attach_to(card.index)?),
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

    /// The loaded program.
    pub fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded)
    }

    /// Makes the driver run the program for every queue that the interface has now: call it when queues were added. No
    /// frame passes because of it. From Linux 6.0 on this takes no right.
    ///
    /// # Errors
    /// The [`Refusal`] says why not; then queues that were added pass to the stack.
    pub fn cover_all_queues(&self) -> Result<(), Refusal> {
        self.loaded.replace(&mut self.attached.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why the program does not see VLAN tags that were taken off frames; `None` where it does. A frame of any VLAN
    /// then looks untagged and is handed over. The cure: have the device leave tags in frames (`ethtool -K INTERFACE
    /// rxvlan off`), or use addresses that no VLAN has.
    pub fn unseen_tags(&self) -> Option<String> {
        self.loaded.unseen_tags(&self.attached.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The MTU of the interface when it was last [looked at](Self::look_at_card), and the highest one whose frames all
    /// fit into the chunks of the engines, if the first is above the second. Longer frames pass to the stack.
    pub fn mtu_beyond_chunks(&self) -> Option<(usize, usize)> {
        let (mtu, fits) = (self.card().mtu, self.mtu_of_chunks.load(Ordering::Relaxed));
        (fits > 0 && mtu > fits).then_some((mtu, fits))
    }

    /// From now on hands over what comes to these addresses and no others. Addresses that stay have no gap.
    ///
    /// # Errors
    /// More than 4,096 addresses: then nothing changes. Or the kernel refuses: then the changes made so far stay, and
    /// the next call continues from there.
    pub fn set_addresses(&self, addresses: &[IpAddr]) -> io::Result<()> {
        self.loaded.set_addresses(self.card().address, addresses)
    }

    /// Whether the interface has another Ethernet address than when it was last looked at. Then the program knows none
    /// of its addresses any more: [set them](Self::set_addresses) again. `false` for an interface that is gone.
    pub fn look_at_card(&self) -> bool {
        let same = |found: &InterfaceState| found.index == self.index;
        let Some(now) = InterfaceState::look(&self.wanted().interface).ok().filter(same) else { return false };
        let address = now.address;
        std::mem::replace(&mut *self.card(), now).address != address
    }

    fn card(&self) -> MutexGuard<'_, InterfaceState> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a socket of [`xdp::socket`](crate::xdp::socket), which another process may have made, for the next
    /// engine, which then takes no right.
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

    /// What it hands over.
    pub fn wanted(&self) -> &Wanted {
        self.loaded.wanted()
    }

    /// What a refusal is about.
    pub(super) fn subject(&self, queue: u32) -> String {
        format!("{}, receive queue {queue}", self.wanted().interface)
    }

    /// From now on the frames of a queue that fit into this memory go to this socket, which is bound to the queue.
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
struct InterfaceState {
    index: u32,
    mtu: usize,
    address: [u8; 6],
}

impl InterfaceState {
    fn look(name: &str) -> Result<InterfaceState, Refusal> {
        let refuse = |error| Refusal::of(Step::Ask, &format!("{name:?}"), error);
        // Any socket will do to ask by. It is not bound: where loopback is down, nothing can be.
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
        Ok(InterfaceState { index: number(&index), mtu: number(&mtu) as usize, address })
    }
}

// Flags, each with its name in linux/bpf.h.
/// `BPF_F_XDP_HAS_FRAGS`: the kernel does not copy frames of several pieces into one for the program, so frames that
/// are not handed over cost nothing more. From this Linux on the pieces are joined in a chunk.
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

/// The program of a [`Redirect`] and its maps, attached or not.
#[derive(Debug)]
pub struct Loaded {
    wanted: Wanted,
    /// The same program twice.
    programs: Pair,
    /// In the native mode the programs that ask the driver of one interface, or why there are none.
    tag_programs: Option<Result<TagPrograms, String>>,
    /// In the generic mode the program that notes what a frame does not show, or why there is none.
    hidden_state: Option<Result<HiddenStateProgram, String>>,
    sockets: Map,
    /// The longest frame for the socket of each queue.
    longest: Map,
    addresses: Map,
    /// The keys of `addresses`.
    known: Mutex<HashSet<Key>>,
}

type Pair = [OwnedFd; 2];

#[derive(Debug)]
struct TagPrograms {
    interface: u32,
    programs: Pair,
}

/// An attached program; dropping it detaches the program.
#[derive(Debug)]
pub(super) struct Attached {
    link: OwnedFd,
    /// Which of the pair is attached.
    number: usize,
    /// The pair is [`TagPrograms`].
    is_asking: bool,
}

impl Loaded {
    /// Loads it, for the interface of this number and its successors.
    pub(super) fn load(wanted: &Wanted, interface: u32) -> Result<Arc<Loaded>, Refusal> {
        let refuse = |error| Refusal::of(Step::Load, &wanted.interface, error);
        let sockets = Map::of_sockets("mmsg_sockets", QUEUES_MAX).map_err(refuse)?;
        let longest = Map::array("mmsg_longest", 4, QUEUES_MAX).map_err(refuse)?;
        let addresses = Map::hash("mmsg_addresses", KEY_BYTES, 1, ADDRESSES_MAX as u32).map_err(refuse)?;
        let maps = ProgramMaps { addresses: addresses.as_fd(), sockets: sockets.as_fd(), longest: longest.as_fd() };
        let is_native = wanted.mode == Mode::Native;
        let hidden_state = (!is_native).then(|| HiddenStateProgram::attach().map_err(|error| error.to_string()));
        let hidden = match &hidden_state {
            None => HiddenState::Unseen,
            Some(Ok(hidden_state)) => HiddenState::Noted(hidden_state.notes()),
            Some(Err(_)) => HiddenState::Guessed,
        };
        let programs = pair(wanted, &maps, hidden, 0).map_err(refuse)?;
        let tag_programs = is_native.then(|| TagPrograms::load(wanted, &maps, interface));
        let (wanted, known) = (wanted.clone(), Mutex::default());
        Ok(Arc::new(Loaded { wanted, programs, tag_programs, hidden_state, sockets, longest, addresses, known }))
    }

    /// What was asked for.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Attaches it to the interface of this number.
    pub(super) fn attach_to(&self, interface: u32) -> Result<Attached, Refusal> {
        let (step, flags) = match self.wanted.mode {
            Mode::Native => (Step::AttachNative, XDP_NATIVE),
            Mode::Generic => (Step::AttachGeneric, XDP_GENERIC),
        };
        let attach = |programs: &Pair| bpf::attach_to_interface(programs[0].as_fd(), interface, flags);
        let tag_programs = self.tag_programs().filter(|tag_programs| tag_programs.interface == interface);
        if let Some(link) = tag_programs.and_then(|tag_programs| attach(&tag_programs.programs).ok()) {
            return Ok(Attached { link, number: 0, is_asking: true });
        }
        let link = attach(&self.programs).map_err(|error| Refusal::of(step, &self.wanted.interface, error))?;
        Ok(Attached { link, number: 0, is_asking: false })
    }

    /// Replaces the attached program by the other one of the pair.
    pub(super) fn replace(&self, attached: &mut Attached) -> Result<(), Refusal> {
        let tag_programs = self.tag_programs().filter(|_| attached.is_asking);
        let programs = tag_programs.map_or(&self.programs, |tag_programs| &tag_programs.programs);
        let other = 1 - attached.number;
        let replaced = bpf::replace_program(attached.link.as_fd(), programs[other].as_fd());
        replaced.map_err(|error| Refusal::of(Step::Replace, &self.wanted.interface, error))?;
        attached.number = other;
        Ok(())
    }

    /// See [`Redirect::unseen_tags`].
    pub(super) fn unseen_tags(&self, attached: &Attached) -> Option<String> {
        match (&self.hidden_state, &self.tag_programs) {
            (Some(hidden_state), _) => hidden_state.as_ref().err().cloned(),
            _ if attached.is_asking => None,
            (_, Some(Err(why))) => Some(why.clone()),
            _ => {
                Some("what asks the driver for tags was bound to the interface of before, and went with it".to_owned())
            }
        }
    }

    fn tag_programs(&self) -> Option<&TagPrograms> {
        self.tag_programs.as_ref()?.as_ref().ok()
    }

    /// See [`Redirect::set_addresses`]; `card` is the Ethernet address of the interface.
    pub(super) fn set_addresses(&self, card: [u8; 6], addresses: &[IpAddr]) -> io::Result<()> {
        check_number(addresses).map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Compared by their keys: an IPv4 address and its IPv4-mapped form are one.
        let wanted: HashSet<Key> = addresses.iter().map(|address| key(card, *address)).collect();
        // Old and new addresses together may exceed the map, so removals come first.
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
        // The kernel removes a socket by itself that is bound to nothing any more.
        taken_out(self.sockets.remove(&queue.to_ne_bytes()))
    }
}

impl TagPrograms {
    fn load(wanted: &Wanted, maps: &ProgramMaps<'_>, interface: u32) -> Result<TagPrograms, String> {
        let described = Types::of_kernel().map_err(|error| error.to_string())?;
        let function = Types::parse(&described).and_then(|types| types.function(ASKS_FOR_TAG));
        let function = function.ok_or("this kernel cannot ask a driver for them, Linux 6.8 can")?;
        let programs = pair(wanted, maps, HiddenState::Asked(function), interface);
        let programs =
            programs.map_err(|error| format!("the driver of {} cannot be asked: {error}", wanted.interface))?;
        Ok(TagPrograms { interface, programs })
    }
}

/// Loads the same program twice, for any interface or, if a number is given, for one.
fn pair(wanted: &Wanted, maps: &ProgramMaps<'_>, hidden: HiddenState<'_>, interface: u32) -> io::Result<Pair> {
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

/// Whether the release of a kernel, such as `6.18.44-cloud`, is at least this one.
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

/// A key that is not there counts as removed.
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
