//! Other processes on our ports. The kernel lets another process of the same user bind a socket to an address that
//! several of our sockets share, and then gives it a part of the datagrams, which no counter of ours has. It tells
//! neither process.
//!
//! A socket that is alone on its address cannot be joined, so only listeners with several lanes on an address, or with
//! `share_port`, are watched: once a second, by one look at the kernel's tables for all of them. More is asked only
//! about a socket that was not there before: which process has it, and, of the kernel, whether it is bound to an
//! interface.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use netlink::sock_diag;
use udpd_base::ledger::snapshot::{SharerSnapshot, Takes};
use udpd_base::os::holder;
use udpd_base::os::holder::Holder;
use udpd_engine::config::Config;
use udpd_engine::pipeline::Pipeline;

/// What decides between sockets on one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    address: SocketAddr,
    /// The index of the interface that it is bound to; 0 for none.
    interface: u32,
    v6_only: bool,
}

/// A listener that others can join.
#[derive(Debug)]
struct SharedListener {
    listener: usize,
    name: String,
    bound: Vec<Bound>,
    share_port: bool,
}

#[derive(Debug)]
pub struct ShareWatch {
    proc_root: PathBuf,
    watched: Vec<SharedListener>,
    ports: BTreeSet<u16>,
    /// The inodes of our own sockets on these ports.
    own: BTreeSet<u64>,
    /// Every other socket on these ports, by inode, with what it takes of which listener.
    others: BTreeMap<u64, Vec<Sharer>>,
    /// Other sockets cannot be seen, and the log says so.
    blind: bool,
}

/// One socket of another process and one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sharer {
    /// The place of the listener among the watched ones.
    place: usize,
    takes: Takes,
    who: Holder,
}

/// The sockets of one process that do the same to the same listener.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SharingProcess {
    sharer: Sharer,
    sockets: u64,
}

impl ShareWatch {
    /// Watches the listeners of a pipeline that has just been started.
    pub fn new(config: &Config, pipeline: &Pipeline) -> Self {
        let mut watched = Vec::new();
        for (listener, settings) in config.listeners.iter().enumerate() {
            let lanes = || pipeline.lanes_of(listener);
            if !lanes().any(|lane| lane.setup.plan.shares) {
                pipeline.set_port_sharers(listener, Some(Vec::new()));
                continue;
            }
            let (name, share_port) = (settings.name.clone(), settings.share_port);
            watched.push(SharedListener { listener, name, bound: bound(pipeline, listener), share_port });
        }
        Self::over(watched, Path::new("/proc"))
    }

    fn over(watched: Vec<SharedListener>, proc_root: &Path) -> Self {
        let ports = watched.iter().flat_map(|one| &one.bound).map(|bound| bound.address.port()).collect();
        let (own, others) = (BTreeSet::new(), BTreeMap::new());
        Self { proc_root: proc_root.to_owned(), watched, ports, own, others, blind: false }
    }

    pub fn look(&mut self, pipeline: &Pipeline) {
        if self.watched.is_empty() {
            return;
        }
        // An interface that was made anew has another number, and so have the sockets on it.
        let refresh = |watched: &mut [SharedListener]| {
            watched.iter_mut().for_each(|one| one.bound = bound(pipeline, one.listener));
            pipeline.socket_inodes()
        };
        let Some(lines) = self.compare(refresh, |address| Ok(sock_diag::on_port(address)?)) else { return };
        for (level, line) in lines {
            log::log!(level, "{line}");
        }
        for place in 0..self.watched.len() {
            pipeline.set_port_sharers(self.watched[place].listener, self.sharers(place));
        }
    }

