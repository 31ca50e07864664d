//! When errors of files by source are logged. Ten thousand files fail together on a full disk, and one file may fail
//! once a second for a week: each kind of error is logged when it begins, at most once a minute while it lasts, and
//! once when it is over. The ledger counts meanwhile.

use std::time::Instant;

use udpd_base::logging::{INTERVAL, LogLimiter};

/// A kind of error of the file of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceError {
    /// It cannot be opened or written.
    Writing,
    /// It cannot be given the name of a finished one.
    Finishing,
}

/// By kind of error, the episode in which the file of a source has failed without a success since; 0: none.
pub(super) type FailingEpisodes = [u32; 2];

/// The errors of one kind, from the first until they are over.
#[derive(Debug)]
struct ErrorEpisode {
    /// The number of this episode, or of the next one.
    number: u32,
    /// How many sources have failed without a success since.
    sources: usize,
    /// The last error, until the episode is over.
    last: Option<Instant>,
    /// Limits the lines about its errors.
    limiter: LogLimiter,
    /// The episode was logged, so its end will be too.
    is_known: bool,
}

impl ErrorEpisode {
    fn new() -> Self {
        Self { number: 1, sources: 0, last: None, limiter: LogLimiter::default(), is_known: false }
    }

    /// Notes an error. Returns how many were left out of the log since the last line, if this one is to be logged.
    fn fail(&mut self, now: Instant) -> Option<u64> {
        self.last = Some(now);
        let passed = self.limiter.pass(now);
        self.is_known |= passed.is_some();
        passed
    }

    /// Notes a success. The episode is over when no failed source is left, or after [`INTERVAL`] without an error.
    /// Returns true when its end is to be logged.
    fn succeed(&mut self, now: Instant) -> bool {
        let Some(last) = self.last else { return false };
        if self.sources > 0 && now.duration_since(last) < INTERVAL {
            return false;
        }
        // Sources that have not succeeded belong to an earlier episode from now on.
        (self.number, self.sources, self.last) = (self.number.wrapping_add(1).max(1), 0, None);
        std::mem::take(&mut self.is_known)
    }
}

/// Decides what is logged about the files of one consumer.
#[derive(Debug)]
pub(super) struct SourcesErrorLog {
    faults: [ErrorEpisode; 2],
    shortage: ErrorEpisode,
    /// How many datagrams and bytes could not be written since the last logged recovery.
    lost: (u64, u64),
}

impl SourcesErrorLog {
    pub(super) fn new() -> Self {
        Self { faults: [ErrorEpisode::new(), ErrorEpisode::new()], shortage: ErrorEpisode::new(), lost: (0, 0) }
    }

    /// The file of a source has failed. Returns how many such errors were not logged, if this one is to be.
    pub(super) fn fail(&mut self, fault: SourceError, failing: &mut FailingEpisodes, now: Instant) -> Option<u64> {
        let episode = &mut self.faults[fault as usize];
        if std::mem::replace(&mut failing[fault as usize], episode.number) != episode.number {
            episode.sources += 1;
        }
        episode.fail(now)
    }

    /// The file of a source has succeeded.
    pub(super) fn succeed(&mut self, fault: SourceError, failing: &mut FailingEpisodes) {
        let episode = &mut self.faults[fault as usize];
        if std::mem::take(&mut failing[fault as usize]) == episode.number {
            episode.sources -= 1;
        }
    }

    /// A round of writing had no error; returns true when the end of the episode is to be logged.
    pub(super) fn is_over(&mut self, fault: SourceError, now: Instant) -> bool {
        self.faults[fault as usize].succeed(now)
    }

    /// There was no descriptor for a file; returns the same as [`SourcesErrorLog::fail`].
    pub(super) fn fail_descriptors(&mut self, now: Instant) -> Option<u64> {
        // All files share the descriptors, so no single file can end this episode, only a minute without an error.
        self.shortage.sources = 1;
        self.shortage.fail(now)
    }

    /// There were enough descriptors; returns true when the end of the episode is to be logged.
    pub(super) fn descriptors_recovered(&mut self, now: Instant) -> bool {
        self.shortage.succeed(now)
    }

