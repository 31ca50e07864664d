//! As much of HTTP/1.1 as the metrics address takes: the request head, that is the line that says what is wanted and
//! the few fields that decide whether it is given, and the answer.
//!
//! The connection ends with the answer. A stream ends so too, without a length and without chunks, so that a daemon
//! that is killed ends it in good order.

#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpRequest<'a> {
    pub(super) method: &'a str,
    /// The path, without what follows a question mark.
    pub(super) path: &'a str,
    /// What follows the question mark.
    pub(super) query: &'a str,
    /// The host that the client means to ask.
    pub(super) host: &'a str,
    pub(super) authorization: Option<&'a str>,
    /// Whose page makes a browser ask (`Sec-Fetch-Site`).
    pub(super) site: Option<&'a str>,
}

impl<'a> HttpRequest<'a> {
    /// `None` for what is no HTTP/1 request: also where a field is not as it must be, because another reader could take
    /// it for something else (RFC 9112, 5.1 and 5.2). A field that comes twice counts as it comes first, except `Host`:
    /// two of them are two opinions, and so no request.
    pub(super) fn read(head: &'a [u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.lines();
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else { return None };
        let (authority, target) = origin_form(target)?;
        if !is_token(method) {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (mut host, mut authorization, mut site) = (None, None, None);
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').filter(|(name, _)| is_token(name))?;
            let place = match name.to_ascii_lowercase().as_str() {
                "host" if host.is_some() => return None,
                "host" => &mut host,
                "authorization" => &mut authorization,
                "sec-fetch-site" => &mut site,
                _ => continue,
            };
            place.get_or_insert(value.trim_matches([' ', '\t']));
        }
        // Also of HTTP/1.0, where browsers send it all the same. What the target names as well must be the same, or
        // it would be up to the reader which of the two counts.
        let host = host.filter(|host| is_host(host))?;
        if authority.is_some_and(|named| !named.eq_ignore_ascii_case(host)) {
            return None;
        }
        Some(Self { method, path, query, host, authorization, site })
    }

    /// The value of a parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|pair| pair.1)
    }
}

/// What names of fields and methods are made of (RFC 9110, 5.6.2).
fn is_token(text: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_token)
}

