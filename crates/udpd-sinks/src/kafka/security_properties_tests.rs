//! What is written becomes properties of the library, and no secret goes anywhere else.

use std::path::{Path, PathBuf};

use super::*;
use crate::kafka::Sasl;

/// A user whose password is in a file.
fn plain(directory: &Path) -> Security {
    let password_file = Some(directory.join("password"));
    std::fs::write(directory.join("password"), "hunter2\n").expect("written");
    let mut plain = Security::default();
    (plain.sasl, plain.username, plain.password_file) = (Some(Sasl::Plain), "udpd".to_owned(), password_file);
    plain
}

#[test]
fn without_any_of_it_the_library_is_told_nothing() {
    assert_eq!(security_properties(&Security::default(), Purpose::Use), Ok(Vec::new()));
}

#[test]
fn a_password_goes_from_its_file_to_the_library_and_nowhere_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let plain = plain(directory.path());
    let told = security_properties(&plain, Purpose::Use).expect("a password");
    let told: Vec<_> = told.iter().map(|(name, key, value)| (*name, *key, value.as_str())).collect();
    let expected = [
        ("security.protocol", "sasl", "sasl_plaintext"),
        ("sasl.password", "password_file", "hunter2"),
        ("sasl.mechanisms", "sasl", "PLAIN"),
        ("sasl.username", "username", "udpd"),
    ];
    assert_eq!(told, expected);
    assert!(!format!("{plain:?} {:?}", plain.clone().with_prints()).contains("hunter2"));
}

#[test]
fn certificates_and_keys_are_told_by_their_paths_and_the_password_of_a_key_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut mutual = plain(directory.path());
    (mutual.tls, mutual.sasl, mutual.username, mutual.key_password_file) =
        (true, None, String::new(), mutual.password_file.take());
    let file = |name: &str| Some(PathBuf::from("/etc/udpd").join(name));
    (mutual.ca_file, mutual.certificate_file, mutual.key_file) = (file("ca"), file("udpd.pem"), file("udpd.key"));
    let told = security_properties(&mutual, Purpose::Use).expect("a password");
    let told: Vec<_> = told.iter().map(|(name, _, value)| (*name, value.as_str())).collect();
    let expected = [
        ("security.protocol", "ssl"),
        ("ssl.ca.location", "/etc/udpd/ca"),
        ("ssl.certificate.location", "/etc/udpd/udpd.pem"),
        ("ssl.key.location", "/etc/udpd/udpd.key"),
        ("ssl.key.password", "hunter2"),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_password_that_cannot_be_read_is_an_error_and_a_credential_of_the_unit_is_one_only_for_the_unit() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut plain = plain(directory.path());
    plain.password_file = Some(directory.path().join("missing"));
    for purpose in [Purpose::Check, Purpose::Use] {
        let error = security_properties(&plain, purpose).expect_err("no file");
        assert!(error.key() == Some("password_file") && error.to_string().contains("No such file"), "{error}");
    }
    plain.password_file = Some(PathBuf::from("$CREDENTIALS_DIRECTORY/kafka"));
    assert!(security_properties(&plain, Purpose::Check).is_ok());
    let error = security_properties(&plain, Purpose::Use).expect_err("no unit");
    assert!(error.to_string().contains("LoadCredential="), "{error}");
}
