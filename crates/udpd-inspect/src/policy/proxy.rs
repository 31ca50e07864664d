//! Whose word is taken for who sent a datagram: a listener behind proxies takes the headers of the PROXY protocol off,
//! from the networks of its proxies and from nobody else.
//!
//! It is done before anything looks at a datagram, so that every policy, key, path and record is of the true sender. A
//! datagram of a proxy without a header that can be read is dropped: its sender is not known, and the proxy is not it.
//! One of anybody else is taken as it came, and dropped when it begins like a header: nobody sends such bytes for
//! another reason than to be believed.

use std::sync::Arc;

use mmsg::RecvBatch;
use mmsg::proxy::Flaw;

use super::access::AccessList;
use super::settings::Proxies;
use udpd_base::capture::headers;
use udpd_base::ledger::tables::ListenerDropped;

/// What takes the headers off at one lane.
#[derive(Debug, Clone)]
pub struct Unwrapper {
    trusted: Arc<AccessList>,
}

impl Unwrapper {
    /// That of a listener, which its lanes share; `None` where it reads no headers.
    pub fn new(proxies: &Proxies) -> Option<Self> {
        proxies.protocol.then(|| Self { trusted: Arc::new(AccessList::new(&proxies.from, &[])) })
    }

    /// Takes the headers off, and drops and counts what may not come without or with one.
    pub fn apply(&self, batch: &mut RecvBatch, dropped: &mut ListenerDropped) {
        batch.unwrap_proxied(|datagram, header| {
            let is_trusted = self.trusted.accepts(headers::source(datagram).ip());
            let counter = match (is_trusted, header) {
                (true, Ok(())) | (false, Err(Flaw::Missing)) => return true,
                (true, Err(Flaw::Missing)) => &mut dropped.proxy_missing,
                (true, Err(Flaw::Malformed)) => &mut dropped.proxy_malformed,
                (false, _) => &mut dropped.proxy_untrusted,
            };
            *counter += 1;
            false
        });
    }
}
