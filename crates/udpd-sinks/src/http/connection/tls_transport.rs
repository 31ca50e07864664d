//! TLS over a connection that is there, with the certificates that the sink names.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, StreamOwned};
use ureq::Error;
use ureq::unversioned::transport::time::Duration as TimeLeft;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, LazyBuffers, NextTimeout, Transport, TransportAdapter};

use crate::tcp::peer_stream::VERDICT;

type Connection = Box<dyn Transport>;

pub(super) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter<Connection>>,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsTransport").finish_non_exhaustive()
    }
}

impl TlsTransport {
    /// Does the handshake, and waits until the server is known to be content with it.
    ///
    /// In TLS 1.3 it is over here before the server has judged our certificate, or missed one. So the first ticket is
    /// waited for, which a server sends when it is content, and where none comes [`VERDICT`]: a request that follows is
    /// one that the server reads.
    pub(super) fn shake_hands(
        client: Arc<ClientConfig>,
        name: ServerName<'static>,
        transport: Connection,
        details: &ConnectionDetails<'_>,
    ) -> Result<Self, Error> {
        let mut connection = ClientConnection::new(client, name).map_err(io::Error::other)?;
        let mut below = TransportAdapter::new(transport, details.current_time.clone());
        below.set_timeout(details.timeout);
        connection.complete_io(&mut below)?;
        if connection.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
            below.set_timeout(NextTimeout { after: shorter(details.timeout, VERDICT), ..details.timeout });
            await_ticket(&mut connection, &mut below)?;
        }
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Self { buffers, stream: StreamOwned::new(connection, below) })
    }
}

fn shorter(timeout: NextTimeout, limit: Duration) -> TimeLeft {
    TimeLeft::Exact((*timeout.after).min(limit))
}

/// Reads until a ticket has come, or no time is left.
fn await_ticket(connection: &mut ClientConnection, below: &mut TransportAdapter<Connection>) -> Result<(), Error> {
    while connection.tls13_tickets_received() == 0 {
        match connection.read_tls(below) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its program has ended the handshake").into());
            }
            Ok(_) => {}
            Err(error) => match Error::from(error) {
                Error::Timeout(_) => return Ok(()),
                error => return Err(error),
            },
        }
        connection.process_new_packets().map_err(io::Error::other)?;
    }
    Ok(())
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        let Self { buffers, stream } = self;
        stream.write_all(&buffers.output()[..amount])?;
        stream.flush()?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let Self { buffers, stream } = self;
        let read = stream.read(buffers.input_append_buf())?;
        buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