/// Whether this is a name or an address, with a port or without (RFC 9110, 7.2).
fn is_host(text: &str) -> bool {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((address, behind)) = rest.split_once(']') else { return false };
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            ("v6", if behind.is_empty() { Some("") } else { behind.strip_prefix(':') })
        }
        None => text.split_once(':').map_or((text, Some("")), |(name, port)| (name, Some(port))),
    };
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte);
    !name.is_empty()
        && name.bytes().all(is_of_name)
        && port.is_some_and(|port| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The host that a target names, if any, and its path: proxies may send the whole address.
fn origin_form(target: &str) -> Option<(Option<&str>, &str)> {
    if target.starts_with('/') {
        return Some((None, target));
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"))?;
    let rest = &target[scheme.len()..];
    let place = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(place);
    match path {
        _ if authority.is_empty() => None,
        "" => Some((Some(authority), "/")),
        _ if path.starts_with('?') => None,
        _ => Some((Some(authority), path)),
    }
}

/// How long the request head is, once its empty line has come.
pub(crate) fn head_length(bytes: &[u8]) -> Option<usize> {
    let with_return = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let without = bytes.windows(2).position(|window| window == b"\n\n");
    with_return.into_iter().chain(without).min()
}

/// The fields of every answer: no client may store it, guess at its type, show it in a frame of another site or tell
/// others where it came from.
const ALWAYS: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
                      Cross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n";

/// What a document may do that is only text or numbers.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// An answer before it is worded.
#[derive(Debug)]
pub(super) struct HttpResponse<'a> {
    status: &'static str,
    kind: &'static str,
    policy: &'a str,
    /// Further fields, each with its line end.
    more: String,
    body: Option<&'a str>,
}

impl<'a> HttpResponse<'a> {
    pub(super) fn new(status: &'static str, kind: &'static str, body: &'a str) -> Self {
        Self { status, kind, policy: NOTHING, more: String::new(), body: Some(body) }
    }

    /// A refusal in words.
    pub(super) fn words(status: &'static str, body: &'a str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    /// The beginning of a stream: lines of JSON follow for as long as the connection lasts.
    pub(super) fn stream() -> Self {
        Self { body: None, ..Self::new("200 OK", "application/x-ndjson", "") }
    }

    /// What a browser may do with it, instead of nothing.
    pub(super) fn policy(self, policy: &'a str) -> Self {
        Self { policy, ..self }
    }

    pub(super) fn field(mut self, name: &str, value: &str) -> Self {
        self.more.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// The bytes of it; for HEAD without the body, but with its length.
    pub(super) fn bytes(self, with_body: bool) -> Vec<u8> {
        let Self { status, kind, policy, more, body } = self;
        let length = body.map(|body| format!("Content-Length: {}\r\n", body.len())).unwrap_or_default();
        let body = body.filter(|_| with_body).unwrap_or_default();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}{more}Content-Security-Policy: {policy}\r\n{ALWAYS}\
             \r\n{body}"
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_are_read_in_any_case_and_values_without_the_space_around_them() {
        let head = b"GET /history?step=5&x HTTP/1.1\r\nhOsT:  a:1 \r\nAUTHORIZATION:Bearer x\r\nSec-Fetch-Site: none";
        let request = HttpRequest::read(head).unwrap();
        assert_eq!((request.method, request.path, request.parameter("step")), ("GET", "/history", Some("5")));
        assert_eq!((request.host, request.authorization, request.site), ("a:1", Some("Bearer x"), Some("none")));
        assert_eq!(request.parameter("x"), None);
    }

    #[test]
    fn a_whole_address_names_the_same_host_as_the_field() {
        let request = HttpRequest::read(b"GET HTTP://A:1/history?step=5 HTTP/1.1\r\nHost: a:1\r\n").unwrap();
        assert_eq!((request.host, request.path, request.query), ("a:1", "/history", "step=5"));
        let request = HttpRequest::read(b"GET http://a HTTP/1.1\r\nHost: a").unwrap();
        assert_eq!((request.host, request.path), ("a", "/"));
        for target in ["http://b/", "http://a:2/", "http:///x", "https://a/x", "http://x@a/"] {
            assert_eq!(HttpRequest::read(format!("GET {target} HTTP/1.1\r\nHost: a").as_bytes()), None, "{target}");
        }
        assert_eq!(HttpRequest::read(b"GET http://a/ HTTP/1.1\r\n"), None);
    }

    #[test]
    fn a_request_that_does_not_name_its_host_once_and_clearly_is_none() {
        let read = |fields: &str| HttpRequest::read(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_bytes()).is_some();
        for fields in ["Host: a", "Host:a:80", "host:\t[::1]:9817 ", "Host: 10.0.0.1", "X-y: 1\r\nHost: a-b.c_d:1"] {
            assert!(read(fields), "{fields:?}");
        }
        for fields in [
            "",
            "Host:",
            "Host: ",
            "Host : evil",
            "Host\t: evil",
            " Host: evil",
            "Host: a\r\nHost: a",
            "Host: a\r\nhost: b",
            "Host: a\r\nHost : b",
            "Host: a, b",
            "Host: a b",
            "Host: a@b",
            "Host: a/b",
            "Host: a:b",
            "Host: a:1:2",
            "Host: a:123456",
            "Host: [::1",
            "Host: [::1]x",
            "Host: [evil]",
            "Host: \u{e4}",
            "Host: a\r\nno field",
            "Host: a\r\n: empty",
            "Host: a\r\n folded: b",
            "Host: a\u{0}b",
        ] {
            assert!(!read(fields), "{fields:?}");
        }
        assert_eq!(HttpRequest::read(b"GET / HTTP/1.0\r\n"), None, "also of HTTP/1.0");
    }

    #[test]
    fn no_bytes_break_the_reader_and_what_it_reads_is_what_was_sent() {
        let seeds: [&[u8]; 3] = [
            b"GET /history?step=5&x=%00 HTTP/1.1\r\nHost: a:1\r\nAuthorization: Basic eA==\r\n\r\n",
            b"HEAD http://[::1]:9817/metrics HTTP/1.0\nHost: [::1]:9817\nSec-Fetch-Site: none\n\n",
            b"GET / HTTP/1.1\r\nHost: b\r\nx: x\r\nfolded:\ty\r\n\r\n",
        ];
        let mut random = 1_u64;
        let mut roll = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let mut requests = 0;
        for round in 0..200_000 {
            let mut bytes = seeds[round % seeds.len()].to_vec();
            for _ in 0..roll(6) {
                let place = roll(bytes.len());
                match roll(4) {
                    0 => bytes[place] = roll(256) as u8,
                    1 => bytes[place] = b"\r\n :/?&=%\0"[roll(10)],
                    2 => bytes.truncate(place + 1),
                    _ => drop(bytes.splice(place..place, seeds[roll(3)].iter().copied().take(roll(20)))),
                }
            }
            let Some(length) = head_length(&bytes) else { continue };
            let Some(request) = HttpRequest::read(&bytes[..length]) else { continue };
            requests += 1;
            // Whatever it is taken for stands in what was sent, on one line.
            let all = [request.method, request.path, request.query, request.host].into_iter();
            for part in all.chain(request.authorization).chain(request.site) {
                assert!(!part.contains('\n'), "{request:?}");
            }
            assert!(request.path.starts_with('/') && !request.path.contains(['?', ' ']), "{request:?}");
        }
        assert!(requests > 20_000, "{requests}");
    }

    #[test]
    fn what_is_no_request_is_none() {
        for head in ["", "GET", "GET / HTTP/2", " / HTTP/1.1", "GET metrics HTTP/1.1", "GET /  HTTP/1.1"] {
            assert_eq!(HttpRequest::read(head.as_bytes()), None, "{head:?}");
        }
        assert_eq!(HttpRequest::read(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b"), None);
        assert_eq!(HttpRequest::read(b"GET /\xff HTTP/1.1"), None);
    }
}
