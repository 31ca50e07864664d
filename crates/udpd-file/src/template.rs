//! Paths with placeholders: `/var/log/udpd/{listener}-{consumer}.log`.
//!
//! There are placeholders, six codes for the time and no escapes. A brace that is not a placeholder is refused rather
//! than taken literally, because a file called `{lane].log` is never what was meant. The codes for the time, and the
//! placeholders for the addresses of a datagram, stay in the path: the sink fills them in when it begins a file.

use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::advice::nearest;

/// The values of the placeholders of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathNames<'n> {
    /// `{listener}`
    pub listener: &'n str,
    /// `{lane}`, as the ledger numbers the lanes of that listener
    pub lane: usize,
    /// `{consumer}`, from 0
    pub consumer: usize,
    /// `{sink}`
    pub sink: &'n str,
}

/// The codes for the time that a path may hold: year, month, day, hour, minute, second.
const TIME_CODES: [&str; 6] = ["%Y", "%m", "%d", "%H", "%M", "%S"];

const PLACEHOLDERS: [&str; 8] =
    ["listener", "lane", "consumer", "sink", "source", "host", "source_port", "destination"];

/// The placeholders that a datagram fills in. [`expand`] leaves them in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfDatagram {
    /// `{source}`, `{source/24}`, `{source/24/64}`: so many bits of an IPv4 and of an IPv6 address.
    Source { bits: [u8; 2] },
    /// `{host}`: the name of the source, or its address while none is known.
    Host,
    /// `{source_port}`
    SourcePort,
    /// `{destination}`
    Destination,
}

/// All bits of an address of either family.
pub const ALL_BITS: [u8; 2] = [32, 128];

/// The prefix of an IPv6 address if only that of IPv4 is written: the network that a site gives a host.
const V6_BITS_DEFAULT: u8 = 64;

impl OfDatagram {
    /// Reads the text between braces; `None` if it is something else.
    pub fn read(name: &str) -> Option<Self> {
        match name {
            "host" => Some(Self::Host),
            "source_port" => Some(Self::SourcePort),
            "destination" => Some(Self::Destination),
            _ => prefix(name.strip_prefix("source")?).map(|bits| Self::Source { bits }),
        }
    }
}

/// The bits that `/24` or `/24/64` select; all of them without a prefix.
fn prefix(text: &str) -> Option<[u8; 2]> {
    let mut parts = text.split('/');
    let (before, v4, v6) = (parts.next()?, parts.next(), parts.next());
    if !before.is_empty() || parts.next().is_some() {
        return None;
    }
    let number = |text: &str, most: u8| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|bits| is_number && (1..=most).contains(bits))
    };
    let Some(v4) = v4 else { return Some(ALL_BITS) };
    let v6 = v6.map_or(Some(V6_BITS_DEFAULT), |text| number(text, ALL_BITS[1]))?;
    Some([number(v4, ALL_BITS[0])?, v6])
}

/// True when each datagram decides by its own addresses which file it goes to.
pub fn is_by_datagram(template: &str) -> bool {
    template.split('{').skip(1).any(|tail| tail.split('}').next().is_some_and(|name| OfDatagram::read(name).is_some()))
}

/// True when the name of the sender has to be looked up.
pub fn needs_host(template: &str) -> bool {
    has(template, "host")
}

/// True when the destination of a datagram has to be known.
pub fn needs_destination(template: &str) -> bool {
    has(template, "destination")
}

/// True when `template` holds `{placeholder}`.
pub fn has(template: &str, placeholder: &str) -> bool {
    template.contains(&format!("{{{placeholder}}}"))
}

/// The path for one writer. The template must have passed [`check`].
pub fn expand(template: &str, names: &PathNames<'_>) -> String {
    template
        .replace("{lane}", &names.lane.to_string())
        .replace("{consumer}", &names.consumer.to_string())
        // Names hold no braces, so what is filled in cannot become a placeholder.
        .replace("{listener}", names.listener)
        .replace("{sink}", names.sink)
}

/// Refuses what is neither a placeholder nor a code for the time.
pub fn check(template: &str) -> Result<(), ValueAdvice> {
    let right = "the placeholders are {listener}, {lane}, {consumer}, {sink}, {source}, {source/24}, {source/24/64}, \
                 {host}, {source_port} and {destination}";
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}', '%']) {
        let tail = &rest[at..];
        match (tail.as_bytes()[0], tail.find('}')) {
            (b'%', _) => {
                let code: String = tail.chars().take(2).collect();
                if !TIME_CODES.contains(&code.as_str()) {
                    let cure = format!("the codes for the time are {}", TIME_CODES.join(", "));
                    return Err(ValueAdvice::new(format!("{code:?} is not a code for the time"), cure));
                }
                rest = &tail[2..];
            }
            (b'}', _) => return Err(ValueAdvice::new("a } closes nothing", right)),
            (_, None) => return Err(ValueAdvice::new("a { is never closed", right)),
            (_, Some(end)) => {
                let name = &tail[1..end];
                if !PLACEHOLDERS.contains(&name) && OfDatagram::read(name).is_none() {
                    if name.starts_with("source/") {
                        let what = format!("{{{name}}} is no prefix of an address");
                        let right = "write {source/24} or {source/24/64}: 1 to 32 bits of IPv4, 1 to 128 of IPv6";
                        return Err(ValueAdvice::new(what, right));
                    }
                    let cure = match nearest(name, PLACEHOLDERS.into_iter()) {
                        Some(near) => format!("did you mean {{{near}}}? {right}"),
                        None => right.to_owned(),
                    };
                    return Err(ValueAdvice::new(format!("{{{name}}} is not a placeholder"), cure));
                }
                rest = &tail[end + 1..];
            }
        }
    }
    check_apart(template)
}

