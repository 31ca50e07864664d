//! The lines about offenders: how many, when, and with which counts.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use udpd_inspect::policy::{RateLimiter, SourceLimit};

/// A limiter of ten a second, and what is written about it.
struct Scene {
    limiter: RateLimiter,
    offences: Arc<Offences>,
    watch: OffenceWatch,
    second: u64,
}

impl Scene {
    fn new() -> Self {
        let offences = Arc::new(Offences::default());
        let limiter = RateLimiter::new(SourceLimit { per_source: 10, burst: 10 }, Arc::clone(&offences));
        let watch = OffenceWatch::new("listener in, lane 0".to_owned(), "rate_limit".to_owned());
        Self { limiter, offences, watch, second: 0 }
    }

    /// One second in which each of these sends so many at once, and the look at its end.
    fn second(&mut self, sources: &[(&str, u64)]) -> Vec<String> {
        self.limiter.set_time(Duration::from_secs(self.second));
        self.second += 1;
        for (source, count) in sources {
            let source = source.parse().expect("an address");
            for _ in 0..*count {
                self.limiter.admits(source);
            }
        }
        self.limiter.publish();
        self.watch.look(&self.offences)
    }
}

#[test]
fn an_offence_has_one_line_when_it_begins_and_one_with_its_count_when_it_is_over() {
    let mut scene = Scene::new();
    assert_eq!(scene.second(&[("192.0.2.1", 10), ("192.0.2.2", 9)]), [""; 0]);
    let begin = scene.second(&[("192.0.2.1", 25), ("192.0.2.2", 9)]);
    let expected =
        "listener in, lane 0: 192.0.2.1 exceeds rate_limit; udpd drops the excess and counts it as rate_limited";
    assert_eq!(begin, [expected]);
    for _ in 0..5 {
        assert_eq!(scene.second(&[("192.0.2.1", 25)]), [""; 0]);
    }
    let lines: Vec<String> = (0..30).flat_map(|_| scene.second(&[("192.0.2.1", 10)])).collect();
    let expected =
        "listener in, lane 0: 192.0.2.1 is within rate_limit again; udpd dropped 90 of its datagrams in about 6 s";
    assert_eq!(lines, [expected]);
}

#[test]
fn a_source_that_begins_again_is_said_again_with_a_count_of_its_own() {
    for pause in [12, 60] {
        let mut scene = Scene::new();
        assert_eq!(scene.second(&[("192.0.2.1", 15)]).len(), 1);
        let ended: Vec<String> = (0..pause).flat_map(|_| scene.second(&[])).collect();
        assert!(ended.len() == 1 && ended[0].contains("dropped 5 of its datagrams"), "{ended:?}");
        assert_eq!(scene.second(&[("192.0.2.1", 18)]).len(), 1, "after a pause of {pause} s");
        let last = scene.watch.end(&scene.offences);
        assert!(last.len() == 1 && last[0].ends_with("until the end; udpd dropped 8 of its datagrams"), "{last:?}");
    }
}

#[test]
fn a_thousand_offenders_are_a_few_lines_and_one_that_counts_the_rest() {
    let mut scene = Scene::new();
    let names: Vec<String> = (0..1000).map(|number| format!("10.0.{}.{}", number / 250, number % 250)).collect();
    let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 12)).collect();
    let mut lines = scene.second(&all);
    assert_eq!(lines.len(), NAMED_MAX);
    for _ in 0..9 {
        lines.extend(scene.second(&all));
    }
    assert_eq!(lines.len(), NAMED_MAX + 1, "{lines:?}");
    // Their buckets are full again in between, so each of the ten seconds is an offence of its own.
    assert!(
        lines[NAMED_MAX].contains("other sources began 9840 times to exceed rate_limit; the log names 16"),
        "{lines:?}"
    );
}

#[test]
fn what_goes_unwatched_is_said_and_an_end_in_silence_is_noticed() {
    let mut scene = Scene::new();
    scene.second(&[("192.0.2.1", 11)]);
    // Nothing arrives any more, so the receiver sleeps and publishes nothing.
    let lines: Vec<String> = (0..20).flat_map(|_| scene.watch.look(&scene.offences)).collect();
    assert!(lines.len() == 1 && lines[0].contains("dropped 1 of its datagrams"), "{lines:?}");
}
