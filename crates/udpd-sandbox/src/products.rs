//! What is made with a right and handed over as a descriptor: by this process, or by its warden where this one has
//! given the right up. Either way it is this process that uses it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;

use mmsg::{SourceShape, xdp};

/// The most descriptors that something is made of.
pub const PARTS_MAX: usize = 4;

/// What can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// A socket for a receive queue past the kernel's stack, which takes CAP_NET_RAW.
    QueueSocket,
    /// An array for a filter of sources: how many numbers a value has, and how many values there are. It takes CAP_BPF,
    /// and so does the next.
    Array { numbers: u32, entries: u32 },
    /// The program of such a filter, of its arrays.
    Filter(SourceShape),
}

impl Product {
    /// Makes it, with the rights that this process has.
    pub fn make(self, parts: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
        match self {
            Self::QueueSocket => xdp::socket().map_err(io::Error::from),
            Self::Array { numbers, entries } => mmsg::make_array(numbers, entries),
            Self::Filter(shape) => mmsg::load_program(&shape, parts),
        }
    }
}

/// As it is sent.
impl fmt::Display for Product {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueSocket => formatter.write_str("make queue_socket"),
            Self::Array { numbers, entries } => write!(formatter, "make array {numbers} {entries}"),
            Self::Filter(SourceShape { v4_first, v4_turns, v6_first, v6_turns, queues }) => {
                write!(formatter, "make filter {v4_first} {v4_turns} {v6_first} {v6_turns}")?;
                queues.iter().try_for_each(|queues| write!(formatter, " {queues}"))
            }
        }
    }
}

impl FromStr for Product {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        fn value<T: FromStr>(text: &str) -> Result<T, ()> {
            text.parse().map_err(drop)
        }
        match text.strip_prefix("make ").ok_or(())?.split(' ').collect::<Vec<_>>()[..] {
            ["queue_socket"] => Ok(Self::QueueSocket),
            ["array", numbers, entries] => Ok(Self::Array { numbers: value(numbers)?, entries: value(entries)? }),
            ["filter", v4_first, v4_turns, v6_first, v6_turns, ref queues @ ..] => {
                let queues = match queues {
                    [] => None,
                    [queues] => Some(value(queues)?),
                    _ => return Err(()),
                };
                Ok(Self::Filter(SourceShape {
                    v4_first: value(v4_first)?,
                    v4_turns: value(v4_turns)?,
                    v6_first: value(v6_first)?,
                    v6_turns: value(v6_turns)?,
                    queues,
                }))
            }
            _ => Err(()),
        }
    }
}

/// Descriptors for a moment.
pub fn borrowed(parts: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    parts.iter().map(AsFd::as_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_made_arrives_as_it_was_sent() {
        let shape = |queues| SourceShape { v4_first: true, v4_turns: 4_194_304, v6_first: false, v6_turns: 0, queues };
        for product in [
            Product::QueueSocket,
            Product::Array { numbers: 2, entries: u32::MAX },
            Product::Filter(shape(None)),
            Product::Filter(shape(Some(1023))),
        ] {
            assert!(product.to_string().len() <= 128, "the longest message");
            assert_eq!(product.to_string().parse(), Ok(product));
        }
        for text in ["", "make", "make array 1", "make array -1 1", "make filter true 1 true 1 1 1", "array 1 1"] {
            assert_eq!(text.parse::<Product>(), Err(()), "{text:?}");
        }
    }
}
