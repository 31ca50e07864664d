//! The descriptor store of the service manager: it keeps a second descriptor of every listening socket, and passes them
//! to the next process, after a restart as after a crash. What arrives in between waits in the sockets.
//!
//! The manager says by FDSTORE how many descriptors it keeps (systemd from 254 on; the unit file says it for older
//! ones), and those that it has passed show that it keeps any. It does not answer when one is put there, so the names
//! are remembered here.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;

use super::crash_record::{CrashRecord, RECORD_NAME};
use udpd_base::os::holder;
use udpd_base::os::notify::Notifier;
use udpd_engine::pipeline::{InheritedSockets, Lane, Pipeline};

/// What this process has put there, and what socket units keep.
#[derive(Debug)]
pub(super) struct DescriptorStore {
    notifier: Arc<Notifier>,
    /// How many descriptors it takes; `None` where there is no store.
    limit: Option<usize>,
    /// What is in it, by name: the inode of the socket.
    stored: BTreeMap<String, u64>,
    /// What the process had that this one took over from: the manager may keep it.
    earlier: BTreeMap<String, u64>,
    /// The inodes of sockets that a unit of their own keeps.
    of_units: Vec<u64>,
    /// Kept beside the sockets.
    pub(super) record: CrashRecord,
    /// The record is in the store, put there by an earlier process or by this one.
    has_record: bool,
}

impl DescriptorStore {
    /// `lost_process` is one that has died with its sockets.
    pub(super) fn new(
        notifier: &Arc<Notifier>,
        kept: &InheritedSockets,
        record: Option<OwnedFd>,
        lost_process: Option<u32>,
    ) -> Self {
        let (own, of_units): (Vec<_>, Vec<_>) = kept.sockets().iter().partition(|kept| kept.is_own());
        let had_record = record.is_some();
        let limit =
            notifier.keeps_at_most.or((!own.is_empty()).then_some(usize::MAX)).filter(|_| notifier.has_manager());
        let record = CrashRecord::new(record, lost_process);
        Self {
            has_record: had_record && record.has_before(),
            record,
            notifier: Arc::clone(notifier),
            limit,
            stored: own.iter().map(|kept| (kept.name.clone(), kept.inode)).collect(),
            earlier: BTreeMap::new(),
            of_units: of_units.iter().map(|kept| kept.inode).collect(),
        }
    }

    /// For a process that takes over from another one, which has said this of itself. No manager has passed anything;
    /// what a manager keeps of the other process is stored again under the same names. `earlier` has its sockets:
    /// one that no lane has any more would stay bound in the manager, and be in the way of a new one. So would its
    /// record, which takes a place and tells the next process what is counted here once more.
    pub(super) fn after(notifier: &Arc<Notifier>, said: Value, mut earlier: BTreeMap<String, u64>) -> Self {
        earlier.insert(RECORD_NAME.to_owned(), 0);
        let record = CrashRecord::after(said);
        Self { record, earlier, ..Self::new(notifier, &InheritedSockets::default(), None, None) }
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
        // First remove what is not kept any more: the manager takes nothing when it is full, and drops a descriptor
        // that it has under another name.
        let stays = |name: &String, inode: &u64| has_room && wanted.get(name) == Some(inode);
        let (stored, gone): (_, BTreeMap<_, _>) =
            std::mem::take(&mut self.stored).into_iter().partition(|(name, inode)| stays(name, inode));
        self.stored = stored;
        let earlier = std::mem::take(&mut self.earlier).into_iter().filter(|(name, inode)| !stays(name, inode));
        gone.into_iter().chain(earlier).for_each(|(name, _)| self.notifier.forget(&name));
        // Without the sockets it would promise that what waits in them is not lost.
        if self.has_record && !self.has_room(wanted.len() + 1) {
            self.notifier.forget(RECORD_NAME);
            self.has_record = false;
        }
        for lane in pipeline.lanes().iter().filter(|lane| lane.setup.plan.has_socket()) {
            let is_of_unit = self.is_of_unit(lane);
            lane.set_socket_survives(is_of_unit || has_room && self.keep_one(lane));
        }
        if has_room {
            self.keep_record();
        }
        self.record.set_running(pipeline);
        self.record.update();
    }

    /// What is to be in it: the sockets of all lanes, but for those that a unit keeps.
    fn wanted(&self, pipeline: &Pipeline) -> BTreeMap<String, u64> {
        let own = pipeline.lanes().iter().filter(|lane| lane.setup.plan.has_socket() && !self.is_of_unit(lane));
        own.map(|lane| (lane.socket_name(), inode_of(lane))).collect()
    }

    fn has_room(&self, sockets: usize) -> bool {
        self.limit.is_some_and(|limit| sockets <= limit)
    }

    /// Puts the record beside the sockets.
    fn keep_record(&mut self) {
        if let (Some(limit), false, Some(file)) = (self.limit, self.has_record, self.record.file()) {
            if self.stored.len() < limit {
                // An earlier record that could not be read.
                self.notifier.forget(RECORD_NAME);
                self.has_record = self.notifier.keep(RECORD_NAME, file);
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

    /// Once a second: a socket may have been replaced.
    pub(super) fn look(&mut self, pipeline: &Pipeline) {
        let wanted = self.wanted(pipeline);
        if self.has_room(wanted.len()) && self.stored != wanted {
            self.keep(pipeline);
        }
        if pipeline.earlier_pipelines_are_closed() {
            self.record.settle();
        }
        self.record.update();
    }

    fn is_of_unit(&self, lane: &Lane) -> bool {
        self.of_units.contains(&inode_of(lane))
    }
}

/// The inode of its socket, the same in every process that has it; 0 where the kernel does not say.
fn inode_of(lane: &Lane) -> u64 {
    lane.socket().and_then(|socket| holder::inode_of(&*socket).ok()).unwrap_or(0)
}

#[cfg(test)]
#[path = "descriptor_store_tests.rs"]
mod tests;
