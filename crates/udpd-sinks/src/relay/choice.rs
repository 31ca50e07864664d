//! Which destination a source has. The same for ever: it follows from the address and the number of destinations, and
//! neither a restart nor another host nor a destination that is dead changes it.

use std::net::IpAddr;

/// The place of the destination for this source, below `count`.
pub(super) fn of_source(source: IpAddr, count: usize) -> usize {
    let bits = match source.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            mixed((bits >> 64) as u64) ^ (bits as u64)
        }
    };
    // The upper half of a product spreads as evenly as a remainder and needs no division.
    ((u128::from(mixed(bits)) * count as u128) >> 64) as usize
}

/// Spreads numbers that are close together over all of their range.
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn neighbours_are_spread_evenly() {
        for count in [2, 3, 7] {
            let mut found = [vec![0_u32; count], vec![0; count]];
            for number in 0..10_000_u32 {
                let v4 = Ipv4Addr::from_bits(0x0a00_0000 + number);
                let v6 = Ipv6Addr::from_bits((0x2001_0db8 << 96) + (u128::from(number) << 64) + 1);
                found[0][of_source(v4.into(), count)] += 1;
                found[1][of_source(v6.into(), count)] += 1;
            }
            let fair = 10_000 / count as u32;
            assert!(found.iter().flatten().all(|&share| share.abs_diff(fair) < fair / 10), "{found:?}");
        }
    }

    #[test]
    fn a_source_has_the_destination_it_had_in_the_first_release() {
        let chosen = |text: &str| of_source(text.parse().expect(text), 1000);
        assert_eq!(chosen("192.0.2.7"), chosen("::ffff:192.0.2.7"));
        // Fixed values: a change of them would send every source elsewhere.
        assert_eq!(["192.0.2.7", "10.0.0.1", "2001:db8::1"].map(chosen), [944, 541, 771]);
    }
}
