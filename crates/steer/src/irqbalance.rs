//! Keeps irqbalance off our interrupts through its own socket. This asks what it leaves alone already, and sends that
//! list with ours added, because its command replaces the whole list. irqbalance is never stopped or killed: the rest
//! of the host needs it.

use std::io::{self, IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt,
    sendmsg, socket, sockopt,
};
use nix::unistd::geteuid;

use crate::topology::{read_if_any, try_numbered};

/// irqbalance answers at once; the limit is for one that was stopped (SIGSTOP).
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// A bound on an answer: more than that of any machine.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The room for an abstract name in `sun_path`, behind its first zero.
const ABSTRACT_NAME_BYTES: usize = 107;

/// The command that replaces the list of what it leaves alone.
const BAN: &str = "settings ban irqs ";

/// It reads a command with one call into 500 bytes, and would cut a longer one, perhaps within a number.
const LIST_BYTES_MAX: usize = 500 - BAN.len();

/// More options than this are too many to write down by hand.
const OPTIONS_MAX: usize = 16;

/// A shorter common beginning of names may belong to other devices too.
const NAME_BYTES_MIN: usize = 4;

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
    /// Where its sockets are.
    folder: PathBuf,
    /// Where interrupts say their names.
    names: PathBuf,
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
        Self { pid, folder: folder.to_owned(), names: "/sys/kernel/irq".into() }
    }

    /// Makes it leave these interrupts alone as well. Returns those that are new to it; none when it knew them all. So
    /// it may be asked again at any time, and has to be once another one runs.
    pub fn ban(&self, interrupts: &[u32]) -> Result<Vec<u32>, IrqbalanceError> {
        let banned = self.banned().map_err(|error| self.fail("ask", &error, self.by_options(interrupts)))?;
        let mut new: Vec<u32> = Vec::new();
        for &number in interrupts {
            if !banned.contains(&number) && !new.contains(&number) {
                new.push(number);
            }
        }
        if new.is_empty() {
            return Ok(new);
        }
        self.add(&banned, &new).map_err(|error| self.fail("configure", &error, self.by_options(&new)))?;
        Ok(new)
    }

    /// Which of these interrupts it does not leave alone: those that a ban would be new for.
    pub fn balances(&self, interrupts: &[u32]) -> Result<Vec<u32>, IrqbalanceError> {
        let cure = || "see whether it answers its own irqbalance-ui".to_owned();
        let banned = self.banned().map_err(|error| self.fail("ask", &error, cure()))?;
        Ok(interrupts.iter().copied().filter(|number| !banned.contains(number)).collect())
    }

    /// Makes it balance these interrupts again; what others have banned stays. Returns those that it left alone until
    /// now; none when it balanced them all.
    pub fn unban(&self, interrupts: &[u32]) -> Result<Vec<u32>, IrqbalanceError> {
        let cure = || "restart it: it then begins with its own options".to_owned();
        let banned = self.banned().map_err(|error| self.fail("ask", &error, cure()))?;
        let (ours, others): (Vec<u32>, Vec<u32>) = banned.into_iter().partition(|number| interrupts.contains(number));
        if ours.is_empty() {
            return Ok(ours);
        }
        let now = self.replace(&others).map_err(|error| self.fail("configure", &error, cure()))?;
        if ours.iter().any(|number| now.contains(number)) || others.iter().any(|number| !now.contains(number)) {
            return Err(self.fail("configure", &disobeys(), cure()));
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

    /// An irqbalance with a shorter buffer than the known ones cuts the list. Then what it left alone before is put
    /// back: that came first in the list, so only ours was cut.
    fn add(&self, banned: &[u32], new: &[u32]) -> io::Result<()> {
        let wanted: Vec<u32> = banned.iter().chain(new).copied().collect();
        let now = self.replace(&wanted)?;
        let is_missing = |number: &&u32| !now.contains(number);
        if !wanted.iter().any(|number| is_missing(&number)) {
            return Ok(());
        }
        if now.len() == banned.len() {
            return Err(disobeys());
        }
        self.replace(banned)?;
        let count = new.iter().filter(is_missing).count();
        let text =
            format!("it cut the list and would still move {count} of {} interrupts, so none was added", new.len());
        Err(io::Error::other(text))
    }

    /// Makes it leave exactly these alone, and asks what it leaves alone now, because it does not say whether it
    /// obeyed.
    fn replace(&self, interrupts: &[u32]) -> io::Result<Vec<u32>> {
        let list = list(interrupts);
        if list.len() > LIST_BYTES_MAX {
            let text = format!("it takes a list of {LIST_BYTES_MAX} bytes at most, and this one has {}", list.len());
            return Err(io::Error::other(text));
        }
        self.ask(&format!("{BAN}{list}"))?;
        self.banned()
    }

    /// What makes it leave these interrupts alone without being asked, also after it was started anew. Numbers go into
    /// options; where they are many, or as they change with every boot, a script goes by the names.
    fn by_options(&self, interrupts: &[u32]) -> String {
        let options: Vec<String> = interrupts.iter().map(|number| format!("--banirq={number}")).collect();
        let by_number = format!("add {} to its options, for example in /etc/default/irqbalance", options.join(" "));
        let Some(start) = self.common_name(interrupts) else { return by_number };
        let script = format!(
            "give it a --policyscript that has the line: case \"$(cat /sys/kernel/irq/$2/actions)\" in {start}*) echo \
             ban=true;; esac"
        );
        if interrupts.len() > OPTIONS_MAX { script } else { format!("{by_number}, or {script}") }
    }

    /// How the names of all these interrupts begin.
    fn common_name(&self, interrupts: &[u32]) -> Option<String> {
        let name = |number: &u32| {
            let name = fs::read_to_string(self.names.join(number.to_string()).join("actions")).ok()?;
            Some(name.trim().to_owned()).filter(|name| !name.is_empty())
        };
        let names: Vec<String> = interrupts.iter().map(name).collect::<Option<_>>()?;
        let mut start = names.first()?.trim_end_matches(|digit: char| digit.is_ascii_digit());
        while !names.iter().all(|name| name.starts_with(start)) {
            start = start.char_indices().next_back().map_or("", |(last, _)| &start[..last]);
        }
        Some(start.to_owned()).filter(|start| start.len() >= NAME_BYTES_MIN)
    }

    /// One command a connection; the answer ends with it.
    fn ask(&self, command: &str) -> io::Result<String> {
        let stream = self.connect()?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        // irqbalance checks the user of the client; the kernel vouches for these credentials.
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
            UnixAddr::new_abstract(&bytes)
        };
        let mut outcome = self.connect_to(UnixAddr::new(&self.folder.join(&name)));
        for address in [UnixAddr::new_abstract(name.as_bytes()), padded(&name), padded("")] {
            match &outcome {
                // Something is there, and only does not answer.
                Err(error) if error.kind() != io::ErrorKind::TimedOut => outcome = self.connect_to(address),
                Ok(_) | Err(_) => break,
            }
        }
        outcome
    }

    /// Any process may take an abstract name first, so this checks that irqbalance itself listens there.
    fn connect_to(&self, address: nix::Result<UnixAddr>) -> io::Result<UnixStream> {
        let stream = UnixStream::from(socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?);
        // One that takes no more connections makes the next one wait, by default for ever.
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        connect(stream.as_raw_fd(), &address?).map_err(|error| match error {
            Errno::EAGAIN => {
                let text = format!("it takes no connection within {} s, as if it was stopped", ANSWER_LIMIT.as_secs());
                io::Error::new(io::ErrorKind::TimedOut, text)
            }
            error => error.into(),
        })?;
        let listener = getsockopt(&stream, sockopt::PeerCredentials)?;
        let (pid, user) = (listener.pid(), listener.uid());
        if u32::try_from(pid) != Ok(self.pid) {
            return Err(io::Error::other(format!("process {pid} listens there instead")));
        }
        if user != 0 && user != geteuid().as_raw() {
            return Err(io::Error::other(format!("the process that listens there is of user {user} and not of root")));
        }
        Ok(stream)
    }
}

