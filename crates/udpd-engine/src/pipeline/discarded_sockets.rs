//! Sockets of an earlier process that no lane adopts, and how what is left in any socket is counted.
//!
//! Each stays where it is until all new ones are bound, so that whatever comes to its address always finds a socket.
//! Then it is taken out of the kernel's search, the datagrams that wait in it are counted, and the kernel is asked how
//! much it has dropped there: once a socket is closed that count is gone. The reports go into the ledger when the start
//! has succeeded.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use mmsg::{BatchShape, Control, RecvBatch, Socket};

use udpd_base::os::holder;
use udpd_base::os::threads::lock;
use udpd_sandbox::privilege_helper;

/// The least that the kernel charges a receive queue with for a message, however short it is.
const MESSAGE_BYTES_MIN: usize = 512;

/// How many datagrams are taken out of a socket at once to be counted.
const SLOTS: usize = 64;

#[derive(Debug)]
pub(super) struct DiscardedSocket {
    /// What it is called where it is kept.
    pub(super) name: String,
    pub(super) listener: String,
    pub(super) socket: Arc<Socket>,
    pub(super) address: SocketAddr,
    pub(super) interface: u32,
    pub(super) why: &'static str,
}

#[derive(Debug, Clone)]
pub(super) struct DiscardReport {
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

#[derive(Debug, Default)]
pub(super) struct DiscardReports(Mutex<Vec<DiscardReport>>);

impl DiscardReports {
    pub(super) fn all(&self) -> MutexGuard<'_, Vec<DiscardReport>> {
        lock(&self.0)
    }

    /// The datagrams that waited in them and are dropped.
    pub(super) fn unread(&self) -> u64 {
        self.all().iter().filter_map(|report| report.unread).sum()
    }

    /// A socket is closed, and what came to it is unknown.
    pub(super) fn note_unknown(&self, listener: &str, address: SocketAddr) {
        let listener = listener.to_owned();
        let unknown =
            DiscardReport { listener, address, inode: 0, is_old: false, has_gro: false, unread: None, drops: None };
        self.all().push(unknown);
    }

    /// Counts what is left in a socket that nothing comes to any more. Where datagrams still come (`is_silent`), the
    /// kernel drops them unseen, so its count of drops is not the last one.
    pub(super) fn count(
        &self,
        listener: &str,
        address: SocketAddr,
        socket: &Socket,
        is_old: bool,
        is_silent: bool,
    ) -> io::Result<u64> {
        let mut unread = 0;
        let outcome = count_out(socket, |datagrams| unread += datagrams);
        self.all().push(DiscardReport {
            listener: listener.to_owned(),
            address,
            inode: holder::inode_of(socket).unwrap_or(0),
            is_old,
            has_gro: socket.has_gro(),
            unread: outcome.is_ok().then_some(unread),
            drops: socket.memory_info().ok().filter(|_| !is_silent).map(|memory| memory.drops),
        });
        outcome.map(|()| unread)
    }
}

pub(super) fn hold_at_most(sockets: &[DiscardedSocket]) -> u64 {
    let room = |own: &DiscardedSocket| own.socket.receive_buffer(0).map_or(0, |buffer| buffer.granted_bytes);
    sockets.iter().map(|own| (2 * room(own) / MESSAGE_BYTES_MIN) as u64).sum()
}

/// Closes all of them. What fails is logged, and leaves their number unknown.
pub(super) fn close(sockets: &[DiscardedSocket], reports: &DiscardReports) {
    if sockets.is_empty() {
        return;
    }
    // From the end: when a socket leaves a group the last of the group takes its number.
    let leave = |own: &DiscardedSocket| own.socket.is_withdrawn() || withdraw(own);
    let has_left: Vec<bool> = sockets.iter().rev().map(leave).collect();
    if let Err(error) = mmsg::wait_for_arrivals_under_way() {
        log::debug!("cannot wait for what the kernel still delivers: {error}");
    }
    for (own, has_left) in sockets.iter().zip(has_left.into_iter().rev()) {
        let DiscardedSocket { name, listener, address, why, .. } = own;
        let closed = format!("closed the socket {name} for {address} of an earlier process: {why}");
        match reports.count(listener, *address, &own.socket, true, !has_left) {
            Ok(0) => log::info!("{closed}; it was empty"),
            Ok(lost) => log::warn!("{closed}; dropped {lost} datagrams that waited in it, counted as unread"),
            Err(error) => log::error!(
                "{closed}; cannot read what waited in it: {error}; it is not known how many datagrams that is"
            ),
        }
    }
}

/// Takes a socket out of the kernel's search; `false` where it stays there until the last descriptor of it is closed.
fn withdraw(DiscardedSocket { name, socket, address, .. }: &DiscardedSocket) -> bool {
    let Err(error) = privilege_helper::withdraw(socket) else { return true };
    let refusal = socket.refuse_arrivals().err().map(|error| format!(" (SO_ATTACH_FILTER: {error})"));
    log::warn!(
        "cannot take the socket {name} for {address} of an earlier process out of the kernel's search: {error}; the \
         kernel refuses what comes there until it is closed{}, and how much that is is not known; grant CAP_NET_RAW",
        refusal.unwrap_or_default()
    );
    false
}

/// Takes everything out of a socket only to count it, and calls `found` with the number of datagrams in each batch. The
/// batch has room for all control messages that a socket may add, because a train without its segment size could not be
/// counted.
pub(super) fn count_out(socket: &Socket, mut found: impl FnMut(u64)) -> io::Result<()> {
    let control = Control::new().packet_info(true).timestamps(true).gro(true).drop_overflow(true);
    let mut batch = RecvBatch::new(&BatchShape::new(SLOTS, 1).control(control))?;
    loop {
        batch.clear();
        if batch.receive_each(socket)? == 0 {
            return Ok(());
        }
        found(batch.summary().datagrams + batch.summary().unsplit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_in_a_socket_is_counted_by_datagrams_also_when_it_is_trains() {
        for gro in [false, true] {
            let socket = Socket::new(mmsg::Family::V4).expect("a socket");
            if gro {
                socket.set_gro(true).expect("GRO");
            }
            socket.set_packet_info(true).expect("packet info");
            socket.set_timestamps(true).expect("timestamps");
            socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
            let sender = Socket::new(mmsg::Family::V4).expect("a socket");
            sender.connect(socket.local_addr().expect("bound")).expect("connected");
            let mut batch = mmsg::SendBatch::new(4, 65_000).expect("memory");
            for (size, count) in [(100, 40), (7, 1), (1_400, 12), (1, 64)] {
                batch.push_segmented(&vec![0; size * count], size as u16, None).expect("queued");
            }
            batch.flush(&sender).expect("sent").all_sent().expect("all of it");
            sender.interrupt().expect("interrupted");
            let count = || {
                let mut all = 0;
                count_out(&socket, |datagrams| all += datagrams).expect("readable");
                all
            };
            assert_eq!(count(), 40 + 1 + 12 + 64, "GRO {gro}");
            assert_eq!(count(), 0, "GRO {gro}");
        }
    }
}
