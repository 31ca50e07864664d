//! The format `lines`: one datagram, one line, and no sender can make two of one.
//!
//! The rules, in full: one newline at the end of a payload is dropped, because the line has its own. Then `\` becomes
//! `\\`, newline `\n`, carriage return `\r`, tab `\t`, and every other control byte (below 0x20, and 0x7f) `\xHH`. The
//! UTF-8 forms of what some readers take for an end of line, for a terminal command or for an order to show text
//! backwards are escaped byte by byte the same way: U+0080 to U+009F, U+061C, U+200E, U+200F, U+2028 to U+202E and
//! U+2066 to U+2069. So are the bytes 0x80 to 0x9f that belong to no character, which are commands to a terminal of
//! eight bits. All other bytes are written as they are, valid UTF-8 or not. A payload that was longer than `max_length`
//! ends with `\~` and its whole length in bytes, which no payload can forge, because its own backslash would be
//! doubled. [`unescape`] gives the payload back, but for that one newline.
//!
//! Most of a payload is ASCII, and is copied in blocks. Where something else comes, a few bytes are looked at one by
//! one: each is written by a table, without a question of what it is, and then it is tried with blocks again. So a
//! payload that is not text at all, which should not be written as lines but which any sender may send, costs little
//! more.

/// The most bytes that one payload byte can become, and the newline at the end.
pub const EXPANSION_MAX: usize = 4;

/// The most bytes of a character.
const CHARACTER_MAX: usize = 4;

/// The most bytes that a line has besides those of its payload: the mark of a truncated one, and the newline.
pub const MARK_MAX: usize = 24;

/// Appends the line of one payload. Writes at most `EXPANSION_MAX * payload.len() + 1` bytes.
pub fn append(line: &mut Vec<u8>, payload: &[u8]) {
    append_bytes(line, payload.strip_suffix(b"\n").unwrap_or(payload));
    line.push(b'\n');
}

/// Appends the line of a payload of which only the beginning was kept. `length` is how long the whole was. Writes at
/// most `EXPANSION_MAX * payload.len() + MARK_MAX` bytes.
pub fn append_truncated(line: &mut Vec<u8>, payload: &[u8], length: usize) {
    append_bytes(line, payload);
    line.extend_from_slice(b"\\~");
    let mut digits = [0; 20];
    let mut rest = length;
    let mut first = digits.len();
    while rest > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    line.extend_from_slice(&digits[first..]);
    line.push(b'\n');
}

fn append_bytes(line: &mut Vec<u8>, payload: &[u8]) {
    let mut rest = payload;
    while !rest.is_empty() {
        let (plain, after) = rest.split_at(plain_prefix(rest));
        line.extend_from_slice(plain);
        rest = match after {
            // A tab in a text stands alone.
            [byte, next, ..] if byte.is_ascii() && is_plain(*next) => {
                let written = ALONE[usize::from(*byte)];
                // Four bytes that are always four cost less than a question of how many they are.
                line.extend_from_slice(&written.text);
                line.truncate(line.len() - (EXPANSION_MAX - usize::from(written.length)));
                &after[1..]
            }
            _ => &after[append_some(line, after)..],
        };
    }
}

/// How many bytes are looked at one by one before it is tried with blocks again.
const LOOKED_AT: usize = 16;

/// The most that these become, with what a character has beyond them.
const BEGUN_MAX: usize = EXPANSION_MAX * (LOOKED_AT + CHARACTER_MAX - 1);

/// Appends what the first few bytes become, whatever they are. Returns how many they were: [`LOOKED_AT`], or a few more
/// where a character stands across that place.
fn append_some(line: &mut Vec<u8>, bytes: &[u8]) -> usize {
    let mut begun = Begun { text: [0; BEGUN_MAX], length: 0 };
    let mut taken = 0;
    while taken < bytes.len().min(LOOKED_AT) {
        let rest = &bytes[taken..];
        let length = if rest[0].is_ascii() { 0 } else { character_length(rest) };
        match length {
            0 => begun.push(ALONE[usize::from(rest[0])]),
            _ if is_unsafe(rest) => rest[..length].iter().for_each(|&byte| begun.push(EscapedByte::by_number(byte))),
            _ => rest[..length].iter().for_each(|&byte| begun.push(EscapedByte::new(&[byte]))),
        }
        taken += length.max(1);
    }
    line.extend_from_slice(&begun.text[..begun.length]);
    taken
}

