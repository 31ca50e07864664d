//! Uploads of the finished files of a file sink: to S3, or to a server that speaks it.
//!
//! The file sink is a crate below and knows no connections. So what is written under `upload` becomes a service here
//! when the table of a sink is read, and the keeper of the files starts it ([`UploadService`]). One thread for each
//! sink, which no datagram waits for, brings one file after the other to the server. A failure is followed by a pause
//! that grows, and the file goes back to the keeper, which offers another one meanwhile.
//!
//! Nothing of an upload is kept here: what a crash has interrupted the server tells, by its lists of objects, of
//! uploads and of their parts. A file with the state would be as many lines, and would not know of an upload whose
//! answer the crash took.

mod answers;
mod server;
#[cfg(test)]
mod tests;
mod thread;

use std::convert::Infallible;
use std::hash::RandomState;
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded, unbounded};
use ureq::Agent;

use super::connection::connector::RequestWatch;
use super::connection::exchange::{BUFFER_BYTES, Exchange};
use super::connection::log_lines::ServerLog;
use super::{HttpSettings, parse_url};
use crate::named_files;
use crate::target::{DestinationTarget, Lookup};
use crate::tcp::peer_stream::TLS_MEMORY_BYTES;
use crate::tls;
use server::{BucketPlace, S3Server};
use thread::UploadThread;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging::LogLimiter;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_base::settings::{Findings, TableSettings, ValuePlace, WrittenKeys};
use udpd_base::text::advice::ValueAdvice;
use udpd_file::upload::{UploadJobs, UploadService, UploadSettings, base_of};
use udpd_file::{FileSettings, go_into_background};

/// Uploads to one bucket.
#[derive(Debug)]
struct S3Uploads {
    /// How connections are made.
    http: HttpSettings,
    place: BucketPlace,
    credentials_file: PathBuf,
}

/// The settings with what uploads their files. Says where they cannot be.
pub(crate) fn provide(
    settings: &FileSettings,
    written: &WrittenKeys<'_>,
    findings: &mut Findings<'_>,
) -> Option<Arc<dyn UploadService>> {
    let table = written.place("upload")?;
    let at = |key: &str| written.inner("upload", key).unwrap_or_else(|| table.clone());
    let uploads = S3Uploads::of(settings).map_err(|(key, advice)| findings.refuse(&at(key), advice)).ok()?;
    uploads.check(&at, findings).then(|| Arc::new(uploads) as _)
}

impl S3Uploads {
    fn of(settings: &FileSettings) -> Result<Self, (&'static str, ValueAdvice)> {
        let UploadSettings { url, region, credentials_file, ca_file, timeout, .. } = &settings.upload;
        let of_path = |key, text: &str| named_files::check_path(text).map_err(|advice| (key, advice));
        let place = BucketPlace::read(url, region, base_of(&settings.path)).map_err(|advice| ("url", advice))?;
        let http = HttpSettings {
            url: parse_url(url).map_err(|advice| ("url", advice))?,
            ca_file: (!ca_file.is_empty()).then(|| of_path("ca_file", ca_file)).transpose()?,
            timeout: *timeout,
            ..HttpSettings::defaults()
        };
        if credentials_file.is_empty() {
            let what = "says not by which keys";
            return Err(("url", ValueAdvice::new(what, "write credentials_file, see docs/rotation.md#uploads")));
        }
        Ok(Self { http, place, credentials_file: of_path("credentials_file", credentials_file)? })
    }

    /// Whether its files hold what they should. What only the unit of udpd has is read at its start.
    fn check(&self, at: &dyn Fn(&str) -> ValuePlace, findings: &mut Findings<'_>) -> bool {
        let before = findings.count();
        if !self.http.url.is_tls && self.http.ca_file.is_some() {
            findings.say(&at("ca_file"), "does nothing without TLS", "write an url that begins with https://");
        }
        if let Err(error) = tls::provider() {
            findings.say(&at("url"), error, "build udpd with: cargo build --release --features tls-ring");
        }
        if named_files::located(&self.credentials_file).is_some()
            && let Err(why) = server::read_keys(&self.credentials_file)
        {
            findings.say(&at("credentials_file"), why, "see docs/rotation.md#uploads for what it holds");
        }
        if let Some(doubt) = named_files::doubt(&self.credentials_file) {
            findings.warn(&at("credentials_file"), doubt);
        }
        findings.count() == before
    }
}

impl UploadService for S3Uploads {
    fn start(&self, registry: &ThreadRegistry, sink: &str, cores: &[usize]) -> Result<UploadJobs, Failure> {
        let wrong = |what: String| Failure::new(ExitCode::Configuration, format!("[sink.{sink}] upload: {what}"));
        let failed = |error: std::io::Error| threads::start_failure(&format!("sink {sink}, its uploads"), &error);
        let (http, watch) = (&self.http, Arc::new(RequestWatch::default()));
        server::read_keys(&self.credentials_file).map_err(wrong)?;
        let client = http.tls().client().map_err(|error| wrong(error.to_string()))?;
        let peer = http.peer().ok_or_else(|| wrong("url names no host".to_owned()))?;
        let lookup = Lookup { registry, every: http.resolve_every, sink, bound: &[] };
        let target = Arc::new(DestinationTarget::at(peer, lookup).map_err(failed)?);
        let exchange =
            Exchange::new(http, client, target, Arc::clone(&watch)).map_err(|error| wrong(error.to_string()))?;
        let (jobs, taken) = unbounded();
        let (tries_again, end) = bounded(0);
        let ends_with = UploadEnd { tries_again: Some(tries_again), watch, agent: exchange.agent().clone() };
        let thread = UploadThread {
            sink: sink.to_owned(),
            server: S3Server::new(exchange, self.place.clone(), self.credentials_file.clone()),
            log: ServerLog::of_files(sink, http),
            end,
            unreadable: LogLimiter::default(),
            random: RandomState::new(),
        };
        let cores = cores.to_vec();
        let work = move || {
            go_into_background("uploads files", &cores);
            thread.run(&taken);
        };
        registry.spawn(format!("upload-{sink}"), ThreadRole::Uploader, work).map_err(failed)?;
        Ok(UploadJobs { jobs, ends_with: Box::new(ends_with) })
    }

    fn reads(&self) -> Vec<PathBuf> {
        let credentials = named_files::located(&self.credentials_file).into_iter();
        self.http.tls().directories().into_iter().chain(named_files::directories(credentials)).collect()
    }

    fn is_named(&self) -> bool {
        self.http.is_named()
    }

    fn place(&self) -> String {
        self.http.url.to_string()
    }

    fn memory_bytes(&self) -> usize {
        let tls = if self.http.url.is_tls { TLS_MEMORY_BYTES + BUFFER_BYTES } else { 0 };
        BUFFER_BYTES + tls + server::MEMORY_BYTES
    }
}

/// Ends the thread, and does not wait for it: what it has begun is taken up at the next start.
struct UploadEnd {
    tries_again: Option<Sender<Infallible>>,
    watch: Arc<RequestWatch>,
    agent: Agent,
}

impl Drop for UploadEnd {
    fn drop(&mut self) {
        self.tries_again = None;
        self.watch.interrupt();
        self.agent.clone().shutdown();
    }
}
