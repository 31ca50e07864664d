//! What the programs of a generator remember from frame to frame: one value of one map, of words of 64 bits. They add
//! without locks, because all of them run on the thread that sends, with its softirqs held back.

use std::io;

use bpf::Map;

/// The key of the only value.
pub(crate) const KEY: [u8; 4] = [0; 4];

const WORD: i16 = 8;

/// How many frames the program has made, ever.
pub(crate) const RAN: i16 = 0;
/// How many of them the kernel has neither taken nor refused yet.
pub(crate) const IN_FLIGHT: i16 = WORD;
/// The core that makes them.
pub(crate) const CORE: i16 = 2 * WORD;
/// Where chance is.
pub(crate) const RANDOM: i16 = 3 * WORD;
/// Whose turn it is, and in which round.
pub(crate) const NEXT_FLOW: i16 = 4 * WORD;
pub(crate) const ROUND: i16 = 5 * WORD;
pub(crate) const SIZE_TURN: i16 = 6 * WORD;
/// The time of these frames, its part of the marks' sum, and the checksum of both clock words.
pub(crate) const TIME: i16 = 7 * WORD;
pub(crate) const TIME_PART: i16 = 8 * WORD;
pub(crate) const TIME_SUM: i16 = 9 * WORD;
/// The distance of the clocks, its part of the marks' sum, and its checksum.
pub(crate) const OFFSET: i16 = 10 * WORD;
pub(crate) const OFFSET_PART: i16 = 11 * WORD;
pub(crate) const OFFSET_SUM: i16 = 12 * WORD;
/// Payload bytes of the frames made.
pub(crate) const BYTES: i16 = 13 * WORD;
/// How many frames the driver has taken.
pub(crate) const TAKEN: i16 = 14 * WORD;

const WORDS: usize = 15;

/// All of it, as it is read and written between two runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramState([u64; WORDS]);

impl ProgramState {
    pub(crate) fn get(&self, place: i16) -> u64 {
        self.0[(place / WORD) as usize]
    }

    pub(crate) fn set(&mut self, place: i16, value: u64) {
        self.0[(place / WORD) as usize] = value;
    }

    /// The distance of the clocks, and what follows from it.
    pub(crate) fn set_offset(&mut self, offset: i64, factor: u64) {
        let offset = offset.cast_unsigned();
        let bytes = u64::from_ne_bytes(offset.to_le_bytes());
        self.set(OFFSET, offset);
        self.set(OFFSET_PART, factor.wrapping_mul(offset));
        self.set(OFFSET_SUM, (bytes & 0xffff_ffff) + (bytes >> 32));
    }

    pub(crate) fn create_map() -> io::Result<Map> {
        Map::array("framegen_state", WORDS * WORD as usize, 1)
    }

    pub(crate) fn read(map: &Map) -> io::Result<Self> {
        let mut bytes = [0; WORDS * WORD as usize];
        map.look_up(&KEY, &mut bytes)?;
        let mut state = Self::default();
        for (word, bytes) in state.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(state)
    }

    pub(crate) fn write(&self, map: &Map) -> io::Result<()> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
        map.update(&KEY, &bytes)
    }
}
