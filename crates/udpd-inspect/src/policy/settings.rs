//! `allow`, `deny`, their files, `rate_limit` and `proxy_protocol`: as they may be written.
//!
//! What is unclear is refused: an address that ends in zeros and has no length may mean one host or the network that
//! begins there, and one with bits behind its length is a slip either way. Any other address alone is that one host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use ipnet::{IpNet, ip_mask_to_prefix};

use super::access::AccessList;
use udpd_base::os::path_check;
use udpd_base::settings::kinds::{List, OneOf, SubTable, WholeNumber};
use udpd_base::settings::{Field, Findings, KeyDeclaration, TableSettings, ValueKind, settings};
use udpd_base::text::advice::ValueAdvice;

/// The sources that may send: the longest prefix decides. No network is both accepted and refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub allow: Vec<IpNet>,
    pub deny: Vec<IpNet>,
    pub allow_files: Vec<String>,
    pub deny_files: Vec<String>,
    pub kernel_filter: KernelFilter,
    /// The table of all of them, once the files have been read. `None` where nothing is written.
    pub list: Option<Arc<AccessList>>,
}

/// Whether a filter in the kernel refuses sources too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFilter {
    /// There is no filter: every datagram comes to udpd, which checks it.
    Off,
    /// Where the kernel permits a filter. Otherwise there is one warning, and only udpd checks.
    Auto,
    /// Without a filter udpd does not start.
    Require,
}

const KERNEL_FILTERS: &[(&str, KernelFilter)] =
    &[("off", KernelFilter::Off), ("auto", KernelFilter::Auto), ("require", KernelFilter::Require)];

settings! {
    for Access {
        /// Networks and single addresses to accept. Empty = all that are not denied.
        allow: Vec<IpNet> = [] like ["10.0.0.0/8"], List(parse_network);
        /// Networks and single addresses to refuse.
        deny: Vec<IpNet> = [] like ["10.9.0.0/16"], List(parse_network);
        /// Files with more networks to accept, one by line.
        allow_files: Vec<String> = [] like ["/etc/udpd/allow.list"], List(check_list_file);
        /// Files with more networks to refuse, one by line.
        deny_files: Vec<String> = [] like ["/etc/udpd/deny.list"], List(check_list_file);
        /// Whether the kernel refuses what these lists refuse before it takes room in the receive buffer.
        kernel_filter: KernelFilter = "off", OneOf(KERNEL_FILTERS);
        .. list = None;
    }
}

impl Default for Access {
    fn default() -> Self {
        TableSettings::defaults()
    }
}

impl Access {
    /// Whether all sources are accepted because nothing is written.
    pub fn is_open(&self) -> bool {
        let Self { allow, deny, allow_files, deny_files, kernel_filter: _, list: _ } = self;
        allow.is_empty() && deny.is_empty() && allow_files.is_empty() && deny_files.is_empty()
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.allow_files.iter().chain(&self.deny_files).map(Path::new)
    }
}

/// Which datagrams begin with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    Off,
    /// Each.
    V2,
    /// The first of a flow.
    V2First,
}

impl ProxyProtocol {
    pub fn is_on(self) -> bool {
        self != ProxyProtocol::Off
    }
}

const PROXY_PROTOCOLS: &[(&str, ProxyProtocol)] =
    &[("off", ProxyProtocol::Off), ("v2", ProxyProtocol::V2), ("v2-first", ProxyProtocol::V2First)];

settings! {
    /// The proxies whose headers are believed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Proxies {
        /// Whether datagrams, or the first of each flow, begin with a header that names their true sender.
        protocol as proxy_protocol: ProxyProtocol = "off", OneOf(PROXY_PROTOCOLS);
        /// The networks of those that put it there. What comes from elsewhere must begin with none.
        from as proxy_from: Vec<IpNet> = [] like ["10.0.0.5/32"], List(parse_network);
    }
}

settings! {
    /// What one source may send.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SourceLimit {
        /// Datagrams per second; 0 = no limit, of which no limiter is made.
        per_source: u64 = 0 like 1000, WholeNumber(0..=RATE_LIMIT_MAX);
        /// Datagrams at once; 0 = what a second brings.
        burst: u64 = 0, WholeNumber(0..=RATE_LIMIT_MAX);
    }
}

/// The highest limit: more cannot come from one address, and below it the arithmetic is exact enough.
pub const RATE_LIMIT_MAX: u64 = 10_000_000;

/// A limit, or none where it limits nothing.
#[derive(Debug)]
pub struct RateLimit;

impl ValueKind<Option<SourceLimit>> for RateLimit {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Option<SourceLimit>> {
        let before = findings.count();
        let SourceLimit { per_source, burst } = SubTable.read(field, findings)?;
        if let (0, 1.., true) = (per_source, burst, findings.count() == before) {
            let what = format!("a burst of {burst} without a rate limits nothing");
            let cure = format!("write rate_limit = {{ per_source = 1000, burst = {burst} }}");
            findings.say(&field.inner("burst").unwrap_or_else(|| field.place()), what, cure);
        }
        let burst = if burst == 0 { per_source } else { burst };
        Some((per_source > 0).then_some(SourceLimit { per_source, burst }))
    }

