//! What a terminal sends for a key, as far as `udpd top` has a use for it.
//!
//! crossterm would read keys as well; its events stand on mio, which is the poll of an async runtime and banned here.
//! These few are less than that.

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Help,
    Freeze,
    Sort,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    /// Another lane, while one is looked at from near.
    Next,
    Previous,
    Enter,
    Back,
}

/// The keys in what was read at once. A sequence arrives as a whole; what is unknown asks for nothing.
pub(super) fn parse(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        let (key, after) = match (first, rest) {
            (0x1b, [b'[' | b'O', sequence @ ..]) => after_escape(sequence),
            (0x1b, _) => (Some(Key::Back), rest),
            _ => (plain(first), rest),
        };
        keys.extend(key);
        bytes = after;
    }
    keys
}

fn plain(byte: u8) -> Option<Key> {
    Some(match byte {
        b'q' | b'Q' | 0x03 | 0x04 => Key::Quit,
        b'?' | b'h' => Key::Help,
        b' ' | b'p' => Key::Freeze,
        b's' => Key::Sort,
        b'k' => Key::Up,
        b'j' => Key::Down,
        b'\t' | b'n' => Key::Next,
        b'N' => Key::Previous,
        b'g' => Key::First,
        b'G' => Key::Last,
        b'\r' | b'\n' => Key::Enter,
        0x7f | 0x08 => Key::Back,
        _ => return None,
    })
}

/// What follows ESC [: parameters, and one byte that ends it.
fn after_escape(sequence: &[u8]) -> (Option<Key>, &[u8]) {
    let Some(end) = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte)) else { return (None, &[]) };
    let key = match (sequence[end], &sequence[..end]) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'C', _) => Some(Key::Enter),
        (b'D', _) => Some(Key::Back),
        (b'Z', _) => Some(Key::Previous),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::First),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::Last),
        _ => None,
    };
    (key, &sequence[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_arrows_and_escape_are_told_apart() {
        assert_eq!(parse(b"s?p"), [Key::Sort, Key::Help, Key::Freeze]);
        assert_eq!(parse(b"\x1b[A\x1b[B\x1bOA\x1b[1;5B"), [Key::Up, Key::Down, Key::Up, Key::Down]);
        assert_eq!(parse(b"\x1b"), [Key::Back]);
        assert_eq!(parse(b"\r\x1b[D\x1b[C"), [Key::Enter, Key::Back, Key::Enter]);
        assert_eq!(parse(b"\x1b[H\x1b[4~gG"), [Key::First, Key::Last, Key::First, Key::Last]);
        assert_eq!(parse(b"\x1b[5~\x1b[6~"), [Key::PageUp, Key::PageDown]);
        assert_eq!(parse(b"\tn\x1b[ZN"), [Key::Next, Key::Next, Key::Previous, Key::Previous]);
        assert_eq!(parse(b"\x03"), [Key::Quit]);
    }

    #[test]
    fn what_is_unknown_or_cut_off_asks_for_nothing() {
        assert_eq!(parse(b"\x1b[15~x\x1b[200"), []);
        assert_eq!(parse("é\u{1F600}".as_bytes()), []);
    }
}
