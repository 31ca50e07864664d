//! A service manager in small: it keeps descriptors under their names, as systemd does, and passes copies of them to
//! the next process. It answers on a thread that no scheduler knows, because a process does not wait for it.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::crash_record::RECORD_NAME;
use super::socket_activation::PassedDescriptors;
use udpd_base::os::holder;
use udpd_base::os::notify::Notifier;
use udpd_base::os::threads::lock;
use udpd_engine::pipeline::InheritedSockets;

/// What it keeps, by name.
type Kept = Arc<Mutex<Vec<(String, OwnedFd)>>>;

#[derive(Debug)]
pub(super) struct Manager {
    path: PathBuf,
    kept: Kept,
    /// How many descriptors it says that it keeps.
    says: usize,
    heard: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// One that says how many it keeps, and keeps so many.
    pub(super) fn new(directory: &Path, says: usize, keeps: usize) -> Self {
        let path = directory.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a free name");
        let (kept, (tell, heard)) = (Kept::default(), channel());
        let own = Arc::clone(&kept);
        let serve = move || {
            while let Some((text, descriptors)) = next(&socket) {
                match text.as_str() {
                    "SYNC" => tell.send(()).expect("it waits"),
                    _ => obey(&text, descriptors, &own, keeps),
                }
            }
        };
        let thread = Some(std::thread::spawn(serve));
        Self { path, kept, says, heard, thread }
    }

    pub(super) fn notifier(&self) -> Arc<Notifier> {
        let mut notifier = Notifier::to(self.path.as_os_str());
        notifier.keeps_at_most = Some(self.says).filter(|limit| *limit > 0);
        Arc::new(notifier)
    }

    /// What it passes to a process that it starts.
    pub(super) fn passed(&self) -> PassedDescriptors {
        self.tell("SYNC");
        self.heard.recv().expect("it lives");
        let kept = lock(&self.kept);
        let copies = kept.iter().map(|(name, own)| (name.clone(), own.try_clone().expect("a copy")));
        let (records, sockets): (Vec<_>, Vec<_>) = copies.partition(|(name, _)| name == RECORD_NAME);
        let record = records.into_iter().next().map(|(_, record)| record);
        PassedDescriptors { sockets: InheritedSockets::new(sockets).expect("sockets"), record, lost_process: None }
    }

    /// The names of all that it keeps.
    pub(super) fn names(&self) -> Vec<String> {
        self.tell("SYNC");
        self.heard.recv().expect("it lives");
        let mut names: Vec<String> = lock(&self.kept).iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    fn tell(&self, text: &str) {
        let own = UnixDatagram::unbound().expect("a socket");
        own.send_to(text.as_bytes(), &self.path).expect("it lives");
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.tell("END");
        let ended = self.thread.take().expect("only here").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the manager has failed");
    }
}

fn next(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut piece = [0; 4096];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut piece)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let bytes = received.expect("a message").bytes;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            descriptors.extend(some);
        }
    }
    let text = String::from_utf8_lossy(&piece[..bytes]).into_owned();
    (text != "END").then_some((text, descriptors))
}

fn obey(text: &str, descriptors: Vec<OwnedFd>, kept: &Kept, keeps: usize) {
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default();
    let mut kept = lock(kept);
    if text.contains("FDSTOREREMOVE=1") {
        kept.retain(|(own, _)| own != name);
    } else if text.contains("FDSTORE=1") {
        for descriptor in descriptors {
            let inode = holder::inode_of(&descriptor).ok();
            let is_there = kept.iter().any(|(_, own)| inode.is_some() && holder::inode_of(own).ok() == inode);
            // One that is there under another name, and what is too many, is closed.
            if !is_there && kept.len() < keeps {
                kept.push((name.to_owned(), descriptor));
            }
        }
    }
}
