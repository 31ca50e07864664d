//! A service manager in small: it starts one daemon after another in the same place, hears what each says, keeps the
//! descriptors that they give it, and passes them to the next, as systemd does for a unit with FileDescriptorStoreMax=.

use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::Signal;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::ask::Ask;
use super::ended::Ended;
use super::ledger::received;
use super::process::{Process, UDPD};
use super::wait::PATIENCE;

/// What udpd keeps beside its sockets.
pub(crate) const RECORD: &str = "udpd-record";

/// The manager of one service.
pub(crate) struct Manager {
    directory: tempfile::TempDir,
    notify: UnixDatagram,
    /// What it keeps, in the order in which it came.
    store: Vec<(String, OwnedFd)>,
    /// How many descriptors it keeps.
    limit: usize,
    running: Option<Process>,
}

impl Ask for Manager {
    fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Manager {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("cannot make a directory for the service");
        let notify = UnixDatagram::bind(directory.path().join("notify.sock")).expect("cannot bind the notify socket");
        notify.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit above zero");
        Self { directory, notify, store: Vec::new(), limit: 64, running: None }
    }

    /// The names of the sockets that it keeps, sorted.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names = self.all_names();
        names.retain(|name| *name != RECORD);
        names.sort_unstable();
        names
    }

    /// The same with what udpd keeps beside them.
    pub(crate) fn all_names(&self) -> Vec<&str> {
        self.store.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// A second descriptor of what it keeps under a name.
    pub(crate) fn copy_of(&self, name: &str) -> OwnedFd {
        let (_, kept) = self.store.iter().find(|(own, _)| own == name).expect("it is kept");
        kept.try_clone().expect("a copy")
    }

    /// What the kernel has dropped at the sockets that it keeps, asked without udpd.
    pub(crate) fn dropped(&self) -> u64 {
        let socket = |name: &str| mmsg::Socket::try_from(self.copy_of(name)).expect("a socket");
        let dropped = |name| u64::from(socket(name).memory_info().expect("the kernel tells").drops);
        self.names().into_iter().map(dropped).sum()
    }

    /// Replaces what it keeps under a name.
    pub(crate) fn replace(&mut self, name: &str, descriptor: OwnedFd) {
        self.store.iter_mut().find(|(own, _)| own == name).expect("it is kept").1 = descriptor;
    }

    /// Puts a descriptor into its hands as a `.socket` unit would, in front of what it keeps.
    pub(crate) fn hold(&mut self, name: &str, descriptor: OwnedFd) {
        self.store.push((name.to_owned(), descriptor));
    }

    /// From now on it keeps no more than so many.
    pub(crate) fn keep_at_most(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Starts the daemon with this configuration and everything that is kept, and waits until it is ready.
    pub(crate) fn start(&mut self, text: impl Into<String>) {
        self.launch(text.into());
        let started = Instant::now();
        while !self.hear().is_some_and(|message| message.lines().any(|line| line == "READY=1")) {
            if let Some(status) = self.running.as_mut().expect("just started").status() {
                panic!("udpd ended ({status}) before it was ready:\n{}", self.finished().stderr);
            }
            assert!(started.elapsed() < PATIENCE, "udpd is not ready after {PATIENCE:?}");
        }
    }

    /// Starts a daemon that is to end by itself.
    pub(crate) fn start_in_vain(&mut self, text: impl Into<String>) -> Ended {
        self.launch(text.into());
        self.finished()
    }

    /// Has the daemon go over to this configuration.
    #[track_caller]
    pub(crate) fn reload_and_hear(&mut self, text: impl Into<String>) {
        Ask::reload(self, text).succeeds(&[]);
        while self.hear().is_some() {}
    }

    /// The same by SIGHUP, as systemd does it with Type=notify-reload; returns what it is told until that is done.
    pub(crate) fn reload_by_signal(&mut self, text: impl Into<String>) -> Vec<String> {
        self.hear_what_waits();
        self.write(&text.into());
        self.process().signal(Signal::SIGHUP);
        let (mut told, begun) = (Vec::new(), Instant::now());
        while !told.iter().any(|message: &String| message.contains("READY=1\n")) {
            assert!(begun.elapsed() < PATIENCE, "{told:?}");
            told.extend(self.hear());
        }
        told
    }

    fn launch(&mut self, text: String) {
        assert!(self.running.is_none(), "one at a time");
        self.write(&text);
        let file = self.configuration();
        let _ = std::fs::remove_file(self.directory().join("ledger.json"));
        // The number of the process is known to the process alone before it begins.
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"", "sh", UDPD]);
        command.args(["run", "-c"]).arg(file).env("XDG_RUNTIME_DIR", self.directory());
        command.env("NOTIFY_SOCKET", self.directory().join("notify.sock")).env("FDSTORE", self.limit.to_string());
        command.stdout(Stdio::null());
        if !self.store.is_empty() {
            let names: Vec<&str> = self.all_names();
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        let copies = self.store.iter().map(|(_, descriptor)| descriptor.try_clone().expect("a copy"));
        let mappings = copies.zip(3..).map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd }).collect();
        command.fd_mappings(mappings).expect("no number twice");
        self.running = Some(Process::start(&mut command));
    }

    /// Waits until the daemon logs these words.
    #[track_caller]
    pub(crate) fn await_line(&mut self, words: &str) {
        self.running.as_mut().expect("a daemon runs").await_line(words);
    }

    /// The daemon that runs now.
    pub(crate) fn process(&self) -> &Process {
        self.running.as_ref().expect("a daemon runs")
    }

    /// Ends the daemon by a signal, and keeps what it has been given.
    pub(crate) fn end_by(&mut self, signal: Signal) -> Ended {
        self.process().signal(signal);
        self.finished()
    }

    /// SIGTERM, which the daemon must obey with success and with a ledger that closes over `sent`.
    #[track_caller]
    pub(crate) fn end(&mut self, sent: u64) -> Ended {
        self.end_by(Signal::SIGTERM).closed(sent)
    }

    /// The same when it has received so many, which are all that there are.
    #[track_caller]
    pub(crate) fn end_with(&mut self, sent: u64) -> Ended {
        self.stats_when("all is received", |ledger| received(ledger) >= sent);
        self.end(sent)
    }

    fn finished(&mut self) -> Ended {
        let ended = self.running.take().expect("a daemon runs").wait(self.directory(), "ledger.json");
        self.hear_what_waits();
        ended
    }

    /// Hears all that was said so far, as of a daemon that has ended.
    fn hear_what_waits(&mut self) {
        self.notify.set_nonblocking(true).expect("switched");
        while self.hear().is_some() {}
        self.notify.set_nonblocking(false).expect("switched");
    }

    /// Hears one message and does what it says about descriptors; `None` when none comes for a while.
    fn hear(&mut self) -> Option<String> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut bytes = [0; 4096];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let length = loop {
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.notify, parts, &mut control, RecvFlags::CMSG_CLOEXEC).map_err(std::io::Error::from) {
                Ok(message) => break message.bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // A time limit makes the wait one that stopping and continuing this process ends.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("cannot hear the daemon: {error}"),
            }
        };
        let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let descriptor = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let field = |key: &str| message.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned();
        let name = field("FDNAME=");
        if message.contains("FDSTOREREMOVE=1") {
            self.store.retain(|(own, _)| *own != name);
        } else if message.contains("FDSTORE=1") {
            assert_eq!(field("FDPOLL="), "0", "systemd would drop it on the first error: {message}");
            let descriptor = descriptor.expect("FDSTORE comes with a descriptor");
            // As systemd, which drops what it has under another name already.
            let inode = |descriptor: &OwnedFd| rustix::fs::fstat(descriptor).expect("it is open").st_ino;
            let is_known = self.store.iter().any(|(_, kept)| inode(kept) == inode(&descriptor));
            if self.store.len() < self.limit && !is_known {
                self.store.push((name, descriptor));
            }
        }
        Some(message)
    }
}
