//! Landlock: what a thread may open, and to which ports it may connect by TCP. No thread signals another process, and
//! none connects to a name in the abstract namespace of Unix sockets, which no permission guards.
//!
//! A rule holds for a directory as it is when the thread enters the sandbox, and for all below it, also what is mounted
//! there later. A directory that is removed and made again is another one.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Erratum, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

/// The newest Landlock whose rules are known to leave alone what udpd does. Older kernels hold to what they know.
const KNOWN: ABI = ABI::V7;

/// Where a server of names listens.
const NAMES: u16 = 53;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedPaths {
    /// To read, with all below.
    pub read: Vec<PathBuf>,
    /// To read, write, make and remove files and directories below.
    pub write: Vec<PathBuf>,
    /// Where it connects by TCP.
    pub connects: Connects,
}

/// Where a thread may connect by TCP. Each includes those before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connects {
    #[default]
    Nowhere,
    /// Where names are looked up: an answer that does not fit a datagram comes by TCP.
    Names,
    /// A broker names others, at any port.
    Anywhere,
}

/// Restricts the calling thread, and those that it starts, to these paths and ports.
pub(super) fn restrict(paths: &AllowedPaths) -> Result<(), String> {
    let restricted = apply(paths).map_err(|error| format!("Landlock: {error}"))?;
    match restricted {
        RulesetStatus::NotEnforced => {
            Err("Landlock: this kernel has none (it takes Linux 5.13 with landlock in its list of LSMs)".to_owned())
        }
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn apply(paths: &AllowedPaths) -> Result<RulesetStatus, RulesetError> {
    let net = match paths.connects {
        Connects::Anywhere => AccessNet::BindTcp.into(),
        Connects::Names | Connects::Nowhere => AccessNet::from_all(KNOWN),
    };
    let rules = Ruleset::default().handle_access(AccessFs::from_all(KNOWN))?.handle_access(net)?;
    let mut rules = rules.scope(scopes())?.create()?;
    if paths.connects == Connects::Names {
        rules = rules.add_rule(NetPort::new(NAMES, AccessNet::ConnectTcp))?;
    }
    let rules = rules.add_rules(path_beneath_rules(&paths.read, reading()))?;
    let rules = rules.add_rules(path_beneath_rules(&paths.write, reading() | writing()))?;
    Ok(rules.restrict_self()?.ruleset)
}

/// Before this was mended (Linux 6.15) a thread in a scope signalled no other thread of its own process either, and a
/// receiver could not be woken. The filter of system calls lets through no signal to others in any case.
fn scopes() -> BitFlags<Scope> {
    match Erratum::current().contains(Erratum::ScopedSignalHandling) {
        true => Scope::AbstractUnixSocket | Scope::Signal,
        false => Scope::AbstractUnixSocket.into(),
    }
}

fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Files and directories, and neither devices nor pipes nor links.
fn writing() -> BitFlags<AccessFs> {
    AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer
}
