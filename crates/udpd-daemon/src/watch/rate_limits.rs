//! The lines about offences: one when a source begins to exceed the limit, one when it has stopped, with a count; and
//! one for all that are not named.
//!
//! Called once a second by the main thread, and a last time when the daemon ends. The number of lines has a bound that
//! no sender can move: places of a lane times two, in the time for which a place is kept.

use udpd_inspect::policy::{NAMED_MAX, Offences, Others};

/// Looks without a change that end an offence. Less than the time for which it keeps its place.
const QUIET_LOOKS: u32 = 10;

/// Looks between two lines about what is not named.
const OTHERS_EVERY: u32 = 10;

/// What was seen of the offences of one lane.
#[derive(Debug, Default)]
pub struct OffenceWatch {
    /// How the lane and its limit are called in a line.
    subject: String,
    limit: String,
    seen: [OffenceState; NAMED_MAX],
    others: Others,
    looks: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct OffenceState {
    number: u64,
    refused: u64,
    /// What had been refused when the offence began, which is not 0 when the source had paused only shortly.
    refused_before: u64,
    looks: u32,
    quiet_looks: u32,
    lasting: bool,
}

impl OffenceWatch {
    /// For a lane; `subject` and `limit` stand in its lines.
    pub fn new(subject: String, limit: String) -> Self {
        Self { subject, limit, ..Self::default() }
    }

    pub fn look(&mut self, offences: &Offences) -> Vec<String> {
        let mut lines = Vec::new();
        for (place, offence) in offences.read().into_iter().enumerate() {
            let Some(offence) = offence else { continue };
            let seen = &mut self.seen[place];
            if seen.number != offence.number {
                *seen = OffenceState { number: offence.number, ..OffenceState::default() };
            }
            let grown = offence.refused > seen.refused;
            if grown && !seen.lasting {
                *seen = OffenceState {
                    number: seen.number,
                    refused_before: seen.refused,
                    lasting: true,
                    ..OffenceState::default()
                };
                lines.push(format!(
                    "{}: {} exceeds {}; udpd drops the excess and counts it as rate_limited",
                    self.subject, offence.source, self.limit
                ));
            }
            seen.refused = offence.refused;
            seen.looks += 1;
            seen.quiet_looks = if grown { 0 } else { seen.quiet_looks + 1 };
            if seen.lasting && seen.quiet_looks >= QUIET_LOOKS {
                seen.lasting = false;
                lines.push(format!(
                    "{}: {} is within {} again; udpd dropped {} of its datagrams in about {} s",
                    self.subject,
                    offence.source,
                    self.limit,
                    seen.refused - seen.refused_before,
                    seen.looks - QUIET_LOOKS
                ));
            }
        }
        self.looks += 1;
        if self.looks >= OTHERS_EVERY {
            self.others(offences, &mut lines);
        }
        lines
    }

    /// The last lines: what still lasts, and what was never named.
    pub fn end(&mut self, offences: &Offences) -> Vec<String> {
        let mut lines = self.look(offences);
        for (seen, offence) in self.seen.iter().zip(offences.read()) {
            let Some(offence) = offence.filter(|_| seen.lasting) else { continue };
            lines.push(format!(
                "{}: {} exceeded {} until the end; udpd dropped {} of its datagrams",
                self.subject,
                offence.source,
                self.limit,
                offence.refused - seen.refused_before
            ));
        }
        self.others(offences, &mut lines);
        lines
    }

    fn others(&mut self, offences: &Offences, lines: &mut Vec<String>) {
        self.looks = 0;
        let before = std::mem::replace(&mut self.others, offences.others());
        let unnamed = self.others.unnamed - before.unnamed;
        if unnamed > 0 {
            lines.push(format!(
                "{}: other sources began {unnamed} times to exceed {}; the log names {NAMED_MAX} at a time; all are \
                 limited and counted",
                self.subject, self.limit
            ));
        }
        let unwatched = self.others.unwatched - before.unwatched;
        if unwatched > 0 {
            lines.push(format!(
                "{}: {unwatched} datagrams passed without a check of {}, because its table had no room for their \
                 sources; so many sources at once are mostly forged: filter them before this host",
                self.subject, self.limit
            ));
        }
    }
}

#[cfg(test)]
#[path = "rate_limits_tests.rs"]
mod tests;
