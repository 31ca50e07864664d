//! What may stand in no log: the passwords and tokens of one client, taken out of every line that the library writes.
//! It hides them itself wherever it is known to; what a broker answers, and what a later version adds, nobody knows.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What is shorter would be found in every line by chance.
const BYTES_MIN: usize = 4;

/// What stands in place of a secret.
const INSTEAD: &str = "(not shown)";

/// The secrets of a client.
#[derive(Default)]
pub(super) struct Hidden(Mutex<Vec<String>>);

impl fmt::Debug for Hidden {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hidden")
    }
}

impl Hidden {
    pub(super) fn new(secrets: Vec<String>) -> Self {
        Self(Mutex::new(secrets))
    }

    /// One more; what was known before may still come.
    pub(super) fn add(&self, secret: &str) {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !secrets.iter().any(|known| known == secret) {
            // A daemon that runs for years has had many tokens.
            if secrets.len() == 8 {
                secrets.remove(0);
            }
            secrets.push(secret.to_owned());
        }
    }

    /// The text without any of them.
    pub(super) fn clean<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = secrets.iter().filter(|secret| secret.len() >= BYTES_MIN && text.contains(secret.as_str()));
        found.fold(Cow::Borrowed(text), |text, secret| Cow::Owned(text.replace(secret.as_str(), INSTEAD)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_left_in_a_line_and_what_is_none_stays() {
        let hidden = Hidden::new(vec!["hunter2".to_owned(), "a".to_owned()]);
        hidden.add("eyJ.eyJ.x");
        assert_eq!(hidden.clean("hunter2 of a: eyJ.eyJ.x, hunter2"), "(not shown) of a: (not shown), (not shown)");
        assert!(matches!(hidden.clean("nothing of it"), Cow::Borrowed(_)));
        assert_eq!(format!("{hidden:?}"), "Hidden");
    }

    #[test]
    fn the_newest_tokens_are_known() {
        let hidden = Hidden::default();
        (0..100).for_each(|number| hidden.add(&format!("token-{number}-")));
        assert_eq!(hidden.clean("token-99- token-92- token-1-"), "(not shown) (not shown) token-1-");
    }
}
