//! What stands at the interface: the program, attached as a link, with its two maps. It goes when the last descriptor
//! of the link is closed, so with the process, however that ends.
//!
//! One for each interface, shared by the engines of its queues. An engine puts its socket into the map of sockets when
//! it can receive, and takes it out before it ends; a queue without a socket is received by the kernel's stack, as if
//! nothing were there.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use crate::bpf::calls::{self, Map, Program, Shape};
use crate::sys;

use super::options::{Mode, Wanted};
use super::program::{Filter, KEY_BYTES, Key, PASS, assemble, key};
use super::refusal::{Refusal, Step};

// Kinds of maps and programs and flags, each with its name in linux/bpf.h or linux/if_link.h.
/// `BPF_MAP_TYPE_HASH`
const MAP_OF_KEYS: u32 = 1;
/// `BPF_MAP_TYPE_XSKMAP`
const MAP_OF_SOCKETS: u32 = 17;
/// `BPF_PROG_TYPE_XDP`
const PROGRAM_AT_INTERFACE: u32 = 6;
/// `BPF_XDP`
const AT_INTERFACE: u32 = 37;
/// `XDP_FLAGS_SKB_MODE`
const ABOVE_DRIVER: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`
const IN_DRIVER: u32 = 1 << 2;

/// `ARPHRD_ETHER`: frames begin with two Ethernet addresses.
const ETHERNET: u16 = 1;

/// The most addresses of a listener.
const ADDRESSES_MAX: usize = 4096;
/// The most queues of an interface.
const QUEUES_MAX: u32 = 1024;

/// Hands whole UDP datagrams to one port over to the [engines](crate::Engine::af_xdp) of an interface's queues.
///
/// Everything else passes to the kernel as if nothing were there: other ports and addresses, ARP, ICMP, fragments, IP
/// options, extension headers, broadcast and multicast. Bind an ordinary socket to the port as well: it gets what
/// passes, such as fragments, and everything while a queue has no engine. Datagrams with wrong lengths or checksums are
/// handed over and refused by the engine, which counts them; the kernel would have dropped them.
///
/// It is there as long as this value or one of those engines. When the process ends, however that comes about, the
/// kernel takes it away.
///
/// What is handed over has not been seen by the stack: no packet filter (nftables, iptables), no reverse path filter,
/// no option or filter of the ordinary socket has had a say in it. When the interface gets another Ethernet address,
/// everything passes from then on, until a new one of these is attached.
///
/// It needs `CAP_BPF` and `CAP_NET_ADMIN` (an engine `CAP_NET_RAW` besides) and Linux 5.10.
pub struct Redirect {
    wanted: Wanted,
    index: u32,
    mtu: usize,
    sockets: Map,
    addresses: Map,
    /// What is in that map.
    known: Mutex<HashSet<Key>>,
    /// What engines are made from before they make sockets of their own.
    laid_in: Mutex<Vec<OwnedFd>>,
    /// Closed with this value, and the program is gone.
    _link: OwnedFd,
}

impl Redirect {
    /// Puts the program at the interface. Nothing is handed over until a queue has an engine.
    ///
    /// # Errors
    /// The [`Refusal`] says why not, and what to do.
    pub fn attach(wanted: &Wanted, addresses: &[IpAddr]) -> Result<Redirect, Refusal> {
        let name = wanted.interface.as_str();
        check_number(addresses).map_err(|text| Refusal::unfit(format!("AF_XDP on {name:?}"), text))?;
        let card = Card::look(name)?;
        let load = |error| Refusal::of(Step::Load, name, error);
        let map = |kind, key_bytes, value_bytes, entries, name| {
            let name = calls::name(name);
            Map::create(&Shape { kind, key_bytes, value_bytes, entries, flags: 0, name }).map_err(load)
        };
        let sockets = map(MAP_OF_SOCKETS, 4, 4, QUEUES_MAX, "mmsg_sockets")?;
        let known = map(MAP_OF_KEYS, KEY_BYTES as u32, 1, ADDRESSES_MAX as u32, "mmsg_addresses")?;
        let filter = Filter { card: card.address, port: wanted.port, tagged: wanted.tagged, otherwise: PASS };
        let program = Program {
            kind: PROGRAM_AT_INTERFACE,
            name: calls::name("mmsg_xdp"),
            // The helpers it calls ask for no particular licence.
            license: c"MIT",
            instructions: &assemble(&filter, known.as_fd(), sockets.as_fd()),
            attach_kind: AT_INTERFACE,
        };
        let program = program.load().map_err(load)?;
        let (step, flags) = match wanted.mode {
            Mode::Native => (Step::AttachNative, IN_DRIVER),
            Mode::Generic => (Step::AttachGeneric, ABOVE_DRIVER),
        };
        let link = calls::attach_to_interface(program.as_fd(), card.index, flags);
        let link = link.map_err(|error| Refusal::of(step, name, error))?;
        let (index, mtu, wanted) = (card.index, card.mtu, wanted.clone());
        let redirect = Redirect {
            wanted,
            index,
            mtu,
            sockets,
            addresses: known,
            known: Mutex::default(),
            laid_in: Mutex::default(),
            _link: link,
        };
        redirect.set_addresses(addresses).map_err(load)?;
        Ok(redirect)
    }

    /// Hands over what comes to these addresses from now on, and to no others. Those that stay are never without.
    ///
    /// # Errors
    /// There are more than 4,096: then nothing changes. Or the kernel refuses: then what was changed by then stays so,
    /// and the next call goes on from there.
    pub fn set_addresses(&self, addresses: &[IpAddr]) -> io::Result<()> {
        check_number(addresses).map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // By their keys: an IPv4 address and the same in IPv6 clothes are one.
        let wanted: HashSet<Key> = addresses.iter().map(|address| key(*address)).collect();
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
        &self.wanted
    }

    /// The MTU of the interface when this was attached.
    pub(super) fn mtu(&self) -> usize {
        self.mtu
    }

    /// What a refusal is about.
    pub(super) fn subject(&self, queue: u32) -> String {
        format!("{}, receive queue {queue}", self.wanted.interface)
    }

    /// From now on the frames of a queue go to this socket, which is bound to it.
    pub(super) fn hand_over(&self, queue: u32, socket: [u8; 4]) -> Result<(), Refusal> {
        let result = self.sockets.update(&queue.to_ne_bytes(), &socket);
        result.map_err(|error| Refusal::of(Step::Redirect, &self.subject(queue), error))
    }

    /// From now on the frames of a queue go to the stack.
    pub(super) fn let_pass(&self, queue: u32) -> io::Result<()> {
        // The kernel itself takes a socket out that is bound to nothing any more.
        taken_out(self.sockets.remove(&queue.to_ne_bytes()))
    }
}

fn check_number(addresses: &[IpAddr]) -> Result<(), String> {
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

impl fmt::Debug for Redirect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Redirect").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// What the program has to know of an interface.
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
                "it is no Ethernet interface, and frames of other kinds are not read: use another engine there"
                    .to_owned(),
            ));
        }
        let address = std::array::from_fn(|byte| hardware[2 + byte]);
        Ok(Card { index: number(&index), mtu: number(&mtu) as usize, address })
    }
}
