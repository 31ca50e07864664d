//! `gro = "auto"`: whether a listener receives with GRO, decided when enough datagrams have been looked at to say
//! whether they come in trains. The lanes are then made anew as a reload makes them, with `gro` or without the times of
//! arrival that were taken to find out.
//!
//! Lanes that take trains need other memory than lanes that do not, and a socket that has begun to take them never goes
//! back. So it is decided once, for all lanes of a listener, and a reload of the file keeps the decision. A restart and
//! a take-over look again, unless they go on with sockets that take trains: to make others in their place would lose
//! what arrives in between.

use std::path::Path;

use udpd_endpoint::control::Connection;
use udpd_engine::config::{Config, Gro, ListenerConfig};
use udpd_engine::pipeline::{InheritedSockets, Pipeline};

/// Whether it is not decided yet. Past the kernel's stack there are no trains.
pub(super) fn is_open(listener: &ListenerConfig) -> bool {
    listener.gro == Gro::Auto && !listener.is_past_the_stack()
}

/// The configuration with what can be decided now, if anything; logs why.
pub(super) fn decide(config: &Config, pipeline: &Pipeline) -> Option<Config> {
    let mut decided = None;
    for (index, listener) in config.listeners.iter().enumerate().filter(|(_, listener)| is_open(listener)) {
        let trains = pipeline.trains_of(index);
        let Some(is_worth_it) = trains.decide() else { continue };
        log::info!(
            "listener {}: gro is {} from now on: of {} datagrams looked at {} % came in trains, of {:.1} on average",
            listener.name,
            if is_worth_it { "on" } else { "off" },
            trains.datagrams,
            100 * trains.in_trains / trains.datagrams,
            trains.in_trains as f64 / trains.trains.max(1) as f64
        );
        decided.get_or_insert_with(|| config.clone()).listeners[index].gro = Gro::Decided(is_worth_it);
    }
    decided
}

/// Adopts what the process before has decided, as far as its sockets show it.
pub(super) fn adopt_from_sockets(config: &mut Config, sockets: &InheritedSockets) {
    adopt(config, |listener| sockets.have_gro(&listener.name));
}

/// The same from a daemon that still runs, which tells it. The sockets of one that does not answer are drained, and
/// others made in their place.
pub(super) fn adopt_from_daemon(config: &mut Config, control_socket: &Path) {
    let Ok(ledger) = Connection::open(control_socket).and_then(Connection::stats) else { return };
    let is_on = Gro::Decided(true).state();
    adopt(config, |listener| ledger.listeners.iter().any(|known| known.name == listener.name && known.gro == is_on));
}

fn adopt(config: &mut Config, takes_trains: impl Fn(&ListenerConfig) -> bool) {
    let open = config.listeners.iter_mut().filter(|listener| listener.gro == Gro::Auto);
    open.filter(|listener| takes_trains(listener)).for_each(|listener| listener.gro = Gro::Decided(true));
}
