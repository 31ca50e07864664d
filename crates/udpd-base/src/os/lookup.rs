//! Where a command is to send: an address, or the name of a host, which is looked up once, when the command starts.
//!
//! A file holds addresses only, see `address`. Who types a name on a command line waits for the answer and sees it; and
//! what the name means later does not matter while the command runs.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use nix::sys::socket::SockaddrStorage;

use crate::exit::{ExitCode, Failure};
use crate::text::address;
use crate::text::address::host_name;
use crate::text::advice::ValueAdvice;

/// Where to send to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupTarget {
    pub address: SocketAddr,
    /// What was looked up and what else it could have been, when it was a name.
    pub looked_up: Option<String>,
}

/// Reads what the operator has written behind `option`. A name that no resolver knows ends with
/// [`ExitCode::Unavailable`], what is neither name nor address with [`ExitCode::Usage`].
pub fn destination(option: &str, text: &str) -> Result<LookupTarget, Failure> {
    destination_by(option, text, |text| text.to_socket_addrs().map(Iterator::collect))
}

fn destination_by(
    option: &str,
    text: &str,
    look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>>,
) -> Result<LookupTarget, Failure> {
    let usage = |advice: ValueAdvice| Failure::new(ExitCode::Usage, format!("{option}: {advice}"));
    let Some(host) = host_name(text) else {
        let address = address::parse_destination(text).map_err(usage)?;
        return Ok(LookupTarget { address, looked_up: None });
    };
    let unknown = |why: String| {
        let cure = "correct the name, see /etc/hosts and /etc/resolv.conf, or write the IP address";
        Failure::new(ExitCode::Unavailable, format!("{option}: cannot look up the address of {host:?}: {why}; {cure}"))
    };
    let found = look_up(text).map_err(|error| unknown(error.to_string()))?;
    let mut refused = None;
    let mut usable = found.into_iter().filter(|address| {
        let checked = address::parse_destination(&address.to_string());
        checked.inspect_err(|advice| refused = Some(advice.to_string())).is_ok()
    });
    let first = usable.next();
    let others: Vec<String> = usable.map(|address| address.to_string()).collect();
    let address = first.ok_or_else(|| unknown(refused.unwrap_or_else(|| "it has none".to_owned())))?;
    let also = if others.is_empty() { String::new() } else { format!(" (also {})", others.join(", ")) };
    Ok(LookupTarget { address, looked_up: Some(format!("{text} is {address}{also}")) })
}

/// The addresses of this host's interfaces. One that a local route alone makes this host's is not among them.
pub fn local_addresses() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(|found| found.address);
    let address = |address: SockaddrStorage| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
        _ => None,
    };
    all.filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_this_host_have_that_of_loopback_among_them() {
        assert!(local_addresses().contains(&IpAddr::from([127, 0, 0, 1])));
    }

    fn by(text: &str, found: &[&str]) -> Result<LookupTarget, Failure> {
        let found: Vec<SocketAddr> = found.iter().map(|one| one.parse().expect(one)).collect();
        destination_by("--to", text, |asked| {
            assert_eq!(asked, text);
            Ok(found.clone())
        })
    }

    #[test]
    fn a_name_is_looked_up_once_and_what_it_means_is_told() {
        let one = by("collector:514", &["10.0.0.9:514"]).expect("an address");
        assert_eq!(
            (one.address.to_string().as_str(), one.looked_up.as_deref()),
            ("10.0.0.9:514", Some("collector:514 is 10.0.0.9:514"))
        );
        let several = by("a-b.example.:514", &["255.255.255.255:514", "[fe80::1]:514", "[::1]:514", "10.0.0.9:514"]);
        let several = several.expect("those that cannot be sent to are left out");
        assert_eq!(several.looked_up.as_deref(), Some("a-b.example.:514 is [::1]:514 (also 10.0.0.9:514)"));
    }

    #[test]
    fn an_address_is_not_looked_up() {
        for text in ["10.0.0.9:514", "[::1]:514"] {
            let plain = destination_by("--to", text, |_| panic!("looked up")).expect(text);
            assert_eq!((plain.address, plain.looked_up), (text.parse().expect(text), None));
        }
    }

    #[test]
    fn what_is_neither_is_a_usage_error_and_a_name_that_nobody_knows_is_unavailable() {
        for text in
            ["10.0.0.256:514", "collector", "collector:", "collector:0", "collector:x", ":514", "a b:1", "::1:2", ""]
        {
            let failure = destination_by("--to", text, |_| panic!("{text} was looked up")).expect_err(text);
            assert_eq!(failure.code, ExitCode::Usage, "{text}: {failure}");
        }
        for (outcome, words) in [
            (
                Err(io::Error::other("Name or service not known")),
                "cannot look up the address of \"collector\": Name or",
            ),
            (Ok(Vec::new()), "it has none"),
            (Ok(vec!["255.255.255.255:514".parse().expect("an address")]), "every host of the network"),
        ] {
            let outcome = std::cell::Cell::new(Some(outcome));
            let failure = destination_by("--to", "collector:514", |_| outcome.take().expect("asked once"));
            let failure = failure.expect_err(words);
            assert_eq!(failure.code, ExitCode::Unavailable);
            assert!(failure.message.contains(words) && failure.message.contains("/etc/hosts"), "{failure}");
        }
    }
}
