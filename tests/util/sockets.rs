//! Sockets of the tests themselves: to send a few datagrams, and to take what waits.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;

use super::wait::PATIENCE;

/// A socket with a port of its own, on which nothing is waited for without end.
pub(crate) fn socket() -> UdpSocket {
    socket_at("127.0.0.1:0")
}

/// The same at this address.
#[track_caller]
pub(crate) fn socket_at(address: impl std::net::ToSocketAddrs) -> UdpSocket {
    let socket = UdpSocket::bind(address).expect("a free port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit above zero");
    socket
}

pub(crate) fn address_of(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().expect("bound")
}

/// Sends this payload so often from a port of its own.
#[track_caller]
pub(crate) fn send(to: SocketAddr, payload: &[u8], times: u64) {
    send_by(&socket(), to, payload, times);
}

#[track_caller]
pub(crate) fn send_by(socket: &UdpSocket, to: SocketAddr, payload: &[u8], times: u64) {
    (0..times).for_each(|_| assert_eq!(socket.send_to(payload, to).expect("loopback takes it"), payload.len()));
}

/// Sends each number as text from a port of its own.
#[track_caller]
pub(crate) fn send_numbers(to: SocketAddr, numbers: std::ops::Range<u64>) {
    let socket = socket();
    numbers.for_each(|number| send_by(&socket, to, number.to_string().as_bytes(), 1));
}

/// Two cores that this process may use, or `None` with the reason said.
pub(crate) fn two_cores() -> Option<[usize; 2]> {
    let cores = core_affinity::get_core_ids().expect("the cores of this process");
    let pair = cores.first_chunk().map(|pair: &[core_affinity::CoreId; 2]| pair.map(|core| core.id));
    if pair.is_none() {
        super::outcome::not_checked("a sender on each of two cores: this process may use one");
    }
    pair
}

/// A socket of datagrams that can be emptied.
pub(crate) trait Take {
    fn set_blocking(&self, is_blocking: bool) -> io::Result<()>;
    fn take(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// What waits in it now.
    fn take_all(&self) -> Vec<Vec<u8>> {
        self.set_blocking(false).expect("an option");
        let mut buffer = vec![0; 65_536];
        let all = std::iter::from_fn(|| self.take(&mut buffer).ok().map(|length| buffer[..length].to_vec())).collect();
        self.set_blocking(true).expect("an option");
        all
    }

    /// How many wait in it now; they are taken.
    fn count_all(&self) -> u64 {
        self.take_all().len() as u64
    }
}

impl Take for UdpSocket {
    fn set_blocking(&self, is_blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!is_blocking)
    }

    fn take(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }
}

impl Take for UnixDatagram {
    fn set_blocking(&self, is_blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!is_blocking)
    }

    fn take(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }
}

/// What the metrics endpoint answers to a request for this path, with these headers besides.
#[track_caller]
pub(crate) fn http(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the endpoint takes every client");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit above zero");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("the request is taken");
    io::read_to_string(stream).expect("the answer comes")
}
