//! TLS of the sinks that write streams: the keys, the certificates, and why a peer is not trusted.
//!
//! rustls with cryptography that is written in Rust and assembler, so that a plain build needs no C compiler. Peers are
//! always verified: there is no key that turns that off.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use crate::named_files::{self, Print};
use udpd_base::settings::kinds::{Flag, Optional, QuotedText};
use udpd_base::settings::{Findings, WrittenKeys, settings};
use udpd_base::text::address::PeerAddress;
use udpd_base::text::advice::ValueAdvice;

/// Where systems keep the certificates of the authorities that they trust.
const OF_THE_SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How udpd and a peer know each other.
#[derive(Debug, Clone, PartialEq)]
pub struct TlsSettings {
    pub on: bool,
    pub ca_file: Option<PathBuf>,
    pub certificate_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub server_name: String,
    /// What the files held: a sink whose key has changed is another sink.
    pub(crate) prints: Vec<Print>,
}

settings! {
    for TlsSettings {
        /// Whether to speak TLS. The certificate of the peer is verified, and that it is for its host.
        on as tls: bool = false, Flag;
        /// Certificates of the authorities that may vouch for the peer, as PEM; "" = those that the system trusts.
        ca_file as tls_ca_file: Option<PathBuf> = "" like "/etc/udpd/ca.pem", Optional(named_files::check_path);
        /// The certificate that udpd shows to the peer, as PEM, with those between it and the authority.
        certificate_file as tls_certificate_file: Option<PathBuf> = "" like "/etc/udpd/udpd.pem",
            Optional(named_files::check_path);
        /// The private key of that certificate, as PEM.
        key_file as tls_key_file: Option<PathBuf> = "" like "/etc/udpd/udpd.key", Optional(named_files::check_path);
        /// The name that the certificate of the peer has to be for; "" = the name or address of the destination.
        server_name as tls_server_name: String = "" like "collector.example", QuotedText(check_name);
        .. prints = Vec::new();
    }
}

impl Default for TlsSettings {
    fn default() -> Self {
        udpd_base::settings::TableSettings::defaults()
    }
}

fn check_name(text: &str) -> Result<String, ValueAdvice> {
    match ServerName::try_from(text) {
        Err(_) if !text.is_empty() => Err(ValueAdvice::new(
            format!("{text:?} is no name of a host"),
            "write it as its certificate has it, such as \"collector.example\"",
        )),
        _ => Ok(text.to_owned()),
    }
}

/// Why TLS cannot be had with these keys.
#[derive(Debug)]
pub(crate) struct TlsError {
    key: &'static str,
    advice: ValueAdvice,
}

impl fmt::Display for TlsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.key, self.advice)
    }
}

impl TlsSettings {
    /// With what the files hold now.
    pub(crate) fn with_prints(self) -> Self {
        Self { prints: self.files().map(|(_, path)| Print::of(path)).collect(), ..self }
    }

    /// Every file that is written, with its key.
    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let written = [
            ("tls_ca_file", &self.ca_file),
            ("tls_certificate_file", &self.certificate_file),
            ("tls_key_file", &self.key_file),
        ];
        written.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)))
    }

    /// The directories in which those files are found, also when one is replaced, or a link's target changes.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let of_the_system = OF_THE_SYSTEM.iter().map(PathBuf::from).filter(|_| self.on && self.ca_file.is_none());
        let places = self.files().filter_map(|(_, path)| named_files::located(path)).chain(of_the_system);
        named_files::directories(places).collect()
    }

    /// Checks one key against another, and what the files hold.
    pub(crate) fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let at = |key: &str| written.place(key).unwrap_or_else(|| written.place.inner(key));
        let others = self.files().map(|(key, _)| key);
        let other = others.chain((!self.server_name.is_empty()).then_some("tls_server_name")).next();
        if let (false, Some(key)) = (self.on, other) {
            return findings.say(&at(key), "does nothing without TLS", "write tls = true, or leave it out");
        }
        let pair = [("tls_certificate_file", &self.certificate_file), ("tls_key_file", &self.key_file)];
        for ((key, path), (other, missing)) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            if path.is_some() && missing.is_none() {
                return findings.say(&at(key), format!("needs {other} as well"), "both may name one file");
            }
        }
        // A credential is there for the unit alone, and what cannot be read is told at the start.
        let are_there = self.files().all(|(_, path)| named_files::located(path).is_some());
        if self.on
            && are_there
            && let Err(error) = self.client()
        {
            findings.refuse(&at(error.key), error.advice);
        }
        if let Some(doubt) = self.key_file.as_deref().and_then(named_files::doubt) {
            findings.warn(&at("tls_key_file"), doubt);
        }
    }

    /// What connections are made with; `None` without TLS.
    pub(crate) fn client(&self) -> Result<Option<Arc<ClientConfig>>, TlsError> {
        if !self.on {
            return Ok(None);
        }
        let refused = |key, what: String, cure: &str| TlsError { key, advice: ValueAdvice::new(what, cure) };
        let provider = provider()
            .map_err(|what| refused("tls", what, "build udpd with: cargo build --release --features tls-ring"))?;
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused("tls", error.to_string(), "report it"))?
            .with_root_certificates(self.authorities()?);
        let (Some(certificate), Some(key)) = (&self.certificate_file, &self.key_file) else {
            return Ok(Some(Arc::new(builder.with_no_client_auth())));
        };
        let chain = certificates("tls_certificate_file", certificate)?;
        let bytes = contents("tls_key_file", key)?;
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
            let what = format!("{} holds no private key as PEM without a password", key.display());
            refused("tls_key_file", what, "write it with: openssl pkey -in KEY -out NEW")
        })?;
        let config = builder.with_client_auth_cert(chain, key).map_err(|error| {
            let what = format!("the key and the certificate do not go together: {error}");
            refused("tls_certificate_file", what, "name the key that the certificate was made for")
        })?;
        Ok(Some(Arc::new(config)))
    }

    fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let system = OF_THE_SYSTEM.iter().map(Path::new).find(|path| path.exists());
        let Some(path) = self.ca_file.as_deref().or(system) else {
            let what = "this system keeps no certificates of authorities where udpd looks".to_owned();
            let advice = ValueAdvice::new(what, "install ca-certificates, or write tls_ca_file");
            return Err(TlsError { key: "tls", advice });
        };
        let mut store = RootCertStore::empty();
        // A system may know some that rustls does not read.
        let (known, _) = store.add_parsable_certificates(certificates("tls_ca_file", path)?);
        if known == 0 {
            let what = format!("{} holds no certificate of an authority that can be used", path.display());
            return Err(TlsError { key: "tls_ca_file", advice: ValueAdvice::new(what, "name a PEM file of them") });
        }
        Ok(store)
    }

    /// The name that the certificate of a destination has to be for.
    pub(crate) fn name_of(&self, peer: &PeerAddress) -> ServerName<'static> {
        let own = ServerName::try_from(self.server_name.clone());
        own.unwrap_or_else(|_| match peer {
            PeerAddress::Address(address) => ServerName::IpAddress(address.ip().into()),
            PeerAddress::OnInterface { ip, .. } => ServerName::IpAddress(std::net::IpAddr::from(*ip).into()),
            PeerAddress::Host { name, .. } => {
                let name = name.trim_end_matches('.').to_owned();
                // What is no name of a host has no certificate, and the handshake says so.
                ServerName::try_from(name).unwrap_or(ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into()))
            }
        })
    }
}

