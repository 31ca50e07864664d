//! The descriptor store of the service manager: it keeps a second descriptor of every listening socket, and passes them
//! to the next process, after a restart as after a crash. What arrives in between waits in the sockets.
//!
//! The manager says by FDSTORE how many descriptors it keeps (systemd from 254 on; the unit file says it for older
//! ones), and that it keeps any is shown by those it has passed. Nobody answers when one is put there, so the names are
//! written down here.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;

use super::record::{NAME, Record};
use super::will::Will;
use udpd_base::os::holder;
use udpd_base::os::notify::Notifier;
use udpd_engine::config::Config;
use udpd_engine::pipeline::{CumulativeLedger, InheritedSockets, Lane, Pipeline, SocketAssignment};
use udpd_engine::plan::PipelinePlan;

/// What is kept there, and what is passed by others at every start.
#[derive(Debug)]
pub(super) struct Store {
    notifier: Arc<Notifier>,
    /// How many descriptors it takes; `None` where there is no store.
    limit: Option<usize>,
    /// What is in it, by name: the inode of the socket.
    stored: BTreeMap<String, u64>,
    /// The inodes of sockets that a unit of their own keeps.
    of_units: Vec<u64>,
    /// What the next process has to know.
    will: Will,
    /// It is in the store, put there by an earlier process or by this one.
    has_will: bool,
}

impl Store {
    /// `lost` is a process that has died with its sockets.
    pub(super) fn new(
        notifier: &Arc<Notifier>,
        kept: &InheritedSockets,
        record: Option<OwnedFd>,
        lost: Option<u32>,
    ) -> Self {
        let (own, of_units): (Vec<_>, Vec<_>) = kept.sockets().iter().partition(|kept| kept.is_own());
        let has_record = record.is_some();
        let limit = limit_of_manager().or((!own.is_empty()).then_some(usize::MAX)).filter(|_| notifier.has_manager());
        let will = Will::new(record, lost);
        Self {
            has_will: has_record && will.has_before(),
            will,
            notifier: Arc::clone(notifier),
            limit,
            stored: own.iter().map(|kept| (kept.name.clone(), kept.inode)).collect(),
            of_units: of_units.iter().map(|kept| kept.inode).collect(),
        }
    }

    /// The same for a process that takes over from another one, and what that says of itself. Nothing of it is passed
    /// by a manager; what a manager has of the other one is stored again under the same names.
    pub(super) fn after(notifier: &Arc<Notifier>, said: Value) -> Self {
        Self { will: Will::after(said), ..Self::new(notifier, &InheritedSockets::default(), None, None) }
    }

    /// What a process has to know that takes over from this one.
    pub(super) fn last_words(&self, pipeline: &Pipeline, ended: bool) -> Value {
        self.will.last_words(pipeline, ended)
    }

    /// What this process writes down, for one that is to take over.
    pub(super) fn record(&self) -> Option<OwnedFd> {
        self.will.file()?.descriptor().try_clone().ok().map(OwnedFd::from)
    }

    /// The process that was taken over from was killed before it had closed its books.
    pub(super) fn note_killed(&mut self, last: Record) {
        self.will.note_killed(last);
    }

    /// Writes down how far all is counted now.
    pub(super) fn write_down(&mut self) {
        self.will.look();
    }

    /// To be called right before the first datagram can come: from then on a kill is one of this process.
    pub(super) fn begin(&mut self, config: &Config, plan: &PipelinePlan, claims: &SocketAssignment) {
        self.will.begin(config, plan, claims);
    }

    /// To be called right before another configuration comes into force.
    pub(super) fn go_on(&mut self, config: &Config, plan: &PipelinePlan) {
        self.will.go_on(config, plan);
    }

    /// The start has failed, and these are the last books of this process.
    pub(super) fn give_back(&mut self, books: &CumulativeLedger) {
        self.will.give_back(books);
    }

    /// The books are closed, and the next process may know. It must not believe them where a thread has died.
    pub(super) fn end(&mut self, is_orderly: bool) {
        self.will.end(is_orderly);
    }

