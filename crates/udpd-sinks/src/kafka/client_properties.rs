//! The keys of a Kafka sink as properties of librdkafka, with the secrets that stand in files.
//!
//! `properties` go to it as they are, because it has two hundred of them and knows best which value is right. A few are
//! refused here: those that the sink has keys of its own for, so that nothing is said twice, and those that would break
//! what the sink promises, so that no datagram can lose its delivery report. Whatever the library refuses is passed on
//! with key, value and its reason.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::producer::BaseProducer;

use super::security::Security;
use super::settings::KafkaError;
use super::settings::{KafkaSettings, QUEUE_KIBIBYTES, QUEUE_MESSAGES};
use crate::named_files as files;
use crate::secrets;

/// How long the library's pause between two attempts to connect grows, in milliseconds, unless `properties` say
/// otherwise. Its own ten seconds are longer than a broker takes to come back, and what waits meanwhile has to fit the
/// queue.
const RECONNECT_PAUSE_MAX_MS: u32 = 2_000;

/// How long a batch gathers where there is a spill: longer than a round is handed over, so that all of it is in one.
pub(super) const LINGER: Duration = Duration::from_millis(5);

/// What a batch of the library holds, unless `properties` say otherwise: bytes, which a message may not exceed either,
/// and messages.
const BATCH_BYTES: usize = 1_000_000;
const BATCH_MESSAGES: usize = 10_000;

/// Properties that the sink has keys of its own for.
const OWN_KEYS: &[(&str, &str)] = &[
    ("bootstrap.servers", "brokers"),
    ("acks", "acks"),
    ("compression.codec", "compression"),
    ("security.protocol", "tls or sasl"),
    ("ssl.ca.location", "tls_ca_file"),
    ("ssl.certificate.location", "tls_certificate_file"),
    ("ssl.key.location", "tls_key_file"),
    ("ssl.key.password", "tls_key_password_file"),
    ("sasl.mechanisms", "sasl"),
    ("sasl.username", "username"),
    ("sasl.password", "password_file"),
];

/// Properties that would break what the sink promises.
const REFUSED: &[(&str, &str)] = &[
    ("delivery.report.only.error", "without a report for each datagram the ledger could not close"),
    ("transactional.id", "the sink has no transactions; enable.idempotence keeps datagrams from arriving twice"),
    ("log.queue", "the sink sets it to read the library's log lines"),
];

/// Whether a value contradicts what the client promises.
type IsAgainst = fn(&str) -> bool;

/// What an idempotent client cannot have: the property, what is right for it, and which values are not.
const AGAINST_IDEMPOTENCE: &[(&str, &str, IsAgainst)] = &[
    ("max.in.flight.requests.per.connection", "at most 5", |value| value.parse::<u32>().is_ok_and(|count| count > 5)),
    ("retries", "at least 1", |value| value.parse::<i64>().is_ok_and(|count| count < 1)),
    ("queuing.strategy", "\"fifo\"", |value| value == "lifo"),
];

/// The same of a sink with a spill.
const AGAINST_SPILL: &[(&str, &str, IsAgainst)] = &[
    ("message.timeout.ms", "0, or it could come twice", |value| value.parse::<u32>().is_ok_and(|limit| limit > 0)),
    ("linger.ms", "5 or more, or order is lost", |value| {
        value.parse::<f64>().is_ok_and(|linger| linger * 1000.0 < LINGER.as_micros() as f64)
    }),
];