/// The interrupts in an answer to `setup`, which are those that it leaves alone: "SLEEP 10 IRQ 43 LOAD 0 DIFF 0 CLASS 5
/// BANNED 0003". The mask at the end is that of cores.
pub(crate) fn banned(setup: &str) -> Vec<u32> {
    let words: Vec<&str> = setup.split_ascii_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "IRQ").filter_map(|pair| pair[1].parse().ok()).collect()
}

fn disobeys() -> io::Error {
    io::Error::other("it does not do what it was told")
}

/// A list as its command takes it. It reads numbers until one is 0, so that one comes first. Versions that do not know
/// the word for none read interrupt 0, which cannot be moved.
fn list(interrupts: &[u32]) -> String {
    if interrupts.is_empty() {
        return "NONE".to_owned();
    }
    let (first, others): (Vec<u32>, Vec<u32>) = interrupts.iter().partition(|&&number| number == 0);
    first.iter().take(1).chain(&others).map(u32::to_string).collect::<Vec<_>>().join(" ")
}

// Whether irqbalance runs is read from its process and from its sockets: a /proc that hides the processes of other
// users, or that of a container, says nothing of them, and "it does not run" would then be a guess.

/// Whether irqbalance runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Presence {
    /// It does: this one.
    Runs(Irqbalance),
    /// It does not.
    #[default]
    Absent,
    /// It cannot be told: the reason.
    Unknown(String),
}

