//! Keeps irqbalance off our interrupts through its own socket. This asks what it leaves alone already, and sends that
//! list with ours added, because its command replaces the whole list. irqbalance is never stopped or killed: the rest
//! of the host needs it.

use std::fmt;
use std::io::{self, IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, getsockopt, sendmsg, sockopt};

/// It answers at once; this only keeps a surprise from becoming a hang.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// More than the answer for any machine.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The room for an abstract name in `sun_path`, behind its first zero.
const ABSTRACT_NAME_BYTES: usize = 107;

/// The longest list of interrupts that irqbalance's buffer holds.
const LIST_BYTES_MAX: usize = 250;

/// Why irqbalance could not be kept off.
#[derive(Debug)]
pub struct IrqbalanceError {
    /// What failed.
    pub what: String,
    /// What an administrator can do instead.
    pub cure: String,
}

impl fmt::Display for IrqbalanceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.what, self.cure)
    }
}

impl std::error::Error for IrqbalanceError {}

/// A running irqbalance.
#[derive(Debug)]
pub struct Irqbalance {
    pid: u32,
    folder: PathBuf,
}

impl Irqbalance {
    /// The one with this process id, which listens below `/run/irqbalance` or in the abstract namespace.
    pub fn new(pid: u32) -> Self {
        Self::in_folder(pid, Path::new("/run/irqbalance"))
    }

    fn in_folder(pid: u32, folder: &Path) -> Self {
        Self { pid, folder: folder.to_owned() }
    }

    /// Makes it leave these interrupts alone as well. Returns those that are new to it; none when it knew them all.
    pub fn ban(&self, interrupts: &[u32]) -> Result<Vec<u32>, IrqbalanceError> {
        let fail = |doing: &str, error: io::Error| {
            let options: Vec<String> = interrupts.iter().map(|number| format!("--banirq={number}")).collect();
            IrqbalanceError {
                what: format!("cannot {doing} irqbalance (process {}): {error}", self.pid),
                cure: format!("add {} to its options, for example in /etc/default/irqbalance", options.join(" ")),
            }
        };
        let setup = self.ask("setup").map_err(|error| fail("ask", error))?;
        let banned = banned(&setup);
        let new: Vec<u32> = interrupts.iter().copied().filter(|number| !banned.contains(number)).collect();
        if new.is_empty() {
            return Ok(new);
        }
        let all: Vec<String> = banned.iter().chain(&new).map(u32::to_string).collect();
        let list = all.join(" ");
        // It would cut a longer list, perhaps within a number.
        if list.len() >= LIST_BYTES_MAX {
            return Err(fail(
                "configure",
                io::Error::other(format!("it takes a list of {LIST_BYTES_MAX} bytes at most")),
            ));
        }
        self.ask(&format!("settings ban irqs {list}")).map_err(|error| fail("configure", error))?;
        // It does not say whether it obeyed.
        let now = self::banned(&self.ask("setup").map_err(|error| fail("ask", error))?);
        if new.iter().all(|number| now.contains(number)) {
            return Ok(new);
        }
        Err(fail("configure", io::Error::other("it still balances these interrupts")))
    }

