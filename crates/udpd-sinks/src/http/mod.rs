//! Requests over HTTP to servers that store records: the keys of a sink of type `http`.
//!
//! Datagrams become records of one request, as a profile of the server wants them. A datagram counts as delivered when
//! the server has answered that it has it. What a server refuses for good is counted and, where `refused` names a file,
//! kept there. With a spill every datagram is written to the disk first, and a batch keeps its limits and its id there:
//! a server that knows ids takes each batch once, whatever is killed in between.

#[cfg(feature = "http")]
mod answer;
#[cfg(feature = "http")]
mod client;
#[cfg(feature = "http")]
mod connection;
#[cfg(all(feature = "http", feature = "testing"))]
#[path = "../testing/fuzz_http.rs"]
pub(crate) mod fuzz;
#[cfg(feature = "http")]
mod profile;
#[cfg(feature = "http")]
mod refused;
#[cfg(feature = "http")]
mod request;
#[cfg(feature = "http")]
mod sink;
#[cfg(feature = "http")]
mod syslog;
#[cfg(all(test, feature = "http"))]
mod tests;
#[cfg(feature = "http")]
pub(crate) mod upload;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::named_files::{self, Print};
use crate::tls::TlsSettings;
use udpd_base::codec::Method;
#[cfg(not(feature = "http"))]
use udpd_base::exit::ExitCode;
use udpd_base::exit::Failure;
use udpd_base::os::path_check;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::kinds::{ByteSize, List, OneOf, Optional, QuotedText, SubTable, TimeSpan, WholeNumber};
use udpd_base::settings::{Findings, TableSettings, WrittenKeys, settings};
use udpd_base::sink::settings::{
    AnySettings, Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget, SpillPlace,
};
use udpd_base::sink::settings::{Scheme, Uri, WrittenSink, wrong};
use udpd_base::text::address::PeerAddress;
use udpd_base::text::advice::ValueAdvice;
use udpd_spill::spilling::Spill;

/// Which server it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HttpProfile {
    Clickhouse,
    Otlp,
    SplunkHec,
    Elasticsearch,
    Loki,
    /// One JSON object a line.
    #[default]
    Ndjson,
}

impl HttpProfile {
    /// As a configuration names them.
    pub(crate) const WORDS: [(&'static str, Self); 6] = [
        ("clickhouse", Self::Clickhouse),
        ("otlp", Self::Otlp),
        ("splunk_hec", Self::SplunkHec),
        ("elasticsearch", Self::Elasticsearch),
        ("loki", Self::Loki),
        ("ndjson", Self::Ndjson),
    ];
}

/// What a payload is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadParse {
    #[default]
    None,
    /// RFC 3164 and 5424.
    Syslog,
}

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpUrl {
    /// As it is written; a profile adds its own path where none is.
    pub(crate) text: String,
    pub(crate) is_tls: bool,
    /// `None` only while it is missing.
    pub(crate) peer: Option<PeerAddress>,
}

impl HttpUrl {
    /// What stands behind the host, without the query.
    fn path(&self) -> &str {
        let behind = self.text.split_once("://").map_or("", |(_, behind)| behind);
        let path = behind.find('/').map_or("", |at| &behind[at..]);
        path.split(['?', '#']).next().unwrap_or_default()
    }
}

impl fmt::Display for HttpUrl {
    /// Without its query, in which servers take passwords.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text.split(['?', '#']).next().unwrap_or_default())
    }
}

/// No key is read of a type that this build has not.
#[cfg(not(feature = "http"))]
fn parse_url(_: &str) -> Result<HttpUrl, ValueAdvice> {
    Err(HttpSettings::available().expect_err("a build without HTTP"))
}

