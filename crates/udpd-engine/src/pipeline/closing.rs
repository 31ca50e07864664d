//! Sockets of an earlier process that no lane goes on with.
//!
//! Each stays where it is until all new ones are bound, so that whatever comes to its address always finds a socket.
//! Then it is taken out of the kernel's search, what waits in it is counted out, and the kernel is asked how much it
//! has dropped there: once a socket is closed that count is gone. What was found goes into the books when the start has
//! succeeded.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mmsg::Socket;

use super::sweep;
use udpd_base::os::holder;
use udpd_sandbox::warden;

/// The least that the kernel charges a receive queue with for a message, however short it is.
const MESSAGE_BYTES_MIN: usize = 512;

/// One that is to be closed.
#[derive(Debug)]
pub(super) struct Closing {
    /// What it is called where it is kept.
    pub(super) name: String,
    pub(super) listener: String,
    pub(super) socket: Arc<Socket>,
    pub(super) address: SocketAddr,
    pub(super) interface: u32,
    pub(super) why: &'static str,
}

/// What was found in one that is closed.
#[derive(Debug, Clone)]
pub(super) struct Closed {
    pub(super) listener: String,
    pub(super) address: SocketAddr,
    pub(super) inode: u64,
    /// An earlier process has left it.
    pub(super) is_old: bool,
    /// Trains count as one among its drops.
    pub(super) has_gro: bool,
    /// The datagrams that waited in it; `None` where they could not be read.
    pub(super) unread: Option<u64>,
    /// The kernel's count of drops there; `None` where that is not the last one.
    pub(super) drops: Option<u32>,
}

/// What was found in all of them.
#[derive(Debug, Default)]
pub(super) struct Found(Mutex<Vec<Closed>>);

impl Found {
    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Closed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The datagrams that waited in them and are dropped.
    pub(super) fn unread(&self) -> u64 {
        self.all().iter().filter_map(|closed| closed.unread).sum()
    }

    /// A socket is closed of which nobody knows what came to it.
    pub(super) fn note_unknown(&self, (listener, address): (&str, SocketAddr)) {
        let listener = listener.to_owned();
        let nothing = Closed { listener, address, inode: 0, is_old: false, has_gro: false, unread: None, drops: None };
        self.all().push(nothing);
    }

    /// Counts out a socket of a listener that nothing comes to any more, unless `is_silent`: what the kernel drops
    /// there nobody sees.
    pub(super) fn count_out(
        &self,
        (listener, address): (&str, SocketAddr),
        socket: &Socket,
        (is_old, is_silent): (bool, bool),
    ) -> io::Result<u64> {
        let mut unread = 0;
        let outcome = sweep::count_out(socket, |datagrams| unread += datagrams);
        let drops = socket.memory_info().ok().filter(|_| !is_silent).map(|memory| memory.drops);
        let inode = holder::inode_of(socket).unwrap_or(0);
        let (listener, has_gro) = (listener.to_owned(), socket.has_gro());
        let counted = outcome.as_ref().ok().map(|()| unread);
        self.all().push(Closed { listener, address, inode, is_old, has_gro, unread: counted, drops });
        outcome.map(|()| unread)
    }
}

/// How many datagrams can wait in those that are closed.
pub(super) fn hold_at_most(closing: &[Closing]) -> u64 {
    let room = |own: &Closing| own.socket.receive_buffer(0).map_or(0, |buffer| buffer.granted_bytes);
    closing.iter().map(|own| (2 * room(own) / MESSAGE_BYTES_MIN) as u64).sum()
}

/// Closes all of them. What fails is said, and leaves their number unknown.
pub(super) fn close(closing: &[Closing], found: &Found) {
    if closing.is_empty() {
        return;
    }
    // From the end: when one leaves a group the last of the group takes its number.
    let leave = |own: &Closing| own.socket.is_withdrawn() || out_of_the_search(own);
    let has_left: Vec<bool> = closing.iter().rev().map(leave).collect();
    if let Err(error) = mmsg::wait_for_arrivals_under_way() {
        log::debug!("cannot wait for what the kernel still delivers: {error}");
    }
    for (own, has_left) in closing.iter().zip(has_left.into_iter().rev()) {
        let Closing { name, listener, address, why, .. } = own;
        let closed = format!("closed the socket {name} for {address} of an earlier process: {why}");
        match found.count_out((listener, *address), &own.socket, (true, !has_left)) {
            Ok(0) => log::info!("{closed}; it was empty"),
            Ok(lost) => log::warn!("{closed}; dropped {lost} datagrams that waited in it, counted as unread"),
            Err(error) => log::error!(
                "{closed}; cannot read what waited in it: {error}; it is not known how many datagrams that is"
            ),
        }
    }
}

/// Takes a socket out of the kernel's search; `false` where it stays there until the last descriptor of it is closed.
fn out_of_the_search(Closing { name, socket, address, .. }: &Closing) -> bool {
    let Err(error) = warden::withdraw(socket) else { return true };
    let refusal = socket.refuse_arrivals().err().map(|error| format!(" (SO_ATTACH_FILTER: {error})"));
    log::warn!(
        "cannot take the socket {name} for {address} of an earlier process out of the kernel's search: {error}; the \
         kernel refuses what comes there until it is closed{}, and how much that is is not known; grant CAP_NET_RAW",
        refusal.unwrap_or_default()
    );
    false
}
