//! Who may ask: a client with the token, or without one a request that names this machine.
//!
//! The token is a secret in a file. Scrapers send it as `Authorization: Bearer`, browsers as the password of HTTP
//! Basic, for which they ask the user; the user name of Basic may be any. The file is read at start, where anything
//! wrong with it is an error, and again within a second after it has changed, so that a token can be changed without a
//! restart. When it cannot be read then, that is logged once, and the old token holds.
//!
//! Without a token the name in `Host` decides. A page of a foreign site can have its own name lead to this host (DNS
//! rebinding); the browser then takes the answers of udpd for those of that site and hands them to its scripts. Such a
//! request names the foreign site in `Host`. An address cannot be rebound, and only its owner can rebind "localhost" or
//! the name of this machine. With a token the name does not matter: a browser sends the token only to the site where
//! the user has entered it.

use std::fs::{File, Metadata};
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::text::base64;

/// What is shorter can be guessed.
const SHORTEST: usize = 16;
const LONGEST: usize = 1024;

/// What makes a good one.
const RECIPE: &str = "write one with: (umask 077; openssl rand -hex 32 > FILE)";

/// A token and the file that it is from.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    token: MetricsToken,
    seen: Seen,
    /// What was last said to be wrong, so that it is said once.
    complaint: Option<String>,
}

/// The secret, which `Debug` does not show.
struct MetricsToken(Vec<u8>);

impl std::fmt::Debug for MetricsToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("MetricsToken")
    }
}

/// Which state of the file was read: device, number, length, and when it last changed in any way.
type Seen = (u64, u64, u64, i64, i64);

impl TokenFile {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        match load(path) {
            Ok((token, seen)) => Ok(Self { path: path.to_owned(), token, seen, complaint: None }),
            Err((code, why)) => Err(Failure::new(code, complaint(path, &why))),
        }
    }

    /// Takes the token anew if the file has changed.
    pub(super) fn look(&mut self) {
        let outcome = match std::fs::metadata(&self.path) {
            Ok(metadata) if seen(&metadata) == self.seen => return self.complaint = None,
            Ok(_) => load(&self.path).map_err(|(_, why)| why),
            Err(error) => Err(cannot_read(&error)),
        };
        match outcome {
            Ok((token, seen)) => {
                log::info!("metrics_token_file {} has changed: from now on its new token counts", self.path.display());
                (self.token, self.seen, self.complaint) = (token, seen, None);
            }
            Err(why) if self.complaint.as_ref() != Some(&why) => {
                log::warn!("{}; the token that was read before still counts", complaint(&self.path, &why));
                self.complaint = Some(why);
            }
            Err(_) => {}
        }
    }

    /// Whether this value of `Authorization` has the token.
    pub(super) fn allows(&self, authorization: Option<&str>) -> bool {
        let Some((scheme, credentials)) = authorization.and_then(|value| value.split_once(' ')) else { return false };
        let credentials = credentials.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return same(credentials.as_bytes(), &self.token.0);
        }
        let decoded = scheme.eq_ignore_ascii_case("basic").then(|| base64::decode(credentials)).flatten();
        let password = decoded.as_deref().and_then(|both| {
            let colon = both.iter().position(|&byte| byte == b':')?;
            both.get(colon + 1..)
        });
        password.is_some_and(|password| same(password, &self.token.0))
    }
}

fn complaint(path: &Path, why: &str) -> String {
    format!("cannot take the token from metrics_token_file = \"{}\": {why}", path.display())
}

fn cannot_read(error: &std::io::Error) -> String {
    format!("{error}; {RECIPE}, readable by the user of udpd")
}

/// The token in a file, and which state of the file that was.
fn load(path: &Path) -> Result<(MetricsToken, Seen), (ExitCode, String)> {
    let unreadable = |error: std::io::Error| (ExitCode::Configuration, cannot_read(&error));
    let is_regular = std::fs::metadata(path).map_err(unreadable)?.is_file();
    let bad = |why: String| Err((ExitCode::Configuration, why));
    if !is_regular {
        // Opening a pipe would wait for its other end.
        return bad(format!("it is no regular file; {RECIPE}"));
    }
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.mode() & 0o007 != 0 {
        let cure = format!("take that away with: chmod o= {}", path.display());
        return bad(format!("every user of this host may use it (mode {:03o}); {cure}", metadata.mode() & 0o777));
    }
    let mut text = Vec::new();
    file.take(LONGEST as u64 + 2).read_to_end(&mut text).map_err(unreadable)?;
    let token = text.trim_ascii();
    if token.len() < SHORTEST || token.len() > LONGEST {
        let count = token.len();
        return bad(format!("its token has {count} characters, and {SHORTEST} to {LONGEST} are taken; {RECIPE}"));
    }
    if !token.iter().all(u8::is_ascii_graphic) {
        return bad(format!("its token is more than one word of visible ASCII characters; {RECIPE}"));
    }
    Ok((MetricsToken(token.to_vec()), seen(&metadata)))
}

