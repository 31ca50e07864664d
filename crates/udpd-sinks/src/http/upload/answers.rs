//! What a server that speaks S3 answers: the few elements of its XML that are read, and what a refusal means.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ureq::http::header::{DATE, RETRY_AFTER};
use ureq::http::{HeaderMap, Response};

use super::super::connection::exchange::retry_after;
use super::server::UploadTrouble;

/// A clock that is so far off explains why a signature is refused.
const CLOCK_LIMIT: Duration = Duration::from_secs(300);

/// The contents of each element of this name, as they are written.
pub(super) fn elements<'x>(xml: &'x str, name: &str) -> impl Iterator<Item = &'x str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (content, behind) = rest.split_once(&begin)?.1.split_once(&end)?;
        rest = behind;
        Some(content)
    })
}

/// The text of the first element of this name.
pub(super) fn text(xml: &str, name: &str) -> Option<String> {
    let written = elements(xml, name).next()?;
    let plain = [("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&lt;", "<"), ("&gt;", ">")];
    let text = plain.into_iter().fold(written.to_owned(), |text, (code, character)| text.replace(code, character));
    Some(text.replace("&amp;", "&"))
}

/// The checksum of an object or a part: 32 digits, of several parts with their number behind. Servers write quotes
/// around it.
pub(super) fn checksum(etag: &str) -> String {
    etag.trim_matches('"').to_ascii_lowercase()
}

/// Whether the server says that it encrypts with a key of its own, so that its ETag is no checksum.
pub(super) fn is_encrypted(headers: &HeaderMap) -> bool {
    headers.get("x-amz-server-side-encryption").is_some_and(|value| value.as_bytes().starts_with(b"aws:kms"))
}

/// What an answer means that is no success. `asked` is what it answers to.
pub(super) fn refusal(asked: &str, answer: &Response<()>, body: &[u8], now: SystemTime) -> UploadTrouble {
    let (status, body) = (answer.status().as_u16(), String::from_utf8_lossy(body));
    let code = text(&body, "Code").unwrap_or_default();
    let said: Vec<String> = [Some(code.clone()), text(&body, "Message")].into_iter().flatten().collect();
    let said: String = said.join(": ").chars().filter(|character| !character.is_control()).take(300).collect();
    let mut what = format!("refuses to {asked} ({status}{}{said})", if said.is_empty() { "" } else { ", " });
    let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let after = header(RETRY_AFTER).and_then(|text| retry_after(text, now));
    if let (403, Some(off)) = (status, header(DATE).and_then(|date| clock_error(date, now))) {
        what += &format!(", and the clock of this host is {off} that of the server");
        return UploadTrouble::Server { what, cure: "; set the clock of this host, by NTP or by hand", after };
    }
    let cure = match (code.as_str(), status) {
        ("RequestTimeTooSkewed", _) => "; set the clock of this host, by NTP or by hand",
        (
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken" | "ExpiredToken" | "InvalidClientTokenId",
            _,
        ) => "; write valid keys into credentials_file, which udpd reads again",
        ("NoSuchBucket" | "InvalidBucketName", _) => "; make the bucket, or correct the one in url",
        ("AuthorizationHeaderMalformed" | "AuthorizationQueryParametersError" | "PermanentRedirect", _)
        | ("IllegalLocationConstraintException" | "TemporaryRedirect", _)
        | (_, 301 | 307) => "; write the region of the bucket into region, and the host of that region into url",
        ("QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded", _) | (_, 507) => {
            "; make room there, or raise its quota"
        }
        ("SlowDown" | "ServiceUnavailable" | "InternalError", _) | (_, 500..) | (_, 429) => {
            "; see how the server fares"
        }
        (_, 401 | 403) => "; give those keys the rights that docs/rotation.md#uploads lists",
        (_, 404) => "; see whether url leads to a server that speaks S3, and to a bucket of it",
        _ => "",
    };
    UploadTrouble::Server { what, cure, after }
}

/// How far the clock of this host is from that of a server that says this date, if that is far.
fn clock_error(date: &str, now: SystemTime) -> Option<String> {
    let then = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    let then = UNIX_EPOCH + Duration::from_secs(u64::try_from(then.as_second()).ok()?);
    let (off, word) = match now.duration_since(then) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    (off > CLOCK_LIMIT).then(|| format!("{} s {word}", off.as_secs()))
}