    /// Has the sockets of all lanes kept, as they are now, and no others.
    pub(super) fn keep(&mut self, pipeline: &Pipeline) {
        let wanted = self.wanted(pipeline);
        let has_room = self.has_room(wanted.len());
        if let (false, Some(limit)) = (has_room, self.limit) {
            log::warn!(
                "the service manager keeps {limit} descriptors and there are {} lanes: what arrives while udpd is \
                 restarted is lost; raise FileDescriptorStoreMax= (and FDSTORE= beside it) in the unit file",
                wanted.len()
            );
        }
        // First what goes: the manager takes nothing when it is full, and drops a descriptor that it has under another
        // name.
        let stays = |name: &String, inode: &u64| has_room && wanted.get(name) == Some(inode);
        let (stored, gone) = std::mem::take(&mut self.stored).into_iter().partition(|(name, inode)| stays(name, inode));
        self.stored = stored;
        gone.keys().for_each(|name| self.notifier.forget(name));
        // Without the sockets it would promise that what waits in them is not lost.
        if self.has_will && !self.has_room(wanted.len() + 1) {
            self.notifier.forget(NAME);
            self.has_will = false;
        }
        for lane in pipeline.lanes().iter().filter(|lane| lane.setup.plan.has_socket()) {
            let is_of_unit = self.is_of_unit(lane);
            lane.set_socket_survives(is_of_unit || has_room && self.keep_one(lane));
        }
        if has_room {
            self.keep_will();
        }
        self.will.run(pipeline);
        self.will.look();
    }

    /// What is to be in it: the sockets of all lanes, but for those that a unit keeps.
    fn wanted(&self, pipeline: &Pipeline) -> BTreeMap<String, u64> {
        let own = pipeline.lanes().iter().filter(|lane| lane.setup.plan.has_socket() && !self.is_of_unit(lane));
        own.map(|lane| (lane.socket_name(), inode_of(lane))).collect()
    }

    fn has_room(&self, sockets: usize) -> bool {
        self.limit.is_some_and(|limit| sockets <= limit)
    }

    /// Has what the next process must know kept beside the sockets.
    fn keep_will(&mut self) {
        if let (Some(limit), false, Some(file)) = (self.limit, self.has_will, self.will.file()) {
            if self.stored.len() < limit {
                // One that nobody could read.
                self.notifier.forget(NAME);
                self.has_will = self.notifier.keep(NAME, file.descriptor());
            } else {
                log::warn!(
                    "the service manager keeps {limit} descriptors, one for each lane: there is no place for what the \
                     next process has to know, and after a kill it cannot say what may be lost; raise \
                     FileDescriptorStoreMax= (and FDSTORE= beside it) in the unit file"
                );
            }
        }
    }

    /// Puts a socket there unless it is there.
    fn keep_one(&mut self, lane: &Lane) -> bool {
        let (name, inode) = (lane.socket_name(), inode_of(lane));
        let is_there =
            self.stored.contains_key(&name) || lane.socket().is_some_and(|socket| self.notifier.keep(&name, &*socket));
        if is_there {
            self.stored.insert(name, inode);
        }
        is_there
    }

    /// The same where a socket may have been replaced.
    pub(super) fn look(&mut self, pipeline: &Pipeline) {
        let wanted = self.wanted(pipeline);
        if self.has_room(wanted.len()) && self.stored != wanted {
            self.keep(pipeline);
        }
        if pipeline.earlier_pipelines_are_closed() {
            self.will.settle();
        }
        self.will.look();
    }

    fn is_of_unit(&self, lane: &Lane) -> bool {
        self.of_units.contains(&inode_of(lane))
    }
}

/// How many descriptors the manager keeps, where it says so.
fn limit_of_manager() -> Option<usize> {
    std::env::var("FDSTORE").ok()?.parse().ok().filter(|&limit| limit > 0)
}

/// The number of its socket in this host, the same in every process that has it; 0 where the kernel does not say.
fn inode_of(lane: &Lane) -> u64 {
    lane.socket().and_then(|socket| holder::inode_of(&*socket).ok()).unwrap_or(0)
}
