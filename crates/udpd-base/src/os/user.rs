//! The user that this process is. A process that root starts becomes an ordinary one before it has a thread, opens a
//! file or binds a socket. It keeps the capabilities that a start takes until its threads are in the sandbox. So all
//! that it opens is opened with the rights that it has later as well.
//!
//! A process has one user, but the kernel keeps it for each thread. The C library sets it on all of them, and ends the
//! process where a filter of system calls lets one thread have it and another not. Hence before there is a second one.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist, getgroups, setgroups, setresgid, setresuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities};

/// The user that udpd becomes where there is one and no other is named.
pub const USUAL: &str = "udpd";

/// Who udpd is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WantedUser {
    /// The usual one where there is one, if root starts it.
    #[default]
    Auto,
    Named(String),
}

/// A user of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: Uid,
    pub gid: Gid,
    /// All that it is a member of.
    groups: Vec<Gid>,
}

/// What a start may take besides the rights over files: sockets, programs in the kernel, memory, cores, limits, and the
/// names of other processes on a port.
const OF_A_START: CapabilitySet = CapabilitySet::NET_BIND_SERVICE
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_RESOURCE);

/// What goes with the start at the latest: to see whose a port is, to load programs on older kernels, and to give all
/// of it up.
const UNTIL_READY: CapabilitySet =
    CapabilitySet::SYS_PTRACE.union(CapabilitySet::SYS_ADMIN).union(CapabilitySet::SETPCAP).union(OF_FILES);

/// Rights over the files of others. A process that has become a user has them only for a moment each.
const OF_FILES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::CHOWN);

/// Who this process has become.
static BECOME: OnceLock<String> = OnceLock::new();

impl Account {
    /// `None` where this host has no such user.
    pub fn of(name: &str) -> io::Result<Option<Self>> {
        User::from_name(name)?.map(Self::with_groups).transpose()
    }

    /// The user of this name or number.
    pub fn of_name_or_number(text: &str) -> Option<Self> {
        let by_name = User::from_name(text).ok().flatten();
        let user = by_name.or_else(|| User::from_uid(Uid::from_raw(text.parse().ok()?)).ok().flatten())?;
        Self::with_groups(user).ok()
    }

    fn with_groups(user: User) -> io::Result<Self> {
        let groups = CString::new(user.name.as_str()).map_or(Ok(Vec::new()), |name| getgrouplist(&name, user.gid))?;
        Ok(Self { name: user.name, uid: user.uid, gid: user.gid, groups })
    }

    /// One by its numbers, in its own group only.
    pub fn of_numbers(uid: u32, gid: u32) -> Self {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        Self { name: uid.to_string(), uid, gid, groups: vec![gid] }
    }
}

/// Makes this process that user. It keeps the capabilities that a start takes. When this fails, nothing has changed.
pub fn become_user(account: &Account) -> Result<(), String> {
    let sets = capabilities(None).map_err(|error| format!("capget: {error}"))?;
    let permitted = sets.permitted.intersection(OF_A_START.union(UNTIL_READY));
    // A process that may not set what it has could not take back what the kernel takes with the user.
    set_capabilities(None, sets).map_err(|error| format!("capset: {error}"))?;
    change_user(account)?;
    let sets =
        CapabilitySets { effective: permitted.difference(OF_FILES), permitted, inheritable: CapabilitySet::empty() };
    // The call was let through a moment ago. Without it the process goes on with fewer rights, and says what it lacks.
    let _ = set_capabilities(None, sets);
    let _ = BECOME.set(account.name.clone());
    Ok(())
}

/// Makes this process that user for good, with these capabilities and no others.
pub fn become_user_with(account: &Account, kept: CapabilitySet) -> Result<(), String> {
    change_user(account)?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(|error| format!("capset: {error}"))
}

