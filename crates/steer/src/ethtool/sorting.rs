//! The ioctls for rules and features, which take several calls each: a table is counted before it is listed, and a
//! feature is a bit whose place changes from kernel to kernel, so that its name is looked up every time.

use std::os::fd::AsFd;

use super::ioctl::{Ioctl, bounded, explain, new_request};
use super::wire::{self, command};
use super::{Answer, EthtoolError, Feature, Rule, Rules, wire_rules};
use crate::sys::{self, Guarded};

/// How often a table is listed that changes while it is listed.
const ATTEMPTS: usize = 5;

impl Ioctl {
    pub(super) fn list_rules(&self, interface: &str) -> Answer<Rules> {
        'listing: for _ in 0..ATTEMPTS {
            let counted = self.ask(interface, command::COUNT_RULES, wire::RXNFC_BYTES, "the number of rules")?;
            let count = bounded(wire_rules::rule_count(counted.bytes()), wire_rules::RULES_MAX, "rules", interface)?;
            let bytes = (wire_rules::PLACES_AT + 4 * count as usize).max(wire::RXNFC_BYTES);
            let mut request = new_request(command::LIST_RULES, bytes)?;
            wire_rules::put_rule_count(request.bytes_mut(), count);
            match sys::ethtool(self.socket().as_fd(), interface, &mut request) {
                // More rules than there is room for: one came in between.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => continue,
                result => result.map_err(|cause| explain(cause, || format!("list the rules of {interface}")))?,
            }
            let listed = wire_rules::rule_count(request.bytes()).min(count) as usize;
            let mut taken = Vec::with_capacity(listed);
            for place in wire::table(request.bytes(), wire_rules::PLACES_AT, listed) {
                match self.rule_at(interface, place)? {
                    Some(rule) => taken.push((place, rule)),
                    None => continue 'listing,
                }
            }
            taken.sort_by_key(|(place, _)| *place);
            // Some drivers tell the number of places with the count, some with the list, some never.
            let told = [counted.bytes(), request.bytes()].map(|bytes| wire::u64_at(bytes, wire::DATA_AT));
            let places = told.map(|data| data & !wire_rules::DRIVER_CHOOSES);
            let places = places.into_iter().find(|&places| places > 0).and_then(|places| u32::try_from(places).ok());
            let driver_chooses = told.iter().any(|data| data & wire_rules::DRIVER_CHOOSES != 0);
            return Ok(Rules { places, driver_chooses, taken });
        }
        Err(EthtoolError::Failed {
            operation: format!("list the rules of {interface}"),
            cause: std::io::Error::other(format!("they changed {ATTEMPTS} times while they were listed")),
        })
    }

    /// What is at a place: `None` when nothing is any more, `Some(None)` when a [`Rule`] cannot express it. Drivers say
    /// either of two things of a place where nothing is: ixgbe that the question is wrong.
    fn rule_at(&self, interface: &str, place: u32) -> Answer<Option<Option<Rule>>> {
        let mut request = new_request(command::GET_RULE, wire::RXNFC_BYTES)?;
        wire_rules::put_place(request.bytes_mut(), place);
        match self.call(interface, &mut request, || format!("read the rule at place {place} of {interface}")) {
            Err(EthtoolError::Failed { cause, .. })
                if matches!(cause.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) =>
            {
                Ok(None)
            }
            result => result.map(|()| Some(wire_rules::rule(request.bytes()))),
        }
    }

    pub(super) fn add_rule(&self, interface: &str, rule: &Rule, place: Option<u32>) -> Answer<u32> {
        let mut request = new_request(command::INSERT_RULE, wire::RXNFC_BYTES)?;
        wire_rules::put_rule(request.bytes_mut(), rule, place);
        let doing = || {
            let Rule { family, port, queue, .. } = rule;
            format!("let {interface} send UDP over {family} to port {port} to queue {queue}")
        };
        self.call(interface, &mut request, doing)?;
        Ok(wire_rules::place(request.bytes()))
    }

    pub(super) fn remove_rule(&self, interface: &str, place: u32) -> Answer<()> {
        let mut request = new_request(command::DELETE_RULE, wire::RXNFC_BYTES)?;
        wire_rules::put_place(request.bytes_mut(), place);
        self.call(interface, &mut request, || format!("delete the rule at place {place} of {interface}"))
    }

    /// The bit of a feature and how many words hold all of them.
    fn find_feature(&self, interface: &str, name: &str) -> Answer<(usize, usize)> {
        let (names, count) = self.names(interface, wire_rules::FEATURE_NAMES, wire_rules::FEATURES_MAX, "features")?;
        let bit = wire_rules::bit_named(names.bytes(), name).ok_or(EthtoolError::NotSupported)?;
        Ok((bit, wire_rules::feature_words(count)))
    }

    /// The names of a set, as the driver answers them, and how many they are.
    pub(super) fn names(&self, interface: &str, set: u32, most: u32, what: &str) -> Answer<(Guarded, u32)> {
        let mut sets = new_request(command::COUNT_STRINGS, wire_rules::STRING_COUNT_BYTES)?;
        wire_rules::put_string_set(sets.bytes_mut(), set);
        self.call(interface, &mut sets, || format!("count the {what} of {interface}"))?;
        let count = bounded(wire_rules::string_count(sets.bytes(), set), most, what, interface)?;
        let mut names = new_request(command::GET_STRINGS, wire_rules::names_bytes(count))?;
        wire_rules::put_name_count(names.bytes_mut(), set, count);
        self.call(interface, &mut names, || format!("read the names of the {what} of {interface}"))?;
        Ok((names, count))
    }

    pub(super) fn read_feature(&self, interface: &str, name: &str) -> Answer<Feature> {
        let (bit, words) = self.find_feature(interface, name)?;
        let bytes = wire_rules::FEATURES_HEADER_BYTES + wire_rules::GET_BLOCK_BYTES * words;
        let mut request = new_request(command::GET_FEATURES, bytes)?;
        wire_rules::put_feature_words(request.bytes_mut(), words);
        self.call(interface, &mut request, || format!("read the features of {interface}"))?;
        Ok(wire_rules::feature(request.bytes(), bit))
    }

    pub(super) fn write_feature(&self, interface: &str, name: &str, on: bool) -> Answer<()> {
        let (bit, words) = self.find_feature(interface, name)?;
        let bytes = wire_rules::FEATURES_HEADER_BYTES + wire_rules::SET_BLOCK_BYTES * words;
        let mut request = new_request(command::SET_FEATURES, bytes)?;
        wire_rules::put_feature_words(request.bytes_mut(), words);
        wire_rules::put_feature(request.bytes_mut(), bit, on);
        let doing = || format!("turn {name} of {interface} {}", if on { "on" } else { "off" });
        // The kernel answers a wish that the driver does not follow with a flag and no error; reading it back tells.
        self.call(interface, &mut request, doing)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::sys::seam;

    /// A driver with rules at places 3 and 5, of which the one at 5 goes at this reading of a rule, with this answer.
    fn driver_that_loses_a_rule(reading: usize, errno: i32) -> seam::Driver {
        let (mut readings, mut is_there) = (0, true);
        Box::new(move |request| {
            match wire::u32_at(request, wire::COMMAND_AT) {
                command::COUNT_RULES => wire_rules::put_rule_count(request, if is_there { 2 } else { 1 }),
                command::LIST_RULES => {
                    wire_rules::put_rule_count(request, if is_there { 2 } else { 1 });
                    wire::put_u32(request, wire_rules::PLACES_AT, 3);
                    if is_there {
                        wire::put_u32(request, wire_rules::PLACES_AT + 4, 5);
                    }
                }
                command::GET_RULE => {
                    readings += 1;
                    is_there &= readings != reading;
                    if wire_rules::place(request) == 5 && readings >= reading {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                }
                other => panic!("{other:#x} was not to be asked"),
            }
            Ok(())
        })
    }

    #[test]
    fn a_rule_that_goes_while_the_rules_are_read_makes_them_be_listed_again() {
        for errno in [libc::ENOENT, libc::EINVAL] {
            let ioctl = Ioctl::new().expect("a socket");
            seam::DRIVER.set(Some(driver_that_loses_a_rule(2, errno)));
            assert_eq!(ioctl.list_rules("any0").expect("listed again").taken, [(3, None)]);
        }
        let ioctl = Ioctl::new().expect("a socket");
        seam::DRIVER.set(Some(driver_that_loses_a_rule(0, libc::EINVAL)));
        let error = ioctl.list_rules("any0").expect_err("not for ever").to_string();
        assert!(error.contains("they changed 5 times while they were listed"), "{error}");
        seam::DRIVER.set(Some(driver_that_loses_a_rule(2, libc::EIO)));
        let error = ioctl.list_rules("any0").expect_err("another error").to_string();
        assert!(error.contains("read the rule at place 5 of any0"), "{error}");
    }
}
