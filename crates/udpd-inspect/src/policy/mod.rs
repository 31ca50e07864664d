//! What a listener does not hand on although it arrived: datagrams of sources that it refuses, and what one source
//! sends beyond its share.
//!
//! A policy looks at a batch once, between receiving and handing over, on the receiver's thread and in its own memory:
//! nothing is locked, allocated or logged there. What it drops is counted by reason. Who exceeds the limit is noted in
//! [`Offences`], which the main thread reads once a second and writes about in the log.
//!
//! It is done here, whether or not a filter in the kernel has looked at the source before (`kernel_filter`): that one
//! may be refused to udpd, and is exchanged while datagrams wait in the socket.

mod access;
mod limiter;
pub mod lists;
mod offences;
mod proxy;
mod ranges;
mod settings;

use std::sync::Arc;
use std::time::Instant;

use mmsg::RecvBatch;

use udpd_base::capture::headers;
use udpd_base::ledger::tables::ListenerDropped;

pub use access::AccessList;
pub use access::{Networks, Origin};
pub use limiter::{RateLimiter, TABLE_BYTES};
pub use offences::{NAMED_MAX, Offence, Offences, Others};
pub use proxy::Unwrapper;
pub use settings::{Access, KernelFilter, Limit, Proxies, RATE_LIMIT_MAX};
pub use settings::{RateLimit, parse_network};

/// The policy of one lane.
#[derive(Debug)]
pub struct Policy {
    access: Option<Arc<AccessList>>,
    limiter: Option<RateLimiter>,
    started: Instant,
}

impl Policy {
    /// The policy of a lane, or `None` when it has nothing to look at. The table of the limiter is taken and touched
    /// here: call it on the thread of the lane.
    pub fn new(access: Option<Arc<AccessList>>, limit: Option<(Limit, Arc<Offences>)>) -> Option<Self> {
        if access.is_none() && limit.is_none() {
            return None;
        }
        let limiter = limit.map(|(limit, offences)| RateLimiter::new(limit, offences));
        Some(Self { access, limiter, started: Instant::now() })
    }

    /// Discards and counts what is refused. A source that is denied uses up nothing of a share.
    pub fn apply(&mut self, batch: &mut RecvBatch, dropped: &mut ListenerDropped) {
        let access = self.access.as_deref();
        match &mut self.limiter {
            None => {
                let accepts = |source| access.is_none_or(|access| access.accepts(source));
                dropped.denied += batch.retain(|datagram| accepts(headers::source(datagram).ip())) as u64;
            }
            Some(limiter) => {
                // Once for the batch: what it holds was read in one call, and its order is all there is to know.
                limiter.set_time(self.started.elapsed());
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
