//! How udpd and the brokers authenticate each other, by TLS and SASL: the keys, and the checks of one against another.

use std::path::{Path, PathBuf};

use super::settings::KafkaError;
use crate::named_files::{self as files, Print};
use udpd_base::settings::kinds::{Flag, OneOf, Optional, QuotedText};
use udpd_base::settings::settings;
use udpd_base::text::advice::ValueAdvice;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sasl {
    Plain,
    ScramSha256,
    ScramSha512,
    OauthBearer,
}

impl Sasl {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OauthBearer => "OAUTHBEARER",
        }
    }
}

const MECHANISMS: OneOf<Option<Sasl>> = OneOf(&[
    ("none", None),
    ("PLAIN", Some(Sasl::Plain)),
    ("SCRAM-SHA-256", Some(Sasl::ScramSha256)),
    ("SCRAM-SHA-512", Some(Sasl::ScramSha512)),
    ("OAUTHBEARER", Some(Sasl::OauthBearer)),
]);

#[derive(Debug, Clone, PartialEq)]
pub struct Security {
    pub tls: bool,
    pub ca_file: Option<PathBuf>,
    pub certificate_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub key_password_file: Option<PathBuf>,
    pub sasl: Option<Sasl>,
    pub username: String,
    pub password_file: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    /// What the files held: a sink whose password has changed is another sink.
    pub(super) prints: Vec<Print>,
}

settings! {
    for Security {
        /// Whether to speak TLS to the brokers. Their certificates are verified, and that they are for their hosts.
        tls: bool = false, Flag;
        /// Certificates of the authorities that may vouch for brokers, as PEM; "" = those that the system trusts.
        ca_file as tls_ca_file: Option<PathBuf> = "" like "/etc/udpd/kafka-ca.pem", Optional(files::check_path);
        /// The certificate that udpd shows to the brokers, as PEM, with those between it and the authority.
        certificate_file as tls_certificate_file: Option<PathBuf> = "" like "/etc/udpd/kafka.pem",
            Optional(files::check_path);
        /// The private key of that certificate, as PEM.
        key_file as tls_key_file: Option<PathBuf> = "" like "/etc/udpd/kafka.key", Optional(files::check_path);
        /// The password of that key, where it has one.
        key_password_file as tls_key_password_file: Option<PathBuf> = "" like "/etc/udpd/kafka-key.password",
            Optional(files::check_path);
        /// How udpd says to the brokers who it is.
        sasl: Option<Sasl> = "none", MECHANISMS;
        /// Its name there.
        username: String = "" like "udpd", QuotedText(|text| Ok::<_, ValueAdvice>(text.to_owned()));
        /// The password of that name: a file, or $CREDENTIALS_DIRECTORY/NAME for a credential of the service manager.
        password_file: Option<PathBuf> = "" like "$CREDENTIALS_DIRECTORY/kafka", Optional(files::check_path);
        /// The token of OAUTHBEARER: a file, or a credential, that is read again before the token expires.
        token_file: Option<PathBuf> = "" like "/run/udpd/kafka.token", Optional(files::check_path);
        .. prints = Vec::new();
    }
}

impl Default for Security {
    fn default() -> Self {
        udpd_base::settings::TableSettings::defaults()
    }
}

impl Security {
    /// With what the files hold now. The token is none of them, because it is read again by itself.
    pub(super) fn with_prints(self) -> Self {
        let read_at_start = self.files().filter(|(key, _)| *key != "token_file");
        Self { prints: read_at_start.map(|(_, path)| Print::of(path)).collect(), ..self }
    }