/// Changes the user and its groups, and leaves the capabilities permitted. When this fails, nothing has changed.
fn change_user(account: &Account) -> Result<(), String> {
    let groups = getgroups().map_err(|error| format!("getgroups: {}", error.desc()))?;
    let own = nix::unistd::getgid();
    set_keep_capabilities(true).map_err(|error| format!("prctl: {error}"))?;
    let (uid, gid) = (account.uid, account.gid);
    let outcome = setgroups(&account.groups)
        .map_err(|error| format!("setgroups: {}", error.desc()))
        .and_then(|()| setresgid(gid, gid, gid).map_err(|error| format!("setresgid: {}", error.desc())))
        .and_then(|()| setresuid(uid, uid, uid).map_err(|error| format!("setresuid: {}", error.desc())));
    let _ = set_keep_capabilities(false);
    if outcome.is_err() {
        let _ = setresgid(own, own, own);
        let _ = setgroups(&groups);
    }
    outcome
}

/// The name of the user that this process is, or its number where it has no name.
pub fn own_name() -> String {
    let own = geteuid();
    User::from_uid(own).ok().flatten().map_or_else(|| own.to_string(), |user| user.name)
}

/// Takes from the calling thread, and from those that it starts, what is only there until udpd is ready, where no
/// sandbox takes it.
pub fn give_up_what_only_a_start_takes() -> io::Result<()> {
    let now = capabilities(None)?;
    let without = |set: CapabilitySet| set.difference(UNTIL_READY);
    let sets = CapabilitySets {
        effective: without(now.effective),
        permitted: without(now.permitted),
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, sets)?)
}

/// Makes a socket that another process has made one of this user: the kernel lets only sockets of one user share a
/// port.
pub fn take_socket(socket: impl AsFd) -> io::Result<()> {
    let own = rustix::fs::Uid::from_raw(geteuid().as_raw());
    with(CapabilitySet::CHOWN, || Ok(rustix::fs::fchown(socket, Some(own), None)?))
}

/// Who this process has become; `None` when it is who started it.
pub fn become_by_now() -> Option<&'static str> {
    BECOME.get().map(String::as_str)
}

/// Whether root has started this process.
pub fn is_or_was_root() -> bool {
    BECOME.get().is_some() || geteuid().is_root()
}

/// Reads what others have closed, where this thread still may.
pub fn with_eyes_of_root<T>(read: impl FnOnce() -> T) -> T {
    with(CapabilitySet::DAC_READ_SEARCH, read)
}

/// Makes what only root may make where it is, where this thread still may: it belongs to the user of this process.
pub fn with_hands_of_root<T>(make: impl FnOnce() -> T) -> T {
    with(CapabilitySet::DAC_OVERRIDE, make)
}

fn with<T>(right: CapabilitySet, act: impl FnOnce() -> T) -> T {
    let before = capabilities(None).ok().filter(|sets| sets.permitted.contains(right));
    let Some(before) = before.filter(|sets| !sets.effective.contains(right)) else { return act() };
    let with = CapabilitySets { effective: before.effective.union(right), ..before };
    let is_raised = set_capabilities(None, with).is_ok();
    let outcome = act();
    if is_raised {
        let _ = set_capabilities(None, before);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_with_its_groups_and_one_that_is_not_there_is_none() {
        let root = Account::of("root").expect("the list of users is readable").expect("every host has one");
        assert!(root.uid.is_root() && root.groups.contains(&root.gid));
        assert_eq!(Account::of("no-such-user-of-udpd").expect("readable"), None);
        assert_eq!(Account::of("no\0user").unwrap_or(None), None);
    }

    #[test]
    fn a_right_is_held_for_one_moment_and_where_there_is_none_the_deed_is_done_without() {
        let effective = || capabilities(None).expect("readable").effective;
        let thread = std::thread::spawn(move || {
            let before = capabilities(None).expect("readable");
            let right = CapabilitySet::DAC_READ_SEARCH;
            let without = CapabilitySets { effective: before.effective.difference(right), ..before };
            set_capabilities(None, without).expect("less can always be had");
            assert_eq!(with_eyes_of_root(|| effective().contains(right)), before.permitted.contains(right));
            assert_eq!(effective(), without.effective);
            set_capabilities(None, CapabilitySets { permitted: without.effective, ..without }).expect("less");
            assert!(!with_eyes_of_root(|| effective().contains(right)));
        });
        thread.join().expect("it holds");
    }
}
