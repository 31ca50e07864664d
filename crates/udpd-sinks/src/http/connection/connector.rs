//! Connections to the server: at the addresses that its name has now, and by TLS as the sink has it.
//!
//! ureq would look names up itself, on a thread that may not, and knows certificates in a way of its own. What is
//! written here instead also knows whether any of a body has left: a request that has failed before that is not in
//! doubt.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustls::ClientConfig;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};
use ureq::{Error, Timeout};

use super::tls_transport::TlsTransport;
use crate::target::{DestinationTarget, FIRST_ANSWER};
use crate::tcp::search::{PeerSearch, SearchState};
use crate::tls::TlsSettings;
use udpd_base::seams::clock;
use udpd_base::seams::waits::lock;
use udpd_base::text::address::parse_peer;

/// How often a connection that is being made looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is known of a request while it is on its way.
#[derive(Debug, Default)]
pub(in crate::http) struct RequestWatch {
    /// It is sent by a connection that was made for it.
    is_on_new_connection: AtomicBool,
    is_under_way: AtomicBool,
    is_body_begun: AtomicBool,
    has_body_left: AtomicBool,
    is_interrupted: AtomicBool,
    /// Where the last connection went.
    address: Mutex<Option<SocketAddr>>,
}

impl RequestWatch {
    /// Another request begins.
    pub(super) fn begin(&self) {
        for flag in [&self.is_on_new_connection, &self.is_under_way, &self.is_body_begun, &self.has_body_left] {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// What is written from now on is the body.
    pub(super) fn note_body(&self) {
        self.is_body_begun.store(true, Ordering::Relaxed);
    }

    /// Bytes were given to the kernel.
    fn note_written(&self) {
        if self.is_body_begun.load(Ordering::Relaxed) {
            self.has_body_left.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the server may have some of the body.
    pub(super) fn has_body_left(&self) -> bool {
        self.has_body_left.load(Ordering::Relaxed)
    }

    /// Whether it went to a connection that was there before, and so may have been closed by the server at any time.
    pub(super) fn is_on_old_connection(&self) -> bool {
        self.is_under_way.load(Ordering::Relaxed) && !self.is_on_new_connection.load(Ordering::Relaxed)
    }

    /// No connection is wanted any more.
    pub(in crate::http) fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }
}

/// The addresses of the server, or of the proxy before it.
#[derive(Debug)]
pub(super) struct TargetResolver {
    pub(super) target: Arc<DestinationTarget>,
    pub(super) watch: Arc<RequestWatch>,
}

impl Resolver for TargetResolver {
    fn resolve(&self, _: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        self.target.settle(clock::now() + FIRST_ANSWER.min(*timeout.after));
        let before = *lock(&self.watch.address);
        let now = self.target.now(before)?;
        let mut addresses = self.empty();
        // There is room for a few, and more are not tried.
        let _ = now.iter().try_for_each(|address| addresses.try_push(*address));
        Ok(addresses)
    }
}

/// Makes connections.
#[derive(Debug)]
pub(super) struct HttpConnector {
    pub(super) tls: TlsSettings,
    pub(super) client: Option<Arc<ClientConfig>>,
    pub(super) watch: Arc<RequestWatch>,
}

impl<In: Transport> Connector<In> for HttpConnector {
    type Out = Box<dyn Transport>;

    /// `chained` leads through a proxy.
    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, Error> {
        self.watch.is_on_new_connection.store(true, Ordering::Relaxed);
        let transport: Box<dyn Transport> = match chained {
            Some(tunnel) => Box::new(tunnel),
            None => Box::new(self.reach(details)?),
        };
        let client = match &self.client {
            Some(client) if details.needs_tls() && !transport.is_tls() => Arc::clone(client),
            _ => return Ok(Some(transport)),
        };
        let (host, port) = (details.uri.host().unwrap_or_default(), details.uri.port_u16().unwrap_or(443));
        let peer = parse_peer(&format!("{host}:{port}")).map_err(|advice| Error::BadUri(advice.to_string()))?;
        let secured = TlsTransport::shake_hands(client, self.tls.name_of(&peer), transport, details)?;
        Ok(Some(Box::new(secured)))
    }
}

impl HttpConnector {
    fn reach(&self, details: &ConnectionDetails<'_>) -> Result<PlainTransport, Error> {
        let addresses: VecDeque<(usize, SocketAddr)> = details.addrs.iter().map(|address| (0, *address)).collect();
        // One that does not answer leaves time for the others.
        let each = *details.timeout.after / addresses.len().max(1) as u32;
        let mut search = PeerSearch::new(addresses, None, each);
        let found = loop {
            match search.look(clock::now()) {
                SearchState::Found(found) => break found,
                SearchState::Failed(_, error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(Error::Timeout(Timeout::Connect));
                }
                SearchState::Failed(_, error) => return Err(Error::Io(error)),
                SearchState::GoesOn if self.watch.is_interrupted() => {
                    return Err(Error::Timeout(Timeout::Connect));
                }
                SearchState::GoesOn => search.wait(LOOK_EVERY),
            }
        };
        *lock(&self.watch.address) = Some(found.address);
        let stream = Arc::new(found.stream.stream);
        stream.set_nonblocking(false)?;
        let handle: Weak<dyn ShutdownHandle> = Arc::downgrade(&stream) as Weak<dyn ShutdownHandle>;
        (details.register_shutdown)(handle)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(PlainTransport { stream, buffers, watch: Arc::clone(&self.watch), is_deaf: false })
    }
}

/// A connection without TLS, or below it.
#[derive(Debug)]
struct PlainTransport {
    stream: Arc<TcpStream>,
    buffers: LazyBuffers,
    watch: Arc<RequestWatch>,
    /// The server reads no more.
    is_deaf: bool,
}

/// How long the next call may take; an error where no time is left.
fn time_left(timeout: NextTimeout) -> Result<Option<Duration>, Error> {
    if timeout.after.is_zero() {
        return Err(Error::Timeout(timeout.reason));
    }
    Ok((!timeout.after.is_not_happening()).then_some(*timeout.after))
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// The time is over, or something else has happened.
fn failed(error: std::io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut if error.raw_os_error() != Some(nix::libc::ETIMEDOUT) => {
            Error::Timeout(timeout.reason)
        }
        _ => Error::Io(error),
    }
}

impl Transport for PlainTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    /// A server that refuses a body by its length answers before it has read it, and closes the connection. So what
    /// cannot be written any more of a body is no error: the answer may be there.
    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let limit = time_left(timeout)?.map(|left| clock::now() + left);
        self.watch.is_under_way.store(true, Ordering::Relaxed);
        let mut written = 0;
        while written < amount && !self.is_deaf {
            let left = limit.map(|limit| limit.saturating_duration_since(clock::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Timeout(timeout.reason));
            }
            self.stream.set_write_timeout(left)?;
            match (&*self.stream).write(&self.buffers.output()[written..amount]) {
                Ok(0) => return Err(Error::Io(ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.watch.note_written();
                    written += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if self.watch.has_body_left() && is_closed(&error) => self.is_deaf = true,
                Err(error) => return Err(failed(error, timeout)),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(time_left(timeout)?)?;
        let room = self.buffers.input_append_buf();
        let read = loop {
            match (&*self.stream).read(room) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(|error| failed(error, timeout))?,
            }
        };
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    /// Whether the server has neither closed it nor said anything unasked.
    fn is_open(&mut self) -> bool {
        let is_silent = || {
            self.stream.set_nonblocking(true).ok()?;
            let seen = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false).ok()?;
            seen.err().map(|error| error.kind() == ErrorKind::WouldBlock)
        };
        !self.is_deaf && is_silent() == Some(true)
    }
}