/// What `/proc/self/ns/pid` is for a process that sees all others of the machine: the kernel gives its first namespace
/// this number (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

impl Irqbalance {
    /// Looks for it below `root`, which is `/` on a live machine. After a restart the answer is another one: what was
    /// asked of the earlier one is forgotten.
    pub fn find(root: &Path) -> Presence {
        let proc = root.join("proc");
        let processes = match fs::metadata(&proc).and_then(|folder| by_process(&proc, folder.uid())) {
            Ok(processes) => processes,
            Err(error) => return Presence::Unknown(error.to_string()),
        };
        let listeners = by_listener(&proc);
        // One that only has the name does not listen. An old irqbalance listens without a name, so it need not.
        let listens = processes.iter().find(|pid| listeners.contains(pid));
        if let Some(pid) = listens.or(processes.first()).or(listeners.first()) {
            return Presence::Runs(Self::new(*pid));
        }
        if sees_all_processes(&proc) {
            return Presence::Absent;
        }
        let sockets = root.join("run/irqbalance");
        let has_socket = fs::read_dir(&sockets)
            .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| pid_in(&entry.path()).is_some())));
        Presence::Unknown(if has_socket {
            let sockets = sockets.display();
            format!("{sockets} has a socket of it, and /proc does not show whether its process still runs")
        } else {
            "/proc does not show the processes of others here".to_owned()
        })
    }
}

/// Every process of this user, which is root on a live machine, that has its name. Any user may give that name to a
/// process.
fn by_process(proc: &Path, user: u32) -> io::Result<Vec<u32>> {
    let is_it = |pid: &usize| {
        let folder = proc.join(pid.to_string());
        fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == "irqbalance")
            && fs::metadata(&folder).is_ok_and(|folder| folder.uid() == user)
    };
    Ok(try_numbered(proc, "")?.into_iter().filter(is_it).filter_map(|pid| u32::try_from(pid).ok()).collect())
}

/// The kernel lists every socket that has a name, of every user: a path, or "@" and an abstract name.
fn by_listener(proc: &Path) -> Vec<u32> {
    let table = read_if_any(&proc.join("net/unix")).ok().flatten().unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_ascii_whitespace().nth(NAME_COLUMN));
    let pid = |name: &str| {
        let name = name.trim_matches('@');
        pid_in(Path::new(name)).filter(|_| name.starts_with("/run/irqbalance/") || !name.contains('/'))
    };
    names.filter_map(pid).collect()
}

/// Num RefCount Protocol Flags Type St Inode Path.
const NAME_COLUMN: usize = 7;

/// The process id in "irqbalance77.sock".
fn pid_in(socket: &Path) -> Option<u32> {
    let digits = socket.file_name()?.to_str()?.strip_prefix("irqbalance")?.strip_suffix(".sock")?;
    digits.parse().ok()
}

/// False where processes of others are hidden (`hidepid`), or where a container sees its own alone.
fn sees_all_processes(proc: &Path) -> bool {
    let is_first = match fs::read_link(proc.join("self/ns/pid")) {
        Ok(namespace) => namespace.as_os_str() == FIRST_NAMESPACE,
        // A kernel without such namespaces has no such link.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    is_first && fs::read_to_string(proc.join("1/comm")).is_ok()
}

#[cfg(test)]
#[path = "irqbalance_tests.rs"]
mod tests;