/// How many bytes at the start are ASCII that needs no escape. Thirty-two at a time while all of them are.
fn plain_prefix(bytes: &[u8]) -> usize {
    let (blocks, _) = bytes.as_chunks::<32>();
    let is_plain_block = |block: &&[u8; 32]| block.iter().fold(true, |plain, byte| plain & is_plain(*byte));
    let length = 32 * blocks.iter().take_while(is_plain_block).count();
    let (words, _) = bytes[length..].as_chunks::<8>();
    let length = length + 8 * words.iter().take_while(|word| is_plain_ascii(u64::from_le_bytes(**word))).count();
    length + bytes[length..].iter().take_while(|byte| is_plain(**byte)).count()
}

/// ASCII that needs no escape.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') & (byte != b'\\')
}

/// True when none of the eight bytes is below 0x20, above 0x7e or a backslash. May say no wrongly, never yes.
fn is_plain_ascii(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let zero_byte = |word: u64| word.wrapping_sub(ONES) & !word;
    let below_space = word.wrapping_sub(ONES * 0x20);
    let delete = zero_byte(word ^ (ONES * 0x7f));
    let backslash = zero_byte(word ^ (ONES * 0x5c));
    (word | below_space | delete | backslash) & HIGHS == 0
}

/// How long the character of UTF-8 at the start is, which is not ASCII; 0 if there is none.
fn character_length(bytes: &[u8]) -> usize {
    match bytes {
        [0xc2..=0xdf, 0x80..=0xbf, ..] => 2,
        [0xe0, 0xa0..=0xbf, 0x80..=0xbf, ..]
        | [0xe1..=0xec | 0xee | 0xef, 0x80..=0xbf, 0x80..=0xbf, ..]
        | [0xed, 0x80..=0x9f, 0x80..=0xbf, ..] => 3,
        [0xf0, 0x90..=0xbf, 0x80..=0xbf, 0x80..=0xbf, ..]
        | [0xf1..=0xf3, 0x80..=0xbf, 0x80..=0xbf, 0x80..=0xbf, ..]
        | [0xf4, 0x80..=0x8f, 0x80..=0xbf, 0x80..=0xbf, ..] => 4,
        _ => 0,
    }
}

/// Whether the character at the start must be escaped.
fn is_unsafe(text: &[u8]) -> bool {
    matches!(
        text,
        [0xc2, 0x80..=0x9f, ..]
            | [0xd8, 0x9c, ..]
            | [0xe2, 0x80, 0x8e | 0x8f | 0xa8..=0xae, ..]
            | [0xe2, 0x81, 0xa6..=0xa9, ..]
    )
}

/// What a byte becomes: the first `length` bytes of `text`.
#[derive(Clone, Copy)]
struct EscapedByte {
    text: [u8; EXPANSION_MAX],
    length: u8,
}

impl EscapedByte {
    const fn new(text: &[u8]) -> Self {
        let mut whole = [0; EXPANSION_MAX];
        let (begin, _) = whole.split_at_mut(text.len());
        begin.copy_from_slice(text);
        Self { text: whole, length: text.len() as u8 }
    }

    const fn by_number(byte: u8) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        Self::new(&[b'\\', b'x', DIGITS[(byte >> 4) as usize], DIGITS[(byte & 15) as usize]])
    }

    /// Of a byte that is ASCII or belongs to no character.
    const fn alone(byte: u8) -> Self {
        match byte {
            b'\\' => Self::new(b"\\\\"),
            b'\n' => Self::new(b"\\n"),
            b'\r' => Self::new(b"\\r"),
            b'\t' => Self::new(b"\\t"),
            0..b' ' | 0x7f..=0x9f => Self::by_number(byte),
            _ => Self::new(&[byte]),
        }
    }
}

