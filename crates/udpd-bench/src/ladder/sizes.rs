//! The last step over payloads of every size: what a datagram costs, and what each of its bytes does.
//!
//! The rate is low and the same for all, because what is asked for is the cost and not the limit; a straight line
//! through the costs then tells the two apart.

use serde::Serialize;

use super::row::Row;

/// Payload bytes, around the sizes where something changes: cache lines, an Ethernet frame and one byte more, a jumbo
/// frame, the longest there is.
pub(super) const SIZES: [usize; 14] =
    [32, 64, 128, 256, 512, 1024, 1400, 1472, 1473, 4096, 8972, 16_384, 32_768, 65_507];

/// Datagrams a second at every size.
pub(super) const RATE: u64 = 10_000;

/// A size and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SizeRow {
    pub bytes: usize,
    #[serde(flatten)]
    pub row: Row,
}

/// A straight line through costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Line {
    /// For each datagram, whatever its size.
    pub ns_per_datagram: f64,
    /// For each 1,024 bytes of payload.
    pub ns_per_kib: f64,
    /// How much of the difference between sizes the line explains, 0 to 1.
    pub fit: f64,
}

/// The line of least squares; `None` with fewer than two sizes.
pub(super) fn line(points: &[(usize, f64)]) -> Option<Line> {
    let count = points.len() as f64;
    let mean = |value: fn(&(usize, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (mean_bytes, mean_ns) = (mean(|point| point.0 as f64), mean(|point| point.1));
    let deviation = |(bytes, ns): &(usize, f64)| (*bytes as f64 - mean_bytes, ns - mean_ns);
    let width: f64 = points.iter().map(|point| deviation(point).0.powi(2)).sum();
    if points.len() < 2 || width == 0.0 {
        return None;
    }
    let slope = points.iter().map(deviation).map(|(bytes, ns)| bytes * ns).sum::<f64>() / width;
    let height: f64 = points.iter().map(|point| deviation(point).1.powi(2)).sum();
    let left: f64 = points.iter().map(deviation).map(|(bytes, ns)| (ns - slope * bytes).powi(2)).sum();
    Some(Line {
        ns_per_datagram: mean_ns - slope * mean_bytes,
        ns_per_kib: slope * 1024.0,
        fit: if height == 0.0 { 1.0 } else { 1.0 - left / height },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_the_cost_of_a_datagram_from_that_of_its_bytes() {
        let points: Vec<(usize, f64)> = SIZES.iter().map(|&bytes| (bytes, 500.0 + 0.25 * bytes as f64)).collect();
        let line = line(&points).expect("a line");
        assert!((line.ns_per_datagram - 500.0).abs() < 1e-6 && (line.ns_per_kib - 256.0).abs() < 1e-6, "{line:?}");
        assert!((line.fit - 1.0).abs() < 1e-9, "{line:?}");
    }

    #[test]
    fn one_size_makes_no_line() {
        assert_eq!(line(&[(64, 500.0)]), None);
        assert_eq!(line(&[(64, 500.0), (64, 700.0)]), None);
    }

    #[test]
    fn what_no_line_explains_fits_badly() {
        let line = line(&[(0, 1.0), (1, 9.0), (2, 1.0)]).expect("a line");
        assert!(line.fit.abs() < 1e-9, "{line:?}");
    }
}
