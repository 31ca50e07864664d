//! A listening socket and the one thread that serves it: the frame of the control socket and of the metrics endpoint.
//!
//! The thread waits in `accept`, so an endpoint that nobody uses costs nothing. Stopping it means shutting the
//! listening socket, which ends that wait; unlike a connection to itself, this needs neither the socket's file nor
//! room in its queue.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};

use crate::crew::{self, Crew};
use crate::exit::{ExitCode, Failure};

/// The pause after a failed `accept`. It fails for want of descriptors or memory, which waiting may cure and retrying
/// at once would not.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A listening stream socket.
pub(crate) trait Listener: Send + Sync + 'static {
    /// What a client is connected by.
    type Client;
    /// Waits for the next client.
    fn accept(&self) -> io::Result<Self::Client>;
    /// The descriptor to shut.
    fn descriptor(&self) -> RawFd;
}

impl Listener for TcpListener {
    type Client = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        TcpListener::accept(self).map(|(client, _)| client)
    }

    fn descriptor(&self) -> RawFd {
        self.as_raw_fd()
    }
}

/// A socket that is being served.
#[derive(Debug)]
pub(crate) struct Service<L> {
    name: &'static str,
    listener: Arc<L>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl<L: Listener> Service<L> {
    /// Serves one client after the other on a thread called `name`.
    pub(crate) fn start(
        name: &'static str,
        listener: L,
        crew: &Crew,
        serve_client: impl Fn(L::Client) + Send + 'static,
    ) -> Result<Self, Failure> {
        let stopping = Arc::new(AtomicBool::new(false));
        let listener = Arc::new(listener);
        let thread = crew.spawn(name, {
            let (listener, stopping) = (Arc::clone(&listener), Arc::clone(&stopping));
            move || accept_until_stopped(name, &*listener, &stopping, &serve_client)
        });
        let thread = thread.map_err(|error| {
            let cure = "raise the limit on threads (ulimit -u, TasksMax=)";
            Failure::new(ExitCode::Failure, format!("cannot start the thread {name}: {error}; {cure}"))
        })?;
        Ok(Self { name, listener, stopping, thread })
    }

    /// The socket being served.
    pub(crate) fn listener(&self) -> &L {
        &self.listener
    }

    /// Ends the service, after the client being served if there is one, and closes the socket.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        // Fails only for a descriptor that is no listening socket, and then nobody waits in accept either.
        let _ = shutdown(self.listener.descriptor(), Shutdown::Both);
        if self.thread.join().is_err() {
            log::error!("the thread {} had panicked; its clients have gone unanswered since", self.name);
        }
    }
}

fn accept_until_stopped<L: Listener>(
    name: &str,
    listener: &L,
    stopping: &AtomicBool,
    serve_client: &impl Fn(L::Client),
) {
    let mut warned = false;
    loop {
        let outcome = crew::at_rest(|| listener.accept());
        if stopping.load(Ordering::Acquire) {
            return;
        }
        match outcome {
            Ok(client) => crew::at_rest(|| serve_client(client)),
            Err(error) => {
                if !warned {
                    log::warn!("{name} cannot accept a client: {error}; trying again every second");
                    warned = true;
                }
                crew::at_rest(|| thread::sleep(ACCEPT_PAUSE));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::SocketAddr;
    use std::sync::mpsc;

    fn local() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn clients_are_served_one_after_the_other_on_the_named_thread() {
        let (listener, address) = local();
        let service = Service::start("udpd-test", listener, &Crew::new().0, |mut client: TcpStream| {
            let thread = thread::current();
            client.write_all(thread.name().unwrap().as_bytes()).unwrap();
        });
        for _ in 0..3 {
            let mut text = String::new();
            TcpStream::connect(address).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "udpd-test");
        }
        service.unwrap().stop();
    }

    #[test]
    fn an_idle_service_stops_and_then_refuses_clients() {
        let (listener, address) = local();
        Service::start("udpd-test", listener, &Crew::new().0, |_| {}).unwrap().stop();
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn stopping_lets_the_present_client_finish() {
        let (listener, address) = local();
        let (begun, beginning) = mpsc::channel();
        let (go_on, going_on) = mpsc::channel::<()>();
        let service = Service::start("udpd-test", listener, &Crew::new().0, move |mut client: TcpStream| {
            begun.send(()).unwrap();
            going_on.recv().unwrap();
            client.write_all(b"done").unwrap();
        });
        let mut client = TcpStream::connect(address).unwrap();
        beginning.recv().unwrap();
        let stopping = thread::spawn(move || service.unwrap().stop());
        go_on.send(()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "done");
        stopping.join().unwrap();
    }
}
