//! The user as which the daemon runs. Root becomes an ordinary user before there is a thread, a file or a socket; what
//! that user cannot open is said at the start, and never by the first rotation or reload.

use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, User, access, geteuid};

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::user;
use udpd_base::os::user::{Account, USUAL, WantedUser};
use udpd_engine::config::Config;
use udpd_sandbox::SandboxMode;

/// The user of this process, as it is to be.
#[derive(Debug)]
pub(crate) enum DaemonUser {
    /// The one that started it; where that is root, why.
    Unchanged(Option<String>),
    /// Root becomes this one.
    Becomes(Account),
}

impl DaemonUser {
    /// What the configuration asks for, and what this host has.
    pub(crate) fn of(config: &Config) -> Result<Self, Failure> {
        let is_root = geteuid().is_root();
        match &config.daemon.user {
            WantedUser::Auto if !is_root => Ok(Self::Unchanged(None)),
            WantedUser::Auto if config.daemon.sandbox == SandboxMode::Off => {
                Ok(Self::Unchanged(Some("sandbox = \"off\" gives up nothing".to_owned())))
            }
            WantedUser::Auto => Ok(match Account::of(USUAL) {
                Ok(Some(account)) if !account.uid.is_root() => Self::Becomes(account),
                _ => Self::Unchanged(Some(format!(
                    "this host has no user {USUAL}; make one (useradd --system {USUAL}), or name another with [daemon] \
                     user"
                ))),
            }),
            WantedUser::Named(name) => Self::of_named(name, is_root),
        }
    }

    fn of_named(name: &str, is_root: bool) -> Result<Self, Failure> {
        let refuse = |code, why: String| Err(Failure::new(code, format!("cannot become user {name}: {why}")));
        match Account::of(name) {
            Ok(Some(account)) if account.uid == geteuid() => {
                Ok(Self::Unchanged(is_root.then(|| format!("user = \"{name}\" says so"))))
            }
            Ok(Some(account)) if is_root => Ok(Self::Becomes(account)),
            Ok(Some(_)) => refuse(
                ExitCode::Permission,
                format!(
                    "{} has started udpd, and only root can become another user; start udpd as root or as {name} \
                     (User={name} in a unit), or write user = \"auto\"",
                    shown_user()
                ),
            ),
            Ok(None) => refuse(
                ExitCode::Configuration,
                format!("this host has no such user; make it (useradd --system {name}), or write user = \"auto\""),
            ),
            Err(error) => {
                refuse(ExitCode::Permission, format!("the list of users cannot be read: {error}; see /etc/passwd"))
            }
        }
    }

    /// Becomes it. Where the configuration names the user, a failure ends the start.
    pub(crate) fn assume(self, config: &Config) -> Result<Self, Failure> {
        let Self::Becomes(account) = &self else { return Ok(self) };
        let name = &account.name;
        match user::become_user(account) {
            Ok(()) => Ok(self),
            Err(why) if config.daemon.user == WantedUser::Auto => Ok(Self::Unchanged(Some(format!(
                "it cannot become user {name}: {why}; a container needs the capabilities SETUID and SETGID for that, \
                 and the number of that user; or start udpd as that user"
            )))),
            Err(why) => {
                let message = format!(
                    "cannot become user {name}: {why}; a container needs the capabilities SETUID and SETGID for that, \
                     and the number of that user; or start udpd as that user"
                );
                Err(Failure::new(ExitCode::Permission, message))
            }
        }
    }

    /// The user that root becomes.
    pub(super) fn account(&self) -> Option<&Account> {
        match self {
            Self::Becomes(account) => Some(account),
            Self::Unchanged(_) => None,
        }
    }

    pub(crate) fn words(&self) -> String {
        match self {
            Self::Becomes(account) => format!("{} (uid {}), which root becomes", account.name, account.uid),
            Self::Unchanged(_) => shown_user(),
        }
    }

    pub(super) fn log(&self) {
        match self {
            Self::Becomes(account) => {
                log::info!("user {} (uid {}): root has started udpd, which has become it", account.name, account.uid);
            }
            Self::Unchanged(Some(why)) => log::warn!("udpd stays root: {why}; docs/sandbox.md says what that means"),
            Self::Unchanged(None) => {}
        }
    }

    pub(crate) fn warning(&self) -> Option<String> {
        match self {
            Self::Unchanged(Some(why)) => Some(format!("udpd would stay root: {why}")),
            _ => None,
        }
    }
}

fn shown_user() -> String {
    let uid = geteuid();
    let name = User::from_uid(uid).ok().flatten().map_or_else(|| "a user without a name".to_owned(), |user| user.name);
    format!("{name} (uid {uid})")
}

/// Refuses what this user cannot do at the end, and tells why a reload will be refused.
pub(crate) fn look_ahead(config: &Config, file: Option<&Path>) -> Result<Vec<String>, Failure> {
    let Some(name) = user::become_by_now() else { return Ok(Vec::new()) };
    if let Some(path) = &config.daemon.stats_on_exit
        && let Some(directory) = path.parent()
        && access(directory, AccessFlags::W_OK | AccessFlags::X_OK) == Err(nix::errno::Errno::EACCES)
    {
        let message = format!(
            "cannot write stats_on_exit {}: user {name}, which udpd has become, may not write to {}; let it (chown \
             {name} {0}), or name another path",
            path.display(),
            directory.display()
        );
        return Err(Failure::new(ExitCode::Permission, message));
    }
    let lists = config.listeners.iter().flat_map(|listener| listener.access.files().map(PathBuf::from));
    let mut read_again: Vec<PathBuf> = file.map(Path::to_owned).into_iter().chain(lists).collect();
    read_again.sort();
    read_again.dedup();
    read_again.retain(|path| access(path, AccessFlags::R_OK) == Err(nix::errno::Errno::EACCES));
    let warn = |path: PathBuf| {
        let path = path.display();
        format!(
            "root can read {path} and user {name}, which udpd becomes, cannot; let it: chgrp {name} {path} && chmod \
             g+r {path}, and likewise for the directories above"
        )
    };
    Ok(read_again.into_iter().map(warn).collect())
}
