//! The flows behind proxies that put a header before the first datagram of each only (`proxy_protocol = "v2-first"`): a
//! table whose size is fixed at the start.
//!
//! A flow is a port of a proxy that sends to an address of the listener. A header there names its sender until the next
//! one. A flow that has been silent for long is forgotten, because its port may be another sender's by now. When a new
//! one finds no place, the one goes that has been silent for longest.
//!
//! The lanes of a listener share its table, because flows change their lanes when those change. It is locked once for
//! each batch. A reload goes on with the table that the listener of this name has.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::offences::number_of;
use udpd_base::seams::clock;

/// Places in the table of a listener.
const FLOWS: usize = 1 << 16;

/// Places for one hash.
const WAYS: usize = 4;

/// The memory of a table.
pub const FLOW_TABLE_BYTES: usize = FLOWS * size_of::<Flow>();

/// For how long a silent flow is remembered. Balancers forget theirs sooner.
const IDLE_S: u32 = 300;

/// The sender behind a port of a proxy.
#[derive(Debug, Clone, Copy)]
struct Flow {
    proxy: u128,
    port: u16,
    /// A hash of the address that it sends to.
    to: u32,
    /// When the last datagram came, in seconds from the start; 0 = the place is free.
    used_s: u32,
    sender: SocketAddr,
}

impl Flow {
    fn has_key_of(&self, other: &Flow) -> bool {
        (self.proxy, self.port, self.to) == (other.proxy, other.port, other.to)
    }
}

#[derive(Debug)]
pub(super) struct FlowTable {
    flows: Box<[Flow]>,
    hasher: RandomState,
    started: Instant,
}

/// What became of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Known,
    /// Another flow, which was in use, has lost its place.
    Evicts,
    /// The flow was in use by another sender.
    Changes,
}

impl FlowTable {
    fn new(flows: usize) -> Self {
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let free = Flow { proxy: 0, port: 0, to: 0, used_s: 0, sender: unspecified };
        Self { flows: vec![free; flows].into_boxed_slice(), hasher: RandomState::new(), started: clock::now() }
    }

    /// Seconds since the start. The first is 1.
    pub(super) fn now_s(&self) -> u32 {
        clock::since(self.started).as_secs() as u32 + 1
    }

    /// A header names the sender of a flow.
    pub(super) fn name(&mut self, proxy: SocketAddr, to: u32, sender: SocketAddr, now_s: u32) -> Named {
        let flow = Flow { proxy: number_of(proxy.ip()), port: proxy.port(), to, used_s: now_s, sender };
        let ways = self.ways(&flow);
        let own = ways.iter().position(|way| way.has_key_of(&flow) && way.used_s > 0);
        let place = own.or_else(|| (0..WAYS).min_by_key(|&place| ways[place].used_s)).unwrap_or(0);
        let before = std::mem::replace(&mut ways[place], flow);
        let was_used = before.used_s > 0 && now_s.saturating_sub(before.used_s) < IDLE_S;
        match own {
            None if was_used => Named::Evicts,
            Some(_) if was_used && before.sender != sender => Named::Changes,
            _ => Named::Known,
        }
    }

    /// The sender of a datagram without a header.
    pub(super) fn sender(&mut self, proxy: SocketAddr, to: u32, now_s: u32) -> Option<SocketAddr> {
        let key = Flow { proxy: number_of(proxy.ip()), port: proxy.port(), to, used_s: now_s, sender: proxy };
        let is_own =
            |way: &&mut Flow| way.has_key_of(&key) && way.used_s > 0 && now_s.saturating_sub(way.used_s) < IDLE_S;
        let own = self.ways(&key).iter_mut().find(is_own)?;
        own.used_s = now_s;
        Some(own.sender)
    }

    fn ways(&mut self, flow: &Flow) -> &mut [Flow] {
        let sets = self.flows.len() / WAYS;
        // The number of sets is a power of two, and every bit of the hash is as good as another.
        let first = (self.hasher.hash_one((flow.proxy, flow.port, flow.to)) as usize & (sets - 1)) * WAYS;
        &mut self.flows[first..first + WAYS]
    }
}

pub(super) type SharedFlows = Mutex<FlowTable>;

/// The tables of this process, by listener.
static TABLES: Mutex<Vec<(String, Weak<SharedFlows>)>> = Mutex::new(Vec::new());

/// The table of the listener of this name, which is a new one where no lane has it.
pub(super) fn of_listener(name: &str) -> Arc<SharedFlows> {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    tables.retain(|(_, table)| table.strong_count() > 0);
    let known = tables.iter().filter(|(listener, _)| listener == name).find_map(|(_, table)| table.upgrade());
    known.unwrap_or_else(|| {
        let table = Arc::new(Mutex::new(FlowTable::new(FLOWS)));
        tables.push((name.to_owned(), Arc::downgrade(&table)));
        table
    })
}

/// What tells the flows to one address of a listener from those to another; the same for the life of this process.
pub(super) fn number_of_destination(to: SocketAddr) -> u32 {
    let mut hasher = DefaultHasher::new();
    to.hash(&mut hasher);
    hasher.finish() as u32
}

#[cfg(test)]
#[path = "flows_tests.rs"]
mod tests;