    fn keys(&self, own: KeyDeclaration) -> Vec<KeyDeclaration> {
        ValueKind::<SourceLimit>::keys(&SubTable, own)
    }
}

/// A network as it is written: an address and the number of bits that count, or the address of one host.
pub fn parse_network(text: &str) -> Result<IpNet, ValueAdvice> {
    let Some((address, length)) = text.split_once('/') else {
        return without_length(text);
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        let bare = address.trim_matches(['[', ']']);
        return Err(match bare.parse::<Ipv6Addr>() {
            Ok(v6) => ValueAdvice::new(format!("{text:?} has brackets"), format!("write \"{v6}/{length}\"")),
            Err(_) => ValueAdvice::new(format!("{address:?} in {text:?} is not an IP address"), EXAMPLE),
        });
    };
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = length.parse::<u8>().ok().filter(|_| length.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(network) = bits.and_then(|bits| IpNet::new(address, bits).ok()) else {
        let what = format!("{length:?} in {text:?} is not a length of 0 to {width} bits");
        let mask = length.parse::<Ipv4Addr>().ok().filter(|_| address.is_ipv4());
        return Err(match mask.and_then(|mask| ip_mask_to_prefix(mask.into()).ok()) {
            Some(bits) => ValueAdvice::new(what, format!("write \"{address}/{bits}\"")),
            None => ValueAdvice::new(what, EXAMPLE),
        });
    };
    let bits = network.prefix_len();
    if network.network() != address {
        let what = format!("{text:?} has bits set behind the first {bits}");
        let right = network.trunc();
        let cure = format!("write \"{right}\" for that network, or \"{address}/{width}\" for the one address");
        return Err(ValueAdvice::new(what, cure));
    }
    if let IpAddr::V6(v6) = address
        && let (Some(v4), 96..) = (v6.to_ipv4_mapped(), bits)
    {
        let what = format!("{text:?} is an IPv4 network written as IPv6");
        return Err(ValueAdvice::new(what, format!("write \"{v4}/{}\", which holds on every socket", bits - 96)));
    }
    Ok(network)
}

const EXAMPLE: &str = "write an address and a length, such as \"10.0.0.0/8\" or \"2001:db8::/32\"";

/// The path of a list.
fn check_list_file(text: &str) -> Result<String, ValueAdvice> {
    // The path is what was written, which is text.
    path_check::check_file(text).map(|path| path.display().to_string())
}

fn without_length(text: &str) -> Result<IpNet, ValueAdvice> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let begins_a_network = match address {
            IpAddr::V4(v4) => v4.octets()[3] == 0,
            IpAddr::V6(v6) => v6.segments()[7] == 0,
        };
        if !begins_a_network && text == text.trim_matches(['[', ']']) {
            return parse_network(&format!("{text}/{width}"));
        }
        let cure = format!("write \"{address}/{width}\" for that one address, or the length of its network");
        return Err(ValueAdvice::new(format!("{text:?} has no length"), cure));
    }
    if ["all", "any", "*"].contains(&text) {
        let cure = "write \"0.0.0.0/0\" for all of IPv4 and \"::/0\" for all of IPv6; an empty allow is both";
        return Err(ValueAdvice::new(format!("{text:?} is not a network"), cure));
    }
    Err(ValueAdvice::new(format!("{text:?} is not a network"), EXAMPLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read_as_it_is_written() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.1/32", "::/0", "2001:db8::/32", "::1/128"] {
            assert_eq!(parse_network(text).map(|network| network.to_string()), Ok(text.to_owned()));
        }
        for (address, length) in [("10.0.0.1", 32), ("2001:db8::1", 128)] {
            let network = parse_network(address).map(|network| network.to_string());
            assert_eq!(network, Ok(format!("{address}/{length}")), "one host");
        }
    }

    #[test]
    fn a_wrong_network_says_what_would_be_right() {
        for (text, words) in [
            ("10.1.2.3/8", "write \"10.0.0.0/8\" for that network, or \"10.1.2.3/32\""),
            ("2001:db8::1/32", "write \"2001:db8::/32\""),
            ("10.1.0.0", "write \"10.1.0.0/32\" for that one address, or the length of its network"),
            ("2001:db8::", "has no length; write \"2001:db8::/128\""),
            ("[2001:db8::1]", "write \"2001:db8::1/128\""),
            ("::ffff:10.0.0.1", "write \"10.0.0.1/32\""),
            ("10.0.0.0/33", "is not a length of 0 to 32 bits"),
            ("10.0.0.0/+8", "is not a length of 0 to 32 bits"),
            ("10.0.0.0/", "is not a length"),
            ("10.0.0.0/255.0.0.0", "write \"10.0.0.0/8\""),
            ("10.0.0.0/255.0.255.0", "such as \"10.0.0.0/8\""),
            ("2001:db8::/129", "0 to 128 bits"),
            ("[2001:db8::]/32", "write \"2001:db8::/32\""),
            ("::ffff:10.0.0.0/104", "write \"10.0.0.0/8\""),
            ("localhost/8", "is not an IP address"),
            ("any", "write \"0.0.0.0/0\""),
            ("10.0.0", "is not a network"),
            ("", "is not a network"),
        ] {
            let advice = parse_network(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
    }
}
