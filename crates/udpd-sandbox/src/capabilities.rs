//! Giving up capabilities, all but what a role cannot do without.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use udpd_base::os::role::ThreadRole;

/// What rights over files root has besides those of the owner. They go before the first file is opened, so that what
/// cannot be written without them is said at the start and not at the first rotation.
const OF_FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::CHOWN);

/// What making a socket may take, beside what every process may.
const OF_SOCKETS: CapabilitySet =
    CapabilitySet::NET_BIND_SERVICE.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::NET_RAW);

/// Whether this process has a right that this role keeps: one that is needed again when its threads have none left.
pub fn has_rights_of(role: ThreadRole) -> bool {
    capabilities(None).is_ok_and(|sets| sets.permitted.intersects(kept(role)))
}

/// Whether memory that the calling thread locks, or has a device lock, counts against a limit.
pub fn has_locked_memory_counted() -> bool {
    capabilities(None).is_ok_and(|sets| !sets.effective.contains(CapabilitySet::IPC_LOCK))
}

/// What a role keeps, if the process has it.
fn kept(role: ThreadRole) -> CapabilitySet {
    match role {
        // It makes a raw socket whenever the way to its destination changes.
        ThreadRole::SourceKeeper => CapabilitySet::NET_RAW,
        ThreadRole::PrivilegeHelper => OF_SOCKETS,
        ThreadRole::Announcer => CapabilitySet::NET_ADMIN,
        ThreadRole::FilterHelper => OF_SOCKETS.union(CapabilitySet::BPF),
        _ => CapabilitySet::empty(),
    }
}

/// Takes from the calling thread, and from those that it starts, every capability that its roles do not need, and the
/// chance to gain any.
pub(super) fn give_up(roles: &[ThreadRole]) -> Result<(), String> {
    set_no_new_privs(true).map_err(|error| format!("no-new-privileges: {error}"))?;
    let kept = roles.iter().fold(CapabilitySet::empty(), |all, role| all.union(kept(*role)));
    keep_only(kept).map_err(|error| format!("capabilities: {error}"))
}

/// Takes from the calling thread, and from those that it starts, the rights of root over the files of others.
pub fn give_up_files_of_others() -> Result<(), String> {
    let give_up = || {
        let now = capabilities(None)?;
        let without = |set: CapabilitySet| set.difference(OF_FILES);
        have(CapabilitySets {
            effective: without(now.effective),
            // A thread reads for a moment whose a port is, until it goes into the sandbox.
            permitted: without(now.permitted).union(now.permitted.intersection(CapabilitySet::DAC_READ_SEARCH)),
            inheritable: without(now.inheritable),
        })
    };
    give_up().map_err(|error: Errno| format!("capabilities: {error}"))
}

fn keep_only(kept: CapabilitySet) -> Result<(), Errno> {
    // First, because it takes a capability.
    for capability in (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => match remove_capability_from_bounding_set(capability) {
                // A process without CAP_SETPCAP keeps its bounding set, and nothing can be gained from it any more.
                Ok(()) | Err(Errno::PERM) => {}
                Err(error) => return Err(error),
            },
            Ok(_) => {}
            // Beyond the last one that this kernel knows.
            Err(_) => break,
        }
    }
    clear_ambient_capability_set()?;
    let left = capabilities(None)?.permitted.intersection(kept);
    have(CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() })
}

/// Asks for nothing where the thread has just these: the unit forbids the call, because its service has none to lose.
fn have(wanted: CapabilitySets) -> Result<(), Errno> {
    if capabilities(None)? == wanted { Ok(()) } else { set_capabilities(None, wanted) }
}
