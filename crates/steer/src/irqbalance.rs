//! Keeps irqbalance off our interrupts through its own socket. This asks what it leaves alone already, and sends that
//! list with ours added, because its command replaces the whole list. irqbalance is never stopped or killed: the rest
//! of the host needs it.

use std::collections::BTreeSet;
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

/// The command that replaces the list of what it leaves alone.
const BAN: &str = "settings ban irqs ";

/// It reads a command with one call into 500 bytes, and would cut a longer one, perhaps within a number.
const LIST_BYTES_MAX: usize = 500 - BAN.len();

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irqbalance {
    pid: u32,
    folder: PathBuf,
}

impl Irqbalance {
    /// The one with this process id, which listens below `/run/irqbalance` or in the abstract namespace.
    pub fn new(pid: u32) -> Self {
        Self::in_folder(pid, Path::new("/run/irqbalance"))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn in_folder(pid: u32, folder: &Path) -> Self {
        Self { pid, folder: folder.to_owned() }
    }

    /// Makes it leave these interrupts alone as well. Returns those that are new to it; none when it knew them all. So
    /// it may be asked again at any time, and has to be once another one runs.
    pub fn ban(&self, interrupts: &[u32]) -> Result<Vec<u32>, IrqbalanceError> {
        let cure = || {
            let options: Vec<String> = interrupts.iter().map(|number| format!("--banirq={number}")).collect();
            format!("add {} to its options, for example in /etc/default/irqbalance", options.join(" "))
        };
        let banned = self.banned().map_err(|error| self.fail("ask", &error, cure()))?;
        let new: Vec<u32> = interrupts.iter().copied().filter(|number| !banned.contains(number)).collect();
        if new.is_empty() {
            return Ok(new);
        }
        let wanted: Vec<u32> = banned.iter().chain(&new).copied().collect();
        self.leave_alone(&wanted).map_err(|error| self.fail("configure", &error, cure()))?;
        Ok(new)
    }

    /// Makes it balance these interrupts again; what others have banned stays. Returns those that it left alone until
    /// now; none when it balanced them all.
    pub fn unban(&self, interrupts: &[u32]) -> Result<Vec<u32>, IrqbalanceError> {
        let cure = || "restart it: it then begins with its own options".to_owned();
        let banned = self.banned().map_err(|error| self.fail("ask", &error, cure()))?;
        let (ours, others): (Vec<u32>, Vec<u32>) = banned.into_iter().partition(|number| interrupts.contains(number));
        if !ours.is_empty() {
            self.leave_alone(&others).map_err(|error| self.fail("configure", &error, cure()))?;
        }
        Ok(ours)
    }

    fn fail(&self, doing: &str, error: &io::Error, cure: String) -> IrqbalanceError {
        IrqbalanceError { what: format!("cannot {doing} irqbalance (process {}): {error}", self.pid), cure }
    }

    /// What it leaves alone, by its own options or because it was asked to.
    fn banned(&self) -> io::Result<Vec<u32>> {
        self.ask("setup").map(|setup| banned(&setup))
    }

    /// Makes it leave these alone and nothing else. It does not say whether it obeyed, so it is asked.
    fn leave_alone(&self, interrupts: &[u32]) -> io::Result<()> {
        let list = list(interrupts);
        if list.len() > LIST_BYTES_MAX {
            let text = format!("it takes a list of {LIST_BYTES_MAX} bytes at most, and this has {}", list.len());
            return Err(io::Error::other(text));
        }
        self.ask(&format!("{BAN}{list}"))?;
        let now: BTreeSet<u32> = self.banned()?.into_iter().collect();
        let wanted: BTreeSet<u32> = interrupts.iter().copied().collect();
        // The word for none is a number to versions that do not know it: to them it is interrupt 0, which nobody moves.
        if now == wanted || (wanted.is_empty() && now == BTreeSet::from([0])) {
            return Ok(());
        }
        Err(io::Error::other("it does not do what it was told"))
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

/// A list as its command takes it. It reads numbers until one is 0, so that one comes first.
fn list(interrupts: &[u32]) -> String {
    if interrupts.is_empty() {
        return "NONE".to_owned();
    }
    let mut numbers: Vec<u32> = interrupts.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "irqbalance_tests.rs"]
mod tests;
