//! Fuzz targets: requests to the metrics, the connection of a take-over, and answers of a daemon.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::Seats;

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![
        ("http", crate::metrics::fuzz::request),
        ("take_over", crate::control::take_over::fuzz::connection),
        ("seats", seats),
    ]
}

/// What is read of the seats of a daemon and written again is read as the same.
fn seats(input: &[u8]) {
    read_again::<Seats>(input);
    if let Ok(mut seats) = serde_json::from_slice::<Seats>(input) {
        assert!(seats.cores().is_sorted());
        assert!(seats.lanes_mut().count() <= input.len());
    }
}

fn read_again<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(input: &[u8]) {
    if let Ok(read) = serde_json::from_slice::<T>(input) {
        let written = serde_json::to_vec(&read).expect("JSON");
        assert_eq!(serde_json::from_slice::<T>(&written).expect("JSON of ours"), read);
    }
}
