//! What stands at the interface: the program, attached as a link. It goes when the last descriptor of the link is
//! closed, so with the process, however that ends.
//!
//! One for each interface, shared by the engines of its queues. An engine puts its socket into the map of sockets when
//! it can receive, and takes it out before it ends; a queue without a socket is received by the kernel's stack, as if
//! nothing were there. The program itself and its maps outlive the interface, see `loaded.rs`.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys;

use super::loaded::{Loaded, Standing, check_number};
use super::options::Wanted;
use super::refusal::{Refusal, Step};
use super::umem::Umem;

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

impl fmt::Debug for Redirect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Redirect").field("wanted", self.wanted()).finish_non_exhaustive()
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
