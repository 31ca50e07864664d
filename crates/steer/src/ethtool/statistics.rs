//! What a driver counts by names of its own (`ethtool -S`).
//!
//! Names are asked for once and values every time, into the same memory. A driver may change how many there are, as
//! when queues are added; then both are to be asked for anew. Names are neither unique nor of one form, so their order
//! is kept.

use super::ioctl::{Ioctl, new_request};
use super::wire::{self, command};
use super::{Answer, wire_rules};
use crate::sys::Guarded;

/// More counters than any driver has.
const STATISTICS_MAX: u32 = 65_536;

/// The counters of one driver for one interface.
#[derive(Debug)]
pub struct DriverStatistics {
    interface: String,
    names: Vec<String>,
    request: Guarded,
}

impl DriverStatistics {
    /// Asks for the names. A driver without counters is not supported.
    pub fn new(ioctl: &Ioctl, interface: &str) -> Answer<Self> {
        let (names, count) = ioctl.names(interface, wire_rules::STATISTIC_NAMES, STATISTICS_MAX, "counters")?;
        let names: Vec<String> = wire_rules::names(names.bytes()).take(count as usize).collect();
        let request = new_request(command::GET_STATISTICS, wire_rules::STATISTICS_HEADER_BYTES + 8 * count as usize)?;
        Ok(Self { interface: interface.to_owned(), names, request })
    }

    /// In the order of the driver, without spaces around them.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Asks for the values. False when the driver has another number of counters by now.
    pub fn read(&mut self, ioctl: &Ioctl) -> Answer<bool> {
        let count = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        wire::put_u32(self.request.bytes_mut(), wire::COMMAND_AT, command::GET_STATISTICS);
        wire::put_u32(self.request.bytes_mut(), wire_rules::STATISTICS_COUNT_AT, count);
        let interface = &self.interface;
        ioctl.call(interface, &mut self.request, || format!("read the counters of the driver of {interface}"))?;
        // A kernel that knows better than to write more than there is room for says 0.
        Ok(wire::u32_at(self.request.bytes(), wire_rules::STATISTICS_COUNT_AT) == count)
    }

    /// The value of the counter at this place, as last read.
    pub fn value(&self, place: usize) -> u64 {
        wire::u64_at(self.request.bytes(), wire_rules::STATISTICS_HEADER_BYTES + 8 * place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethtool::EthtoolError;
    use crate::sys::seam;

    /// A driver with these counters, whose values are 1000 and up, until it has one more.
    fn driver(names: &'static [&'static str], grows_at: usize) -> seam::Driver {
        let mut readings = 0;
        Box::new(move |request| {
            match wire::u32_at(request, wire::COMMAND_AT) {
                command::COUNT_STRINGS => {
                    wire::put_u32(request, 16, u32::try_from(names.len()).expect("few"));
                }
                command::GET_STRINGS => {
                    for (place, name) in names.iter().enumerate() {
                        request[12 + 32 * place..][..name.len()].copy_from_slice(name.as_bytes());
                    }
                }
                command::GET_STATISTICS => {
                    readings += 1;
                    if readings == grows_at {
                        wire::put_u32(request, 4, 0);
                    }
                    for (place, value) in (0..names.len()).zip(1000..) {
                        wire::put_u64(request, 8 + 8 * place, value);
                    }
                }
                other => panic!("{other:#x} was not to be asked"),
            }
            Ok(())
        })
    }

    #[test]
    fn counters_keep_their_order_and_a_driver_that_has_more_of_them_is_noticed() {
        let ioctl = Ioctl::new().expect("a socket");
        seam::DRIVER.set(Some(driver(&["Rx Queue#", "  pkts rx OOB", "  pkts rx OOB"], 2)));
        let mut statistics = DriverStatistics::new(&ioctl, "any0").expect("counters");
        assert_eq!(statistics.names(), ["Rx Queue#", "pkts rx OOB", "pkts rx OOB"]);
        assert!(statistics.read(&ioctl).expect("values"));
        assert_eq!([0, 1, 2].map(|place| statistics.value(place)), [1000, 1001, 1002]);
        assert!(!statistics.read(&ioctl).expect("an answer"), "it has another number of counters by now");
    }

    #[test]
    fn what_has_no_counters_says_so() {
        let ioctl = Ioctl::new().expect("a socket");
        let error = DriverStatistics::new(&ioctl, "lo").expect_err("loopback has no driver");
        assert!(matches!(error, EthtoolError::NotSupported), "{error}");
    }
}
