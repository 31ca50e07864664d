//! `--as USER`: the check becomes that user before it reads anything. It starts nothing for that and never goes back.

use std::ffi::CString;
use std::str::FromStr;

use nix::unistd::{Gid, Uid, User, geteuid, initgroups, setgid, setuid};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};

use udpd_base::exit::{ExitCode, Failure};

/// A capability that the service has besides its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability(CapabilitySet);

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_uppercase();
        let known = CapabilitySet::from_name(name.strip_prefix("CAP_").unwrap_or(&name));
        known.map(Self).ok_or_else(|| "no capability is called so; one is CAP_NET_BIND_SERVICE".to_owned())
    }
}

/// Becomes the user of this name or number, with these capabilities and no others. Who is that user already goes on
/// with what there is.
pub fn become_user(name: &str, capabilities: &[Capability]) -> Result<(), Failure> {
    let found = User::from_name(name).ok().flatten();
    let found = found.or_else(|| User::from_uid(Uid::from_raw(name.parse().ok()?)).ok().flatten());
    let Some(user) = found else {
        let message = format!("cannot check as {name:?}: this host has no such user; name one of `getent passwd`");
        return Err(Failure::new(ExitCode::Usage, message));
    };
    if user.uid == geteuid() && capabilities.is_empty() {
        return Ok(());
    }
    if !geteuid().is_root() {
        let message = format!("cannot check as {name}: only root may become another user; run this with sudo");
        return Err(Failure::new(ExitCode::Permission, message));
    }
    let fail = |what: &str, error: std::io::Error| {
        Failure::new(ExitCode::Permission, format!("cannot check as {name}: {what}: {error}; run this as root"))
    };
    let kept = capabilities.iter().fold(CapabilitySet::empty(), |all, one| all.union(one.0));
    set_keep_capabilities(true).map_err(|error| fail("keeping capabilities", error.into()))?;
    change_to(&user).map_err(|error| fail("becoming that user", error.into()))?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(|error| fail("giving up capabilities", error.into()))
}

fn change_to(user: &User) -> nix::Result<()> {
    let name = CString::new(user.name.as_str()).unwrap_or_default();
    let group: Gid = user.gid;
    initgroups(&name, group)?;
    setgid(group)?;
    setuid(user.uid)
}

/// Whose rights these are.
pub(super) fn own_name() -> String {
    let own = geteuid();
    User::from_uid(own).ok().flatten().map_or_else(|| own.to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_known_by_its_name_with_the_prefix_and_without() {
        for text in ["CAP_NET_BIND_SERVICE", "cap_net_bind_service", "NET_BIND_SERVICE"] {
            assert_eq!(text.parse(), Ok(Capability(CapabilitySet::NET_BIND_SERVICE)), "{text}");
        }
        assert!("CAP_NET_BIND".parse::<Capability>().is_err() && "".parse::<Capability>().is_err());
    }

    #[test]
    fn a_user_that_is_not_there_is_a_mistake_on_the_command_line() {
        let failure = become_user("no-such-user", &[]).expect_err("there is none");
        assert!(failure.code == ExitCode::Usage && failure.message.contains("no such user"), "{failure}");
        assert!(become_user(&geteuid().to_string(), &[]).is_ok(), "who is it already");
    }
}
