//! Text from values and values from text: what every crate that writes or reads text for people shares.

pub mod address;
pub mod advice;
pub mod base64;
pub mod roff;
pub mod tables;
pub mod units;