    /// Every file that is written, with its key.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let written = [
            ("tls_ca_file", &self.ca_file),
            ("tls_certificate_file", &self.certificate_file),
            ("tls_key_file", &self.key_file),
            ("tls_key_password_file", &self.key_password_file),
            ("password_file", &self.password_file),
            ("token_file", &self.token_file),
        ];
        written.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)))
    }

    /// The directories in which those files are found, also when one is replaced, or a link's target changes.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        let places = self.files().filter_map(|(_, path)| files::located(path));
        let with_behind_link = places.flat_map(|place| [place.canonicalize().ok(), Some(place)]);
        with_behind_link.flatten().filter_map(|place| place.parent().map(Path::to_owned)).collect()
    }

    /// Which of the keys are written that a sink without any security has not.
    #[cfg(feature = "kafka")]
    pub fn written(&self) -> Vec<&'static str> {
        let words = [("tls", self.tls), ("sasl", self.sasl.is_some()), ("username", !self.username.is_empty())];
        let words = words.into_iter().filter(|(_, written)| *written).map(|(key, _)| key);
        words.chain(self.files().map(|(key, _)| key)).collect()
    }

    /// Checks one key against another.
    pub(super) fn check(&self) -> Result<(), KafkaError> {
        self.check_build()?;
        let tls_file = self.files().find(|(key, _)| key.starts_with("tls_"));
        if let (false, Some((key, path))) = (self.tls, tls_file) {
            return wrong(key, path, "does nothing without TLS; write tls = true, or leave it out");
        }
        let pair = [("tls_certificate_file", &self.certificate_file), ("tls_key_file", &self.key_file)];
        for ((key, path), (other, missing)) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            if let (Some(path), None) = (path, missing) {
                return wrong(key, path, &format!("needs {other} as well; both may name one file"));
            }
        }
        if let (Some(path), None) = (&self.key_password_file, &self.key_file) {
            return wrong("tls_key_password_file", path, "belongs to no key; write tls_key_file, or leave it out");
        }
        self.check_sasl()
    }

    /// Refuses what this build lacks.
    fn check_build(&self) -> Result<(), KafkaError> {
        let way_out = "this udpd was built without TLS for Kafka; build it with: cargo build --release --features \
                       kafka-tls";
        match self.sasl {
            _ if cfg!(feature = "kafka-tls") => Ok(()),
            _ if self.tls => wrong("tls", "true", way_out),
            None | Some(Sasl::Plain) => Ok(()),
            Some(sasl) => wrong("sasl", sasl.name(), way_out),
        }
    }

    fn check_sasl(&self) -> Result<(), KafkaError> {
        let (user, password, token) = (!self.username.is_empty(), &self.password_file, &self.token_file);
        let Some(sasl) = self.sasl else {
            let needless = [("password_file", password), ("token_file", token)];
            let file = needless.into_iter().find_map(|(key, path)| Some((key, path.as_deref()?)));
            return match file {
                Some((key, path)) => wrong(key, path, "does nothing without SASL; write sasl, or leave it out"),
                None if user => wrong("username", &self.username, "does nothing without SASL; write sasl as well"),
                None => Ok(()),
            };
        };
        let needs = |what| wrong("sasl", sasl.name(), &format!("needs {what}"));
        match (sasl, password, token) {
            (Sasl::OauthBearer, _, None) => needs("token_file"),
            (Sasl::OauthBearer, Some(path), _) => wrong("password_file", path, "a token has none; leave it out"),
            (Sasl::OauthBearer, None, _) if user => wrong("username", &self.username, "a token says who; leave it out"),
            (Sasl::OauthBearer, None, Some(_)) => Ok(()),
            (_, _, Some(path)) => wrong("token_file", path, "belongs to sasl = \"OAUTHBEARER\"; leave it out"),
            (_, None, None) => needs("username and password_file"),
            (_, Some(_), None) if !user => needs("username"),
            (_, Some(_), None) => Ok(()),
        }
    }

    /// Warnings about settings that are valid and not safe, each with its key.
    pub(super) fn doubts(&self) -> Vec<(&'static str, ValueAdvice)> {
        let is_secret = |key: &str| !matches!(key, "tls_ca_file" | "tls_certificate_file");
        let open = self.files().filter(|(key, _)| is_secret(key));
        let mut doubts: Vec<_> = open.filter_map(|(key, path)| Some((key, files::doubt(path)?))).collect();
        if let (false, Some(sasl @ (Sasl::Plain | Sasl::OauthBearer))) = (self.tls, self.sasl) {
            let what = format!("without TLS {} shows its secret to every listener on the network", sasl.name());
            doubts.push(("sasl", ValueAdvice::new(what, "write tls = true if the brokers have it")));
        }
        #[cfg(feature = "kafka-tls")]
        for (key, path) in self.files().filter(|(key, _)| matches!(*key, "tls_ca_file" | "tls_certificate_file")) {
            if let Some(past) = super::certificate_diagnosis::expiry(path) {
                doubts.push((key, ValueAdvice::new(past, "put a renewed one there, and then: udpd reload")));
            }
        }
        doubts
    }
}

fn wrong<T>(key: &str, value: impl AsRef<Path>, reason: &str) -> Result<T, KafkaError> {
    Err(KafkaError::of_key(key, value, reason))
}

#[cfg(test)]
#[path = "security_tests.rs"]
mod tests;
