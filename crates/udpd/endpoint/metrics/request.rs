//! A request head: the line that says what is wanted, and the few fields that decide whether it is given.

/// What a client has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// The path, without what follows a question mark.
    pub(super) path: &'a str,
    /// What follows the question mark.
    pub(super) query: &'a str,
    /// Whom the client believes to ask.
    pub(super) host: Option<&'a str>,
    pub(super) authorization: Option<&'a str>,
    /// Whose page makes a browser ask (`Sec-Fetch-Site`).
    pub(super) site: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// `None` for what is no HTTP/1 request. A field that comes twice counts as it comes first, except `Host`: two of
    /// them are two opinions, and so no request.
    pub(super) fn read(head: &'a [u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.lines();
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else { return None };
        let (authority, target) = origin_form(target)?;
        if method.is_empty() {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self { method, path, query, host: None, authorization: None, site: None };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let place = match name.to_ascii_lowercase().as_str() {
                "host" if request.host.is_some() => return None,
                "host" => &mut request.host,
                "authorization" => &mut request.authorization,
                "sec-fetch-site" => &mut request.site,
                _ => continue,
            };
            place.get_or_insert(value.trim());
        }
        // What the target names counts, whatever the field says (RFC 9112, 3.2.2).
        request.host = authority.or(request.host);
        Some(request)
    }

    /// The value of a parameter of the query.
    pub(super) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|pair| pair.1)
    }
}

/// What a target names of whom it asks, and its path: proxies may send the whole address.
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
pub(super) fn head_length(bytes: &[u8]) -> Option<usize> {
    let with_return = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let without = bytes.windows(2).position(|window| window == b"\n\n");
    with_return.into_iter().chain(without).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_are_read_in_any_case_and_values_without_the_space_around_them() {
        let head = b"GET /history?step=5&x HTTP/1.1\r\nhOsT:  a:1 \r\nAUTHORIZATION:Bearer x\r\nSec-Fetch-Site: none";
        let request = Request::read(head).unwrap();
        assert_eq!((request.method, request.path, request.parameter("step")), ("GET", "/history", Some("5")));
        assert_eq!((request.host, request.authorization, request.site), (Some("a:1"), Some("Bearer x"), Some("none")));
        assert_eq!(request.parameter("x"), None);
    }

    #[test]
    fn a_whole_address_counts_for_more_than_the_field() {
        let request = Request::read(b"GET HTTP://a:1/history?step=5 HTTP/1.1\r\nHost: b\r\n").unwrap();
        assert_eq!((request.host, request.path, request.query), (Some("a:1"), "/history", "step=5"));
        let request = Request::read(b"GET http://a HTTP/1.1\r\n").unwrap();
        assert_eq!((request.host, request.path), (Some("a"), "/"));
        assert_eq!(Request::read(b"GET http:///x HTTP/1.1"), None);
        assert_eq!(Request::read(b"GET https://a/x HTTP/1.1"), None);
    }

    #[test]
    fn no_bytes_break_the_reader_and_what_it_reads_is_what_was_sent() {
        let seeds: [&[u8]; 3] = [
            b"GET /history?step=5&x=%00 HTTP/1.1\r\nHost: a:1\r\nAuthorization: Basic eA==\r\n\r\n",
            b"HEAD http://[::1]:9817/metrics HTTP/1.0\nSec-Fetch-Site: none\n\n",
            b"GET / HTTP/1.1\r\nHost:\r\n: x\r\n\tfolded: y\r\nhost : b\r\n\r\n",
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
            let Some(request) = Request::read(&bytes[..length]) else { continue };
            requests += 1;
            // Whatever it is taken for stands in what was sent, on one line.
            let all = [request.method, request.path, request.query].into_iter().chain(request.host);
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
            assert_eq!(Request::read(head.as_bytes()), None, "{head:?}");
        }
        assert_eq!(Request::read(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b"), None);
        assert_eq!(Request::read(b"GET /\xff HTTP/1.1"), None);
    }
}