/// Names of the library for one and the same property: the other name and the first.
const ALIASES: &[(&str, &str)] = &[
    ("metadata.broker.list", "bootstrap.servers"),
    ("request.required.acks", "acks"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("message.send.max.retries", "retries"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("compression.type", "compression.codec"),
    ("sasl.mechanism", "sasl.mechanisms"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
];

/// A wrong value of a property, whose key is shown where it stands in the file.
fn wrong_property(key: &str, value: &str, reason: impl Into<String>) -> KafkaError {
    // Behind a user and an @ stands an address, and before it often a password.
    let is_hidden = is_secret(key) || value.contains('@');
    KafkaError::of_key(&format!("properties.\"{key}\""), if is_hidden { "(not shown)" } else { value }, reason)
}

/// Whether the value of a property may stand in no log.
fn is_secret(key: &str) -> bool {
    ["password", "secret", ".pem", ".config"].iter().any(|word| key.contains(word))
}

/// The first of the names that the library has for a property.
fn canonical(key: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, name)| name)
}

/// Whether the library takes these settings. It compares some of them, and looks for what it was built without, only
/// when it makes a client: one is made that knows no broker, so that it connects nowhere, and ended again.
pub(super) fn check(settings: &KafkaSettings) -> Result<(), KafkaError> {
    let mut config = client_config(settings, Purpose::Check)?;
    config.remove("bootstrap.servers");
    config.set_log_level(RDKafkaLogLevel::Emerg);
    let client: Result<BaseProducer, _> = config.create();
    client.map(drop).map_err(|error| refusal(settings, error))
}

/// What of a configuration may stand in no log.
pub(super) fn secrets(config: &ClientConfig) -> Vec<String> {
    // The map has words in place of secrets.
    let keys = config.config_map().into_keys().filter(|key| is_secret(key));
    keys.filter_map(|key| config.get(key)).map(str::to_owned).collect()
}

/// Everything the library is told, checked as far as it can be without a broker.
pub(super) fn client_config(settings: &KafkaSettings, purpose: Purpose) -> Result<ClientConfig, KafkaError> {
    check_brokers(&settings.brokers)?;
    check_topic(&settings.topic)?;
    check_properties(&settings.properties)?;
    let idempotent = is_idempotent(settings)?;
    let mut config = ClientConfig::new();
    config
        .set("client.id", "udpd")
        .set("queue.buffering.max.messages", QUEUE_MESSAGES.to_string())
        .set("queue.buffering.max.kbytes", QUEUE_KIBIBYTES.to_string())
        .set("reconnect.backoff.max.ms", RECONNECT_PAUSE_MAX_MS.to_string())
        .set("enable.idempotence", if idempotent { "true" } else { "false" });
    if settings.spill.is_on() {
        // Each batch is waited for, and what waits for longer does so on the disk: nothing is given up here.
        config.set("linger.ms", LINGER.as_millis().to_string()).set("message.timeout.ms", "0");
    }
    for (key, value) in &settings.properties {
        config.set(key, value);
    }
    config.set("bootstrap.servers", &settings.brokers).set("acks", &settings.acks);
    config.set("compression.codec", settings.compression);
    for (name, _, value) in security_properties(&settings.security, purpose)? {
        config.set(name, value);
    }
    // The library reads every value before two of them are compared.
    config.create_native_config().map_err(|error| refusal(settings, error))?;
    if idempotent {
        let cure = "or set properties.\"enable.idempotence\" = \"false\" and accept repeats";
        check_against(&settings.properties, AGAINST_IDEMPOTENCE, "an idempotent client", cure)?;
    }
    if settings.spill.is_on() {
        check_against(&settings.properties, AGAINST_SPILL, "a spill", "leave it out")?;
    }
    Ok(config)
}

/// How many bytes and messages fit one batch of the library, whatever the messages are.
pub(super) fn batch(settings: &KafkaSettings) -> (usize, usize) {
    /// What the library writes before the first message of a batch.
    const HEAD: usize = 200;
    let bytes = batch_bytes(settings).min(settings.number("message.max.bytes").unwrap_or(BATCH_BYTES));
    let messages = settings.number("batch.num.messages").unwrap_or(BATCH_MESSAGES);
    (bytes.saturating_sub(HEAD).max(1), messages.max(1))
}

/// At how many bytes the library ends a batch.
pub(super) fn batch_bytes(settings: &KafkaSettings) -> usize {
    settings.number("batch.size").unwrap_or(BATCH_BYTES)
}

/// What the library says of a setting, with the key as the operator wrote it.
pub(super) fn refusal(settings: &KafkaSettings, error: rdkafka::error::KafkaError) -> KafkaError {
    match error {
        rdkafka::error::KafkaError::ClientConfig(_, reason, key, value) => {
            match OWN_KEYS.iter().find(|(property, _)| *property == key) {
                Some((_, own)) => KafkaError::of_key(own, if is_secret(&key) { "(not shown)" } else { &value }, reason),
                None if settings.properties.iter().any(|(property, _)| *property == key) => {
                    wrong_property(&key, &value, reason)
                }
                None => KafkaError::of_key(&key, &value, reason),
            }
        }
        rdkafka::error::KafkaError::ClientCreation(reason) => {
            let refused = format!("librdkafka refuses it: {reason}");
            let own = security_properties(&settings.security, Purpose::Check).unwrap_or_default();
            match (culprit(&settings.properties, &reason), own.iter().find(|(name, ..)| names(&reason, name))) {
                (Some((key, value)), _) => wrong_property(key, value, refused),
                (None, Some((name, key, value))) => {
                    KafkaError::of_key(key, if is_secret(name) { "(not shown)" } else { value }, refused)
                }
                (None, None) => KafkaError::KafkaClient(reason),
            }
        }
        rdkafka::error::KafkaError::Nul(_) => KafkaError::KafkaClient("a setting contains a zero byte".to_owned()),
        other => KafkaError::KafkaClient(other.to_string()),
    }
}

/// The property that the library means when it refuses a client: one that it names, or one whose value it names.
fn culprit<'a>(properties: &'a [(String, String)], reason: &str) -> Option<(&'a str, &'a str)> {
    let named = |(key, _): &&(String, String)| names(reason, key) || names(reason, canonical(key));
    let valued = |(key, value): &&(String, String)| value.len() > 3 && names(reason, value) && !is_secret(key);
    let found = properties.iter().find(named).or_else(|| properties.iter().find(valued));
    found.map(|(key, value)| (key.as_str(), value.as_str()))
}

