//! How much is handed to the library at once where there is a spill.
//!
//! A broker takes or refuses a batch of the library as one: one that is too large is refused with every message in it.
//! Those that are small enough have to be sent again, before anything that came after them from the same sender. So the
//! sink hands messages over in rounds. A round is no more than one batch holds, the library waits a moment
//! (`linger.ms`) before it sends, and a round is over in less than that; hence each partition gets one batch of a
//! round, and nothing is under way behind a batch that is refused. The next round begins when everything of the last
//! one is reported. After a refusal it is half as large, down to one message for each round, which is then refused
//! alone. After rounds that are taken it grows again, so a limit that is raised is used without being told.

use std::time::{Duration, Instant};

use super::library::LINGER;

/// For how long messages of a round are handed over: well below the time after which the library sends.
const HAND_OVER: Duration = LINGER.checked_div(2).expect("2 is not 0");

/// How many messages are handed over between two looks at the clock.
const LOOK_EVERY: usize = 32;

/// How long no round is as large as one that was refused.
const MEMORY: Duration = Duration::from_secs(60);

/// What a round has still room for.
#[derive(Debug)]
pub(super) struct RoundLimit {
    begun: Instant,
    messages: usize,
    bytes: usize,
    is_over: bool,
    /// Whether more would have been handed over in a larger round.
    is_cut: bool,
}

/// How large the next round may be.
#[derive(Debug)]
pub(super) struct DeliveryRounds {
    /// What a batch of the library holds.
    bytes_max: usize,
    messages_max: usize,
    bytes: usize,
    /// How large a round was that was refused, and when.
    refused: Option<(usize, Instant)>,
    /// From which size on a message was refused alone.
    refused_alone: Option<usize>,
    last: Option<RoundLimit>,
}

impl DeliveryRounds {
    /// For a library whose batches hold so much. The first round is one message: it finds the topic and its leader.
    pub(super) fn new((bytes_max, messages_max): (usize, usize)) -> Self {
        Self { bytes_max, messages_max, bytes: 1, refused: None, refused_alone: None, last: None }
    }

    /// Begins a round.
    pub(super) fn begin(&self) -> RoundLimit {
        RoundLimit { begun: Instant::now(), messages: 0, bytes: 0, is_over: false, is_cut: false }
    }

    /// Whether a message of this size has a place in the round.
    pub(super) fn has_room(&self, room: &mut RoundLimit, size: usize) -> bool {
        let is_doubtful = self.refused_alone.is_some_and(|refused| size >= refused);
        let fits = !room.is_over && room.messages < self.messages_max && room.bytes + size <= self.bytes;
        if room.messages > 0 && (is_doubtful || !fits) {
            room.is_cut |= !room.is_over && !is_doubtful;
            return false;
        }
        room.messages += 1;
        room.bytes += size;
        let is_late = room.messages.is_multiple_of(LOOK_EVERY) && room.begun.elapsed() >= HAND_OVER;
        room.is_over |= is_doubtful || is_late;
        true
    }

    /// All of a round is handed over.
    pub(super) fn under_way(&mut self, room: RoundLimit) {
        self.last = Some(room);
    }

    /// Each message of the round was taken, or was refused alone.
    pub(super) fn went_well(&mut self, now: Instant) {
        self.refused.take_if(|(_, when)| now.saturating_duration_since(*when) >= MEMORY);
        let Some(room) = self.last.take().filter(|room| room.is_cut) else { return };
        let grown = (2 * self.bytes).max(room.bytes).min(self.bytes_max);
        if self.refused.is_none_or(|(refused, _)| grown < refused) {
            self.bytes = grown;
        }
    }

    /// A batch of the round was refused that had several messages.
    pub(super) fn was_refused(&mut self, now: Instant) {
        let bytes = self.last.take().map_or(self.bytes, |room| room.bytes);
        self.refused = Some((bytes, now));
        self.bytes = (self.bytes.min(bytes) / 2).max(1);
    }

    /// Something of the round came back, for no reason that has to do with its size.
    pub(super) fn was_broken(&mut self) {
        self.last = None;
    }

    /// Another client begins, which has to find the topic.
    pub(super) fn begin_anew(&mut self) {
        (self.last, self.bytes) = (None, 1);
    }

    /// Whether not all of the last round is reported.
    pub(super) fn is_under_way(&self) -> bool {
        self.last.is_some()
    }

    /// A message of this size was refused for it, alone.
    pub(super) fn was_refused_alone(&mut self, size: usize) {
        self.refused_alone = Some(self.refused_alone.map_or(size, |refused| refused.min(size)));
    }

    /// A message of this size was taken.
    pub(super) fn was_taken(&mut self, size: usize) {
        self.refused_alone.take_if(|refused| size >= *refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands messages of these sizes over; how many of them found a place.
    fn round(rounds: &mut DeliveryRounds, sizes: &[usize]) -> usize {
        let mut room = rounds.begin();
        // The clock is no matter here.
        room.begun += Duration::from_secs(3600);
        let taken = sizes.iter().take_while(|size| rounds.has_room(&mut room, **size)).count();
        rounds.under_way(room);
        taken
    }

    #[test]
    fn rounds_grow_while_they_are_taken_as_far_as_a_batch_holds() {
        let (mut rounds, now) = (DeliveryRounds::new((1_000, 8)), Instant::now());
        let mut counts = Vec::new();
        for _ in 0..9 {
            counts.push(round(&mut rounds, &[100; 20]));
            rounds.went_well(now);
        }
        assert_eq!(counts, [1, 1, 2, 4, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn a_round_that_is_refused_is_halved_down_to_one_message_and_grows_only_after_a_while_as_large_as_it_was() {
        let (mut rounds, now) = (DeliveryRounds { bytes: 800, ..DeliveryRounds::new((1_000, 100)) }, Instant::now());
        let mut counts = Vec::new();
        for _ in 0..4 {
            counts.push(round(&mut rounds, &[100; 20]));
            rounds.was_refused(now);
        }
        assert_eq!(counts, [8, 4, 2, 1]);
        let mut rounds = DeliveryRounds { bytes: 300, refused: Some((800, now)), ..rounds };
        for later in [0, 0, 60] {
            round(&mut rounds, &[100; 20]);
            rounds.went_well(now + Duration::from_secs(later));
        }
        assert_eq!(rounds.bytes, 1_000);
    }

    #[test]
    fn what_was_refused_alone_is_alone_until_one_of_its_size_is_taken() {
        let mut rounds = DeliveryRounds { bytes: 1_000, ..DeliveryRounds::new((1_000, 100)) };
        rounds.was_refused_alone(500);
        assert_eq!(round(&mut rounds, &[100, 100, 500, 100]), 2);
        assert_eq!(round(&mut rounds, &[500, 100]), 1);
        rounds.was_taken(500);
        assert_eq!(round(&mut rounds, &[500, 100]), 2);
    }
}
