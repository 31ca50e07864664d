//! What is wrong with a certificate, in words (cargo feature `kafka-tls`).
//!
//! The library says of a broker's certificate that it could not be verified, and not why: whether it has expired, is
//! for another host, or comes from an unknown authority. So when that happens a thread connects once more, as the
//! library does, verifies the same chain and logs what it finds. It sends nothing that the library would not send.

use std::fmt::Write;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslVerifyMode};
use openssl::x509::{X509, X509NameRef, X509Ref, X509VerifyResult};

use crate::named_files as files;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::os::threads::lock;

/// How long the broker may take for each step.
const LIMIT: Duration = Duration::from_secs(5);

/// How many threads probe brokers at the same time: a broker that sends a byte now and then could keep its thread for
/// ever.
const AT_ONCE_MAX: usize = 4;

static AT_ONCE: AtomicUsize = AtomicUsize::new(0);

/// The permission for one such thread.
struct ProbeTurn;

impl ProbeTurn {
    fn take() -> Option<Self> {
        let next = |count: usize| (count < AT_ONCE_MAX).then_some(count + 1);
        AT_ONCE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok().then(|| Self)
    }
}

impl Drop for ProbeTurn {
    fn drop(&mut self) {
        AT_ONCE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A question about a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrustQuestion {
    /// `host:port`
    pub(super) broker: String,
    pub(super) ca_file: Option<PathBuf>,
    /// What is said where nothing more is found.
    pub(super) reason: String,
}

/// The broker that a line of the library is about: `sasl_ssl://host:port/bootstrap: ...`.
pub(super) fn broker_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("://")?;
    Some(rest.split_once('/')?.0).filter(|broker| !broker.is_empty())
}

/// Logs why a broker is not trusted, from a thread of its own, because the broker may be slow.
pub(super) fn log_distrust(registry: &ThreadRegistry, sink: &str, question: TrustQuestion) {
    let (reason, sink) = (question.reason.clone(), sink.to_owned());
    let say = |sink: &str, why: &str| {
        log::warn!(
            "sink {sink}: no TLS connection to a broker: {why}; udpd tries again by itself; until then datagrams wait \
             in the sink's queue, then when_full decides"
        );
    };
    let Some(turn) = ProbeTurn::take() else { return say(&sink, &reason) };
    let name = sink.clone();
    let work = move || {
        let _turn = turn;
        let found = threads::blocking(|| why(&question.broker, question.ca_file.as_deref())).ok().flatten();
        say(&name, &found.unwrap_or(question.reason));
    };
    if registry.spawn("kafka-trust", ThreadRole::ShortLived, work).is_err() {
        say(&sink, &reason);
    }
}

/// Why the certificate of this broker is not trusted; `None` if it is.
fn why(broker: &str, ca_file: Option<&Path>) -> Result<Option<String>, String> {
    let (host, _) = broker.rsplit_once(':').ok_or("no port")?;
    let authorities = match ca_file.map(|path| (path, authorities_of(path))) {
        // The library uses those that it read when it started; the file may hold others now.
        Some((path, Err(error))) => {
            return Ok(Some(format!(
                "the certificate of {broker} is refused, and tls_ca_file {} cannot be read to say why: {error}; put it \
                 right, and then: udpd reload",
                path.display()
            )));
        }
        Some((_, Ok(authorities))) => Some(authorities),
        None => None,
    };
    let address = broker.to_socket_addrs().map_err(|error| error.to_string())?.next().ok_or("no address")?;
    let stream = TcpStream::connect_timeout(&address, LIMIT).map_err(|error| error.to_string())?;
    stream
        .set_read_timeout(Some(LIMIT))
        .and(stream.set_write_timeout(Some(LIMIT)))
        .map_err(|error| error.to_string())?;
    let found = Arc::new(Mutex::new(None));
    let ssl = listening(host, authorities, Arc::clone(&found)).map_err(|error| error.to_string())?;
    let is_trusted = ssl.connect(stream).is_ok();
    let why = lock(&found).take();
    match why {
        Some(why) => Ok(Some(format!("the certificate of {broker} is refused: {why}"))),
        None if is_trusted => Ok(None),
        None => Err("no certificate came".to_owned()),
    }
}

/// A client that verifies as the library does, and records the first error.
fn listening(host: &str, authorities: Option<Vec<X509>>, found: Arc<Mutex<Option<String>>>) -> Result<Ssl, ErrorStack> {
    let mut context = SslContext::builder(SslMethod::tls_client())?;
    match authorities {
        Some(authorities) => {
            authorities.into_iter().try_for_each(|authority| context.cert_store_mut().add_cert(authority))?;
        }
        None => context.set_default_verify_paths()?,
    }
    context.set_verify_callback(SslVerifyMode::PEER, move |good, chain| {
        if !good {
            let what = describe(chain.error(), chain.current_cert());
            lock(&found).get_or_insert(what);
        }
        good
    });
    let mut ssl = Ssl::new(&context.build())?;
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => ssl.param_mut().set_ip(address)?,
        Err(_) => {
            ssl.set_hostname(host)?;
            ssl.param_mut().set_host(host)?;
        }
    }
    Ok(ssl)
}