static ALONE: [EscapedByte; 256] = {
    let mut table = [EscapedByte::new(b""); 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = EscapedByte::alone(byte as u8);
        byte += 1;
    }
    table
};

/// The beginning of a line, in a place of its own: each byte is written with four, whatever it becomes.
struct Begun {
    text: [u8; BEGUN_MAX],
    length: usize,
}

impl Begun {
    fn push(&mut self, written: EscapedByte) {
        self.text[self.length..self.length + EXPANSION_MAX].copy_from_slice(&written.text);
        self.length += usize::from(written.length);
    }
}

/// How long the whole payload of a line was, when only its beginning is in the line.
pub fn truncated_from(line: &[u8]) -> Option<usize> {
    let digits = line.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (text, digits) = line.split_at(line.len() - digits);
    let before = text.strip_suffix(b"\\~")?;
    // An even number of backslashes in front is none: each pair of them is one in the payload.
    let backslashes = before.iter().rev().take_while(|&&byte| byte == b'\\').count();
    if backslashes % 2 == 1 {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The payload of a line (without its newline), or `None` when no payload has this line. Of a line that is marked as
/// truncated it is the beginning that was kept; [`truncated_from`] tells the rest.
pub fn unescape(line: &[u8]) -> Option<Vec<u8>> {
    let mut payload = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            payload.push(byte);
            continue;
        }
        let (&kind, after) = rest.split_first()?;
        rest = after;
        payload.push(match kind {
            b'\\' => b'\\',
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            b'~' => return (!rest.is_empty() && rest.iter().all(u8::is_ascii_digit)).then_some(payload),
            _ => return None,
        });
    }
    Some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(payload: &[u8]) -> Vec<u8> {
        let mut line = Vec::new();
        append(&mut line, payload);
        line
    }

    #[test]
    fn plain_text_is_written_as_it_is_and_its_newline_is_not_doubled() {
        assert_eq!(line(b"<34>su: failed"), b"<34>su: failed\n");
        assert_eq!(line(b"with newline\n"), b"with newline\n");
        assert_eq!(line(b""), b"\n");
        assert_eq!(line("grüße 世界".as_bytes()), "grüße 世界\n".as_bytes());
        assert_eq!(line(b"\xff\xfe"), b"\xff\xfe\n");
    }

    #[test]
    fn no_payload_can_forge_a_line_or_command_a_terminal() {
        assert_eq!(line(b"a\nb\n\n"), b"a\\nb\\n\n");
        assert_eq!(line(b"\x1b[2J\x00\x7f\r\t\\"), b"\\x1b[2J\\x00\\x7f\\r\\t\\\\\n");
        assert_eq!(
            line("\u{85}\u{9b}\u{2028}\u{2029}".as_bytes()),
            b"\\xc2\\x85\\xc2\\x9b\\xe2\\x80\\xa8\\xe2\\x80\\xa9\n"
        );
        assert_eq!(line("\u{a0}\u{2027}".as_bytes()), "\u{a0}\u{2027}\n".as_bytes());
        assert_eq!(line(b"\x9b31m \xff\x80"), b"\\x9b31m \xff\\x80\n", "commands to a terminal of eight bits");
        assert_eq!(line("帛\x1b".as_bytes()), "帛\\x1b\n".as_bytes(), "the byte 0x9b inside of a character is none");
        assert_eq!(line(&"帛".as_bytes()[1..]), b"\xb8\\x9b\n", "but without its first byte it is");
    }

    #[test]
    fn no_payload_can_show_text_in_another_order() {
        for character in
            ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}').chain("\u{200e}\u{200f}\u{61c}".chars())
        {
            let text = format!("user{character}x");
            let shown = String::from_utf8(line(text.as_bytes())).expect("UTF-8");
            assert!(shown.starts_with("user\\x") && shown.is_ascii(), "{shown}");
            assert_eq!(unescape(shown.trim_end().as_bytes()).as_deref(), Some(text.as_bytes()));
        }
        for near in ["\u{200d}", "\u{2010}", "\u{202f}", "\u{2065}", "\u{206a}", "\u{61b}", "\u{61d}"] {
            assert_eq!(line(near.as_bytes()), format!("{near}\n").as_bytes());
        }
    }

    #[test]
    fn a_truncated_payload_is_marked_with_its_length_and_no_payload_can_forge_the_mark() {
        let mut marked = Vec::new();
        append_truncated(&mut marked, b"begun\n", 9000);
        assert_eq!(marked, b"begun\\n\\~9000\n");
        let text = marked.strip_suffix(b"\n").expect("a newline");
        assert_eq!((truncated_from(text), unescape(text).as_deref()), (Some(9000), Some(b"begun\n".as_slice())));
        for forged in [b"x\\~9000".as_slice(), b"\\\\~12", b"~12", b"12"] {
            let line = line(forged);
            let text = line.strip_suffix(b"\n").expect("a newline");
            assert_eq!((truncated_from(text), unescape(text).as_deref()), (None, Some(forged)));
        }
    }

    /// Whether a terminal of UTF-8, or of eight bits where a byte is no UTF-8, does nothing but show it, in this order.
    fn is_harmless(line: &[u8]) -> bool {
        let is_command = |character: char| {
            character.is_control()
                || "\u{2028}\u{2029}\u{200e}\u{200f}\u{61c}".contains(character)
                || ('\u{202a}'..='\u{202e}').contains(&character)
                || ('\u{2066}'..='\u{2069}').contains(&character)
        };
        line.utf8_chunks().all(|chunk| {
            !chunk.valid().contains(is_command) && !chunk.invalid().iter().any(|byte| (0x80..0xa0).contains(byte))
        })
    }

    #[test]
    fn every_payload_comes_back_from_its_one_line() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let rounds = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
        for round in 0..rounds {
            let length = (next() % 40) as usize;
            let interesting = *b"\\\n\r\t\x00\x7f\xc2\x85\x9b\xe2\x80\x81\xa8\xae\xa6\x8e\xd8\x9c\xf0\x9fx";
            let payload: Vec<u8> = (0..length)
                .map(|_| match next() % 3 {
                    0 => interesting[(next() % interesting.len() as u64) as usize],
                    1 => b'a' + (next() % 26) as u8,
                    _ => next() as u8,
                })
                .collect();
            let line = line(&payload);
            assert!(line.len() <= EXPANSION_MAX * payload.len() + 1);
            let (&end, text) = line.split_last().expect("a line is never empty");
            assert_eq!(end, b'\n');
            assert!(is_harmless(text), "round {round}: {payload:x?} gave {text:x?}");
            let expected = payload.strip_suffix(b"\n").unwrap_or(&payload);
            assert_eq!(unescape(text).as_deref(), Some(expected), "round {round}");
        }
    }

    #[test]
    fn characters_are_found_where_the_standard_library_finds_them() {
        let leading = 0x80..=0xff_u8;
        let following = [0x00, 0x7f, 0x80, 0x8e, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff];
        for first in leading {
            for places in 0..following.len().pow(3) {
                let at = |place: u32| following[places / following.len().pow(place) % following.len()];
                let bytes = [first, at(0), at(1), at(2)];
                let valid = bytes.utf8_chunks().next().expect("not empty").valid();
                let length = valid.chars().next().map_or(0, char::len_utf8);
                assert_eq!(character_length(&bytes), length, "{bytes:x?}");
                let shorter = (1..length).map(|length| character_length(&bytes[..length])).sum::<usize>();
                assert_eq!(shorter, 0, "{bytes:x?} cut off");
            }
        }
    }

    #[test]
    fn the_eight_byte_look_agrees_with_the_one_byte_look_for_every_byte_in_every_place() {
        for byte in 0..=255_u8 {
            for place in 0..8 {
                let mut bytes = [b'a'; 8];
                bytes[place] = byte;
                let plain = is_plain(byte);
                assert_eq!(is_plain_ascii(u64::from_le_bytes(bytes)), plain, "{byte:#x} in place {place}");
            }
        }
    }
}
