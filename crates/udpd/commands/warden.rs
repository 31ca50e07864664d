//! `udpd warden`: the process that keeps the rights of a daemon (`os/warden`). The daemon starts it; nobody else has a
//! use for it. It goes into a sandbox of its own first, which leaves it three capabilities and the calls for what is
//! wished, and ends when the daemon does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mmsg::{Socket, xdp};
use nix::sys::signal::SigSet;
use rustix::net::{SocketType, sockopt};

use crate::exit::{ExitCode, Failure};
use crate::os::crew::{Confine, Crew};
use crate::os::duty::Duty;
use crate::os::threads;
use crate::os::warden::{self, MESSAGE_BYTES, QUEUE_SOCKET, Wish};
use crate::sandbox::{Reaches, Sandbox};

/// Serves the daemon at standard input until that is gone.
pub fn execute() -> Result<(), Failure> {
    let stdin = io::stdin();
    let daemon = stdin.as_fd();
    if sockopt::socket_type(daemon) != Ok(SocketType::SEQPACKET) {
        let message = "this command is for udpd run, which starts it where it needs it; there is nothing to type";
        return Err(Failure::new(ExitCode::Usage, message));
    }
    // What is meant for the daemon reaches it, and the end of the daemon is the end of this.
    let _ = SigSet::all().thread_block();
    let _ = rustix::thread::set_name(c"udpd-warden");
    let (crew, _events) = Crew::new();
    let (sandbox, _) = Sandbox::prepare(&crew).map_err(|error| threads::refusal("udpd-trial", &error))?;
    sandbox.open_only(Reaches::default());
    sandbox.confine(&[Duty::Warden]);
    let served = serve(daemon).or_else(|error| match error.kind() {
        // The daemon has gone before its answer came, or with one unread.
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(()),
        _ => Err(error),
    });
    served.map_err(|error| Failure::new(ExitCode::Failure, format!("cannot hear the daemon: {error}")))
}

fn serve(daemon: BorrowedFd<'_>) -> io::Result<()> {
    tell(daemon, None::<&OwnedFd>, &Ok(()))?;
    let mut bytes = [0; MESSAGE_BYTES];
    loop {
        match warden::receive(daemon, &mut bytes)? {
            (0, _) => return Ok(()),
            (length, None) if bytes[..length] == *QUEUE_SOCKET => {
                let made = xdp::socket().map_err(|refusal| refusal.error().raw_os_error());
                let (made, outcome) = match made {
                    Ok(made) => (Some(made), Ok(())),
                    Err(number) => (None, Err(number.map_or_else(refusal, io::Error::from_raw_os_error))),
                };
                tell(daemon, made.as_ref(), &outcome)?;
            }
            (length, descriptor) => tell(daemon, None::<&OwnedFd>, &fulfil(&bytes[..length], descriptor))?,
        }
    }
}

fn refusal() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::INVAL.raw_os_error())
}

/// Does what is wished, to a socket for UDP and nothing else.
fn fulfil(wish: &[u8], descriptor: Option<OwnedFd>) -> io::Result<()> {
    let wish: Wish = std::str::from_utf8(wish).ok().and_then(|text| text.parse().ok()).ok_or_else(refusal)?;
    let descriptor = descriptor.ok_or_else(refusal)?;
    if sockopt::socket_type(&descriptor)? != SocketType::DGRAM {
        return Err(refusal());
    }
    wish.fulfil(&Socket::try_from(descriptor)?)
}

fn tell(daemon: BorrowedFd<'_>, made: Option<&impl AsFd>, outcome: &io::Result<()>) -> io::Result<()> {
    let number = match outcome {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error()),
    };
    warden::send(daemon, made, number.to_string().as_bytes())
}
