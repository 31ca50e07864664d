//! What the programs of a generator remember from frame to frame: one value of one map, of words of 64 bits. They add
//! without locks, because all of them run on the thread that sends, with its softirqs held back.

use std::io;

use crate::bpf::calls::{Map, Shape, name};

/// `BPF_MAP_TYPE_ARRAY`
pub(super) const MAP_TYPE_ARRAY: u32 = 2;

/// The key of the only value.
pub(super) const KEY: [u8; 4] = [0; 4];

const WORD: i16 = 8;

/// How many frames the program has made, ever.
pub(super) const RAN: i16 = 0;
/// How many of them the kernel has neither taken nor refused yet.
pub(super) const IN_FLIGHT: i16 = WORD;
/// The core that makes them.
pub(super) const CORE: i16 = 2 * WORD;
/// Where chance is.
pub(super) const RANDOM: i16 = 3 * WORD;
/// Whose turn it is, and in which round.
pub(super) const NEXT_FLOW: i16 = 4 * WORD;
pub(super) const ROUND: i16 = 5 * WORD;
pub(super) const SIZE_TURN: i16 = 6 * WORD;
/// The time of these frames, its part of the marks' sum, and the checksum of both clock words.
pub(super) const TIME: i16 = 7 * WORD;
pub(super) const TIME_PART: i16 = 8 * WORD;
pub(super) const TIME_SUM: i16 = 9 * WORD;
/// The distance of the clocks, its part of the marks' sum, and its checksum.
pub(super) const OFFSET: i16 = 10 * WORD;
pub(super) const OFFSET_PART: i16 = 11 * WORD;
pub(super) const OFFSET_SUM: i16 = 12 * WORD;
/// Payload bytes of the frames made.
pub(super) const BYTES: i16 = 13 * WORD;
/// How many frames the driver has taken.
pub(super) const TAKEN: i16 = 14 * WORD;

const WORDS: usize = 15;

/// All of it, as it is read and written between two runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State([u64; WORDS]);

impl State {
    pub(super) fn get(&self, place: i16) -> u64 {
        self.0[(place / WORD) as usize]
    }

    pub(super) fn set(&mut self, place: i16, value: u64) {
        self.0[(place / WORD) as usize] = value;
    }

    /// The distance of the clocks, and what follows from it.
    pub(super) fn set_offset(&mut self, offset: i64, factor: u64) {
        let offset = offset.cast_unsigned();
        let bytes = u64::from_ne_bytes(offset.to_le_bytes());
        self.set(OFFSET, offset);
        self.set(OFFSET_PART, factor.wrapping_mul(offset));
        self.set(OFFSET_SUM, (bytes & 0xffff_ffff) + (bytes >> 32));
    }

    pub(super) fn create_map() -> io::Result<Map> {
        Map::create(&Shape {
            kind: MAP_TYPE_ARRAY,
            key_bytes: 4,
            value_bytes: (WORDS * WORD as usize) as u32,
            entries: 1,
            flags: 0,
            name: name("mmsg_frames"),
        })
    }

    pub(super) fn read(map: &Map) -> io::Result<Self> {
        let mut bytes = [0; WORDS * WORD as usize];
        map.look_up(&KEY, &mut bytes)?;
        let mut state = Self::default();
        for (word, bytes) in state.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(state)
    }

    pub(super) fn write(&self, map: &Map) -> io::Result<()> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
        map.update(&KEY, &bytes)
    }
}