/// Refuses two placeholders of which a datagram fills in one, if two pairs of values could give one path: a sender
/// could have its datagrams written to the file of another. The text between them must occur in neither value, or in
/// one at most if the pair before is not doubtful.
fn check_apart(template: &str) -> Result<(), ValueAdvice> {
    let parts: Vec<&str> = template.split('{').skip(1).collect();
    let pairs = parts.iter().zip(parts.iter().skip(1)).map(|(first, second)| {
        let (first, text) = first.split_once('}').unwrap_or((first, ""));
        (first, text, second.split_once('}').map_or(*second, |(name, _)| name))
    });
    let mut was_doubtful = false;
    for (first, text, second) in pairs {
        let is_of_datagram = |name: &str| OfDatagram::read(name).is_some();
        let is_in = |name: &str, byte: u8| match name {
            "source_port" | "lane" | "consumer" => byte.is_ascii_digit(),
            _ => byte.is_ascii_alphanumeric() || b".-_".contains(&byte),
        };
        let doubt = |byte: u8| usize::from(is_in(first, byte)) + usize::from(is_in(second, byte));
        // Digits come in the place of a code for the time.
        let shown = TIME_CODES.iter().fold(text.to_owned(), |text, code| text.replace(code, "0"));
        let least = shown.bytes().map(doubt).min().unwrap_or(2);
        if (is_of_datagram(first) || is_of_datagram(second)) && (least == 2 || least == 1 && was_doubtful) {
            let what = format!("two senders could have one file: nothing tells where {{{first}}} ends in it");
            return Err(ValueAdvice::new(what, format!("write a / between {{{first}}} and {{{second}}}")));
        }
        was_doubtful = least == 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_that_could_be_one_path_for_two_senders_are_refused() {
        for right in [
            "/{source}",
            "/{source}/{source_port}",
            "/{source}-{source_port}.log",
            "/{listener}/{source}-{consumer}",
            "/{source_port}-{source}",
            "/{host}/{source_port}",
            "/{host}-{source_port}.log",
            "/{source},{destination}",
            "/{listener}-{lane}",
            "/%Y/{source}-%m-{source_port}",
        ] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for wrong in [
            "/{source}{source_port}",
            "/{listener}-{source}",
            "/{source}-{destination}",
            "/{host}{source_port}",
            "/{listener}-{host}",
            "/{source}-{source_port}-{destination}",
            "/{source}%m{source_port}",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        let names = PathNames { listener: "syslog", lane: 3, consumer: 1, sink: "archive" };
        let template = "/log/{listener}/{lane}-{consumer}.{sink}";
        assert_eq!(check(template), Ok(()));
        assert_eq!(expand(template, &names), "/log/syslog/3-1.archive");
    }

    #[test]
    fn what_is_no_placeholder_is_refused_with_the_ones_there_are() {
        for (template, words) in [
            ("/{lanes}", "did you mean {lane}?"),
            ("/{", "never closed"),
            ("/}", "closes nothing"),
            ("/{}", "{} is not a placeholder"),
            ("/{listener}/{Colour}", "{Colour} is not a placeholder"),
        ] {
            let advice = check(template).expect_err(template).to_string();
            assert!(advice.contains(words), "{template}: {advice}");
            assert!(advice.contains("{consumer}"), "{template}: {advice}");
        }
    }

    #[test]
    fn the_time_is_left_to_the_sink_and_other_codes_are_refused() {
        let names = PathNames { listener: "a", lane: 0, consumer: 0, sink: "s" };
        let template = "/log/%Y/%m/%d/{listener}-%H%M%S.log";
        assert_eq!(check(template), Ok(()));
        assert_eq!(expand(template, &names), "/log/%Y/%m/%d/a-%H%M%S.log");
        for template in ["/%y", "/%", "/100%.log", "/%%"] {
            let advice = check(template).expect_err(template).to_string();
            assert!(advice.contains("%Y, %m, %d, %H, %M, %S"), "{template}: {advice}");
        }
    }
}
