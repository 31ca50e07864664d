//! `gro = "auto"`: when enough datagrams have been looked at to say whether they come in trains, the lanes are made
//! anew as a reload makes them, with `gro` or without the times of arrival that were taken to find out.
//!
//! Lanes that take trains need other memory than lanes that do not, and a socket that has begun to take them never goes
//! back. So it is decided once, for all lanes of a listener, and a reload of the file keeps what was decided. A restart
//! looks again, unless it goes on with sockets that take trains.

use std::sync::Arc;

use super::keeping::Housekeeping;
use crate::config::{Config, Gro, Listener};
use crate::pipeline::Kept;

impl Housekeeping<'_> {
    /// Once a second.
    pub(super) fn decide_on_trains(mut self) -> Self {
        let decisions = self.decisions();
        if decisions.is_empty() {
            return self;
        }
        let decided = |decide: fn(bool) -> bool| {
            // What there was to say of it has been said.
            let mut config = Config { warnings: Vec::new(), ..Config::clone(&self.config) };
            for &(index, is_worth_it) in &decisions {
                config.listeners[index].gro = Gro::Decided(decide(is_worth_it));
            }
            Arc::new(config)
        };
        let (config, as_it_is) = (decided(|is_worth_it| is_worth_it), decided(|_| false));
        let making = self.reloads.begin_anew(self.pipeline.forerunner(), config);
        match self.wait_for(making) {
            Ok(reread) => {
                let (next, done) = self.put_in_force(reread);
                log::info!("lanes made anew, {done}");
                next
            }
            Err(failure) => {
                log::warn!("gro stays off until udpd starts again, because lanes cannot be made anew: {failure}");
                self.config = as_it_is;
                self
            }
        }
    }

    /// The listeners that know now, by their index. Says why.
    fn decisions(&self) -> Vec<(usize, bool)> {
        // Past the kernel's stack there are no trains.
        let is_open = |listener: &Listener| listener.gro == Gro::Auto && !listener.is_past_the_stack();
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

/// A listener that is to find out goes on with what the process before has found out, as far as its sockets show that.
/// To make others in their place would be for nothing.
pub(super) fn go_on(config: &mut Config, kept: &Kept) {
    let is_known = |listener: &&mut Listener| listener.gro == Gro::Auto && kept.take_trains(&listener.name);
    config.listeners.iter_mut().filter(is_known).for_each(|listener| listener.gro = Gro::Decided(true));
}