    /// What has to be said; `None` when nothing has changed. `refresh` finds the inodes of our sockets and what they
    /// are bound to, and `details` what the tables do not tell; both are asked only about what is new.
    fn compare(
        &mut self,
        refresh: impl Fn(&mut [SharedListener]) -> Vec<u64>,
        details: impl Fn(SocketAddr) -> std::io::Result<Vec<sock_diag::UdpSocket>>,
    ) -> Option<Vec<(log::Level, String)>> {
        let sockets = match holder::sockets(&self.proc_root, |port| self.ports.contains(&port)) {
            Ok(sockets) => sockets,
            Err(error) => return self.say_blind(&error),
        };
        let was_blind = std::mem::take(&mut self.blind);
        let is_there: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
        self.own.retain(|inode| is_there.contains(inode));
        let first_look = self.own.is_empty();
        let is_known = |watch: &Self, inode: &u64| watch.own.contains(inode) || watch.others.contains_key(inode);
        if !is_there.iter().all(|inode| is_known(self, inode)) {
            self.own.extend(refresh(&mut self.watched).into_iter().filter(|inode| is_there.contains(inode)));
        }
        let uid = sockets.iter().find(|socket| self.own.contains(&socket.inode)).map(|socket| socket.uid);
        let before = self.sharing();
        self.others.retain(|inode, _| is_there.contains(inode));
        let mut new: Vec<Holder> = sockets.into_iter().filter(|socket| !is_known(self, &socket.inode)).collect();
        if new.iter().any(|socket| Some(socket.uid) == uid) {
            holder::name_processes(&mut new, &self.proc_root);
        }
        for who in new {
            let is_foreign = Some(who.uid) == uid && !who.own;
            let sharers = if is_foreign { self.sharers_of(&who, &details) } else { Vec::new() };
            self.others.insert(who.inode, sharers);
        }
        let after = self.sharing();
        let lines = |here: &[SharingProcess], there: &[SharingProcess], has_come| -> Vec<(log::Level, String)> {
            let only_here =
                here.iter().filter(|process| !there.iter().any(|other| process.sharer.is_like(&other.sharer)));
            only_here.map(|process| self.line(process, has_come)).collect()
        };
        let said = [lines(&before, &after, false), lines(&after, &before, true)].concat();
        (before != after || was_blind || first_look).then_some(said)
    }

    fn sharing(&self) -> Vec<SharingProcess> {
        grouped(self.others.values().flatten())
    }

    /// What a socket does to our listeners.
    fn sharers_of(
        &self,
        who: &Holder,
        details: impl Fn(SocketAddr) -> std::io::Result<Vec<sock_diag::UdpSocket>>,
    ) -> Vec<Sharer> {
        // Where the kernel does not tell, a socket is taken for the usual one: bound to no interface.
        let told = details(who.address).unwrap_or_default().into_iter().find(|details| details.inode == who.inode);
        let theirs = Bound {
            address: who.address,
            interface: told.map_or(0, |details| details.interface),
            v6_only: told.is_some_and(|details| details.v6_only),
        };
        let takes = |(place, watched): (usize, &SharedListener)| {
            let of_all = watched.bound.iter().filter_map(|ours| takes(ours, &theirs, who.connected));
            Some(Sharer { place, takes: of_all.max()?, who: who.clone() })
        };
        self.watched.iter().enumerate().filter_map(takes).collect()
    }

    fn say_blind(&mut self, error: &std::io::Error) -> Option<Vec<(log::Level, String)>> {
        let first = !std::mem::replace(&mut self.blind, true);
        let line = format!(
            "cannot see who else is on the ports of the listeners: {}/net/udp: {error}; udpd does not notice a \
             process that joins them; let udpd read it (in the unit file: no ProcSubset=pid)",
            self.proc_root.display()
        );
        first.then(|| vec![(log::Level::Warn, line)])
    }

