//! Passwords, keys and tokens: they stand in files, are read when a client is started, and are shown nowhere.

use std::path::Path;

use super::files;

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
}
