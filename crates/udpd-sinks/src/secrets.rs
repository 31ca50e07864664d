//! Secrets of sinks: they stand in files, are read when a sink is opened, and are shown nowhere.
//!
//! What a server answers may repeat what it was told. So the secrets of a sink are taken out of every line that comes
//! from elsewhere ([`HiddenSecrets`]).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

use crate::named_files as files;
use udpd_base::os::threads::lock;

/// The longest secret; a token is the longest of them.
const BYTES_MAX: u64 = 64 * 1024;

/// Why a credential has no place.
pub(crate) const NO_CREDENTIALS: &str =
    "the service manager has passed no credentials; write LoadCredential= into the unit of udpd";

/// The secret in a file, without the end of its line.
pub(crate) fn read(path: &Path) -> Result<String, String> {
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

/// What is shorter would be found in every line by chance.
const BYTES_MIN: usize = 4;

/// What stands in place of a secret.
const INSTEAD: &str = "(not shown)";

/// A daemon that runs for years has had many tokens.
const TOKENS_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct HiddenSecrets {
    passwords: Vec<String>,
    tokens: Mutex<VecDeque<String>>,
}

impl fmt::Debug for HiddenSecrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HiddenSecrets")
    }
}

impl HiddenSecrets {
    pub(crate) fn new(passwords: Vec<String>) -> Self {
        Self { passwords, tokens: Mutex::default() }
    }

    /// One token more; what was known before may still come.
    pub(crate) fn add(&self, token: &str) {
        let mut tokens = lock(&self.tokens);
        if !tokens.iter().any(|known| known == token) {
            tokens.truncate(TOKENS_MAX - 1);
            tokens.push_front(token.to_owned());
        }
    }

    pub(crate) fn clean<'t>(&self, text: &'t str) -> Cow<'t, str> {
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
