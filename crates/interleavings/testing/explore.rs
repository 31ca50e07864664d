//! How far a model is explored: every order of its threads, as long as none of them is interrupted too often. Nearly
//! every mistake with memory that is shared shows with two interruptions; `.ci/nightly` allows more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs `scene` in every order, with at most so many interruptions of threads that could go on.
/// `UDPD_INTERRUPTIONS=N` says how many more. A scene that takes more than ten minutes ends there, and says so.
pub fn in_every_order(interruptions: usize, scene: impl Fn() + Send + Sync + 'static) {
    let more: usize = std::env::var("UDPD_INTERRUPTIONS").map_or(0, |more| more.parse().expect("a number"));
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(interruptions + more);
    model.max_branches = 10_000;

    model.max_duration = Some(Duration::from_secs(600));
    let orders = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&orders);
    let began = Instant::now();
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        scene();
    });
    let (orders, took) = (orders.load(Ordering::Relaxed), began.elapsed());
    println!("{orders} orders in {took:.1?}, {} interruptions at most", interruptions + more);
}