/// Reads a URL of http or https. Who writes a user into it would show a password in every message.
#[cfg(feature = "http")]
fn parse_url(text: &str) -> Result<HttpUrl, ValueAdvice> {
    let example = "write it as \"http://HOST:PORT/PATH\" or \"https://HOST/PATH\"";
    if text.contains('@') {
        let what = "it names a user, and would show a password (what is written is not shown here)";
        return Err(ValueAdvice::new(what, "write username and password_file, or token_file"));
    }
    let refused = |why: &str| ValueAdvice::new(format!("{text:?} {why}"), example);
    let uri: ureq::http::Uri = text.parse().map_err(|error| refused(&format!("is no URL: {error}")))?;
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(refused("begins with neither http:// nor https://")),
    };
    let authority = uri.authority().ok_or_else(|| refused("names no host"))?;
    let port = match authority.port_u16() {
        Some(port @ 1..) => port,
        None if authority.as_str() == authority.host() => {
            if is_tls {
                443
            } else {
                80
            }
        }
        _ => return Err(refused("names no port from 1 to 65535")),
    };
    let peer = udpd_base::text::address::parse_peer(&format!("{}:{port}", authority.host()))?;
    Ok(HttpUrl { text: text.to_owned(), is_tls, peer: Some(peer) })
}

settings! {
    /// How many records a request carries.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BatchLimits {
        /// A batch is sent when its body is this long.
        bytes: usize = "1MiB", ByteSize(64 << 10..=64 << 20);
        /// A batch is sent when it has this many datagrams.
        datagrams: usize = 10_000, WholeNumber(1..=1_000_000);
        /// A batch is sent when its first datagram has waited this long.
        every: Duration = "1s", TimeSpan(Duration::from_millis(10)..=Duration::from_secs(60));
    }
}

/// What is written of a sink of type `http`.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpSettings {
    pub url: HttpUrl,
    pub profile: HttpProfile,
    pub table: String,
    pub index: String,
    pub source_type: String,
    pub labels: Vec<Pair>,
    pub parse: PayloadParse,
    pub batch: BatchLimits,
    pub compress: Option<Method>,
    pub connections: usize,
    pub timeout: Duration,
    pub headers: Vec<Pair>,
    pub token_file: Option<PathBuf>,
    pub username: String,
    pub password_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    pub certificate_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub proxy: Option<HttpUrl>,
    pub resolve_every: Duration,
    pub refused: Option<PathBuf>,
    pub spill: Spill,
    /// What the files of secrets held: a sink whose token has changed is another sink.
    prints: Vec<Print>,
}

settings! {
    for HttpSettings {
        /// Where the server takes records.
        url: HttpUrl = required like "http://clickhouse.example:8123/", QuotedText(parse_url);
        /// Which server it is, and so how records look and what its answers mean, see docs/http.md.
        profile: HttpProfile = "ndjson", OneOf(&HttpProfile::WORDS);
        /// With "clickhouse", the table that rows are inserted into.
        table: String = "udpd" like "logs.datagrams", QuotedText(check_word);
        /// With "elasticsearch" the index or data stream, with "splunk_hec" the index; "" = what the server or its
        /// token says.
        index: String = "" like "udpd", QuotedText(check_word);
        /// With "splunk_hec", the source type of events; "" = what the token says.
        source_type: String = "" like "syslog", QuotedText(check_word);
        /// With "loki" the labels of the stream, with "otlp" attributes of the resource, as "name=value".
        labels: Vec<Pair> = [] like ["job=udpd"], List(parse_label);
        /// What a payload is taken for: "syslog" splits RFC 3164 and 5424 into fields and keeps the line beside them.
        parse: PayloadParse = "none", OneOf(&[("none", PayloadParse::None), ("syslog", PayloadParse::Syslog)]);
        /// How many records a request carries.
        batch: BatchLimits = {}, SubTable;
        /// How bodies are compressed; "" = not at all.
        compress: Option<Method> = "" like "gzip",
            OneOf(&[("", None), ("gzip", Some(Method::Gzip)), ("zstd", Some(Method::Zstd))]);
        /// How many requests may be on the way at once. Only one keeps the order of a source.
        connections: usize = 1, WholeNumber(1..=16);
        /// How long a server may take to accept a connection and to answer a request.
        timeout: Duration = "30s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(3_600));
        /// Headers of every request, as "Name: value".
        headers: Vec<Pair> = [] like ["X-Scope-OrgID: tenant"], List(parse_header);
        /// A file with the token that the server wants.
        token_file: Option<PathBuf> = "" like "$CREDENTIALS_DIRECTORY/hec", Optional(named_files::check_path);
        /// The user for a server that wants a name and a password.
        username: String = "" like "udpd", QuotedText(|text| Ok::<_, ValueAdvice>(text.to_owned()));
        /// A file with the password of that user.
        password_file: Option<PathBuf> = "" like "$CREDENTIALS_DIRECTORY/clickhouse",
            Optional(named_files::check_path);
        /// Certificates of the authorities that may vouch for the server, as PEM; "" = those that the system trusts.
        ca_file as tls_ca_file: Option<PathBuf> = "" like "/etc/udpd/ca.pem", Optional(named_files::check_path);
        /// The certificate that udpd shows to the server, as PEM, with those between it and the authority.
        certificate_file as tls_certificate_file: Option<PathBuf> = "" like "/etc/udpd/udpd.pem",
            Optional(named_files::check_path);
        /// The private key of that certificate, as PEM.
        key_file as tls_key_file: Option<PathBuf> = "" like "/etc/udpd/udpd.key", Optional(named_files::check_path);
        /// A proxy that makes the connection; "" = none, whatever the environment says.
        proxy: Option<HttpUrl> = "" like "http://proxy.example:3128", Optional(parse_url);
        /// How often the name of the server is looked up.
        resolve_every: Duration = "60s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(86_400));
        /// A capture for datagrams that the server refuses for good, which `udpd replay` can send again; "" = none.
        refused: Option<PathBuf> = "" like "/var/log/udpd/refused.pcapng", Optional(path_check::check_file);
        /// Datagrams wait here for the answer of the server, see docs/spill.md.
        spill: Spill = {}, SubTable;
        .. prints = Vec::new();
    }
}

