//! Passwords, keys and tokens: they stand in files, are read when a client is started, and are shown nowhere.
//!
//! The token of OAUTHBEARER is fetched by another program (a sidecar, a timer, the agent of an identity provider),
//! which writes it into a file; the library asks for it before the one that it has expires, and the file is read again.
//! When a token expires stands in it, if it is a JSON Web Token. Any other is used for five minutes before the file is
//! read again. Nothing is verified here: that is what the brokers do.
//!
//! The secrets of a client are taken out of every line that the library writes ([`HiddenSecrets`]). The library hides
//! them itself wherever that is documented; what a broker answers, and what a later version adds, is unknown.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::named_files as files;
use udpd_base::os::threads::lock;
use udpd_base::seams::clock;
use udpd_base::text::base64;
use udpd_base::text::units::CalendarTime;

/// The longest secret; a token is the longest of them.
const BYTES_MAX: u64 = 64 * 1024;

/// Why a credential has no place.
pub(super) const NO_CREDENTIALS: &str =
    "the service manager has passed no credentials; write LoadCredential= into the unit of udpd";

/// The secret in a file, without the end of its line.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let place = files::located(path).ok_or(NO_CREDENTIALS)?;
    let refused = |error| format!("cannot read it: {error}; let the user of udpd read it");
    let bytes = files::contents(&place, BYTES_MAX).map_err(refused)?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8")?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("the file is empty; write the secret into it".to_owned()),
        secret if secret.contains('\0') => Err("it holds a zero byte".to_owned()),
        secret => Ok(secret.to_owned()),
    }
}

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

/// What is shorter would be found in every line by chance.
const BYTES_MIN: usize = 4;

/// What stands in place of a secret.
const INSTEAD: &str = "(not shown)";

/// A daemon that runs for years has had many tokens.
const TOKENS_MAX: usize = 8;

#[derive(Default)]
pub(super) struct HiddenSecrets {
    passwords: Vec<String>,
    tokens: Mutex<VecDeque<String>>,
}

impl fmt::Debug for HiddenSecrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HiddenSecrets")
    }
}

impl HiddenSecrets {
    pub(super) fn new(passwords: Vec<String>) -> Self {
        Self { passwords, tokens: Mutex::default() }
    }

    /// One token more; what was known before may still come.
    pub(super) fn add(&self, token: &str) {
        let mut tokens = lock(&self.tokens);
        if !tokens.iter().any(|known| known == token) {
            tokens.truncate(TOKENS_MAX - 1);
            tokens.push_front(token.to_owned());
        }
    }

    pub(super) fn clean<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let tokens = lock(&self.tokens);
        let all = self.passwords.iter().chain(&*tokens);
        let mut found: Vec<&String> =
            all.filter(|secret| secret.len() >= BYTES_MIN && text.contains(secret.as_str())).collect();
        // Of one that begins with another nothing is left behind.
        found.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        found.into_iter().fold(Cow::Borrowed(text), |text, secret| Cow::Owned(text.replace(secret.as_str(), INSTEAD)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_what_the_file_holds_without_the_end_of_its_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("password");
        for text in ["with spaces inside\r\n", "with spaces inside\n", "with spaces inside"] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(read(&path), Ok("with spaces inside".to_owned()));
        }
    }

    #[test]
    fn a_file_that_holds_no_secret_is_refused_with_its_reason() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("password");
        let long = "x".repeat(65_537);
        for (text, words) in [("", "empty"), ("\r\n", "empty"), ("a\0b", "zero byte"), (&long, "longer")] {
            std::fs::write(&path, text).expect("written");
            let why = read(&path).expect_err(words);
            assert!(why.contains(words), "{why}");
        }
        assert!(read(Path::new("/nonexistent")).is_err_and(|why| why.contains("No such file")));
        assert!(read(Path::new("/dev/null")).is_err_and(|why| why.contains("no regular file")));
        let credential = Path::new("$CREDENTIALS_DIRECTORY/kafka");
        assert_eq!(read(credential), Err(NO_CREDENTIALS.to_owned()), "no unit runs this test");
    }

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

    #[test]
    fn no_secret_is_left_in_a_line_and_what_is_none_stays() {
        let hidden = HiddenSecrets::new(vec!["hunter2".to_owned(), "a".to_owned()]);
        hidden.add("eyJ.eyJ.x");
        assert_eq!(hidden.clean("hunter2 of a: eyJ.eyJ.x, hunter2"), "(not shown) of a: (not shown), (not shown)");
        assert!(matches!(hidden.clean("nothing of it"), Cow::Borrowed(_)));
        assert_eq!(format!("{hidden:?}"), "HiddenSecrets");
    }

    #[test]
    fn the_newest_tokens_are_known() {
        let hidden = HiddenSecrets::default();
        (0..100).for_each(|number| hidden.add(&format!("token-{number}-")));
        assert_eq!(hidden.clean("token-99- token-92- token-1-"), "(not shown) (not shown) token-1-");
    }

    #[test]
    fn no_number_of_tokens_makes_a_password_known_nor_does_another_that_it_begins_with() {
        let hidden = HiddenSecrets::new(vec!["hunter".to_owned(), "hunter2".to_owned()]);
        (0..100).for_each(|number| hidden.add(&format!("token-{number}-")));
        assert_eq!(hidden.clean("hunter2 and hunter"), "(not shown) and (not shown)");
    }
}
