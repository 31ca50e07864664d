//! `gro = "auto"`: when enough datagrams have been looked at to say whether they come in trains, the lanes are made
//! anew as a reload makes them, with `gro` or without the times of arrival that were taken to find out.
//!
//! Lanes that take trains need other memory than lanes that do not, and a socket that has begun to take them never goes
//! back. So it is decided once, for all lanes of a listener, and a reload of the file keeps what was decided. A restart
//! and a take-over look again, unless they go on with sockets that take trains: to make others in their place would
//! lose what arrives in between.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::keeping::Housekeeping;
use udpd_endpoint::control::Connection;
use udpd_engine::config::{Config, Gro, ListenerConfig};
use udpd_engine::pipeline::InheritedSockets;

/// How long nothing is tried after lanes could not be made anew.
const PAUSE: Duration = Duration::from_secs(60);

/// How often it is looked whether there is something to decide: until then each datagram bears a time of arrival, and
/// that is what a receiver at its limit cannot spare.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Housekeeping<'_> {
    /// When that is to be done again; never where nothing is open.
    pub(super) fn next_look_at_trains(&self) -> Option<Instant> {
        let is_refused = self.trains_refused_at.is_some_and(|at| at.elapsed() < PAUSE);
        let is_open = !is_refused && self.config.listeners.iter().any(is_open);
        is_open.then(|| Instant::now() + LOOK_EVERY)
    }

    /// HelperOptions lanes anew for the listeners that know by now.
    pub(super) fn decide_on_trains(mut self) -> Self {
        if self.next_look_at_trains().is_none() {
            return self;
        }
        let decisions = self.decisions();
        if decisions.is_empty() {
            return self;
        }
        // What there was to say of it has been said.
        let mut config = Config { warnings: Vec::new(), ..Config::clone(&self.config) };
        decisions.iter().for_each(|&(index, is_worth_it)| config.listeners[index].gro = Gro::Decided(is_worth_it));
        let making = self.reloads.begin_anew(self.pipeline.reload_context(), Arc::new(config));
        match self.wait_for(making) {
            Ok(reread) => {
                let (next, done) = self.put_in_force(reread, true);
                log::info!("lanes made anew, {done}");
                next
            }
            // The end came first, and there are no lanes to be made.
            Err(_) if self.inbox.is_told_to_end(Duration::ZERO) => self,
            Err(failure) => {
                log::warn!(
                    "gro stays as it is, because lanes cannot be made anew: {failure}; udpd tries again in {} s",
                    PAUSE.as_secs()
                );
                self.trains_refused_at = Some(Instant::now());
                self
            }
        }
    }

    /// The listeners that know now, by their index. Says why.
    fn decisions(&self) -> Vec<(usize, bool)> {
        let open = self.config.listeners.iter().enumerate().filter(|(_, listener)| is_open(listener));
        let decide = |(index, name): (usize, &str)| {
            let trains = self.pipeline.trains_of(index);
            let is_worth_it = trains.decide()?;
            let (decision, percent) =
                (if is_worth_it { "on" } else { "off" }, 100 * trains.in_trains / trains.datagrams);
            log::info!(
                "listener {name}: gro is {decision} from now on: of {} datagrams looked at {percent} % came in trains, \
                 of {:.1} on average",
                trains.datagrams,
                trains.in_trains as f64 / trains.trains.max(1) as f64
            );
            Some((index, is_worth_it))
        };
        open.filter_map(|(index, listener)| decide((index, &listener.name))).collect()
    }
}

/// Past the kernel's stack there are no trains.
fn is_open(listener: &ListenerConfig) -> bool {
    listener.gro == Gro::Auto && !listener.is_past_the_stack()
}

/// Listeners that are to find out go on with what the process before has found out, as far as its sockets show that.
pub(super) fn go_on(config: &mut Config, kept: &InheritedSockets) {
    know(config, |listener| kept.have_gro(&listener.name));
}

/// The same after a process that still runs and says it itself. One that does not answer has its sockets drained and
/// others made in their place.
pub(super) fn go_on_after(config: &mut Config, control_socket: &Path) {
    let Ok(ledger) = Connection::open(control_socket).and_then(Connection::stats) else { return };
    let is_on = Gro::Decided(true).state();
    know(config, |listener| ledger.listeners.iter().any(|known| known.name == listener.name && known.gro == is_on));
}

fn know(config: &mut Config, takes_trains: impl Fn(&ListenerConfig) -> bool) {
    let open = config.listeners.iter_mut().filter(|listener| listener.gro == Gro::Auto);
    open.filter(|listener| takes_trains(listener)).for_each(|listener| listener.gro = Gro::Decided(true));
}