    pub(super) fn add_lost(&mut self, (datagrams, bytes): (u64, u64)) {
        self.lost.0 += datagrams;
        self.lost.1 += bytes;
    }

    /// What was lost, to be logged now.
    pub(super) fn take_lost(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.lost)
    }

    /// At the end: what was lost since the last logged recovery, and whether the errors are over.
    pub(super) fn take_final(&mut self) -> Option<((u64, u64), bool)> {
        let episode = &self.faults[SourceError::Writing as usize];
        let (is_over, is_known) = (episode.last.is_none(), episode.is_known);
        (is_known || self.lost != (0, 0)).then(|| (self.take_lost(), is_over))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_error_every_second_is_logged_once_a_minute_with_a_count_and_once_when_it_is_over() {
        let (mut error_log, mut failing, start) = (SourcesErrorLog::new(), FailingEpisodes::default(), Instant::now());
        let mut said = Vec::new();
        for second in 0..150 {
            let now = start + SECOND * second;
            said.extend(error_log.fail(SourceError::Finishing, &mut failing, now).map(|times| (second, times)));
            // Another source succeeds meanwhile, which ends nothing.
            assert!(!error_log.is_over(SourceError::Finishing, now));
        }
        assert_eq!(said, [(0, 0), (60, 59), (120, 59)]);
        error_log.succeed(SourceError::Finishing, &mut failing);
        assert!(error_log.is_over(SourceError::Finishing, start + SECOND * 150));
        assert!(!error_log.is_over(SourceError::Finishing, start + SECOND * 151), "once");
    }

    #[test]
    fn errors_and_successes_in_turn_are_logged_no_more_often() {
        let (mut error_log, mut failing, start) = (SourcesErrorLog::new(), FailingEpisodes::default(), Instant::now());
        let (mut said, mut over) = (0, 0);
        for second in 0..600 {
            let now = start + SECOND * second;
            if second % 2 == 0 {
                said += u32::from(error_log.fail(SourceError::Writing, &mut failing, now).is_some());
                error_log.add_lost((1, 10));
            } else {
                error_log.succeed(SourceError::Writing, &mut failing);
                over += u32::from(error_log.is_over(SourceError::Writing, now));
            }
        }
        assert_eq!((said, over), (10, 10));
        assert_eq!(error_log.take_final(), Some(((300, 3000), true)), "nothing is left out");
        assert_eq!(error_log.take_final(), None);
    }

    #[test]
    fn a_source_that_never_comes_again_keeps_no_episode_open() {
        let (mut error_log, start) = (SourcesErrorLog::new(), Instant::now());
        let (mut gone, mut other) = (FailingEpisodes::default(), FailingEpisodes::default());
        assert_eq!(error_log.fail(SourceError::Writing, &mut gone, start), Some(0));
        assert_eq!(error_log.fail(SourceError::Writing, &mut other, start), None);
        error_log.succeed(SourceError::Writing, &mut other);
        assert!(!error_log.is_over(SourceError::Writing, start + SECOND * 59));
        assert!(error_log.is_over(SourceError::Writing, start + SECOND * 60));
        // It does come again, after the end of the episode.
        error_log.succeed(SourceError::Writing, &mut gone);
        assert_eq!(error_log.fail(SourceError::Writing, &mut other, start + SECOND * 61), Some(1));
        error_log.succeed(SourceError::Writing, &mut other);
        assert!(error_log.is_over(SourceError::Writing, start + SECOND * 62));
    }

    #[test]
    fn descriptors_are_enough_when_none_was_lacking_for_a_minute() {
        let (mut error_log, start) = (SourcesErrorLog::new(), Instant::now());
        assert!(!error_log.descriptors_recovered(start));
        assert_eq!((error_log.fail_descriptors(start), error_log.fail_descriptors(start)), (Some(0), None));
        assert!(!error_log.descriptors_recovered(start + SECOND * 59));
        assert!(error_log.descriptors_recovered(start + SECOND * 60));
    }
}
