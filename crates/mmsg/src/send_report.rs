//! The outcomes of sending: why a datagram could not be queued, what was sent, what failed, and why a call ended.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::datagram::MAX_SEGMENTS;

/// Why a message was not queued. The batch is unchanged.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No slot is free: flush first.
    Full,
    /// The payload is longer than a slot.
    TooLong {
        /// Bytes of the payload.
        length: usize,
        /// Bytes of a slot.
        slot_bytes: usize,
    },
    /// A segment size of 0.
    EmptySegments,
    /// More segments than the kernel takes in one message.
    TooManySegments {
        /// Segments the payload would make.
        segments: usize,
    },
    /// A source of one family and a destination of the other.
    OtherFamily {
        /// The source address that was given.
        from: IpAddr,
        /// The destination that was given.
        to: SocketAddr,
    },
}

impl fmt::Display for PushError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PushError::Full => write!(formatter, "the send batch has no free slot: flush it first"),
            PushError::TooLong { length, slot_bytes } => write!(
                formatter,
                "a payload of {length} bytes does not fit into slots of {slot_bytes}: build the batch with longer slots"
            ),
            PushError::EmptySegments => write!(formatter, "segments of 0 bytes are not possible: give at least 1"),
            PushError::TooManySegments { segments } => write!(
                formatter,
                "the payload makes {segments} segments and the kernel takes {MAX_SEGMENTS}: \
                 use longer segments or less payload"
            ),
            PushError::OtherFamily { from, to } => write!(
                formatter,
                "a datagram to {to} cannot come from {from}: give a source of the same address family"
            ),
        }
    }
}

impl Error for PushError {}

/// For `?`: an error of the same text that holds this one, of kind `Other` for a full batch, which is not the fault of
/// the message, and `InvalidInput` for the rest.
impl From<PushError> for io::Error {
    fn from(error: PushError) -> io::Error {
        let kind = if error == PushError::Full { io::ErrorKind::Other } else { io::ErrorKind::InvalidInput };
        io::Error::new(kind, error)
    }
}

/// A message that was skipped, because the kernel refused it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFailure {
    /// Its place in the order of pushing, from 0 since the batch was last empty.
    pub index: usize,
    /// How many of its datagrams were not sent: all, or some of its segments.
    pub datagrams: usize,
    /// The error number, of the first of them.
    pub errno: i32,
}

impl SendFailure {
    /// The error that stands for [`errno`](Self::errno).
    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

impl fmt::Display for SendFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "message {} was not sent: {}; the others were tried", self.index, self.error())
    }
}

impl Error for SendFailure {}

/// For `?`: the error of the kernel, unchanged.
impl From<SendFailure> for io::Error {
    fn from(failure: SendFailure) -> io::Error {
        failure.error()
    }
}

/// What one flush has done. A message that the kernel refuses is skipped and counted here, so that it costs the others
/// nothing: look at [`failed`](Self::failed), or make an error of it with [`all_sent`](Self::all_sent).
///
/// ```
/// # if cfg!(miri) { return Ok::<(), std::io::Error>(()) } // an interpreter has no sockets
/// use mmsg::{Family, SendBatch, Socket};
///
/// let (sender, mut outgoing) = (Socket::new(Family::V4)?, SendBatch::new(2, 100)?);
/// outgoing.push(b"to port 0", Some(([127, 0, 0, 1], 0).into()))?;
/// outgoing.push(b"to port 9", Some(([127, 0, 0, 1], 9).into()))?;
/// let report = outgoing.flush(&sender)?;
/// assert_eq!((report.sent, report.failed), (1, 1));
/// assert!(report.all_sent().is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "messages that the kernel refused are counted in it and are no error: `.all_sent()?` makes them one"]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Messages sent: pushes, whether segmented or not.
    pub sent: usize,
    /// Datagrams sent: of a segmented message as many as it has segments.
    pub datagrams: usize,
    /// Messages skipped, in whole or in part. All are in [`SendBatch::failures`](crate::SendBatch::failures).
    pub failed: usize,
    /// The first of them.
    pub first_failure: Option<SendFailure>,
    /// System calls made, those that failed included.
    pub calls: usize,
    /// Whether the route has refused segmentation, now or before: from then on this batch sends segments one by one.
    pub segmentation_refused: bool,
}

impl SendReport {
    /// Makes an error of the first message that was skipped.
    pub fn all_sent(&self) -> Result<(), SendFailure> {
        self.first_failure.map_or(Ok(()), Err)
    }
}

/// A call that could not go on. What was not sent is still queued, and a later flush continues with it.
#[non_exhaustive]
#[derive(Debug)]
pub struct SendError {
    /// What was sent before the error.
    pub report: SendReport,
    /// The error that ended the call.
    pub error: io::Error,
}

impl SendError {
    /// How many messages were sent before.
    pub fn sent(&self) -> usize {
        self.report.sent
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "sendmmsg ended after {} messages: {}; the rest is still queued",
            self.report.sent, self.error
        )
    }
}

/// For `?`: the error of the kernel, unchanged. What was sent before is in [`SendError::report`].
impl From<SendError> for io::Error {
    fn from(failed: SendError) -> io::Error {
        failed.error
    }
}

impl Error for SendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_call_keeps_its_number_on_the_way_through_a_question_mark() {
        let failed = SendError { report: SendReport::default(), error: io::Error::from_raw_os_error(libc::ENOBUFS) };
        let through = || -> io::Result<SendReport> { Err(failed)? };
        assert_eq!(through().expect_err("an error").raw_os_error(), Some(libc::ENOBUFS));
    }

    #[test]
    fn a_push_that_is_refused_can_be_told_from_a_full_batch_after_a_question_mark() {
        let through = |error: PushError| -> io::Result<()> { Err(error)? };
        for refused in [PushError::EmptySegments, PushError::TooLong { length: 2, slot_bytes: 1 }] {
            let error = through(refused).expect_err("an error");
            assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::InvalidInput, refused.to_string()));
        }
        let full = through(PushError::Full).expect_err("an error");
        assert_eq!(full.get_ref().and_then(|inner| inner.downcast_ref()), Some(&PushError::Full));
        assert_ne!(full.kind(), io::ErrorKind::InvalidInput);
    }
}