/// A name and its value: a label or a header.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    pub name: String,
    pub value: String,
}

impl fmt::Debug for Pair {
    /// Some servers want a secret in a header.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pair").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for Pair {
    /// For messages, which show no value either.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

/// A word that can stand in a request as it is.
fn check_word(text: &str) -> Result<String, ValueAdvice> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '/');
    match text.chars().all(is_plain) {
        true if text.len() > 255 => {
            Err(ValueAdvice::new(format!("it is {} characters long", text.len()), "write at most 255"))
        }
        true => Ok(text.to_owned()),
        false => Err(ValueAdvice::new(
            format!("{text:?} holds characters that names on servers have not"),
            "write letters, digits and . _ - : / only",
        )),
    }
}

fn parse_label(text: &str) -> Result<Pair, ValueAdvice> {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) && !value.chars().any(char::is_control) => {
            Ok(Pair { name: name.to_owned(), value: value.to_owned() })
        }
        _ => Err(ValueAdvice::new(format!("{text:?} is no label"), "write it as \"name=value\", such as \"job=udpd\"")),
    }
}

#[cfg(not(feature = "http"))]
fn parse_header(_: &str) -> Result<Pair, ValueAdvice> {
    Err(HttpSettings::available().expect_err("a build without HTTP"))
}

#[cfg(feature = "http")]
fn parse_header(text: &str) -> Result<Pair, ValueAdvice> {
    let advice = |what: &str, cure: &str| ValueAdvice::new(format!("{what} (its value is not shown here)"), cure);
    let Some((name, value)) = text.split_once(':') else {
        return Err(advice("a header without a colon", "write it as \"Name: value\""));
    };
    let (name, value) = (name.trim(), value.trim());
    if name.eq_ignore_ascii_case("authorization") {
        return Err(advice("the header Authorization", "write token_file, or username and password_file"));
    }
    let of_udpd = ["connection", "content-encoding", "content-length", "transfer-encoding"];
    if of_udpd.iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Err(advice(&format!("the header {name}, which udpd writes itself"), "remove it"));
    }
    let is_valid = ureq::http::HeaderName::try_from(name).is_ok() && ureq::http::HeaderValue::try_from(value).is_ok();
    match is_valid {
        true => Ok(Pair { name: name.to_owned(), value: value.to_owned() }),
        false => Err(advice(&format!("the header {name:?} cannot be sent"), "write it as \"Name: value\" in ASCII")),
    }
}

