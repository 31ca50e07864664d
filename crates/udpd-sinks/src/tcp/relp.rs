//! RELP, in which a server answers for every record: what a client says, and how it understands the answers.
//!
//! Each record is a transaction with a number, which is one more than that of the record before; a session begins with
//! number 1, its `open`. udpd writes numbers with nine digits, so records that are sent again get the numbers of the
//! next session in place. The specification wants answers in the order of the records, and a server that answers
//! otherwise is left: what it has not answered is sent again.

use std::io;

use crate::peer_trouble::{REASON_BYTES_MAX, shortened};

/// How many digits a number has as udpd writes it. No number may have more.
pub(super) const NUMBER_DIGITS: usize = 9;

/// What a frame has besides its payload, at most.
pub(super) const FRAME_BYTES: usize = NUMBER_DIGITS + " syslog 65535 \n".len();

/// The number of the first record of a session.
pub(super) const FIRST_RECORD: u32 = 2;

const NUMBER_MAX: u32 = 999_999_999;

/// The longest header of a frame: a number, a command of 32 letters and a length.
const HEADER_BYTES_MAX: usize = NUMBER_DIGITS + 1 + 32 + 1 + NUMBER_DIGITS;

/// How much of the data of a frame is understood; more is skipped.
const DATA_BYTES_KEPT: usize = 4096;

/// What opens a session. The version that servers speak is 0, whatever the specification says.
const OFFERS: &str = concat!("relp_version=0\nrelp_software=udpd,", env!("CARGO_PKG_VERSION"), "\ncommands=syslog");

/// The number that follows this one.
pub(super) fn after(number: u32) -> u32 {
    if number == NUMBER_MAX { 1 } else { number + 1 }
}

/// The number that comes before this one.
pub(super) fn before(number: u32) -> u32 {
    if number == 1 { NUMBER_MAX } else { number - 1 }
}

