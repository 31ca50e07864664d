//! Why an address could not be bound, and what an operator can do about it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use nix::errno::Errno;

use crate::exit::{ExitCode, Failure};
use crate::os::holder;

/// Why an address could not be bound, and what to do.
pub(super) fn bind_failure(address: SocketAddr, error: &io::Error) -> Failure {
    let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
    let (code, cure) = match errno {
        Errno::EADDRINUSE => {
            let holders = holder::of_udp_address(address, &[], Path::new("/proc"));
            let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
            let who = if names.is_empty() { "a process that /proc does not show".to_owned() } else { names.join(", ") };
            (ExitCode::Unavailable, format!("{who} holds it; stop that process or choose another address"))
        }
        Errno::EADDRNOTAVAIL => {
            let cure = "no interface of this host has it; `ip address` shows which have one; or use the wildcard \
                        address";
            (ExitCode::Unavailable, cure.to_owned())
        }
        Errno::EACCES => {
            let cure = format!(
                "ports below {} need CAP_NET_BIND_SERVICE; in the unit file: AmbientCapabilities=CAP_NET_BIND_SERVICE",
                first_unprivileged_port()
            );
            (ExitCode::Permission, cure)
        }
        _ => (ExitCode::Unavailable, "choose another address".to_owned()),
    };
    Failure::new(code, format!("cannot bind {address}: {error}; {cure}"))
}

/// The first port that needs no capability.
fn first_unprivileged_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_names_the_capability_and_the_line_that_grants_it() {
        let address = "127.0.0.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EACCES as i32));
        assert_eq!(failure.code, ExitCode::Permission);
        assert!(failure.message.contains("AmbientCapabilities=CAP_NET_BIND_SERVICE"), "{failure}");
    }

    #[test]
    fn an_address_of_no_interface_is_unavailable() {
        let address = "192.0.2.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EADDRNOTAVAIL as i32));
        assert_eq!(failure.code, ExitCode::Unavailable);
        assert!(failure.message.contains("192.0.2.1:514"), "{failure}");
    }
}
