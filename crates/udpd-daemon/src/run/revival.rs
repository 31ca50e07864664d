//! Engines for receive queues past the kernel's stack whose interface was removed and is back, or has more queues than
//! before: the lanes are made anew with the configuration that is in force, as a reload makes them, and nobody has to
//! ask for it. Until that has worked the sockets of the listener receive.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::keeping::Housekeeping;
use crate::watch::xdp_queues::Card;
use udpd_base::exit::{ExitCode, Failure};
use udpd_engine::config::Config;

/// `IFF_UP`
const IFF_UP: u32 = 1;

impl Housekeeping<'_> {
    /// Once a second.
    pub(super) fn revive_queues(mut self) -> Self {
        let due = self.due();
        if due.is_empty() {
            return self;
        }
        log::info!("listener {}: its interface has changed, and udpd makes all lanes anew", due.join(", "));
        // What there was to say of it has been said.
        let config = Arc::new(Config { warnings: Vec::new(), ..Config::clone(&self.config) });
        let making = self.reloads.begin_anew(self.pipeline.reload_context(), config);
        match self.wait_for(making) {
            Ok(reread) => {
                let (mut next, done) = self.put_in_force(reread, true);
                log::info!("lanes made anew, {done}");
                next.note_those_without(&due);
                next
            }
            Err(failure) => {
                due.iter().for_each(|listener| self.queues.note_failure(listener, &failure, Instant::now()));
                self
            }
        }
    }

    /// The listeners whose queues can get engines now: their program is at the interface.
    fn due(&mut self) -> Vec<String> {
        let Self { queues, pipeline, .. } = self;
        let now = Instant::now();
        let note = |listener: &str, state| pipeline.set_queue_state(listener, state);
        let mut due = queues.look(&pipeline.xdp_queues(), now, card, note);
        due.retain(|listener| {
            let attached = pipeline.reattach_xdp_program(listener);
            attached.map_err(|failure| queues.note_failure(listener, &failure, now)).is_ok()
        });
        due
    }

    /// An engine that could not be made is one more failure; why has been said.
    fn note_those_without(&mut self, due: &[String]) {
        let failure = Failure::new(ExitCode::Unavailable, "an engine could not be made, as was said before");
        let is_due = |listener: &String| due.contains(listener);
        for own in self.pipeline.xdp_queues().iter().filter(|own| is_due(&own.listener) && own.running < own.lanes) {
            self.queues.note_failure(&own.listener, &failure, Instant::now());
        }
    }
}

/// An interface as it is now.
fn card(interface: &str) -> Option<Card> {
    let index = nix::net::if_::if_nametoindex(interface).ok()?;
    let queues = steer::receive_queues(Path::new("/sys"), interface)?;
    let flags = fs::read_to_string(format!("/sys/class/net/{interface}/flags")).ok()?;
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
    Some(Card { index, queues, is_up: flags & IFF_UP != 0 })
}