/// Writes a number with all its digits.
pub(super) fn write_number(digits: &mut [u8], mut number: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Appends a record as its transaction.
pub(super) fn append_record(bytes: &mut Vec<u8>, number: u32, payload: &[u8]) {
    let mut digits = [0; NUMBER_DIGITS];
    write_number(&mut digits, number);
    bytes.extend_from_slice(&digits);
    bytes.extend_from_slice(b" syslog ");
    super::append_digits(bytes, payload.len());
    if !payload.is_empty() {
        bytes.push(b' ');
        bytes.extend_from_slice(payload);
    }
    bytes.push(b'\n');
}

/// What a server says of the next record: it has it, or refuses it in these words.
pub(super) type RelpAnswer<'a> = Option<&'a str>;

/// A session, from the side of the client.
#[derive(Debug)]
pub(super) struct RelpSession {
    frames: FrameReader,
    pub(super) is_begun: bool,
    pub(super) is_open: bool,
    /// The last transaction that was answered.
    answered: u32,
}

impl RelpSession {
    pub(super) fn new() -> Self {
        Self { frames: FrameReader::new(), is_begun: false, is_open: false, answered: 0 }
    }

    /// What begins a session, the first time.
    pub(super) fn opening(&mut self) -> Option<String> {
        (!std::mem::replace(&mut self.is_begun, true)).then(|| format!("1 open {} {OFFERS}\n", OFFERS.len()))
    }

    /// What ends a session in which all is answered.
    pub(super) fn closing(&self) -> String {
        format!("{} close 0\n", after(self.answered))
    }

    /// Takes in what the server says. `answer` gets what it says of each record in turn, and returns false where none
    /// was sent.
    pub(super) fn hear(&mut self, mut bytes: &[u8], answer: &mut dyn FnMut(RelpAnswer<'_>) -> bool) -> io::Result<()> {
        while let Some((number, command)) = self.frames.next(&mut bytes)? {
            let data = std::mem::take(&mut self.frames.data);
            let outcome = self.understand((number, command), &data, answer);
            self.frames.data = data;
            self.frames.data.clear();
            outcome?;
        }
        Ok(())
    }

    fn understand(
        &mut self,
        (number, command): (u32, Command),
        data: &[u8],
        answer: &mut dyn FnMut(RelpAnswer<'_>) -> bool,
    ) -> io::Result<()> {
        match command {
            Command::ServerClose => return Err(io::ErrorKind::UnexpectedEof.into()),
            Command::Hint => return Ok(()),
            Command::Answer => {}
        }
        let expected = after(self.answered);
        if number != expected {
            return Err(broken(format!("it answers transaction {number}, and {expected} comes first")));
        }
        self.answered = number;
        let line = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let (code, text) = (line.get(..3).unwrap_or_default(), line.get(3..).unwrap_or_default());
        if !code.iter().all(u8::is_ascii_digit) || code.is_empty() || !matches!(text, [] | [b' ', ..]) {
            return Err(broken(format!("its answer to transaction {number} has no code such as 200")));
        }
        if !self.is_open {
            return self.open(code == b"200", &String::from_utf8_lossy(data));
        }
        let is_known = match code {
            b"200" => answer(None),
            _ => answer(Some(&format!("it answered {}", shortened(&String::from_utf8_lossy(line), REASON_BYTES_MAX)))),
        };
        match is_known {
            true => Ok(()),
            false => Err(broken(format!("it answers transaction {number}, which it was not sent"))),
        }
    }

    /// Looks at what the server offers.
    fn open(&mut self, is_welcome: bool, data: &str) -> io::Result<()> {
        let offer =
            |name: &str| data.lines().skip(1).find_map(|line| line.split_once('=').filter(|(own, _)| *own == name));
        if !is_welcome {
            return Err(broken(format!("it opens no session: {}", shortened(data, REASON_BYTES_MAX))));
        }
        if offer("relp_version").is_none() {
            return Err(broken("it names no version of RELP".to_owned()));
        }
        if !offer("commands").is_some_and(|(_, commands)| commands.split(',').any(|name| name.trim() == "syslog")) {
            return Err(broken("it takes no records: it does not offer the command syslog".to_owned()));
        }
        self.is_open = true;
        Ok(())
    }
}

/// The server does not keep to RELP.
fn broken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What a frame of a server may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Answer,
    ServerClose,
    /// One that may be ignored.
    Hint,
}

/// Puts frames together from what a server says in pieces of any length. It keeps as much as is understood.
#[derive(Debug)]
struct FrameReader {
    header: Vec<u8>,
    /// How many spaces are in it.
    spaces: usize,
    /// Of the frame whose header is whole: its number, what it is, and how much of its data is to come.
    begun: Option<(u32, Command, usize)>,
    data: Vec<u8>,
}

impl FrameReader {
    fn new() -> Self {
        let (header, data) = (Vec::with_capacity(HEADER_BYTES_MAX), Vec::with_capacity(DATA_BYTES_KEPT));
        Self { header, spaces: 0, begun: None, data }
    }

    /// Goes on to the end of a frame, whose data is in `data` then.
    fn next(&mut self, bytes: &mut &[u8]) -> io::Result<Option<(u32, Command)>> {
        loop {
            if let Some((number, command, left)) = &mut self.begun {
                let part = bytes.split_off(..bytes.len().min(*left)).unwrap_or_default();
                let room = DATA_BYTES_KEPT - self.data.len();
                self.data.extend_from_slice(&part[..part.len().min(room)]);
                *left -= part.len();
                let (Some(end), 0) = (bytes.first(), *left) else { return Ok(None) };
                if *end != b'\n' {
                    return Err(broken("a frame does not end where its length says".to_owned()));
                }
                let whole = (*number, *command);
                (*bytes, self.begun) = (&bytes[1..], None);
                return Ok(Some(whole));
            }
            let Some(byte) = bytes.first().copied() else { return Ok(None) };
            if self.spaces == 2 && matches!(byte, b' ' | b'\n') {
                self.begun = Some(parse_header(&self.header)?);
                self.header.clear();
                self.spaces = 0;
                if byte == b' ' {
                    *bytes = &bytes[1..];
                }
                continue;
            }
            let is_of_header = byte == b' ' || byte.is_ascii_alphanumeric();
            if !is_of_header || self.header.len() >= HEADER_BYTES_MAX {
                self.header.push(byte);
                return Err(no_relp(&self.header));
            }
            self.spaces += usize::from(byte == b' ');
            self.header.push(byte);
            *bytes = &bytes[1..];
        }
    }
}

fn no_relp(said: &[u8]) -> io::Error {
    let said = shortened(&String::from_utf8_lossy(said), HEADER_BYTES_MAX);
    broken(format!("what it says is no RELP, it begins with {said:?}; write the port at which it takes RELP"))
}

fn parse_header(header: &[u8]) -> io::Result<(u32, Command, usize)> {
    let text = std::str::from_utf8(header).map_err(|_| no_relp(header))?;
    let mut words = text.split(' ');
    let number = |words: &mut std::str::Split<'_, char>| -> io::Result<u32> {
        let word = words.next().filter(|word| (1..=NUMBER_DIGITS).contains(&word.len()));
        word.and_then(|word| word.parse().ok()).ok_or_else(|| no_relp(header))
    };
    let transaction = number(&mut words)?;
    let command = match (words.next().unwrap_or_default(), transaction) {
        ("serverclose", 0) => Command::ServerClose,
        (_, 0) => Command::Hint,
        ("rsp", _) => Command::Answer,
        _ => return Err(no_relp(header)),
    };
    Ok((transaction, command, number(&mut words)? as usize))
}

/// What a server says means the same in one piece and byte by byte, and no more is kept of it than is understood.
#[cfg(feature = "testing")]
pub(crate) fn fuzz(input: &[u8]) {
    let hear = |piece: usize| {
        let (mut session, mut told) = (RelpSession::new(), Vec::new());
        session.is_open = input.len().is_multiple_of(2);
        let mut answer = |answer: RelpAnswer<'_>| {
            told.push(answer.map(str::to_owned));
            told.len() < 4
        };
        let outcome = input.chunks(piece).try_for_each(|part| session.hear(part, &mut answer));
        assert!(session.frames.data.len() <= DATA_BYTES_KEPT && session.frames.header.len() <= HEADER_BYTES_MAX + 1);
        (outcome.map_err(|error| error.to_string()), told)
    };
    assert_eq!(hear(1), hear(input.len().max(1)));
}
