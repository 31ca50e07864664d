//! What the configuration is checked against: the interfaces and cores of this host.
//!
//! Only files are read, below roots that a test can point elsewhere. A host that hides them (a container without /sys)
//! is not an error: what cannot be known is not refused here and fails later, if it does, with its own message.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::text::advice::Advice;
use crate::text::units;

/// Where the host describes itself.
#[derive(Debug, Clone)]
pub struct Host {
    /// Usually `/sys`.
    pub sys_root: PathBuf,
    /// Usually `/proc`.
    pub proc_root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { sys_root: PathBuf::from("/sys"), proc_root: PathBuf::from("/proc") }
    }
}

impl Host {
    /// Refuses an interface that does not exist, naming those that do.
    pub(super) fn check_interface(&self, name: &str) -> Result<(), Advice> {
        // The kernel's own rules for a name; they also keep the path below inside its directory.
        let plain = !name.is_empty() && name != "." && name != "..";
        if !plain || name.len() > 15 || name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
            let what = format!("{name:?} cannot be the name of an interface");
            return Err(Advice::new(what, "write a name that \"ip link\" shows: at most 15 bytes, no slash, no space"));
        }
        let root = self.sys_root.join("class/net");
        if !root.is_dir() || root.join(name).exists() {
            return Ok(());
        }
        let what = format!("this host has no interface {name:?}");
        Err(Advice::new(what, format!("write one of {}", self.interfaces(&root))))
    }

    fn interfaces(&self, root: &Path) -> String {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| root.join(name).is_dir());
        names.sort();
        names.truncate(20);
        names.join(", ")
    }

    /// The addresses of this host, as far as it tells.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let read = |name: &str| fs::read_to_string(self.proc_root.join("net").join(name)).unwrap_or_default();
        let mut addresses = BTreeSet::new();
        let mut leaf = None;
        // A leaf of the routing trie is an address, and what follows says whose it is.
        for line in read("fib_trie").lines() {
            let line = line.trim_start_matches([' ', '|', '+', '-']);
            match line.parse::<Ipv4Addr>() {
                Ok(address) => leaf = Some(address),
                Err(_) if line.contains("/32 host LOCAL") => addresses.extend(leaf.map(IpAddr::V4)),
                Err(_) => {}
            }
        }
        for line in read("if_inet6").lines() {
            let digits = line.split_whitespace().next().unwrap_or_default();
            addresses.extend(u128::from_str_radix(digits, 16).ok().map(|bits| IpAddr::V6(Ipv6Addr::from(bits))));
        }
        addresses.into_iter().collect()
    }

    /// Refuses cores that do not exist, are offline, or that this process may not use.
    pub(super) fn check_cpus(&self, cpus: &[usize]) -> Result<(), Advice> {
        let missing =
            |known: &[usize]| -> Vec<usize> { cpus.iter().copied().filter(|cpu| !known.contains(cpu)).collect() };
        if let Some(present) = self.cpu_file("present") {
            let absent = missing(&present);
            if !absent.is_empty() {
                let what = format!("this host has no {}", cores(&absent));
                return Err(Advice::new(what, format!("write some of \"{}\"", steer::format_core_list(&present))));
            }
        }
        if let Some(online) = self.cpu_file("online") {
            let offline = missing(&online);
            if !offline.is_empty() {
                let what = format!("{} offline", is(&offline));
                let cure = format!(
                    "write some of \"{}\", or bring it up: echo 1 > /sys/devices/system/cpu/cpu{}/online",
                    steer::format_core_list(&online),
                    offline[0]
                );
                return Err(Advice::new(what, cure));
            }
        }
        if let Some(allowed) = self.allowed_cpus() {
            let barred = missing(&allowed);
            if !barred.is_empty() {
                let what = format!("this process may not use {}", cores(&barred));
                let cure = format!(
                    "write some of \"{}\", or widen CPUAffinity=, AllowedCPUs=, taskset or the container's cpuset",
                    steer::format_core_list(&allowed)
                );
                return Err(Advice::new(what, cure));
            }
        }
        Ok(())
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

fn is(cpus: &[usize]) -> String {
    format!("{} {}", cores(cpus), if cpus.len() == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_with(present: &str, online: &str, allowed: &str) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().expect("a temporary directory");
        let host = Host { sys_root: root.path().join("sys"), proc_root: root.path().join("proc") };
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
    }

    #[test]
    fn the_addresses_of_the_host_are_read_and_no_network_or_broadcast_is_one() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let host = Host { proc_root: root.path().to_owned(), ..Host::default() };
        fs::create_dir(root.path().join("net")).expect("a directory");
        let trie = "Main:\n\
                    \x20 +-- 0.0.0.0/0 3 0 5\n\
                    \x20    |-- 0.0.0.0\n\
                    \x20       /0 universe UNICAST\n\
                    \x20    +-- 10.0.0.0/24 2 0 2\n\
                    \x20       |-- 10.0.0.7\n\
                    \x20          /32 host LOCAL\n\
                    \x20       |-- 10.0.0.255\n\
                    \x20          /32 link BROADCAST\n";
        fs::write(root.path().join("net/fib_trie"), trie).expect("the trie");
        fs::write(root.path().join("net/if_inet6"), "fd000000000000000000000000000001 02 40 00 80 eth0\n").expect("v6");
        let expected: [IpAddr; 2] = ["10.0.0.7".parse().expect("v4"), "fd00::1".parse().expect("v6")];
        assert_eq!(host.addresses(), expected);
    }

    #[test]
    fn a_host_that_hides_itself_refuses_nothing() {
        let host = Host { sys_root: "/nonexistent".into(), proc_root: "/nonexistent".into() };
        assert_eq!(host.check_cpus(&[4000]), Ok(()));
        assert_eq!(host.check_interface("eth7"), Ok(()));
        assert!(host.addresses().is_empty());
    }
}
