//! Landlock: what a thread may open, and whether it may connect by TCP.
//!
//! A rule holds for a directory as it is when the thread goes in, and for all below it, also what is mounted there
//! later. A directory that somebody removes and makes again is another one.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    path_beneath_rules,
};

/// The newest Landlock whose rules are known to leave alone what udpd does. Older kernels hold to what they know.
const KNOWN: ABI = ABI::V5;

/// What a thread may open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// To read, with all below.
    pub read: Vec<PathBuf>,
    /// To read, write, make and remove files and directories below.
    pub write: Vec<PathBuf>,
    /// Whether it connects by TCP.
    pub connects: bool,
}

/// Holds the calling thread, and those that it starts, to what it may open.
pub(super) fn hold_to(reach: &Reach) -> Result<(), String> {
    let restricted = restrict(reach).map_err(|error| format!("Landlock: {error}"))?;
    match restricted {
        RulesetStatus::NotEnforced => {
            Err("Landlock: this kernel has none (it takes Linux 5.13 with landlock in its list of LSMs)".to_owned())
        }
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

fn restrict(reach: &Reach) -> Result<RulesetStatus, RulesetError> {
    let net = if reach.connects { AccessNet::BindTcp.into() } else { AccessNet::from_all(KNOWN) };
    let rules = Ruleset::default().handle_access(AccessFs::from_all(KNOWN))?.handle_access(net)?.create()?;
    let rules = rules.add_rules(path_beneath_rules(&reach.read, reading()))?;
    let rules = rules.add_rules(path_beneath_rules(&reach.write, reading() | writing()))?;
    Ok(rules.restrict_self()?.ruleset)
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
