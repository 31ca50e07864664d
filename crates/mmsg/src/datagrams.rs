//! The datagrams of a batch, one after the other, with trains split and discarded ones left out; and what discards
//! them.

use std::fmt;
use std::iter::FusedIterator;
use std::net::SocketAddr;

use crate::batch::RecvBatch;
use crate::datagram::{Datagram, Message};
use crate::proxy::{self, Flaw};

/// Iterator over the datagrams of a batch.
#[derive(Clone)]
pub struct Datagrams<'a> {
    batch: &'a RecvBatch,
    next_slot: usize,
    slot: usize,
    /// What is in `slot`, read once for all datagrams of its train.
    message: Option<Message<'a>>,
    /// The datagrams of `slot` that are still to come.
    left: u128,
}

impl RecvBatch {
    /// The datagrams in the order they were received, trains split, without those that were discarded.
    #[inline]
    pub fn datagrams(&self) -> Datagrams<'_> {
        Datagrams { batch: self, next_slot: 0, slot: 0, message: None, left: 0 }
    }

    /// Discards the datagrams for which `keep` says no. Returns how many that were.
    pub fn retain(&mut self, mut keep: impl FnMut(&Datagram<'_>) -> bool) -> usize {
        self.sift(0, |datagram| keep(datagram).then_some(0))
    }

    /// Takes off the PROXY headers of the datagrams received since the last such call or since the batch was cleared:
    /// from then on they are shown without them, with the senders that the headers name. `keep` is given each datagram
    /// as it came, and what is wrong with its header; it discards those for which it says no. A datagram without a
    /// header that is kept is shown as it came.
    pub fn unwrap_proxied(&mut self, mut keep: impl FnMut(&Datagram<'_>, Result<(), Flaw>) -> bool) -> usize {
        let discarded = self.sift(self.unwrapped_slots(), |datagram| {
            let header = datagram.proxy_header();
            keep(datagram, header.map(|_| ())).then(|| header.map_or(0, |header| header.bytes))
        });
        self.show_unwrapped();
        discarded
    }
}

impl RecvBatch {
    /// The same as [`unwrap_proxied`](Self::unwrap_proxied) for proxies that put a header before the first datagram of
    /// a flow only. `keep` is also given the sender that a header names (`Ok(None)` where it names none), and a place
    /// for the sender of datagrams without a header. A train, which is of one flow, has one such place: what `keep`
    /// writes there holds for all of its datagrams without a header.
    pub fn unwrap_flows(
        &mut self,
        mut keep: impl FnMut(&Datagram<'_>, Result<Option<SocketAddr>, Flaw>, &mut Option<SocketAddr>) -> bool,
    ) -> usize {
        let discarded = self.sift_renaming(self.unwrapped_slots(), |datagram, sender| {
            let header = datagram.proxy_header();
            let named = header.map(|header| header.name(datagram.payload()).and_then(proxy::source));
            keep(datagram, named, sender).then(|| header.map_or(0, |header| header.bytes))
        });
        self.show_unwrapped();
        discarded
    }
}

impl<'a> IntoIterator for &'a RecvBatch {
    type Item = Datagram<'a>;
    type IntoIter = Datagrams<'a>;

    fn into_iter(self) -> Datagrams<'a> {
        self.datagrams()
    }
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'a>> {
        if self.batch.is_masked() {
            return self.next_kept();
        }
        // Every slot is one datagram: nothing to split, and nothing was discarded.
        let slot = self.next_slot;
        if slot == self.batch.used_slots() {
            return None;
        }
        self.next_slot += 1;
        Some(Datagram::whole(&self.batch.message(slot)))
    }
}

impl<'a> Datagrams<'a> {
    /// The next one of a train, or that was not discarded.
    fn next_kept(&mut self) -> Option<Datagram<'a>> {
        while self.left == 0 {
            if self.next_slot == self.batch.used_slots() {
                return None;
            }
            self.slot = self.next_slot;
            self.next_slot += 1;
            self.left = self.batch.kept(self.slot);
            self.message = (self.left != 0).then(|| self.batch.message(self.slot));
        }
        let ordinal = self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        let message = self.message.as_ref()?;
        Some(self.batch.datagram(message, self.slot, ordinal))
    }
}

impl FusedIterator for Datagrams<'_> {}

impl fmt::Debug for Datagrams<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.clone()).finish()
    }
}
