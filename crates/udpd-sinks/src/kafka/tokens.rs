//! The tokens of a Kafka sink.
//!
//! The token of OAUTHBEARER is fetched by another program (a sidecar, a timer, the agent of an identity provider),
//! which writes it into a file; the library asks for it before the one that it has expires, and the file is read again.
//! When a token expires stands in it, if it is a JSON Web Token. Any other is used for five minutes before the file is
//! read again. Nothing is verified here: that is what the brokers do.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::secrets::read;
use udpd_base::seams::clock;
use udpd_base::text::base64;
use udpd_base::text::units::CalendarTime;

/// How long a token is good that says nothing about it.
const OPAQUE_LIFETIME: Duration = Duration::from_secs(300);

/// The principal of a token that names none. The library wants a name; brokers take theirs from the token.
const NAMELESS: &str = "udpd";

pub(super) struct KafkaToken {
    pub(super) text: String,
    pub(super) principal: String,
    pub(super) expires_ms: i64,
}

impl fmt::Debug for KafkaToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KafkaToken").field("principal", &self.principal).finish_non_exhaustive()
    }
}

/// What is in the file now.
pub(super) fn read_token(path: &Path) -> Result<KafkaToken, String> {
    let token = read(path).and_then(|text| parse_token(text.trim(), clock::wall()));
    token.map_err(|why| format!("token_file = \"{}\": {why}", path.display()))
}

pub(super) fn parse_token(text: &str, now: SystemTime) -> Result<KafkaToken, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("its token is not one word of visible ASCII characters".to_owned());
    }
    let claims = claims(text).unwrap_or_default();
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    // A number of seconds, which may have a fraction.
    let expires = match claims.get("exp").and_then(Value::as_f64) {
        Some(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX),
        None => now + OPAQUE_LIFETIME,
    };
    if expires <= now {
        // The moment and not how long ago: the library repeats an error only when its text is another.
        let CalendarTime { year, month, day, hour, minute, second } = CalendarTime::at(expires.as_secs());
        return Err(format!(
            "its token expired at {year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z, and no \
             new one was written"
        ));
    }
    let principal = claims.get("sub").and_then(Value::as_str).filter(|name| !name.is_empty() && !name.contains('\0'));
    Ok(KafkaToken {
        text: text.to_owned(),
        principal: principal.unwrap_or(NAMELESS).to_owned(),
        // The library counts in microseconds.
        expires_ms: i64::try_from(expires.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 2_000),
    })
}

/// What a JSON Web Token says of itself, if it is one.
fn claims(text: &str) -> Option<Value> {
    let mut parts = text.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    serde_json::from_slice(&base64::decode(claims)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn at_now(text: &str) -> Result<KafkaToken, String> {
        parse_token(text, UNIX_EPOCH + NOW)
    }

    #[test]
    fn a_web_token_says_when_it_expires_and_whose_it_is() {
        // {"alg":"none"} and {"sub":"edge-3","exp":1800000060.5}
        let token = at_now("eyJhbGciOiJub25lIn0.eyJzdWIiOiJlZGdlLTMiLCJleHAiOjE4MDAwMDAwNjAuNX0.").expect("a token");
        assert_eq!((token.principal.as_str(), token.expires_ms), ("edge-3", 1_800_000_060_500));
        assert!(!format!("{token:?}").contains("eyJ"), "{token:?}");
    }

    #[test]
    fn one_that_has_expired_is_refused_with_the_moment() {
        // {"sub":"edge-3","exp":1800000000}
        let why = at_now("e30.eyJzdWIiOiJlZGdlLTMiLCJleHAiOjE4MDAwMDAwMDB9.").expect_err("expired");
        assert!(why.contains("expired at 2027-01-15T08:00:00Z"), "{why}");
        assert!(!why.contains("eyJ"), "{why}");
    }

    #[test]
    fn one_that_says_nothing_is_asked_for_again_within_five_minutes() {
        let in_five_minutes = i64::try_from((NOW + OPAQUE_LIFETIME).as_millis()).expect("a time");
        for text in ["0a1b2c3d", "a.b.c", "a.e30.c", "..", "a.bnVsbA.c"] {
            let token = at_now(text).expect(text);
            assert_eq!((token.principal.as_str(), token.expires_ms), (NAMELESS, in_five_minutes), "{text}");
        }
    }

    #[test]
    fn what_no_broker_could_take_is_refused() {
        for text in ["", "two words", "ümlaut"] {
            assert!(at_now(text).is_err_and(|why| why.contains("one word")), "{text}");
        }
    }

    #[test]
    fn a_token_that_is_good_for_ever_is_good_for_as_long_as_the_library_can_count() {
        // {"exp":1e300}
        assert_eq!(at_now("e30.eyJleHAiOjFlMzAwfQ.").expect("a token").expires_ms, i64::MAX / 2_000);
    }
}
