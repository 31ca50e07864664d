//! What the configuration is checked against: the interfaces and cores of this host.
//!
//! Files are read below roots that a test can point elsewhere. A host that hides them (a container without /sys) is
//! not an error: what cannot be known is not refused here. If it is wrong it fails later, with its own message.

use std::fs;
use std::path::{Path, PathBuf};

use super::steer::SteerConfig;
use udpd_base::os::user::{Account, WantedUser};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units;

/// Where the host describes itself.
#[derive(Debug, Clone)]
pub struct HostView {
    /// Usually `/sys`.
    pub sys_root: PathBuf,
    /// Usually `/proc`.
    pub proc_root: PathBuf,
    /// Which interfaces of the file need not be there yet.
    pub may_come: MayCome,
    /// Whether the lists of networks are read that listeners name.
    pub lists: Lists,
    /// Whether the user that udpd becomes must exist. A running daemon has become it already.
    pub becomes_user: bool,
}

/// Whether `allow_files` and `deny_files` are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lists {
    #[default]
    Read,
    /// For commands that only ask a running daemon or steer a card: the files may be long, and not readable for the
    /// user.
    Leave,
}

/// Interfaces that may be absent without being a mistake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MayCome {
    #[default]
    None,
    /// Those of `[steer]`: the daemon receives without them, and warns.
    Steered,
    All,
}

impl Default for HostView {
    fn default() -> Self {
        Self {
            sys_root: PathBuf::from("/sys"),
            proc_root: PathBuf::from("/proc"),
            may_come: MayCome::None,
            lists: Lists::Read,
            becomes_user: true,
        }
    }
}

impl HostView {
    /// Refuses an interface of a listener that does not exist, naming those that do.
    pub(super) fn check_interface(&self, name: &str) -> Result<(), ValueAdvice> {
        self.check_name(name, self.may_come == MayCome::All)
    }

    /// The same for one of `[steer]`.
    pub(super) fn check_steered(&self, name: &str) -> Result<(), ValueAdvice> {
        self.check_name(name, self.may_come != MayCome::None)
    }

    /// Refuses a user that this host does not have.
    pub(super) fn check_user(&self, wanted: &WantedUser) -> Result<(), ValueAdvice> {
        let WantedUser::Named(name) = wanted else { return Ok(()) };
        // Where the list of users cannot be read, the change of user fails later with its own message.
        if !self.becomes_user || !matches!(Account::of(name), Ok(None)) {
            return Ok(());
        }
        let cure = format!("make it (useradd --system {name}), or write \"auto\"");
        Err(ValueAdvice::new(format!("this host has no user {name:?}"), cure))
    }

