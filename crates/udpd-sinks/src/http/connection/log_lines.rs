//! What the log says of a server: that it is gone or refuses for now, and that it takes batches again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::HttpSettings;
use crate::peer_trouble::waiting_place;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::seams::clock;
use udpd_base::seams::waits::lock;

/// The lines about one server, for all connections of a consumer.
#[derive(Debug)]
pub(in crate::http) struct ServerLog {
    sink: String,
    /// Without a path, in which some servers want a secret.
    server: String,
    /// Where datagrams wait for it; `None` where it takes finished files.
    waiting_place: Option<&'static str>,
    /// Why it takes nothing, as far as the log has that.
    trouble: Mutex<Option<String>>,
    is_failing: AtomicBool,
    /// A server that comes and goes gets one line a minute.
    gone: LogLimiter,
    too_large: LogLimiter,
}

impl ServerLog {
    pub(super) fn new(sink: &str, settings: &HttpSettings) -> Self {
        Self::of(sink, settings, Some(waiting_place(settings.spill.is_on())))
    }

    /// For a server that takes finished files.
    pub(in crate::http) fn of_files(sink: &str, settings: &HttpSettings) -> Self {
        Self::of(sink, settings, None)
    }

    fn of(sink: &str, settings: &HttpSettings, waiting_place: Option<&'static str>) -> Self {
        let scheme = if settings.url.is_tls { "https" } else { "http" };
        let peer = settings.url.peer.as_ref().map(ToString::to_string).unwrap_or_default();
        let through = settings.proxy.as_ref().and_then(|proxy| proxy.peer.as_ref());
        let server = match through {
            Some(proxy) => format!("{scheme}://{peer} through the proxy {proxy}"),
            None => format!("{scheme}://{peer}"),
        };
        let (trouble, is_failing) = (Mutex::default(), AtomicBool::new(false));
        let (gone, too_large) = (LogLimiter::default(), LogLimiter::default());
        Self { sink: sink.to_owned(), server, waiting_place, trouble, is_failing, gone, too_large }
    }

    /// Whether the last request was in vain.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Nothing goes there now, for this reason.
    pub(in crate::http) fn note_trouble(&self, what: &str, cure: &str) {
        self.is_failing.store(true, Ordering::Relaxed);
        let mut known = lock(&self.trouble);
        if known.as_deref() == Some(what) {
            return;
        }
        let Some(silent) = self.gone.pass(clock::now()) else { return };
        let (sink, server, repeats) = (&self.sink, &self.server, repeats(silent));
        match self.waiting_place {
            Some(place) => {
                log::warn!("sink {sink}: {server} {what}; datagrams wait {place} until it takes them{cure}{repeats}");
            }
            None => log::warn!(
                "sink {sink}: {server} {what}; finished files wait on their disk until it takes them{cure}{repeats}"
            ),
        }
        *known = Some(what.to_owned());
    }

    /// It takes no batch with so many records and bytes.
    pub(super) fn note_too_large(&self, records: usize, bytes: usize) {
        let Some(silent) = self.too_large.pass(clock::now()) else { return };
        log::warn!(
            "sink {}: {} takes no request of {records} datagrams in {bytes} bytes; udpd sends it in halves; lower \
             batch.bytes, or raise the limit there{}",
            self.sink,
            self.server,
            repeats(silent)
        );
    }

    /// It has taken something.
    pub(in crate::http) fn note_taken(&self) {
        self.is_failing.store(false, Ordering::Relaxed);
        if lock(&self.trouble).take().is_some() {
            let takes = if self.waiting_place.is_some() { "batches" } else { "files" };
            log::info!("sink {}: {} takes {takes} again", self.sink, self.server);
        }
    }
}
