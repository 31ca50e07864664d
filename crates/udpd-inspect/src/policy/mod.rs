//! Which datagrams a listener drops although they arrived: those of refused sources, those beyond the rate limit of
//! their source, and those with wrong headers of proxies.
//!
//! A policy checks a batch once, between receiving and handing over, on the receiver's thread and in its own memory:
//! nothing is locked, allocated or logged there. What it drops is counted by reason. Sources that exceed the limit are
//! noted in [`Offences`], which the main thread reads once a second and logs.
//!
//! Sources are checked here even where a filter in the kernel has checked them before (`kernel_filter`): the kernel may
//! refuse the filter to udpd, and the filter is exchanged while datagrams wait in the socket.

mod access;
mod flows;
mod limiter;
pub mod lists;
mod offences;
mod ranges;
mod settings;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use mmsg::RecvBatch;
use mmsg::proxy::Flaw;

use udpd_base::capture::headers;
use udpd_base::ledger::LaneTally;
use udpd_base::ledger::counter_list::ListenerDropped;
use udpd_base::seams::clock;

use self::flows::{FlowTable, Named, SharedFlows};

pub use access::{AccessList, Conflict, NetworkOrigin, Networks};
pub use flows::FLOW_TABLE_BYTES;
pub use limiter::{RateLimiter, TABLE_BYTES};
pub use offences::{NAMED_MAX, Offence, Offences, Others};
pub use settings::{
    Access, KernelFilter, Proxies, ProxyProtocol, RATE_LIMIT_MAX, RateLimit, SourceLimit, parse_network,
};

/// The policy of one lane.
#[derive(Debug)]
pub struct Policy {
    access: Option<Arc<AccessList>>,
    limiter: Option<RateLimiter>,
    started: Instant,
}

impl Policy {
    /// The policy of a lane, or `None` when there is nothing to check. The memory of the limiter is allocated and
    /// touched here: call it on the thread of the lane.
    pub fn new(access: Option<Arc<AccessList>>, limit: Option<(SourceLimit, Arc<Offences>)>) -> Option<Self> {
        if access.is_none() && limit.is_none() {
            return None;
        }
        let limiter = limit.map(|(limit, offences)| RateLimiter::new(limit, offences));
        Some(Self { access, limiter, started: clock::now() })
    }

    /// Discards and counts what is refused. A denied source uses no tokens.
    pub fn apply(&mut self, batch: &mut RecvBatch, dropped: &mut ListenerDropped) {
        let access = self.access.as_deref();
        match &mut self.limiter {
            None => {
                let accepts = |source| access.is_none_or(|access| access.accepts(source));
                dropped.denied += batch.retain(|datagram| accepts(headers::source(datagram).ip())) as u64;
            }
            Some(limiter) => {
                // Once for the batch: all of it was received in one call.
                limiter.set_time(clock::since(self.started));
                batch.retain(|datagram| {
                    let source = headers::source(datagram).ip();
                    if access.is_some_and(|access| !access.accepts(source)) {
                        dropped.denied += 1;
                        return false;
                    }
                    let admitted = limiter.admits(source);
                    dropped.rate_limited += u64::from(!admitted);
                    admitted
                });
                limiter.publish();
            }
        }
    }
}

/// Removes the headers of the PROXY protocol at one lane, where the listener is behind proxies.
///
/// This comes before anything else looks at a datagram, so that every policy, key, path and record is of the true
/// sender. A datagram of a proxy without a readable header is dropped: the proxy is not its sender. A datagram from
/// elsewhere is taken as it came, but dropped if it begins like a header: nothing else begins so.
#[derive(Debug, Clone)]
pub struct Unwrapper {
    trusted: Arc<AccessList>,
    /// Where only the first datagram of a flow has a header.
    flows: Option<Arc<SharedFlows>>,
    /// The address that is sent to, as the table knows it.
    to: u32,
}

impl Unwrapper {
    /// `None` where the listener of this name reads no headers. Its lanes share it.
    pub fn new(listener: &str, proxies: &Proxies) -> Option<Self> {
        let flows = match proxies.protocol {
            ProxyProtocol::Off => return None,
            ProxyProtocol::V2 => None,
            ProxyProtocol::V2First => Some(flows::of_listener(listener)),
        };
        Some(Self { trusted: Arc::new(AccessList::new(&proxies.from, &[])), flows, to: 0 })
    }

    /// The same for a lane that receives at this address.
    pub fn at(self, address: SocketAddr) -> Self {
        Self { to: flows::number_of_destination(address), ..self }
    }

    /// Removes the headers. Drops and counts datagrams that lack one, and those that must not have one.
    pub fn apply(&self, batch: &mut RecvBatch, tally: &mut LaneTally) {
        if let Some(flows) = &self.flows {
            return self.apply_by_flow(&mut flows.lock().unwrap_or_else(PoisonError::into_inner), batch, tally);
        }
        let dropped = &mut tally.dropped;
        batch.unwrap_proxied(|datagram, header| {
            let is_trusted = self.trusted.accepts(headers::source(datagram).ip());
            header_counts(is_trusted, header, dropped)
        });
    }

    fn apply_by_flow(&self, flows: &mut FlowTable, batch: &mut RecvBatch, tally: &mut LaneTally) {
        // Once for the batch: all of it was received in one call.
        let now_s = flows.now_s();
        let LaneTally { dropped, proxy_flows_evicted, proxy_flows_changed, .. } = tally;
        batch.unwrap_flows(|datagram, header, sender| {
            let proxy = headers::source(datagram);
            let is_trusted = self.trusted.accepts(proxy.ip());
            if is_trusted && let Ok(named) = header {
                // A header that names none says that the proxy itself is the sender.
                let outcome = flows.name(proxy, self.to, named.unwrap_or(proxy), now_s);
                *proxy_flows_evicted += u64::from(outcome == Named::Evicts);
                *proxy_flows_changed += u64::from(outcome == Named::Changes);
            }
            let is_shown_by_slot = is_trusted && matches!(header, Ok(None) | Err(Flaw::Missing));
            let known = if is_shown_by_slot { flows.sender(proxy, self.to, now_s) } else { None };
            match known {
                // A train has one place for a sender; what was of another one there is lost.
                Some(known) if sender.is_none_or(|own| own == known) => {
                    *sender = Some(known);
                    true
                }
                Some(_) => header_counts(true, Err(Flaw::Missing), dropped),
                None => header_counts(is_trusted, header.map(|_| ()), dropped),
            }
        });
    }
}

/// Whether a datagram is kept for its header, or the lack of one; counts it otherwise.
fn header_counts(is_trusted: bool, header: Result<(), Flaw>, dropped: &mut ListenerDropped) -> bool {
    let counter = match (is_trusted, header) {
        (true, Ok(())) | (false, Err(Flaw::Missing)) => return true,
        (true, Err(Flaw::Missing)) => &mut dropped.proxy_missing,
        (true, Err(Flaw::Malformed)) => &mut dropped.proxy_malformed,
        (false, _) => &mut dropped.proxy_untrusted,
    };
    *counter += 1;
    false
}
