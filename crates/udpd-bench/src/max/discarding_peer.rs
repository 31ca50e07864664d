//! Peers that read everything and keep nothing: the sinks of a trial send to them instead of the destinations of the
//! configuration. Each has a thread that reads, because a peer that does not read costs a sender less, or more, than
//! one that does.

use std::io::{self, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use mmsg::{BatchShape, Family, RecvBatch, Socket, Wait};
use nix::fcntl::OFlag;
use nix::unistd::{dup2_stdout, pipe2};

use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{ThreadRegistry, blocking};

/// The names of all threads of peers begin with this, so that their time is not counted as the pipeline's.
pub(super) const THREADS: &str = "bench-";

/// The receive buffer of a peer, so that it seldom drops anything.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// What is read at once from a stream.
const READ_BYTES: usize = 256 << 10;

/// A peer; it ends when it is dropped.
#[derive(Debug)]
pub(super) struct StandInPeer {
    ending: Arc<AtomicBool>,
    bell: PeerWaker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum PeerWaker {
    Udp(Arc<Socket>),
    Datagram(PathBuf),
    Stream(PathBuf),
}

impl StandInPeer {
    fn start(
        bell: PeerWaker,
        registry: &ThreadRegistry,
        body: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ending);
        let thread = registry.spawn(format!("{THREADS}peer"), ThreadRole::Unconfined, move || body(&seen))?;
        Ok(Self { ending, bell, thread: Some(thread) })
    }

    /// On a free port of loopback, of IPv6 if `ipv6` and the host has it.
    pub(super) fn udp(ipv6: bool, registry: &ThreadRegistry) -> io::Result<(Self, SocketAddr)> {
        let open = |family, address: SocketAddr| {
            let socket = Socket::new(family)?;
            socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
            socket.bind(address)?;
            Ok(socket)
        };
        let ipv4 = || open(Family::V4, (Ipv4Addr::LOCALHOST, 0).into());
        let socket: io::Result<Socket> = match ipv6 {
            true => open(Family::V6, (Ipv6Addr::LOCALHOST, 0).into()).or_else(|_: io::Error| ipv4()),
            false => ipv4(),
        };
        let socket = Arc::new(socket?);
        let address = socket.local_addr()?;
        let shape = BatchShape::new(64, 64);
        let mut batch = RecvBatch::new(&shape)?;
        let own = Arc::clone(&socket);
        let body = move |ending: &AtomicBool| {
            while !ending.load(Ordering::Relaxed) {
                // An error with one datagram does not matter, because all of them are thrown away.
                let _ = blocking(|| batch.receive(&own, Wait::Block));
            }
        };
        Ok((Self::start(PeerWaker::Udp(socket), registry, body)?, address))
    }

    /// On a Unix datagram socket.
    pub(super) fn unix_datagram(path: &Path, registry: &ThreadRegistry) -> io::Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        let body = move |ending: &AtomicBool| {
            while !ending.load(Ordering::Relaxed) {
                let _ = blocking(|| socket.recv(&mut [0; 1]));
            }
        };
        Self::start(PeerWaker::Datagram(path.to_owned()), registry, body)
    }

    /// On a Unix stream socket; each stream has a reader that ends with it.
    pub(super) fn unix_stream(path: &Path, registry: &ThreadRegistry) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let readers = registry.clone();
        let body = move |ending: &AtomicBool| {
            while let Ok((stream, _)) = blocking(|| listener.accept()) {
                if ending.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = readers.spawn(format!("{THREADS}reader"), ThreadRole::Unconfined, || drain(stream))
                {
                    log::error!("cannot start a reader for a stream: {error}");
                }
            }
        };
        Self::start(PeerWaker::Stream(path.to_owned()), registry, body)
    }
}

impl Drop for StandInPeer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        let woken = match &self.bell {
            PeerWaker::Udp(socket) => socket.interrupt(),
            PeerWaker::Datagram(path) => UnixDatagram::unbound().and_then(|bell| bell.send_to(&[0], path)).map(drop),
            PeerWaker::Stream(path) => UnixStream::connect(path).map(drop),
        };
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn drain(mut stream: impl Read) {
    let mut buffer = vec![0; READ_BYTES];
    while blocking(|| stream.read(&mut buffer)).is_ok_and(|bytes| bytes > 0) {}
}

/// Standard output redirected into a pipe that is read and thrown away, until this is dropped.
#[derive(Debug)]
pub(super) struct Diverted {
    original: OwnedFd,
}

impl Diverted {
    pub(super) fn start(registry: &ThreadRegistry) -> io::Result<Self> {
        let original = io::stdout().as_fd().try_clone_to_owned()?;
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // It ends when the last writer closes the pipe.
        registry
            .spawn(format!("{THREADS}reader"), ThreadRole::Unconfined, move || drain(std::fs::File::from(reader)))?;
        dup2_stdout(&writer)?;
        Ok(Self { original })
    }
}

impl Drop for Diverted {
    fn drop(&mut self) {
        if let Err(error) = dup2_stdout(&self.original) {
            log::error!("cannot go back to standard output: {error}; its reader gets no report");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn peers_take_what_is_sent_and_end_when_they_are_dropped() {
        let registry = ThreadRegistry::new().0;
        let directory = tempfile::tempdir().expect("a directory");
        for ipv6 in [false, true] {
            let (peer, address) = StandInPeer::udp(ipv6, &registry).expect("a port of loopback");
            assert!(address.ip().is_loopback());
            let socket = UdpSocket::bind((address.ip(), 0)).expect("bound");
            socket.send_to(&[7; 9000], address).expect("sent");
            drop(peer);
        }
        let path = directory.path().join("messages");
        let peer = StandInPeer::unix_datagram(&path, &registry).expect("bound");
        let socket = UnixDatagram::unbound().expect("a socket");
        // Far more than the queue of a socket without a reader would take.
        for _ in 0..10_000 {
            socket.send_to(&[7; 100], &path).expect("taken");
        }
        drop(peer);
        let path = directory.path().join("stream");
        let peer = StandInPeer::unix_stream(&path, &registry).expect("bound");
        let mut streams: Vec<UnixStream> = (0..3).map(|_| UnixStream::connect(&path).expect("accepted")).collect();
        for stream in &mut streams {
            stream.write_all(&vec![7; 4 << 20]).expect("taken");
        }
        drop(peer);
        drop(streams);
    }
}
