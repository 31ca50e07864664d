//! What kind of pages an arena got, and how to find out.
//!
//! Transparent huge pages are a wish: the kernel says yes to the advice and may still hand out small pages. So the
//! answer is read back from `/proc/self/smaps` instead of being taken for granted.

/// The pages behind a pool of batches.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages, reserved or transparent.
    HugePages,
    /// Ordinary pages.
    Ordinary {
        /// Why there are no huge pages, when they were asked for.
        why: Option<String>,
    },
}

/// How many bytes of the mapping that holds `address` are transparent huge pages. `None` when the text does not say.
pub(crate) fn transparent_bytes(smaps: &str, address: usize) -> Option<usize> {
    let mut lines = smaps.lines();
    lines.find(|line| range_of(line).is_some_and(|(start, end)| (start..end).contains(&address)))?;
    let kibibytes = lines.take_while(|line| range_of(line).is_none()).find_map(|line| {
        line.strip_prefix("AnonHugePages:")?.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()
    })?;
    Some(kibibytes * 1024)
}

/// The address range, if this line opens a mapping.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0a0000000-55d0a0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
AnonHugePages:         0 kB
7f0000000000-7f0000600000 rw-p 00000000 00:00 0
Size:               6144 kB
Rss:                6144 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac sd hg
7f0000600000-7f0000601000 r--p 00000000 00:00 0
Size:                  4 kB
";

    #[test]
    fn the_figure_is_that_of_the_mapping_asked_about() {
        assert_eq!(transparent_bytes(SMAPS, 0x7f00_0020_0000), Some(4 << 20));
        assert_eq!(transparent_bytes(SMAPS, 0x55d0_a000_0000), Some(0));
    }

    #[test]
    fn an_address_between_mappings_or_a_mapping_without_the_line_has_no_figure() {
        assert_eq!(transparent_bytes(SMAPS, 0x1000), None);
        assert_eq!(transparent_bytes(SMAPS, 0x7f00_0060_0000), None);
        assert_eq!(transparent_bytes("", 0), None);
    }
}
