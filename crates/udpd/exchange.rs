//! One question, one answer, over a stream, by a deadline: what the control socket and the metrics endpoint share.
//!
//! Both serve one client at a time on one thread, which is all that such an endpoint needs as long as no client can
//! hold it. A timeout for each read is not enough for that: a client that sends a byte whenever the timeout is near
//! could stay for hours. Here the time that is left shrinks with each call, and the size of the question is limited
//! as well.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A connection whose reads and writes can be given a limit.
pub(crate) trait Stream: Read + Write {
    /// The longest that the next read and the next write may wait; never zero.
    fn set_timeout(&self, limit: Duration) -> io::Result<()>;
    /// Tells the peer that the answer is complete.
    fn end_of_answer(&self) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }

    fn end_of_answer(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for TcpStream {
    fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }

    fn end_of_answer(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// What came in place of a question.
#[derive(Debug)]
pub(crate) enum NoQuestion {
    /// More bytes than allowed, and no end in sight.
    TooLong,
    /// The peer left, was too slow, or the connection broke.
    Gone,
}

/// A connection and the moment at which it is over.
#[derive(Debug)]
pub(crate) struct Exchange<S> {
    stream: S,
    deadline: Instant,
}

impl<S: Stream> Exchange<S> {
    /// Gives the whole exchange this long from now.
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, deadline: Instant::now() + limit }
    }

    /// Reads until `end` says how many bytes the question has, and returns those; reads no more than `limit` bytes.
    pub(crate) fn question(
        &mut self,
        limit: usize,
        end: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<Vec<u8>, NoQuestion> {
        let mut question = Vec::new();
        let mut piece = [0; 1024];
        while question.len() < limit {
            let wanted = piece.len().min(limit - question.len());
            match self.read(&mut piece[..wanted]) {
                Ok(0) | Err(_) => return Err(NoQuestion::Gone),
                Ok(count) => question.extend_from_slice(&piece[..count]),
            }
            if let Some(length) = end(&question) {
                question.truncate(length);
                return Ok(question);
            }
        }
        Err(NoQuestion::TooLong)
    }

    /// Writes the answer and sees the peer off: what it still sends is read and forgotten, because closing a
    /// connection with unread bytes would take the answer away from it again.
    pub(crate) fn answer(mut self, answer: &[u8]) -> io::Result<()> {
        self.write_all(answer)?;
        self.stream.end_of_answer()?;
        let mut forgotten = [0; 1024];
        while self.read(&mut forgotten)? > 0 {}
        Ok(())
    }

    /// Reads all that the peer sends until it closes its side, at most `limit` bytes.
    pub(crate) fn read_to_end(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.read(&mut piece)? {
                0 => return Ok(bytes),
                count if bytes.len() + count > limit => {
                    return Err(io::Error::new(ErrorKind::InvalidData, format!("more than {limit} bytes")));
                }
                count => bytes.extend_from_slice(&piece[..count]),
            }
        }
    }

    /// Writes all of `bytes`.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.use_time_left()?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        loop {
            self.use_time_left()?;
            match self.stream.read(piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // This is how a socket reports that its timeout is over.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                outcome => return outcome,
            }
        }
    }

    fn use_time_left(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { self.stream.set_timeout(left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LONG_ENOUGH: Duration = Duration::from_secs(60);

    fn newline(bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|&byte| byte == b'\n')
    }

    #[test]
    fn a_question_may_come_in_pieces_and_ends_where_it_says() {
        let (server, mut client) = UnixStream::pair().unwrap();
        let asking = thread::spawn(move || {
            for piece in ["st", "at", "s\nand more"] {
                client.write_all(piece.as_bytes()).unwrap();
            }
            io::read_to_string(client).unwrap()
        });
        let mut exchange = Exchange::new(server, LONG_ENOUGH);
        assert_eq!(exchange.question(100, newline).unwrap(), b"stats");
        exchange.answer(b"here you are").unwrap();
        assert_eq!(asking.join().unwrap(), "here you are");
    }

    #[test]
    fn a_question_without_end_is_cut_off_at_the_limit() {
        let (server, mut client) = UnixStream::pair().unwrap();
        client.write_all(&[b'x'; 5000]).unwrap();
        assert!(matches!(Exchange::new(server, LONG_ENOUGH).question(4096, newline), Err(NoQuestion::TooLong)));
    }

    #[test]
    fn a_client_that_sends_a_little_now_and_then_is_gone_at_the_deadline() {
        let (server, mut client) = UnixStream::pair().unwrap();
        // Sends for as long as the server listens, always faster than any timeout of a single read.
        let dripping = thread::spawn(move || {
            while client.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let outcome = Exchange::new(server, Duration::from_millis(100)).question(1 << 20, newline);
        assert!(matches!(outcome, Err(NoQuestion::Gone)), "{outcome:?}");
        dripping.join().unwrap();
    }

    #[test]
    fn a_client_that_never_reads_is_gone_at_the_deadline() {
        let (server, _client) = UnixStream::pair().unwrap();
        let outcome = Exchange::new(server, Duration::from_millis(50)).answer(&vec![0; 8 << 20]);
        assert!(outcome.is_err());
    }
}