/// Whether a reason has this word in it, such as the name of a property.
fn names(reason: &str, word: &str) -> bool {
    reason.split(|letter: char| !(letter.is_ascii_alphanumeric() || "._-".contains(letter))).any(|one| one == word)
}

/// Whether repeats are to be told from new messages: when the operator says so, and unless he says otherwise whenever
/// the brokers can promise it, which takes the acknowledgement of all replicas.
fn is_idempotent(settings: &KafkaSettings) -> Result<bool, KafkaError> {
    let all = matches!(settings.acks.as_str(), "all" | "-1");
    let asked = settings.properties.iter().find(|(key, _)| key == "enable.idempotence").map(|(_, value)| value);
    match asked.map(String::as_str) {
        Some("true") if !all => Err(KafkaError::of_key(
            "acks",
            &settings.acks,
            "contradicts properties.\"enable.idempotence\" = \"true\", which needs acks = \"all\"",
        )),
        Some("true") => Ok(true),
        // Whatever else it is, right or wrong, the library reads it for itself.
        Some(_) => Ok(false),
        None => Ok(all),
    }
}

fn check_against(
    properties: &[(String, String)],
    against: &[(&str, &str, IsAgainst)],
    what: &str,
    cure: &str,
) -> Result<(), KafkaError> {
    for (key, value) in properties {
        let found = against.iter().find(|(name, _, is_against)| canonical(key) == *name && is_against(value.trim()));
        if let Some((_, right, _)) = found {
            return Err(wrong_property(key, value, format!("contradicts {what}, which needs {right}; {cure}")));
        }
    }
    Ok(())
}

