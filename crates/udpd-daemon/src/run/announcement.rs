//! `announce`: service addresses are on an interface while udpd is ready, so that a routing daemon of this host tells
//! its neighbours. `udpd-warden` puts them there and takes them away, because that takes a right. This side tells it
//! to, once a second, and the log what has changed.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use rustix::io::Errno;

use udpd_engine::config::DaemonConfig;
use udpd_sandbox::privilege_helper;

#[derive(Debug)]
pub(super) struct Announcement {
    interface: String,
    /// Each address, and what has been said of it.
    addresses: BTreeMap<IpAddr, Said>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Withdrawn,
    Announced,
    /// The number of the error.
    Failed(i32),
}

impl Announcement {
    pub(super) fn new(daemon: &DaemonConfig) -> Self {
        let addresses = daemon.announce.iter().map(|address| (*address, Said::Withdrawn)).collect();
        Self { interface: daemon.announce_interface.clone(), addresses }
    }

    /// Announces, and renews what is announced, or withdraws.
    pub(super) fn follow(&mut self, is_ready: bool) {
        for (address, said) in &mut self.addresses {
            if !is_ready && *said == Said::Withdrawn {
                continue;
            }
            let interface = &self.interface;
            let now = match privilege_helper::announce(if is_ready { "on" } else { "off" }, *address) {
                Ok(()) if is_ready => Said::Announced,
                Ok(()) => Said::Withdrawn,
                Err(error) => Said::Failed(error.raw_os_error().unwrap_or_default()),
            };
            if now != *said {
                match now {
                    Said::Announced => log::info!("announce: {address} is on {interface} now"),
                    Said::Withdrawn if *said != Said::Announced => {}
                    Said::Withdrawn => log::info!("announce: {address} is no longer on {interface}"),
                    Said::Failed(number) if number == Errno::EXIST.raw_os_error() => log::warn!(
                        "announce: {address} was on {interface} before, and udpd did not put it there: it stays whether \
                         udpd is ready or not; remove it once: ip address del {address} dev {interface}"
                    ),
                    Said::Failed(number) if number == Errno::PERM.raw_os_error() => log::warn!(
                        "announce: udpd cannot change the addresses of {interface}, so no router hears of {address}: \
                         start it with CAP_NET_ADMIN; config/udpd.service shows how"
                    ),
                    Said::Failed(number) => log::warn!(
                        "announce: {address} cannot be put on {interface} or taken away: {}; udpd tries again every \
                         second",
                        io::Error::from_raw_os_error(number)
                    ),
                }
            }
            *said = now;
        }
    }

    /// Leaves the addresses to the process that has taken over.
    pub(super) fn leave(&self) {
        for address in self.addresses.keys() {
            // Where that fails they go for a second, until the new process puts them there again.
            let _ = privilege_helper::announce("leave", *address);
        }
    }
}
