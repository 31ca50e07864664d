//! The metrics address: bound before the daemon takes its first datagram, and served by one thread from then on.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use super::answers::Answers;
use super::token::TokenFile;
use crate::exchange::Service;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::os::threads::ThreadRegistry;

/// A bound endpoint that nobody serves yet.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsServer {
    pub fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|error| {
            let (code, cure) = match error.kind() {
                ErrorKind::AddrInUse => {
                    let cure = format!("`ss -ltnp sport = :{}` shows who has it; choose another port", address.port());
                    (ExitCode::Unavailable, cure)
                }
                ErrorKind::AddrNotAvailable => {
                    (ExitCode::Unavailable, "no interface has this address; choose one of this host".into())
                }
                ErrorKind::PermissionDenied => (ExitCode::Permission, "choose a port above 1023".into()),
                _ => (ExitCode::Unavailable, "choose another address".into()),
            };
            let way_out = "or set metrics_address to \"\" to run without";
            Failure::new(code, format!("cannot bind metrics_address = \"{address}\": {error}; {cure}, {way_out}"))
        })?;
        Ok(Self { listener, address })
    }

    /// Where it is bound, with the port that the kernel chose if the port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from what `snapshot` returns, on a thread of its own, until stopped: everybody who can connect, or those
    /// who have the token.
    pub fn serve(
        self,
        registry: &ThreadRegistry,
        token: Option<TokenFile>,
        snapshot: impl Fn() -> Snapshot + Send + 'static,
    ) -> Result<MetricsHandle, Failure> {
        if token.is_none() && !self.address.ip().is_loopback() {
            log::warn!(
                "everybody who can reach metrics_address = \"{}\" can see the metrics and the page, with the addresses \
                 of the busiest senders; set metrics_token_file, or let a firewall decide who reaches it",
                self.address
            );
        }
        let answers = Answers::new(snapshot, token, self.address.ip().is_loopback());
        let service = Service::start("udpd-metrics", self.listener, registry, answers)?;
        Ok(MetricsHandle { service })
    }
}

/// An endpoint that is being served.
#[derive(Debug)]
#[must_use = "the endpoint is served until it is stopped"]
pub struct MetricsHandle {
    service: Service<TcpListener>,
}

impl MetricsHandle {
    /// Ends the service. Who is owed an answer has a second to take it.
    pub fn stop(self) {
        self.service.stop();
    }
}
