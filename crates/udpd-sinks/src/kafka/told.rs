//! What librdkafka is told of TLS and SASL: the keys of the sink as properties of the library, with the secrets that
//! stand in files.

use super::error::KafkaError;
use super::files;
use super::secrets;
use super::security::{Security, wrong};

/// Whether a client is made that has to work, or only what is written is checked, for which a credential of another
/// unit may stay unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Check,
    Use,
}

/// A property of the library, the key of the sink for it, and its value.
pub(super) type Property = (&'static str, &'static str, String);

/// What the library is told of this security.
pub(super) fn properties(of: &Security, purpose: Purpose) -> Result<Vec<Property>, KafkaError> {
    let protocol = match (of.tls, of.sasl) {
        (false, None) => return Ok(Vec::new()),
        (true, None) => ("tls", "ssl"),
        (false, Some(_)) => ("sasl", "sasl_plaintext"),
        (true, Some(_)) => ("sasl", "sasl_ssl"),
    };
    let mut properties = vec![("security.protocol", protocol.0, protocol.1.to_owned())];
    let files = [
        ("ssl.ca.location", "tls_ca_file", &of.ca_file),
        ("ssl.certificate.location", "tls_certificate_file", &of.certificate_file),
        ("ssl.key.location", "tls_key_file", &of.key_file),
    ];
    for (name, key, path) in files {
        let Some(path) = path else { continue };
        // Without its place a credential cannot even be tried.
        match files::located(path) {
            Some(place) => properties.push((name, key, place.to_string_lossy().into_owned())),
            None if purpose == Purpose::Check => {}
            None => return wrong(key, path, secrets::NO_CREDENTIALS),
        }
    }
    let secrets = [
        ("ssl.key.password", "tls_key_password_file", &of.key_password_file),
        ("sasl.password", "password_file", &of.password_file),
    ];
    for (name, key, path) in secrets {
        let Some(path) = path else { continue };
        match secrets::read(path) {
            Ok(secret) => properties.push((name, key, secret)),
            Err(_) if purpose == Purpose::Check && files::located(path).is_none() => {
                properties.push((name, key, "a credential of the unit".to_owned()));
            }
            Err(why) => return wrong(key, path, why),
        }
    }
    if let Some(sasl) = of.sasl {
        properties.push(("sasl.mechanisms", "sasl", sasl.name().to_owned()));
    }
    if !of.username.is_empty() {
        properties.push(("sasl.username", "username", of.username.clone()));
    }
    Ok(properties)
}

#[cfg(test)]
#[path = "told_tests.rs"]
mod tests;
