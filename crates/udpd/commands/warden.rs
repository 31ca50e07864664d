//! `udpd warden`: the process that keeps the rights of a daemon (`os/warden`). The daemon starts it; nobody else has a
//! use for it. It goes into a sandbox of its own first, which leaves it three capabilities and the calls for what is
//! wished, and ends when the daemon does.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mmsg::Socket;
use nix::sys::signal::SigSet;
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketType, recvmsg, send, sockopt,
};

use crate::exit::{ExitCode, Failure};
use crate::os::crew::{Confine, Crew};
use crate::os::duty::Duty;
use crate::os::threads;
use crate::os::warden::{MESSAGE_BYTES, Wish, retry};
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
    sandbox.confine(Duty::Warden);
    serve(daemon).map_err(|error| Failure::new(ExitCode::Failure, format!("cannot hear the daemon: {error}")))
}

fn serve(daemon: BorrowedFd<'_>) -> io::Result<()> {
    tell(daemon, &Ok(()))?;
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    loop {
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let mut message = [IoSliceMut::new(&mut bytes)];
        let received = retry(|| recvmsg(daemon, &mut message, &mut passed, RecvFlags::CMSG_CLOEXEC))?;
        if received.bytes == 0 {
            return Ok(());
        }
        let descriptors = passed.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        let descriptor = descriptors.last();
        tell(daemon, &fulfil(&bytes[..received.bytes], descriptor))?;
    }
}

/// Does what is wished, to a socket for UDP and nothing else.
fn fulfil(wish: &[u8], descriptor: Option<OwnedFd>) -> io::Result<()> {
    let refuse = || io::Error::from_raw_os_error(rustix::io::Errno::INVAL.raw_os_error());
    let wish: Wish = std::str::from_utf8(wish).ok().and_then(|text| text.parse().ok()).ok_or_else(refuse)?;
    let descriptor = descriptor.ok_or_else(refuse)?;
    if sockopt::socket_type(&descriptor)? != SocketType::DGRAM {
        return Err(refuse());
    }
    wish.fulfil(&Socket::try_from(descriptor)?)
}

fn tell(daemon: BorrowedFd<'_>, outcome: &io::Result<()>) -> io::Result<()> {
    let number = match outcome {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error()),
    };
    retry(|| send(daemon, number.to_string().as_bytes(), SendFlags::NOSIGNAL)).map(drop)
}