impl WrittenSink for HttpSettings {
    const NAME: &'static str = "http";
    const SCHEMES: &'static [Scheme] = &[
        Scheme { name: "http", form: "http://HOST:PORT/PATH", read: one_url },
        Scheme { name: "https", form: "https://HOST/PATH", read: one_url },
        Scheme { name: "clickhouse", form: "clickhouse:http://HOST:8123", read: one_url },
        Scheme { name: "otlp", form: "otlp:http://HOST:4318", read: one_url },
        Scheme { name: "splunk_hec", form: "splunk_hec:https://HOST:8088", read: one_url },
        Scheme { name: "elasticsearch", form: "elasticsearch:http://HOST:9200", read: one_url },
        Scheme { name: "loki", form: "loki:http://HOST:3100", read: one_url },
    ];

    fn available() -> Result<(), ValueAdvice> {
        match cfg!(feature = "http") {
            true => Ok(()),
            false => Err(ValueAdvice::new(
                "this udpd was built without the HTTP sink",
                "build it with: cargo build --release --features http",
            )),
        }
    }

    fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        self.spill.check(written, findings);
        self.check_keys_of_profile(written, findings);
        self.check_secrets(written, findings);
        self.check_tls(written, findings);
        if let (Some(method), Some(place)) = (self.compress, written.place("compress")) {
            if let Err(advice) = method.available() {
                findings.refuse(&place, advice);
            } else if method == Method::Zstd && !matches!(self.profile, HttpProfile::Clickhouse | HttpProfile::Otlp) {
                findings.say(&place, "this server reads no zstd", "write compress = \"gzip\"");
            }
        }
    }

    fn finished(self) -> AnySettings {
        let prints = self.secrets().map(|(_, path)| Print::of(path)).collect();
        Arc::new(Self { prints, ..self })
    }
}

impl HttpSettings {
    /// Refuses the keys that this profile has no use for.
    fn check_keys_of_profile(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        use HttpProfile::{Clickhouse, Elasticsearch, Loki, Otlp, SplunkHec};
        let keys: [(&str, &[HttpProfile], &str); 4] = [
            ("table", &[Clickhouse], "\"clickhouse\""),
            ("index", &[Elasticsearch, SplunkHec], "\"elasticsearch\" or \"splunk_hec\""),
            ("source_type", &[SplunkHec], "\"splunk_hec\""),
            ("labels", &[Loki, Otlp], "\"loki\" or \"otlp\""),
        ];
        for (key, profiles, words) in keys {
            if let (Some(place), false) = (written.place(key), profiles.contains(&self.profile)) {
                let cure = format!("remove it; it belongs to profile = {words}");
                findings.say(&place, "this profile has no use for it", cure);
            }
        }
        if let (Some(place), Elasticsearch, true) = (written.place("index"), self.profile, self.url.path().len() > 1) {
            let what = format!("the path of url says where records go: {}", self.url.path());
            findings.say(&place, what, "write the index there, or an url without a path");
        }
        if self.profile == Clickhouse && self.table.is_empty() {
            let place = written.place("table").unwrap_or_else(|| written.place.inner("table"));
            findings.say(&place, "names no table", "write the table that rows are to go to");
        }
    }

    fn check_secrets(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let at = |key: &str| written.place(key).unwrap_or_else(|| written.place.inner(key));
        if self.token_file.is_some() && !self.username.is_empty() {
            return findings.say(&at("username"), "a token says who it is", "write one of the two");
        }
        if self.username.is_empty() != self.password_file.is_none() {
            let (key, other) =
                if self.username.is_empty() { ("password_file", "username") } else { ("username", "password_file") };
            return findings.say(&at(key), format!("needs {other} as well"), "write both, or neither");
        }
        for (key, path) in self.secrets() {
            if let Some(doubt) = named_files::doubt(path) {
                findings.warn(&at(key), doubt);
            }
        }
    }

    fn check_tls(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let keys = ["tls_ca_file", "tls_certificate_file", "tls_key_file"];
        if let (false, Some(place)) = (self.speaks_tls(), keys.iter().find_map(|key| written.place(key))) {
            return findings.say(&place, "does nothing without TLS", "write an url that begins with https://");
        }
        self.tls().check(written, findings);
    }

    fn speaks_tls(&self) -> bool {
        self.url.is_tls || self.proxy.as_ref().is_some_and(|proxy| proxy.is_tls)
    }

