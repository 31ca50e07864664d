//! The ways to look at the daemon from outside: control socket and metrics, bound before there is anything to see.
//!
//! Who takes over from a running daemon has to wait for its end before it can bind the same. Then it receives already,
//! and goes on without a window rather than not at all.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::departure::Departure;
use super::reload::Reloads;
use udpd_base::exit::Failure;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::settings::Chosen;
use udpd_endpoint::control::{BoundControlSocket, ControlServer, Seats};
use udpd_endpoint::metrics::{MetricsHandle, MetricsServer, TokenFile};
use udpd_engine::config::Config;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan::neighbours;

/// How long a window is tried for that a process before this one had.
const FREEING_LIMIT: Duration = Duration::from_secs(2);

/// How often.
const FREEING_PAUSE: Duration = Duration::from_millis(10);

/// Bound, and nobody is answered yet.
pub(super) struct BoundWindows {
    control: Option<BoundControlSocket>,
    metrics: Option<MetricsServer>,
    token: Option<TokenFile>,
}

impl BoundWindows {
    pub(super) fn bind(config: &Config) -> Result<Self, Failure> {
        let control = optional(&config.daemon.control_socket, "control socket", |path| BoundControlSocket::bind(path))?;
        let metrics = bind_metrics(config)?;
        Ok(Self { control, metrics, token: read_token(config)? })
    }

    /// What can be had beside a daemon with the same control socket and these metrics.
    pub(super) fn bind_beside(config: &Config, taken: Option<SocketAddr>) -> Result<Self, Failure> {
        let is_taken = taken.is_some() && taken == config.daemon.metrics_address.value;
        let metrics = if is_taken { None } else { bind_metrics(config)? };
        Ok(Self { control: None, metrics, token: read_token(config)? })
    }

    /// The rest, when that daemon has ended.
    pub(super) fn bind_rest(&mut self, config: &Config) {
        if let Some(path) = &config.daemon.control_socket.value {
            self.control = until_free("control socket", || BoundControlSocket::bind(path));
        }
        if let (Some(address), None) = (config.daemon.metrics_address.value, &self.metrics) {
            self.metrics = until_free("metrics endpoint", || MetricsServer::bind(address));
        }
    }

    pub(super) fn serve(
        self,
        pipeline: &Pipeline,
        seats: &Arc<Mutex<Seats>>,
        (reloads, departure): (&Reloads, &Departure),
        registry: &ThreadRegistry,
    ) -> Result<Windows, Failure> {
        let (for_control, for_metrics) = (pipeline.ledger(), pipeline.ledger());
        let (files, for_seats) = (pipeline.files(), pipeline.ledger());
        let seats = Arc::clone(seats);
        let planned = move || seats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (reload, take_over) = (reloads.asker(), departure.asker());
        let seats =
            move || neighbours::with_current_cores(planned(), |listener, lane| for_seats.core_of(listener, lane));
        let reopen = move || files.reopen();
        let control = self
            .control
            .map(|own| own.serve(registry, move || for_control.snapshot(), reopen, reload, seats, take_over));
        let metrics = self.metrics.map(|own| own.serve(registry, self.token, move || for_metrics.snapshot()));
        Ok(Windows { control: control.transpose()?, metrics: metrics.transpose()? })
    }
}

/// The same, open.
pub(super) struct Windows {
    control: Option<ControlServer>,
    metrics: Option<MetricsHandle>,
}

impl Windows {
    pub(super) fn close(self) {
        if let Some(control) = self.control {
            control.stop();
        }
        if let Some(metrics) = self.metrics {
            metrics.stop();
        }
    }
}

fn bind_metrics(config: &Config) -> Result<Option<MetricsServer>, Failure> {
    optional(&config.daemon.metrics_address, "metrics endpoint", |address| MetricsServer::bind(*address))
}

/// A token that cannot be had is an error: without it, everybody could see what it is there to protect.
fn read_token(config: &Config) -> Result<Option<TokenFile>, Failure> {
    config.daemon.metrics_token_file.as_deref().map(TokenFile::read).transpose()
}

/// What the operator wrote must be had; a default that cannot be had costs one warning.
fn optional<T, W>(
    chosen: &Chosen<Option<T>>,
    what: &str,
    open: impl FnOnce(&T) -> Result<W, Failure>,
) -> Result<Option<W>, Failure> {
    let Some(value) = &chosen.value else { return Ok(None) };
    match open(value) {
        Ok(window) => Ok(Some(window)),
        Err(failure) if chosen.written => Err(failure),
        Err(failure) => {
            log::warn!("running without a {what}: {failure}");
            Ok(None)
        }
    }
}

/// What cannot be had although the process before has gone is a loss of the window alone.
fn until_free<W>(what: &str, open: impl Fn() -> Result<W, Failure>) -> Option<W> {
    let deadline = Instant::now() + FREEING_LIMIT;
    loop {
        match open() {
            Ok(window) => return Some(window),
            Err(_) if Instant::now() < deadline => thread::sleep(FREEING_PAUSE),
            Err(failure) => {
                log::error!("goes on without a {what}, because it receives already: {failure}");
                return None;
            }
        }
    }
}
