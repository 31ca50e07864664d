//! A socket that is being served: its thread started, and told to stop.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::sys::socket::{self, Backlog};

use super::protocol::{Listener, Protocol};
use super::server::{Poll, Server};
use super::ticket::Bell;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;

/// A socket that is being served.
#[derive(Debug)]
pub(crate) struct Service<L> {
    name: &'static str,
    listener: Arc<L>,
    stopping: Arc<AtomicBool>,
    bell: Bell,
    thread: JoinHandle<()>,
}

impl<L: Listener> Service<L> {
    /// Serves clients on a thread called `name`.
    pub(crate) fn start(
        name: &'static str,
        listener: L,
        registry: &ThreadRegistry,
        protocol: impl Protocol,
    ) -> Result<Self, Failure> {
        Self::start_with(name, listener, registry, protocol, Box::new(nix::poll::poll))
    }

    pub(super) fn start_with(
        name: &'static str,
        listener: L,
        registry: &ThreadRegistry,
        protocol: impl Protocol,
        poll: Poll,
    ) -> Result<Self, Failure> {
        let fail = |what: &str, error: io::Error, cure: &str| {
            Failure::new(ExitCode::Failure, format!("cannot {what} {name}: {error}; {cure}"))
        };
        let of_descriptors = "raise the limit on open files (ulimit -n, LimitNOFILE=)";
        // The widest queue that the host allows: who is in it waits for one round and not for a second attempt to
        // connect.
        let prepared = listener.set_nonblocking().and_then(|()| Ok(socket::listen(&listener, Backlog::MAXALLOWABLE)?));
        prepared.map_err(|error| fail("prepare the socket of", error, "see why in the log of the kernel"))?;
        let bell = Bell::new().map_err(|error| fail("make the event that stops", error, of_descriptors))?;
        let (stopping, listener) = (Arc::new(AtomicBool::new(false)), Arc::new(listener));
        let server = Server::new(name, &listener, protocol, &bell, &stopping, poll);
        let server = server.map_err(|error| fail("set a descriptor aside for", error, of_descriptors))?;
        let thread = registry
            .spawn(name, ThreadRole::Endpoint, move || server.run())
            .map_err(|error| threads::start_failure(name, &error))?;
        Ok(Self { name, listener, stopping, bell, thread })
    }

    pub(crate) fn listener(&self) -> &L {
        &self.listener
    }

    /// Ends the service and closes the socket. Who is owed an answer has a second to take it.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // Nobody can connect any more, and should the bell fail, this wakes the thread too. It fails only for a
        // descriptor that is no listening socket.
        let _ = socket::shutdown(self.listener.as_fd().as_raw_fd(), socket::Shutdown::Both);
        self.bell.ring();
        if self.thread.join().is_err() {
            log::error!("the thread {} had panicked; nobody has answered its clients since", self.name);
        }
    }
}