    /// How udpd and the server know each other.
    fn tls(&self) -> TlsSettings {
        TlsSettings {
            on: self.speaks_tls(),
            ca_file: self.ca_file.clone(),
            certificate_file: self.certificate_file.clone(),
            key_file: self.key_file.clone(),
            ..TlsSettings::default()
        }
    }

    /// The files with secrets, with their keys.
    fn secrets(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let written = [
            ("token_file", &self.token_file),
            ("password_file", &self.password_file),
            ("tls_key_file", &self.key_file),
        ];
        written.into_iter().filter_map(|(key, path)| Some((key, path.as_deref()?)))
    }

    /// Where connections go: to the proxy, if there is one.
    fn peer(&self) -> Option<&PeerAddress> {
        self.proxy.as_ref().unwrap_or(&self.url).peer.as_ref()
    }

    fn is_named(&self) -> bool {
        matches!(self.peer(), Some(PeerAddress::Host { .. }))
    }

    /// The memory of one batch.
    #[cfg(feature = "http")]
    fn batch_bytes(&self) -> usize {
        let body = self.batch.bytes + profile::record_bytes_max(self.profile, PAYLOAD_BYTES_MAX);
        let packets = if self.refused.is_some() { self.batch.bytes + PAYLOAD_BYTES_MAX } else { 0 };
        let compressed = if self.compress.is_some() { body } else { 0 };
        body + packets + compressed + self.batch.datagrams * 4 * size_of::<usize>()
    }
}

/// The longest payload there is.
#[cfg(feature = "http")]
const PAYLOAD_BYTES_MAX: usize = 65_535;

/// A sink from the command line: the scheme names the profile.
fn one_url(uri: &Uri<'_>) -> Result<AnySettings, Failure> {
    HttpSettings::available().map_err(wrong)?;
    let profile = HttpProfile::WORDS.iter().find(|(word, _)| *word == uri.scheme).map(|(_, profile)| *profile);
    let text = if profile.is_some() { uri.rest } else { uri.whole };
    let url = parse_url(text).map_err(wrong)?;
    Ok(HttpSettings { url, profile: profile.unwrap_or_default(), ..HttpSettings::defaults() }.finished())
}

impl SinkSettings for HttpSettings {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Elsewhere(format!("requests to {}", self.url))
    }

    fn records_arrival(&self) -> bool {
        true
    }

    #[cfg(not(feature = "http"))]
    fn memory_bytes(&self, _: usize, _: usize) -> usize {
        0
    }

    #[cfg(feature = "http")]
    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        let batches = (self.connections + 1) * self.batch_bytes();
        consumers * (batches + self.connections * connection::memory_bytes(self)) + self.spill.memory_bytes(consumers)
    }

    fn files_open(&self, consumers: usize, _: usize) -> usize {
        let refused = usize::from(self.refused.is_some());
        consumers * (self.connections + refused) + self.spill.files_open(consumers)
    }

    fn lookup_threads(&self, consumers: usize) -> usize {
        consumers * (self.connections + usize::from(self.is_named()))
    }

    fn spill(&self) -> Option<SpillPlace<'_>> {
        self.spill.place()
    }

    fn needs(&self) -> Needs {
        let roles = [&[ThreadRole::HttpClient, ThreadRole::Writer][..], self.spill.role().as_slice()].concat();
        let secrets = self.secrets().filter_map(|(_, path)| named_files::located(path));
        let reads = self.tls().directories().into_iter().chain(named_files::directories(secrets)).collect();
        Needs { names: self.is_named(), reads, ..Needs::only(roles) }
    }

    #[cfg(not(feature = "http"))]
    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let fail = |advice| Failure::new(ExitCode::Configuration, format!("[sink.{}] {advice}", opening.sink));
        Err(Self::available().map_err(fail).expect_err("a build without HTTP"))
    }

    #[cfg(feature = "http")]
    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let lookup = crate::target::Lookup {
            registry: opening.registry,
            every: self.resolve_every,
            sink: opening.sink,
            bound: &[],
        };
        sink::HttpSink::open(self, lookup, &opening)
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        // What is on the way belongs to a listener by its number, and a capture has a table of its lanes.
        let has_lanes = self.spill.is_on() || self.refused.is_some();
        before.of_type() == Some(self) && !differs.listeners && !(has_lanes && differs.lanes)
    }
}
