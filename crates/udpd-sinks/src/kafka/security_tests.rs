//! What an operator writes of TLS and SASL is held against itself, and shows no secret.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// A directory with a file of each kind, and settings that name none of them.
struct SecretFiles(tempfile::TempDir);

impl SecretFiles {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().expect("a directory"));
        files.write("password", "hunter2\n");
        files
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.0.path().join(name))
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    }

    fn plain(&self) -> Security {
        let (username, password_file) = ("udpd".to_owned(), self.path("password"));
        Security { sasl: Some(Sasl::Plain), username, password_file, ..Security::default() }
    }
}

/// The key that is wrong, and why.
#[track_caller]
fn refused(security: &Security) -> (String, String) {
    let error = security.check().expect_err("this is wrong");
    (error.key().expect("a key").to_owned(), error.to_string())
}

#[test]
fn without_any_of_it_nothing_is_wrong_or_in_doubt() {
    assert_eq!(Security::default().check(), Ok(()));
    assert_eq!(Security::default().doubts(), Vec::new());
}

#[test]
fn what_does_not_go_together_is_named_with_the_key() {
    let files = SecretFiles::new();
    let (plain, none) = (files.plain(), Security::default());
    let token = || Security { sasl: Some(Sasl::OauthBearer), token_file: files.path("token"), ..Security::default() };
    for (security, key, words) in [
        (Security { username: "u".to_owned(), ..none.clone() }, "username", "write sasl"),
        (Security { password_file: files.path("password"), ..none.clone() }, "password_file", "write sasl"),
        (Security { ca_file: files.path("ca"), ..none.clone() }, "tls_ca_file", "write tls = true"),
        (Security { username: String::new(), ..plain.clone() }, "sasl", "needs username"),
        (Security { password_file: None, ..plain.clone() }, "sasl", "needs username and password_file"),
        (Security { token_file: files.path("token"), ..plain.clone() }, "token_file", "OAUTHBEARER"),
    ] {
        let (found, why) = refused(&security);
        assert!(found == key && why.contains(words), "{why}");
    }
    if cfg!(feature = "kafka-tls") {
        let tls = || Security { tls: true, ..Security::default() };
        for (security, key, words) in [
            (Security { certificate_file: files.path("c"), ..tls() }, "tls_certificate_file", "needs tls_key_file"),
            (Security { key_file: files.path("k"), ..tls() }, "tls_key_file", "needs tls_certificate_file"),
            (Security { key_password_file: files.path("p"), ..tls() }, "tls_key_password_file", "no key"),
            (Security { token_file: None, ..token() }, "sasl", "needs token_file"),
            (Security { username: "u".to_owned(), ..token() }, "username", "a token says who"),
            (Security { password_file: files.path("password"), ..token() }, "password_file", "a token has none"),
        ] {
            let (found, why) = refused(&security);
            assert!(found == key && why.contains(words), "{why}");
        }
        assert_eq!((tls().check(), token().check()), (Ok(()), Ok(())));
    }
}

#[test]
fn a_build_without_tls_names_the_feature_that_has_it() {
    let files = SecretFiles::new();
    let scram = Security { sasl: Some(Sasl::ScramSha512), ..files.plain() };
    let tls = Security { tls: true, ..Security::default() };
    for (security, key) in [(scram, "sasl"), (tls, "tls")] {
        match cfg!(feature = "kafka-tls") {
            true => assert_eq!(security.check(), Ok(())),
            false => {
                let (found, why) = refused(&security);
                assert!(found == key && why.contains("--features kafka-tls"), "{why}");
            }
        }
    }
}

#[test]
fn a_password_that_has_changed_makes_other_settings_and_a_token_does_not() {
    let files = SecretFiles::new();
    files.write("token", "one");
    let of_both = || Security { token_file: files.path("token"), ..files.plain() }.with_prints();
    let before = of_both();
    files.write("token", "two");
    assert_eq!(of_both(), before);
    files.write("password", "hunter3");
    assert_ne!(of_both(), before);
}

#[test]
fn a_password_that_everybody_may_read_and_one_that_everybody_hears_are_doubts() {
    let files = SecretFiles::new();
    let keys = |security: &Security| security.doubts().iter().map(|(key, _)| *key).collect::<Vec<_>>();
    assert_eq!(keys(&files.plain()), ["sasl"], "in clear over the network");
    assert_eq!(keys(&Security { tls: true, ..files.plain() }), Vec::<&str>::new());
    fs::set_permissions(files.path("password").expect("a path"), fs::Permissions::from_mode(0o644)).expect("set");
    assert_eq!(keys(&Security { tls: true, ..files.plain() }), ["password_file"]);
}

#[test]
fn what_is_read_again_is_found_in_its_directory_also_behind_a_link() {
    let files = SecretFiles::new();
    let behind = tempfile::tempdir().expect("a directory");
    let behind = behind.path().canonicalize().expect("a path");
    fs::write(behind.join("token"), "one").expect("written");
    std::os::unix::fs::symlink(behind.join("token"), files.0.path().join("token")).expect("a link");
    let security = Security { token_file: files.path("token"), ..Security::default() };
    assert_eq!(security.directories(), [behind, files.0.path().to_owned()]);
}
