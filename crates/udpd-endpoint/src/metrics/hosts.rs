//! By which names udpd lets itself be asked where no token protects it.
//!
//! A page of a foreign site can have its own name lead to this host (DNS rebinding); the browser then takes the answers
//! of udpd for those of that site and hands them to its scripts. Such a request names the foreign site in `Host`. An
//! address cannot be rebound, and neither can "localhost" nor the name of this machine by anybody who does not own it.
//! With a token none of this matters: a browser sends it to no site but the one where the user has entered it.

use std::net::{IpAddr, Ipv6Addr};

/// Whether a request for this `Host` can only be meant for this machine.
pub(super) fn is_own(host: &str, machine: &str) -> bool {
    let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if name.parse::<IpAddr>().is_ok() || address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()) {
        return true;
    }
    let machine = machine.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || (!machine.is_empty() && name == machine)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

/// What this machine calls itself; empty, which nobody can ask for, where it does not say.
pub(super) fn machine() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_the_machine_are_meant_and_every_other_name_is_not() {
        for host in [
            "127.0.0.1:9817",
            "10.1.2.3",
            "[::1]:9817",
            "[fd00::9]",
            "localhost:9817",
            "LOCALHOST.",
            "a.localhost",
            "box.example.net:9817",
        ] {
            assert!(is_own(host, "Box.example.net"), "{host}");
        }
        for host in
            ["", "evil.example:9817", "127.0.0.1.evil.example", "localhost.evil.example", "box", "[evil]", "a:b"]
        {
            assert!(!is_own(host, "box.example.net"), "{host}");
        }
        assert!(!is_own("", ""));
    }
}