/// The cryptography of this build; an error in words where this CPU cannot do it.
pub(crate) fn provider() -> Result<CryptoProvider, String> {
    #[cfg(feature = "tls-ring")]
    {
        Ok(rustls::crypto::ring::default_provider())
    }
    #[cfg(not(feature = "tls-ring"))]
    {
        let missing = missing_instructions();
        match missing.is_empty() {
            true => Ok(rustls_graviola::default_provider()),
            false => Err(format!("this CPU lacks instructions that TLS of this build needs: {}", missing.join(", "))),
        }
    }
}

#[cfg(all(not(feature = "tls-ring"), target_arch = "x86_64"))]
fn missing_instructions() -> Vec<&'static str> {
    let known = [
        ("adx", is_x86_feature_detected!("adx")),
        ("aes", is_x86_feature_detected!("aes")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi1", is_x86_feature_detected!("bmi1")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
    ];
    known.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
}

#[cfg(all(not(feature = "tls-ring"), target_arch = "aarch64"))]
fn missing_instructions() -> Vec<&'static str> {
    use std::arch::is_aarch64_feature_detected;
    let known = [
        ("aes", is_aarch64_feature_detected!("aes")),
        ("pmull", is_aarch64_feature_detected!("pmull")),
        ("sha2", is_aarch64_feature_detected!("sha2")),
    ];
    known.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
}

fn contents(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let cannot = |error: io::Error| {
        let what = format!("cannot read {}: {error}", path.display());
        let cure = match error.kind() {
            io::ErrorKind::PermissionDenied => "let the user of udpd read it",
            _ => "name a file that is there",
        };
        TlsError { key, advice: ValueAdvice::new(what, cure) }
    };
    let place = named_files::located(path).ok_or_else(|| io::Error::other("the service manager has passed none"));
    named_files::contents(&place.map_err(cannot)?, named_files::BYTES_MAX).map_err(cannot)
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = contents(key, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| {
        let what = format!("{} holds no certificate as PEM, or a damaged one", path.display());
        TlsError { key, advice: ValueAdvice::new(what, "name a file that begins with -----BEGIN CERTIFICATE-----") }
    })
}

/// What to do about an error of TLS.
pub(crate) fn cure(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "; the peer needs a new certificate",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "; see the clocks of both hosts"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "; write the name in its certificate as the destination, or in tls_server_name"
            }
            CertificateError::UnknownIssuer => "; name the authority that made its certificate in tls_ca_file",
            _ => "; see the certificate of the peer",
        },
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::HandshakeFailure
            | AlertDescription::NoCertificate,
        ) => "; the peer asks for a certificate of udpd: write tls_certificate_file and tls_key_file",
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate) => {
            "; the peer does not trust the certificate in tls_certificate_file"
        }
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) | rustls::Error::PeerIncompatible(_) => {
            "; the peer speaks neither TLS 1.2 nor 1.3 in a way that udpd does"
        }
        rustls::Error::InvalidMessage(_) => "; the peer does not speak TLS on that port",
        _ => "",
    }
}
