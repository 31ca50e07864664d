//! Where everybody who wants something of the keeper of files asks for it: the consumers with their orders, those who
//! want it to go over to new files, and the thread that compresses with what it has done.

use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::compress::{Asker, Report};
use super::desk::Order;
use super::lookout::Bell;

/// How many wishes to go over to new files may wait.
pub(super) const REQUESTS_MAX: usize = 4;

/// What everybody who wants something of the keeper shares. The thread ends when the last consumer lets go of it.
#[derive(Debug)]
pub(super) struct Office {
    pub(super) orders: Sender<(usize, Order)>,
    pub(super) requests: Sender<Sender<Reopened>>,
    pub(super) reports: Sender<Report>,
    /// Declared after the senders: when it rings for the last time there is nobody left to send.
    pub(super) bell: Bell,
}

impl Office {
    pub(super) fn ring(&self) {
        self.bell.ring();
    }
}

impl Asker for Office {
    /// Where the keeper has ended the report is let go of.
    fn report(&self, report: Report) {
        let _ = self.reports.send(report);
        self.bell.ring();
    }
}

/// What became of the wish to go over to new files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reopened {
    /// How many files were begun in place of one that somebody had moved or removed; those are closed.
    pub begun: usize,
    /// How many files by source were left to whoever had moved or removed them; the next datagram of each source
    /// begins another one.
    pub left: usize,
    /// How many stay in use: nobody has moved them.
    pub stayed: usize,
    /// Which could not be begun, and why.
    pub refused: Vec<String>,
}

/// For those who want the sink to go over to new files.
#[derive(Debug, Clone)]
pub struct Reopener(Weak<Office>);

impl Reopener {
    pub(super) fn new(office: &Arc<Office>) -> Self {
        Self(Arc::downgrade(office))
    }

    /// Asks for it. The answer comes when the old files are closed, or never, when the sink has ended.
    pub fn ask(&self) -> Option<Receiver<Reopened>> {
        let office = self.0.upgrade()?;
        let (answer, answered) = bounded(1);
        office.requests.send(answer).ok()?;
        office.bell.ring();
        Some(answered)
    }
}