    /// One command a connection; the answer ends with it.
    fn ask(&self, command: &str) -> io::Result<String> {
        let stream = self.connect()?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        // irqbalance checks who asks; the kernel vouches for these credentials.
        let credentials = UnixCredentials::new();
        let message = [IoSlice::new(command.as_bytes())];
        let control = [ControlMessage::ScmCredentials(&credentials)];
        sendmsg::<()>(stream.as_raw_fd(), &message, &control, MsgFlags::empty(), None)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Irqbalance {
    /// Its file, or the abstract name that it takes when it cannot make one. It binds the whole length of the address,
    /// so the zeroes behind the name belong to it; versions from 2018 on lost the name and are left with zeroes alone.
    fn connect(&self) -> io::Result<UnixStream> {
        let name = format!("irqbalance{}.sock", self.pid);
        let padded = |name: &str| {
            let mut bytes = [0; ABSTRACT_NAME_BYTES];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            SocketAddr::from_abstract_name(bytes)
        };
        let mut outcome = self.connect_to(SocketAddr::from_pathname(self.folder.join(&name)));
        for address in [SocketAddr::from_abstract_name(&name), padded(&name), padded("")] {
            if outcome.is_err() {
                outcome = self.connect_to(address);
            }
        }
        outcome
    }

    /// An abstract name belongs to whoever takes it first, so it is made sure that irqbalance listens there.
    fn connect_to(&self, address: io::Result<SocketAddr>) -> io::Result<UnixStream> {
        let stream = UnixStream::connect_addr(&address?)?;
        let listener = getsockopt(&stream, sockopt::PeerCredentials)?.pid();
        if u32::try_from(listener) == Ok(self.pid) {
            return Ok(stream);
        }
        Err(io::Error::other(format!("process {listener} listens there instead")))
    }
}

/// The interrupts in an answer to `setup`, which are those that it leaves alone: "SLEEP 10 IRQ 43 LOAD 0 DIFF 0 CLASS 5
/// BANNED 0003". The mask at the end is that of cores.
fn banned(setup: &str) -> Vec<u32> {
    let words: Vec<&str> = setup.split_ascii_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "IRQ").filter_map(|pair| pair[1].parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;

    use super::*;

    /// Answers like irqbalance: `setup` from its list, and `settings ban irqs` replaces that list.
    fn serve(folder: &Path, mut list: Vec<u32>, obeys: bool) -> mpsc::Receiver<String> {
        let listener =
            UnixListener::bind(folder.join(format!("irqbalance{}.sock", std::process::id()))).expect("a socket");
        let (said, heard) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut command = String::new();
                stream.read_to_string(&mut command).expect("a command");
                if let Some(numbers) = command.strip_prefix("settings ban irqs ").filter(|_| obeys) {
                    list = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
                }
                if command == "setup" {
                    let irqs: String =
                        list.iter().map(|number| format!("IRQ {number} LOAD 0 DIFF 0 CLASS 5 ")).collect();
                    let _ = write!(stream, "SLEEP 10 {irqs}BANNED 00000000");
                }
                if said.send(command).is_err() {
                    return;
                }
            }
        });
        heard
    }

    #[test]
    fn ours_are_added_to_what_is_banned_already() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let heard = serve(folder.path(), vec![40], true);
        let irqbalance = Irqbalance::in_folder(std::process::id(), folder.path());
        assert_eq!(irqbalance.ban(&[43, 44]).expect("it obeys"), [43, 44]);
        let commands: Vec<String> = heard.iter().take(3).collect();
        assert_eq!(commands, ["setup", "settings ban irqs 40 43 44", "setup"]);
        assert_eq!(irqbalance.ban(&[43, 44]).expect("it obeys"), [0; 0], "told once is enough");
    }

    #[test]
    fn one_that_does_not_obey_is_told_with_the_options_that_would_do() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let _heard = serve(folder.path(), Vec::new(), false);
        let error = Irqbalance::in_folder(std::process::id(), folder.path()).ban(&[43]).expect_err("it does not");
        assert!(error.to_string().contains("--banirq=43"), "{error}");
        let nobody = Irqbalance::in_folder(7, folder.path()).ban(&[43]).expect_err("nobody listens");
        assert!(nobody.to_string().contains("process 7"), "{nobody}");
        std::fs::rename(
            folder.path().join(format!("irqbalance{}.sock", std::process::id())),
            folder.path().join("irqbalance1.sock"),
        )
        .expect("renamed");
        let other = Irqbalance::in_folder(1, folder.path()).ban(&[43]).expect_err("somebody else listens");
        assert!(
            other.to_string().contains("listens there instead") || other.to_string().contains("refused"),
            "{other}"
        );
    }

    #[test]
    fn the_mask_of_banned_cores_is_no_interrupt() {
        assert_eq!(
            banned("SLEEP 10 IRQ 40 LOAD 3 DIFF 1 CLASS 5 IRQ 41 LOAD 1 DIFF 0 CLASS 4 BANNED 00000003"),
            [40, 41]
        );
        assert_eq!(banned("SLEEP 10 BANNED 43"), [0; 0]);
    }

    #[test]
    fn a_list_that_it_would_cut_is_not_sent() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let _heard = serve(folder.path(), Vec::new(), true);
        let many: Vec<u32> = (100..200).collect();
        let error = Irqbalance::in_folder(std::process::id(), folder.path()).ban(&many).expect_err("too long");
        assert!(error.to_string().contains("250 bytes at most"), "{error}");
    }
}
