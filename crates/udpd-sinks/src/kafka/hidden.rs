//! What may stand in no log: the passwords and tokens of one client, taken out of every line that the library writes.
//! It hides them itself wherever it is known to; what a broker answers, and what a later version adds, is unknown.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What is shorter would be found in every line by chance.
const BYTES_MIN: usize = 4;

/// What stands in place of a secret.
const INSTEAD: &str = "(not shown)";

/// A daemon that runs for years has had many tokens.
const TOKENS_MAX: usize = 8;

/// The secrets of a client.
#[derive(Default)]
pub(super) struct Hidden {
    /// Which stay as they are.
    passwords: Vec<String>,
    tokens: Mutex<VecDeque<String>>,
}

impl fmt::Debug for Hidden {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hidden")
    }
}

impl Hidden {
    pub(super) fn new(passwords: Vec<String>) -> Self {
        Self { passwords, tokens: Mutex::default() }
    }

    /// One token more; what was known before may still come.
    pub(super) fn add(&self, token: &str) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if !tokens.iter().any(|known| known == token) {
            tokens.truncate(TOKENS_MAX - 1);
            tokens.push_front(token.to_owned());
        }
    }

    /// The text without any of them.
    pub(super) fn clean<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
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

    #[test]
    fn no_number_of_tokens_makes_a_password_known_nor_does_another_that_it_begins_with() {
        let hidden = Hidden::new(vec!["hunter".to_owned(), "hunter2".to_owned()]);
        (0..100).for_each(|number| hidden.add(&format!("token-{number}-")));
        assert_eq!(hidden.clean("hunter2 and hunter"), "(not shown) and (not shown)");
    }
}
