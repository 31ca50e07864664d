//! The keeper and the thread that compresses: which file it gets next, and what becomes of what it brings back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::compress::{Job, Jobs, Report, Whose};
use super::Work;

impl Work {
    /// Brings the thread the next file of each path that has none with it.
    pub(super) fn offer(&mut self) {
        let Some(jobs) = self.jobs.clone() else { return };
        let now = Instant::now();
        for index in 0..self.rooms.len() {
            let Some((file, recipe, boundary)) = self.room(index).and_then(|room| room.offer(now)) else { continue };
            let (whose, asker) = (Whose::Room(index), self.office.clone());
            jobs.bring(Job { file, recipe, boundary, whose, latch: None, asker });
        }
        if self.is_in_force.load(Ordering::Acquire) {
            self.offer_of_sources(&jobs, now);
        }
    }

    fn offer_of_sources(&mut self, jobs: &Jobs, now: Instant) {
        for (index, tenant) in self.annexes.iter_mut().enumerate() {
            let Some(tenant) = tenant else { continue };
            let Some(piles) = &mut tenant.piles else { continue };
            let Some(file) = piles.offer(&tenant.annex, now) else { continue };
            let (recipe, boundary) = (piles.recipe(), piles.boundary());
            let (whose, asker, latch) = (Whose::Annex(index), self.office.clone(), Some(tenant.annex.latch()));
            jobs.bring(Job { file, recipe, boundary, whose, latch, asker });
        }
    }

    /// Takes back what the thread has done. What belongs to nobody any more is let go of, and is removed by that.
    pub(super) fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            match report.whose {
                Whose::Room(index) => {
                    if let Some(room) = self.room(index) {
                        room.take_report(report);
                    }
                }
                Whose::Annex(index) => self.take_report_of_source(index, report),
            }
        }
    }

    fn take_report_of_source(&mut self, index: usize, report: Report) {
        let tenant = self.annexes.get_mut(index).and_then(Option::as_mut);
        if let Some(tenant) = tenant
            && let Some(piles) = &mut tenant.piles
        {
            piles.take_report(&Arc::clone(&tenant.annex), report);
        }
    }

    /// When the next file may be brought, if nothing else happens.
    pub(super) fn offers_at(&mut self) -> Option<Instant> {
        self.jobs.as_ref()?;
        let now = Instant::now();
        let of_rooms = self.rooms().filter_map(|(_, room)| room.offers_at(now)).min();
        let piles = self.annexes.iter().flatten().filter_map(|tenant| tenant.piles.as_ref());
        let is_in_force = self.is_in_force.load(Ordering::Acquire);
        let of_sources = piles.filter_map(|piles| piles.offers_at(now, is_in_force)).min();
        [of_rooms, of_sources].into_iter().flatten().min()
    }
}