fn describe(error: X509VerifyResult, certificate: Option<&X509Ref>) -> String {
    let mut text = error.error_string().to_owned();
    let Some(certificate) = certificate else { return text };
    let (subject, issuer) = (name(certificate.subject_name()), name(certificate.issuer_name()));
    let (from, until) = (certificate.not_before(), certificate.not_after());
    // Writing into a String cannot fail.
    let _ = write!(text, " (it is of {subject:?}, by {issuer:?}, valid from {from} until {until}");
    let names: Vec<String> = certificate
        .subject_alt_names()
        .into_iter()
        .flatten()
        .filter_map(|name| {
            let address = |bytes: &[u8]| match bytes.len() {
                4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
                _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
            };
            let host = name.dnsname().map(str::to_owned);
            host.or_else(|| name.ipaddress().and_then(address).map(|address| address.to_string()))
        })
        .take(8)
        .collect();
    let _ = match names.is_empty() {
        true => write!(text, ")"),
        false => write!(text, ", for {})", names.join(", ")),
    };
    text
}

/// The common name of a certificate, or its last entry where there is none.
fn name(of: &X509NameRef) -> String {
    let common = of.entries_by_nid(Nid::COMMONNAME).next().or_else(|| of.entries().last());
    common.and_then(|entry| entry.data().to_string().ok()).unwrap_or_default()
}

/// Which certificate in a file has expired, if one has. The library reports what cannot be read.
pub(super) fn expiry(path: &Path) -> Option<String> {
    let now = Asn1Time::days_from_now(0).ok()?;
    let past = of_file(path)?.into_iter().find(|certificate| certificate.not_after() < now)?;
    let (subject, until) = (name(past.subject_name()), past.not_after());
    Some(format!("the certificate of {subject:?} in {} has expired: it was valid until {until}", path.display()))
}

/// Until when the first certificate in a file is valid.
pub(super) fn valid_until(path: &Path) -> Option<String> {
    expiry(path).or_else(|| {
        let first = of_file(path)?.into_iter().next()?;
        Some(format!("the certificate in {} is valid until {}", path.display(), first.not_after()))
    })
}

fn of_file(path: &Path) -> Option<Vec<X509>> {
    authorities_of(path).ok()
}

/// The authorities that a file names, read without ever waiting for it.
fn authorities_of(path: &Path) -> Result<Vec<X509>, String> {
    let place = files::located(path).ok_or("there are no credentials here")?;
    let bytes = files::contents(&place, files::BYTES_MAX).map_err(|error| error.to_string())?;
    match X509::stack_from_pem(&bytes) {
        Ok(authorities) if !authorities.is_empty() => Ok(authorities),
        _ => Err("it holds no certificate".to_owned()),
    }
}

#[cfg(test)]
#[path = "certificate_diagnosis_tests.rs"]
mod tests;
