//! The multicast groups of a listener, as they may be written, and which socket is given what is sent to them.

use std::net::{IpAddr, SocketAddr};

use udpd_base::settings::kinds::{List, Optional};
use udpd_base::settings::settings;
use udpd_base::text::advice::ValueAdvice;

settings! {
    /// The multicast groups of a listener.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Multicast {
        /// The groups to join. Every one needs an address of the listener that receives it.
        groups as multicast_groups: Vec<IpAddr> = [] like ["239.1.1.1"], List(parse_group);
        /// Where they are joined. "" = `interface`, or else the one that the kernel's routes name.
        interface as multicast_interface: Option<String> = "", Optional(|name| Ok(name.to_owned()));
        /// Take them from these senders only. Empty = from any sender; otherwise every group has one of its family.
        sources: Vec<IpAddr> = [], List(parse_source);
    }
}

fn parse_group(text: &str) -> Result<IpAddr, ValueAdvice> {
    let right = "write a group from 224.0.0.0 to 239.255.255.255, or one that begins with ff, such as \"239.1.1.1\"";
    match text.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(group) if group.is_multicast() => Ok(group),
        Ok(_) => Err(ValueAdvice::new(format!("{text:?} is not a multicast group"), right)),
        Err(_) => Err(ValueAdvice::new(format!("{text:?} is not an IP address"), format!("{right}, without a port"))),
    }
}

fn parse_source(text: &str) -> Result<IpAddr, ValueAdvice> {
    let right = "write the unicast address of a sender, such as \"10.0.0.9\"";
    match text.parse::<IpAddr>() {
        Ok(source) if source.is_multicast() || source.is_unspecified() => {
            Err(ValueAdvice::new(format!("{text:?} cannot be the address of a sender"), right))
        }
        Ok(source) => Ok(source),
        Err(_) => Err(ValueAdvice::new(format!("{text:?} is not an IP address"), right)),
    }
}

/// Whether a socket on `address` can be given what is sent to `group`.
pub(super) fn receives(address: &SocketAddr, group: IpAddr) -> bool {
    match address.ip() {
        own if own == group => true,
        IpAddr::V4(own) => own.is_unspecified() && group.is_ipv4(),
        // A socket on [::] takes IPv4 as well.
        IpAddr::V6(own) => own.is_unspecified(),
    }
}