    fn check_name(&self, name: &str, may_come: bool) -> Result<(), ValueAdvice> {
        // The kernel's own rules for a name; they also keep the path below inside its directory.
        let plain = !name.is_empty() && name != "." && name != "..";
        if !plain || name.len() > 15 || name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
            let what = format!("{name:?} cannot be the name of an interface");
            return Err(ValueAdvice::new(
                what,
                "write a name that \"ip link\" shows: at most 15 bytes, no slash, no space",
            ));
        }
        let root = self.sys_root.join("class/net");
        if may_come || !root.is_dir() || root.join(name).exists() {
            return Ok(());
        }
        let what = format!("this host has no interface {name:?}");
        Err(ValueAdvice::new(what, format!("write one of {}", self.interfaces(&root))))
    }

    fn interfaces(&self, root: &Path) -> String {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| root.join(name).is_dir());
        names.sort();
        names.truncate(20);
        names.join(", ")
    }

    /// Refuses cores that do not exist, are offline, or that this process may not use.
    pub(super) fn check_cpus(&self, cpus: &[usize]) -> Result<(), ValueAdvice> {
        type Describe = fn(&[usize]) -> String;
        let checks: [(Option<Vec<usize>>, Describe, Describe); 3] = [
            (self.cpu_file("present"), |missing| format!("this host has no {}", cores(missing)), |_| String::new()),
            (
                self.cpu_file("online"),
                |missing| format!("{} {} offline", cores(missing), if missing.len() == 1 { "is" } else { "are" }),
                |missing| format!(", or bring it up: echo 1 > /sys/devices/system/cpu/cpu{}/online", missing[0]),
            ),
            (
                self.allowed_cpus(),
                |missing| format!("this process may not use {}", cores(missing)),
                |_| ", or widen CPUAffinity=, AllowedCPUs=, taskset or the container's cpuset".to_owned(),
            ),
        ];
        for (known, what, other_cure) in checks {
            let Some(known) = known else { continue };
            let missing: Vec<usize> = cpus.iter().copied().filter(|cpu| !known.contains(cpu)).collect();
            if !missing.is_empty() {
                let cure = format!("write some of \"{}\"{}", steer::format_core_list(&known), other_cure(&missing));
                return Err(ValueAdvice::new(what(&missing), cure));
            }
        }
        Ok(())
    }

    /// How many cores udpd may use; `None` where the host does not tell.
    pub(super) fn usable_cores(&self, wish: &SteerConfig) -> Option<usize> {
        let (allowed, online) = (self.allowed_cpus(), self.cpu_file("online"));
        let may = |core: &&usize| {
            allowed.as_ref().is_none_or(|allowed| allowed.contains(core))
                && wish.request.cores.as_ref().is_none_or(|cores| cores.contains(core))
        };
        online.as_ref().or(allowed.as_ref()).map(|cores| cores.iter().filter(may).count())
    }

    fn cpu_file(&self, name: &str) -> Option<Vec<usize>> {
        let text = fs::read_to_string(self.sys_root.join("devices/system/cpu").join(name)).ok()?;
        units::parse_cpus(text.trim()).ok()
    }

    fn allowed_cpus(&self) -> Option<Vec<usize>> {
        let status = fs::read_to_string(self.proc_root.join("self/status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        units::parse_cpus(list.trim()).ok()
    }
}

fn cores(cpus: &[usize]) -> String {
    format!("{} {}", if cpus.len() == 1 { "core" } else { "cores" }, steer::format_core_list(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_with(present: &str, online: &str, allowed: &str) -> (tempfile::TempDir, HostView) {
        let root = tempfile::tempdir().expect("a temporary directory");
        let host =
            HostView { sys_root: root.path().join("sys"), proc_root: root.path().join("proc"), ..HostView::default() };
        let cpu = host.sys_root.join("devices/system/cpu");
        fs::create_dir_all(&cpu).expect("a directory for cores");
        fs::create_dir_all(host.sys_root.join("class/net/eth0")).expect("an interface");
        fs::create_dir_all(host.proc_root.join("self")).expect("a directory for the process");
        fs::write(cpu.join("present"), format!("{present}\n")).expect("present");
        fs::write(cpu.join("online"), format!("{online}\n")).expect("online");
        let status = format!("Name:\tudpd\nCpus_allowed_list:\t{allowed}\n");
        fs::write(host.proc_root.join("self/status"), status).expect("status");
        (root, host)
    }

    #[test]
    fn a_core_must_exist_be_online_and_be_allowed() {
        let (_root, host) = host_with("0-7", "0-5", "0-3");
        assert_eq!(host.check_cpus(&[0, 3]), Ok(()));
        for (cpus, words) in [
            (vec![3, 4], "may not use core 4; write some of \"0-3\""),
            (vec![5, 6, 7], "cores 6-7 are offline; write some of \"0-5\""),
            (vec![8], "this host has no core 8; write some of \"0-7\""),
        ] {
            let advice = host.check_cpus(&cpus).expect_err("refused").to_string();
            assert!(advice.contains(words), "{cpus:?}: {advice}");
        }
    }

    #[test]
    fn an_interface_must_exist_and_the_message_names_those_that_do() {
        let (_root, host) = host_with("0", "0", "0");
        assert_eq!(host.check_interface("eth0"), Ok(()));
        let advice = host.check_interface("eth7").expect_err("absent").to_string();
        assert_eq!(advice, "this host has no interface \"eth7\"; write one of eth0");
        for name in ["..", "a/b", "", "sixteen-letters-"] {
            assert!(host.check_interface(name).is_err(), "{name:?}");
        }
        let running = HostView { may_come: MayCome::Steered, ..host };
        assert!(running.check_interface("eth7").is_err() && running.check_steered("a/b").is_err());
        assert_eq!(running.check_steered("eth7"), Ok(()));
    }

    #[test]
    fn a_host_that_hides_itself_refuses_nothing() {
        let host =
            HostView { sys_root: "/nonexistent".into(), proc_root: "/nonexistent".into(), ..HostView::default() };
        assert_eq!(host.check_cpus(&[4000]), Ok(()));
        assert_eq!(host.check_interface("eth7"), Ok(()));
    }
}
