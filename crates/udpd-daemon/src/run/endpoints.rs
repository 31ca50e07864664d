//! The endpoints of the daemon: control socket, metrics and health, bound before there is anything to see.
//!
//! A process that takes over from a running daemon has to wait for its end before it can bind the same. Then it
//! receives already, and goes on without an endpoint rather than not at all.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::handoff::HandoffServer;
use super::member::Member;
use super::reload::Reloader;
use udpd_base::exit::Failure;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::os::threads::lock;
use udpd_base::seams::clock;
use udpd_base::settings::Chosen;
use udpd_endpoint::control::{BoundControlSocket, ControlServer, Seats};
use udpd_endpoint::health::{HealthHandle, HealthServer};
use udpd_endpoint::metrics::{KeptDays, MetricsHandle, MetricsServer, TokenFile};
use udpd_engine::config::Config;
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan::neighbours;

/// How long an endpoint is tried for that a process before this one had, and how often.
const FREEING_LIMIT: Duration = Duration::from_secs(2);
const FREEING_PAUSE: Duration = Duration::from_millis(10);

/// Bound, and not served yet.
pub(super) struct BoundEndpoints {
    control: Option<BoundControlSocket>,
    metrics: Option<MetricsServer>,
    token: Option<TokenFile>,
    health: Vec<HealthServer>,
}

impl BoundEndpoints {
    pub(super) fn bind(config: &Config) -> Result<Self, Failure> {
        let control = optional(&config.daemon.control_socket, "control socket", |path| BoundControlSocket::bind(path))?;
        let metrics = bind_metrics(config)?;
        Ok(Self { control, metrics, token: read_token(config)?, health: bind_health(config, HealthServer::bind)? })
    }

    /// What can be bound beside a daemon with the same control socket and these metrics.
    pub(super) fn bind_beside(config: &Config, taken: Option<SocketAddr>) -> Result<Self, Failure> {
        let is_taken = taken.is_some() && taken == config.daemon.metrics_address.value;
        let metrics = if is_taken { None } else { bind_metrics(config)? };
        Ok(Self {
            control: None,
            metrics,
            token: read_token(config)?,
            health: bind_health(config, HealthServer::bind_beside)?,
        })
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
        config: &Config,
        pipeline: &Pipeline,
        seats: &Arc<Mutex<Seats>>,
        (reloader, handoff, member): (&Reloader, &HandoffServer, &mut Member),
        registry: &ThreadRegistry,
    ) -> Result<Endpoints, Failure> {
        let [for_control, for_metrics, for_seats, for_streams, also_for_streams] = [(); 5].map(|()| pipeline.ledger());
        let (files, seats) = (pipeline.files(), Arc::clone(seats));
        let seats = move || {
            let planned = lock(&seats).clone();
            neighbours::with_current_cores(planned, |listener, lane| for_seats.core_of(listener, lane))
        };
        let (snapshot, streams) = (move || for_control.snapshot(), move || for_streams.streams());
        let reopen = move || files.reopen();
        let (reload, take_over) = (reloader.requester(), (handoff.requester(), member.requester()));
        let control =
            self.control.map(|own| own.serve(registry, (snapshot, streams), reopen, reload, seats, take_over));
        let days = config.daemon.kept_days();
        let days = days.as_ref().map(|(directory, days)| KeptDays { directory, days: *days });
        let (snapshot, streams) = (move || for_metrics.snapshot(), move || also_for_streams.streams());
        let metrics = self.metrics.map(|own| own.serve(registry, self.token, days, snapshot, streams));
        let health = self.health.into_iter().map(|own| own.serve(registry, member.board()));
        let health: Vec<HealthHandle> = health.collect::<Result<_, _>>()?;
        member.follow(health.iter().map(HealthHandle::follower));
        Ok(Endpoints { control: control.transpose()?, metrics: metrics.transpose()?, health })
    }
}

pub(super) struct Endpoints {
    control: Option<ControlServer>,
    metrics: Option<MetricsHandle>,
    health: Vec<HealthHandle>,
}

impl Endpoints {
    pub(super) fn close(self) {
        self.control.into_iter().for_each(ControlServer::stop);
        self.metrics.into_iter().for_each(MetricsHandle::stop);
        self.health.into_iter().for_each(HealthHandle::stop);
    }
}

/// The sockets for checks of health.
fn bind_health(
    config: &Config,
    bind: fn(&'static str, SocketAddr, bool) -> Result<HealthServer, Failure>,
) -> Result<Vec<HealthServer>, Failure> {
    let daemon = &config.daemon;
    let keys = [
        ("health_address", daemon.health_address, false),
        ("health_connect_address", daemon.health_connect_address, true),
    ];
    let wanted = keys.into_iter().filter_map(|(key, address, by_readiness)| Some((key, address?, by_readiness)));
    wanted.map(|(key, address, by_readiness)| bind(key, address, by_readiness)).collect()
}

fn bind_metrics(config: &Config) -> Result<Option<MetricsServer>, Failure> {
    optional(&config.daemon.metrics_address, "metrics endpoint", |address| MetricsServer::bind(*address))
}

/// A token that cannot be read is an error: without it every client could see what it protects.
fn read_token(config: &Config) -> Result<Option<TokenFile>, Failure> {
    config.daemon.metrics_token_file.as_deref().map(TokenFile::read).transpose()
}

/// An endpoint that the operator wrote must be had; a default that cannot be had costs one warning.
fn optional<T, E>(
    chosen: &Chosen<Option<T>>,
    what: &str,
    bind: impl FnOnce(&T) -> Result<E, Failure>,
) -> Result<Option<E>, Failure> {
    let Some(value) = &chosen.value else { return Ok(None) };
    match bind(value) {
        Ok(endpoint) => Ok(Some(endpoint)),
        Err(failure) if chosen.written => Err(failure),
        Err(failure) => {
            log::warn!("running without a {what}: {failure}");
            Ok(None)
        }
    }
}

/// Tries until the process before has given it up. Where that fails, this process goes on without.
fn until_free<E>(what: &str, bind: impl Fn() -> Result<E, Failure>) -> Option<E> {
    let deadline = clock::now() + FREEING_LIMIT;
    loop {
        match bind() {
            Ok(endpoint) => return Some(endpoint),
            Err(_) if clock::now() < deadline => clock::sleep(FREEING_PAUSE),
            Err(failure) => {
                log::error!("goes on without a {what}, because it receives already: {failure}");
                return None;
            }
        }
    }
}