fn seen(metadata: &Metadata) -> Seen {
    (metadata.dev(), metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec())
}

/// Compares in a time that depends on nothing but the length of what was sent.
fn same(sent: &[u8], token: &[u8]) -> bool {
    let differs = u8::from(sent.len() != token.len());
    let differences =
        sent.iter().enumerate().fold(differs, |found, (index, byte)| found | (byte ^ token[index % token.len()]));
    std::hint::black_box(differences) == 0
}

/// Whether a request for this `Host` can only be meant for this machine.
pub(super) fn is_own_name(host: &str, machine: &str) -> bool {
    let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if name.parse::<IpAddr>().is_ok() || address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()) {
        return true;
    }
    let machine = machine.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || (!machine.is_empty() && name == machine)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

/// The name of this machine; empty, which no client can ask for, where it cannot be read.
pub(super) fn machine_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn written(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    #[test]
    fn the_token_is_taken_as_bearer_or_as_the_password_of_basic_and_nothing_else_is() {
        let (_directory, path) = written("0123456789abcdef\r\n", 0o640);
        let file = TokenFile::read(&path).unwrap();
        // Basic: any:0123456789abcdef, and the same with an empty user.
        for sent in [
            "Bearer 0123456789abcdef",
            "bearer  0123456789abcdef",
            "Basic YW55OjAxMjM0NTY3ODlhYmNkZWY=",
            "basic OjAxMjM0NTY3ODlhYmNkZWY=",
        ] {
            assert!(file.allows(Some(sent)), "{sent}");
        }
        for sent in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer 0123456789abcde"),
            Some("Bearer 0123456789abcdef0123456789abcdef"),
            Some("Bearer 0123456789abcdeg"),
            Some("Digest 0123456789abcdef"),
            // 0123456789abcdef: as the user, without a password.
            Some("Basic MDEyMzQ1Njc4OWFiY2RlZjo="),
            Some("Basic 0123456789abcdef"),
            Some("Basic §"),
        ] {
            assert!(!file.allows(sent), "{sent:?}");
        }
    }

    #[test]
    fn a_file_that_others_may_use_or_that_holds_no_good_token_is_refused_with_the_cure() {
        for (text, mode, words) in [
            ("0123456789abcdef", 0o644, "chmod o="),
            ("0123456789abcdef", 0o602, "chmod o="),
            ("", 0o600, "0 characters"),
            ("short", 0o600, "openssl rand"),
            ("two words are no token", 0o600, "more than one word"),
            (&"x".repeat(2000), 0o600, "16 to 1024"),
        ] {
            let (_directory, path) = written(text, mode);
            let failure = TokenFile::read(&path).unwrap_err();
            assert_eq!(failure.code, ExitCode::Configuration);
            let says_all = failure.message.contains(words) && failure.message.contains("metrics_token_file");
            assert!(says_all, "{text:?}, {mode:o}: {failure}");
        }
        assert!(TokenFile::read(Path::new("/nonexistent")).unwrap_err().message.contains("umask 077"));
        assert!(TokenFile::read(Path::new("/dev/null")).unwrap_err().message.contains("no regular file"));
    }

    #[test]
    fn a_new_token_counts_at_the_next_look_and_a_file_that_is_gone_changes_nothing() {
        let (_directory, path) = written("0123456789abcdef", 0o600);
        let mut file = TokenFile::read(&path).unwrap();
        fs::write(&path, "another-token-of-mine").unwrap();
        assert!(!file.allows(Some("Bearer another-token-of-mine")));
        file.look();
        assert!(file.allows(Some("Bearer another-token-of-mine")));
        assert!(!file.allows(Some("Bearer 0123456789abcdef")));
        fs::remove_file(&path).unwrap();
        file.look();
        assert!(file.allows(Some("Bearer another-token-of-mine")));
    }

    #[test]
    fn addresses_localhost_and_the_machine_are_meant_and_every_other_name_is_not() {
        for host in [
            "127.0.0.1:9817",
            "10.1.2.3",
            "[::1]:9817",
            "[fd00::9]",
            "localhost:9817",
            "LOCALHOST.",
            "a.localhost",
            "box.example.net:9817",
        ] {
            assert!(is_own_name(host, "Box.example.net"), "{host}");
        }
        for host in
            ["", "evil.example:9817", "127.0.0.1.evil.example", "localhost.evil.example", "box", "[evil]", "a:b"]
        {
            assert!(!is_own_name(host, "box.example.net"), "{host}");
        }
        assert!(!is_own_name("", ""));
    }
}