    fn line(&self, process: &SharingProcess, has_come: bool) -> (log::Level, String) {
        let SharingProcess { sharer: Sharer { place, takes, who }, sockets } = process;
        let SharedListener { name, share_port, .. } = &self.watched[*place];
        if !has_come {
            return (log::Level::Info, format!("listener {name}: {who} has closed its sockets on {}", who.address));
        }
        let on = format!("{sockets} {} on {}", if *sockets == 1 { "socket" } else { "sockets" }, who.address);
        let effect = match takes {
            Takes::Share => "the kernel splits the datagrams between the two, and this ledger has only udpd's part",
            Takes::Part => "the kernel gives it everything that fits that address, and this ledger does not have it",
            Takes::Nothing => "it gets only what is not for this listener",
        };
        let is_meant = *share_port || *takes == Takes::Nothing;
        let cure = if is_meant { "" } else { "; stop one of the two, or write share_port = true to share" };
        let level = if is_meant { log::Level::Info } else { log::Level::Warn };
        (level, format!("listener {name}: {who} also has {on}: {effect}{cure}"))
    }

    /// The processes on the port of a listener; `None` when they cannot be seen.
    fn sharers(&self, place: usize) -> Option<Vec<SharerSnapshot>> {
        if self.blind {
            return None;
        }
        let of_this = self.sharing().into_iter().filter(|process| process.sharer.place == place);
        let snapshot = |SharingProcess { sharer: Sharer { takes, who, .. }, sockets }| SharerSnapshot {
            pid: who.pid,
            command: who.command,
            uid: who.uid,
            address: who.address.to_string(),
            sockets,
            takes,
        };
        Some(of_this.map(snapshot).collect())
    }
}

impl Sharer {
    /// Whether both are sockets of one process that do the same to the same listener.
    fn is_like(&self, other: &Self) -> bool {
        let key = |one: &Self| (one.place, one.takes, one.who.pid, one.who.uid, one.who.address);
        key(self) == key(other)
    }
}

/// What the sockets of a listener are bound to, one for each address.
fn bound(pipeline: &Pipeline, listener: usize) -> Vec<Bound> {
    let first_lanes =
        pipeline.lanes_of(listener).filter(|lane| lane.setup.plan.member == 0 && lane.setup.plan.has_socket());
    let bound = first_lanes.map(|lane| Bound {
        address: lane.address,
        interface: lane.bound_interface().unwrap_or(0),
        v6_only: !lane.address.ip().is_unspecified(),
    });
    bound.collect()
}

/// Puts the sockets of one process together that do the same.
fn grouped<'a>(sharers: impl Iterator<Item = &'a Sharer>) -> Vec<SharingProcess> {
    let mut sharing: Vec<SharingProcess> = Vec::new();
    for sharer in sharers {
        match sharing.iter_mut().find(|process| process.sharer.is_like(sharer)) {
            Some(process) => process.sockets += 1,
            None => sharing.push(SharingProcess { sharer: sharer.clone(), sockets: 1 }),
        }
    }
    sharing
}

/// What a socket takes of what is sent to one of ours, as the kernel chooses: the address that fits exactly, then the
/// family, then the interface, and among equals by hash.
fn takes(ours: &Bound, theirs: &Bound, connected: bool) -> Option<Takes> {
    let apart = ours.interface != 0 && theirs.interface != 0 && ours.interface != theirs.interface;
    if ours.address.port() != theirs.address.port() || apart {
        return None;
    }
    let is_any = |bound: &Bound| bound.address.ip().is_unspecified();
    let covers = |wide: &Bound, narrow: &Bound| match (wide.address.ip(), narrow.address.ip()) {
        (IpAddr::V6(wide_ip), IpAddr::V4(_)) => wide_ip.is_unspecified() && !wide.v6_only,
        (wide_ip, narrow_ip) => wide_ip.is_ipv4() == narrow_ip.is_ipv4() && is_any(wide),
    };
    let by_interface = || match (ours.interface, theirs.interface) {
        (0, 0) => Takes::Share,
        (0, _) => Takes::Part,
        (_, 0) => Takes::Nothing,
        _ => Takes::Share,
    };
    if ours.address.ip() == theirs.address.ip() {
        Some(if connected { Takes::Part } else { by_interface() })
    } else if covers(ours, theirs) {
        Some(Takes::Part)
    } else if covers(theirs, ours) {
        Some(Takes::Nothing)
    } else {
        None
    }
}

#[cfg(test)]
#[path = "port_sharing_tests.rs"]
mod tests;
