//! Fuzz targets: tokens that another program has written, which are read here also where no Kafka sink is built, and
//! what a sink of type `http` hears and sends, or one that speaks RELP hears.

use std::time::{Duration, UNIX_EPOCH};

use crate::secrets::HiddenSecrets;

// A build with Kafka sinks has it twice.
#[allow(clippy::duplicate_mod, dead_code, unreachable_pub)]
#[path = "../kafka/tokens.rs"]
mod tokens;

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![
        ("kafka_tokens", token),
        ("relp_answers", crate::tcp::relp::fuzz),
        #[cfg(feature = "http")]
        ("http_answers", crate::http::fuzz::answers),
        #[cfg(feature = "http")]
        ("http_records", crate::http::fuzz::lines),
    ]
}

/// A token is one word, names a principal, and is not over; no line shows it.
fn token(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let now = UNIX_EPOCH + Duration::from_secs(1_795_243_341);
    match tokens::parse_token(text, now) {
        Ok(token) => {
            assert!(token.text == text && !text.contains(char::is_whitespace));
            assert!(!token.principal.is_empty() && !token.principal.contains('\0'));
            assert!(token.expires_ms >= 1_795_243_341_000);
            let hidden = HiddenSecrets::new(vec!["secret".to_owned()]);
            hidden.add(&token.text);
            let line = format!("a line of {text} and of secret");
            assert!(
                text.len() < 4 || "a line of (not shown) and of".contains(text) || !hidden.clean(&line).contains(text)
            );
        }
        Err(why) => {
            // Its own words may be the text.
            let shows_nothing = Err(&why) == tokens::parse_token("no token", now).as_ref().map(|_| ());
            let shows = text.len() >= 12 && why.contains(text) && !shows_nothing;
            assert!(!why.contains(char::is_control) && !shows, "{why}");
        }
    }
}
