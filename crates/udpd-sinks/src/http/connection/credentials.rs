//! Who udpd says it is: a token, or a name and a password, as the header `Authorization`.
//!
//! Tokens expire, and other programs write new ones into their file. So a file is read again when a server has refused
//! what stood in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ureq::http::HeaderValue;

use super::super::{HttpSettings, profile};
use crate::secrets::{self, HiddenSecrets};
use udpd_base::seams::waits::lock;
use udpd_base::text::base64;

/// Where the secret stands, and what is made of it.
enum CredentialSource {
    None,
    Token { path: PathBuf, scheme: &'static str },
    Password { path: PathBuf, username: String },
}

pub(super) struct Credentials {
    source: CredentialSource,
    header: Mutex<Option<HeaderValue>>,
    hidden: HiddenSecrets,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials")
    }
}

impl Credentials {
    pub(super) fn read(settings: &HttpSettings) -> Result<Self, String> {
        let source = match (&settings.token_file, &settings.password_file) {
            (Some(path), _) => {
                CredentialSource::Token { path: path.clone(), scheme: profile::token_scheme(settings.profile) }
            }
            (None, Some(path)) => {
                CredentialSource::Password { path: path.clone(), username: settings.username.clone() }
            }
            (None, None) => CredentialSource::None,
        };
        // What is short stands in lines for another reason.
        let secrets = settings.headers.iter().map(|header| &header.value).filter(|value| value.len() >= 8);
        let secrets = secrets.cloned().collect();
        let own = Self { source, header: Mutex::default(), hidden: HiddenSecrets::new(secrets) };
        *lock(&own.header) = own.header_now()?;
        Ok(own)
    }

    /// The header as it is to be sent.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        lock(&self.header).clone()
    }

    /// Reads the file again, because the server has refused this header. Whether there is another one now.
    pub(super) fn renew(&self, refused: Option<&HeaderValue>) -> Result<bool, String> {
        let now = self.header_now()?;
        let is_another = now.as_ref() != refused;
        *lock(&self.header) = now;
        Ok(is_another)
    }

    /// A line that comes from elsewhere, without secrets.
    pub(super) fn clean(&self, line: &str) -> String {
        self.hidden.clean(line).into_owned()
    }

    fn header_now(&self) -> Result<Option<HeaderValue>, String> {
        let (key, path, text) = match &self.source {
            CredentialSource::None => return Ok(None),
            CredentialSource::Token { path, scheme } => {
                ("token_file", path, self.secret(path).map(|token| format!("{scheme} {token}")))
            }
            CredentialSource::Password { path, username } => {
                let encoded = self.secret(path).map(|password| encoded(username, &password));
                (
                    "password_file",
                    path,
                    encoded.inspect(|text| self.hidden.add(text)).map(|text| format!("Basic {text}")),
                )
            }
        };
        let header = text.and_then(|text| {
            HeaderValue::try_from(text).map_err(|_| "it holds characters that no header can have".to_owned())
        });
        let mut header = header.map_err(|why| format!("{key} = \"{}\": {why}", path.display()))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    fn secret(&self, path: &Path) -> Result<String, String> {
        let secret = secrets::read(path)?.trim_end().to_owned();
        self.hidden.add(&secret);
        Ok(secret)
    }
}

/// A name and a password in base64.
fn encoded(username: &str, password: &str) -> String {
    let mut text = Vec::new();
    base64::append(&mut text, format!("{username}:{password}").as_bytes());
    String::from_utf8_lossy(&text).into_owned()
}
