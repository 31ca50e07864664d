//! A fuzz target: what the other process says during a take-over.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::wire::Wire;
use super::{TakeOverMessage, refusal_in};

/// Each line is heard once, in its order, and the end is heard; what is heard and said again is heard as the same.
pub(crate) fn connection(input: &[u8]) {
    let (one, mut other) = UnixStream::pair().expect("a pair");
    let mut wire = Wire::new(one).expect("a wire");
    other.write_all(input).expect("room");
    other.shutdown(Shutdown::Write).expect("it can be shut");
    let lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")).collect();
    for line in lines {
        match (wire.hear(Duration::from_secs(5)), serde_json::from_slice::<TakeOverMessage>(line)) {
            (Ok(heard), Ok(said)) => {
                let text = serde_json::to_string(&heard).expect("JSON");
                assert_eq!(text, serde_json::to_string(&said).expect("JSON"));
                let again = serde_json::from_str::<TakeOverMessage>(&text).expect("JSON of ours");
                assert_eq!(serde_json::to_string(&again).expect("JSON"), text);
                let _ = refusal_in(heard);
            }
            (Err(error), Err(_)) => assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}"),
            (heard, said) => panic!("{heard:?} of {said:?}"),
        }
    }
    assert_eq!(wire.hear(Duration::from_secs(5)).expect_err("the end").kind(), ErrorKind::UnexpectedEof);
    assert!(wire.take_descriptors().is_empty());
}