fn check_brokers(brokers: &str) -> Result<(), KafkaError> {
    if brokers.contains('@') {
        let cure = "names a user, and may show a password; write host:port, and beside it username and password_file";
        return Err(KafkaError::of_key("brokers", "(not shown)", cure));
    }
    for broker in brokers.split(',').map(str::trim) {
        let after_host = match broker.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map(|(_, rest)| rest),
            None => broker.find(':').map(|colon| &broker[colon..]).or(Some("")),
        };
        let port = match after_host {
            Some("") => true,
            Some(rest) => rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0)),
            None => false,
        };
        if broker.is_empty() || broker.starts_with(':') || broker.contains(char::is_whitespace) || !port {
            let cure = "write host:port, [address]:port for IPv6, and commas between several";
            return Err(KafkaError::of_key(
                "brokers",
                brokers,
                format!("{broker:?} is not the address of a broker; {cure}"),
            ));
        }
    }
    Ok(())
}

fn check_properties(properties: &[(String, String)]) -> Result<(), KafkaError> {
    for (place, (key, value)) in properties.iter().enumerate() {
        let name = canonical(key);
        if let Some((_, own)) = OWN_KEYS.iter().find(|(property, _)| *property == name) {
            return Err(wrong_property(key, value, format!("the sink has the key {own} for it; write it there")));
        }
        if let Some((_, why)) = REFUSED.iter().find(|(property, _)| *property == name) {
            return Err(wrong_property(key, value, format!("cannot be set: {why}; leave it out")));
        }
        if let Some((twin, _)) = properties[..place].iter().find(|(other, _)| canonical(other) == name) {
            return Err(wrong_property(key, value, format!("is set already as {twin:?}; leave one of them out")));
        }
    }
    Ok(())
}

/// The longest name that a broker takes for a topic.
const TOPIC_BYTES_MAX: usize = 249;

/// The longest name of a listener or a sink.
const LONGEST_NAME: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

/// The topic of a listener. Names hold no braces, so what is filled in cannot become a placeholder.
pub(super) fn expand_topic(template: &str, listener: &str, sink: &str) -> String {
    template.replace("{listener}", listener).replace("{sink}", sink)
}

/// Refuses what no broker could have as a topic, whatever the names are: names hold only letters that a topic may have.
fn check_topic(template: &str) -> Result<(), KafkaError> {
    let wrong = |reason: String| Err(KafkaError::of_key("topic", template, reason));
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let longest = expand_topic(template, LONGEST_NAME, LONGEST_NAME);
    if longest.contains(['{', '}']) {
        return wrong("the placeholders of a topic are {listener} and {sink}".to_owned());
    }
    if longest.is_empty() || !longest.bytes().all(allowed) || matches!(longest.as_str(), "." | "..") {
        return wrong(format!(
            "no broker has such a topic; use 1 to {TOPIC_BYTES_MAX} letters, digits, dots, dashes, underscores"
        ));
    }
    if longest.len() > TOPIC_BYTES_MAX {
        return wrong(format!(
            "with the longest names it is {} bytes long, and a topic has at most {TOPIC_BYTES_MAX}; write a shorter one",
            longest.len()
        ));
    }
    Ok(())
}

/// Whether a client is to be used, or the configuration is only checked, for which a credential of another unit may
/// stay unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Check,
    Use,
}

/// A property of the library, the key of the sink for it, and its value.
pub(super) type Property = (&'static str, &'static str, String);

fn security_properties(of: &Security, purpose: Purpose) -> Result<Vec<Property>, KafkaError> {
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
            None => return Err(KafkaError::of_key(key, path, secrets::NO_CREDENTIALS)),
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
            Err(why) => return Err(KafkaError::of_key(key, path, why)),
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
#[path = "security_properties_tests.rs"]
mod security_properties_tests;
#[cfg(test)]
#[path = "client_properties_tests.rs"]
mod tests;
