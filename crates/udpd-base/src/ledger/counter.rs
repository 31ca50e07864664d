//! What a counter is: a plain number where it is counted, a cell where it is published, and the facts that all
//! code that shows it needs. `counters!` makes all three from one line, so no other file repeats a name or a position.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

/// What is known of a counter beside its value. Texts may have backticks around the words of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerCounter {
    /// The key in the ledger, the reason of a drop and, with spaces, the words of `udpd stats`.
    pub name: &'static str,
    /// What is counted, or why it was dropped.
    pub help: &'static str,
    pub unit: &'static str,
    /// The name for Prometheus; what does not end in `_total` also falls.
    pub metric: &'static str,
    /// The metric has a sample for each lane, and not for the listener.
    pub by_lane: bool,
    /// What dropped it; empty for what is no drop.
    pub layer: &'static str,
    pub cure: &'static str,
    /// Such drops are wanted, or are logged elsewhere.
    pub is_quiet: bool,
}

impl LedgerCounter {
    /// What the counters of a table have in common.
    pub const fn of(unit: &'static str) -> Self {
        Self { name: "", help: "", unit, metric: "", by_lane: false, layer: "", cure: "", is_quiet: false }
    }

    /// What the drops of a layer have in common: one metric, whose labels say layer and reason.
    pub const fn dropped_by(layer: &'static str) -> Self {
        Self { metric: "udpd_dropped_datagrams_total", layer, ..Self::of("datagrams") }
    }

    /// What `udpd stats` calls it.
    pub fn words(&self) -> String {
        self.name.replace('_', " ")
    }
}

/// Numbers that one thread counts and others read.
pub trait CounterSet: Default {
    /// Where they are published: an atomic number for each.
    type Cells: Debug + Default + Send + Sync;
    /// Visits each number beside its cell.
    fn each(&self, cells: &Self::Cells, visit: &mut impl FnMut(u64, &AtomicU64));
    fn load(cells: &Self::Cells) -> Self;
    /// Adds each of the other's numbers.
    fn add(&mut self, other: &Self);

    /// The sum of all of them, counter by counter.
    fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::default(), |mut sum, one| {
            sum.add(&one);
            sum
        })
    }
}

/// Where some counters are published.
pub type Cells<C> = <C as CounterSet>::Cells;

impl CounterSet for u64 {
    type Cells = AtomicU64;

    fn each(&self, cell: &AtomicU64, visit: &mut impl FnMut(u64, &AtomicU64)) {
        visit(*self, cell);
    }

    fn load(cell: &AtomicU64) -> Self {
        cell.load(Ordering::Relaxed)
    }

    fn add(&mut self, other: &Self) {
        *self += other;
    }
}

impl<C: CounterSet, const N: usize> CounterSet for [C; N]
where
    [C; N]: Default,
    [Cells<C>; N]: Default,
{
    type Cells = [Cells<C>; N];

    fn each(&self, cells: &Self::Cells, visit: &mut impl FnMut(u64, &AtomicU64)) {
        self.iter().zip(cells).for_each(|(counters, cells)| counters.each(cells, visit));
    }

    fn load(cells: &Self::Cells) -> Self {
        std::array::from_fn(|place| C::load(&cells[place]))
    }

    fn add(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(counters, other)| counters.add(other));
    }
}

/// Counters with a declaration each.
pub trait CounterTable: CounterSet {
    /// The declarations.
    const COUNTERS: &'static [LedgerCounter];
    fn values(&self) -> impl Iterator<Item = (&'static LedgerCounter, u64)>;

    fn total(&self) -> u64 {
        self.values().map(|(_, value)| value).sum()
    }
}

/// Makes a struct of counters [`CounterSet`], by the names of its fields.
#[macro_export]
macro_rules! cells {
    ($table:ident { $($field:ident: $kind:ty),+ $(,)? }) => {
        const _: () = {
            use $crate::ledger::{Cells, CounterSet};

            /// Where they are published. It can be named only as `Cells` of the table.
            #[allow(unreachable_pub)]
            #[derive(Debug, Default)]
            pub struct OfTable {
                $(
                    /// Of the counter of this name.
                    pub $field: Cells<$kind>,
                )+
            }

            impl CounterSet for $table {
                type Cells = OfTable;

                fn each(
                    &self,
                    cells: &OfTable,
                    visit: &mut impl FnMut(u64, &std::sync::atomic::AtomicU64),
                ) {
                    $(CounterSet::each(&self.$field, &cells.$field, visit);)+
                }

                fn load(cells: &OfTable) -> Self {
                    Self { $($field: CounterSet::load(&cells.$field)),+ }
                }

                fn add(&mut self, other: &Self) {
                    $(CounterSet::add(&mut self.$field, &other.$field);)+
                }
            }
        };
    };
}

/// Declares a table of counters: one line each, with its name, its help and the facts in which it differs from the
/// others. Under `beside` stand fields that are published with them and declared elsewhere, or are no counters of the
/// ledger.
#[macro_export]
macro_rules! counters {
    (
        $(#[$about:meta])*
        pub struct $table:ident = $common:expr => {
            $($name:ident: $help:literal $(, $fact:ident = $value:expr)*;)+
        } $(beside { $($(#[$note:meta])* $field:ident: $kind:ty,)+ })?
    ) => {
        $(#[$about])*
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $table {
            $(
                #[doc = $help]
                pub $name: u64,
            )+
            $($($(#[$note])* pub $field: $kind,)+)?
        }

        $crate::ledger::counter::cells!($table { $($name: u64,)+ $($($field: $kind,)+)? });

        impl $crate::ledger::counter::CounterTable for $table {
            const COUNTERS: &'static [$crate::ledger::counter::LedgerCounter] = &[$($crate::ledger::LedgerCounter {
                name: stringify!($name),
                help: $help,
                $($fact: $value,)*
                ..$common
            }),+];

            fn values(&self) -> impl Iterator<Item = (&'static $crate::ledger::counter::LedgerCounter, u64)> {
                Self::COUNTERS.iter().zip([$(self.$name),+])
            }
        }
    };
}

pub use cells;
pub(crate) use counters;

// Counters that one thread writes and any thread may read as a whole.
//
// The writer keeps its counts in plain integers and publishes them once per batch with ordinary stores: no locked
// instruction on the way of a datagram. A version number around the stores lets a reader notice that it read in the
// middle of a publication and read again, so the terms of a ledger always belong to the same moment.

/// Counters with one writer, on cache lines of their own.
#[derive(Default)]
pub struct Published<C: CounterSet> {
    inner: CachePadded<PublishedCells<C>>,
}

#[derive(Default)]
struct PublishedCells<C: CounterSet> {
    /// Odd while the writer is in the middle of a publication.
    version: AtomicU64,
    cells: Cells<C>,
}

impl<C: CounterSet> Published<C> {
    /// Replaces the counters. Only ever called by the one thread that owns them.
    pub fn publish(&self, counters: &C) {
        let version = self.inner.version.load(Ordering::Relaxed);
        self.inner.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        counters.each(&self.inner.cells, &mut |number, cell| cell.store(number, Ordering::Relaxed));
        self.inner.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// All counters as they were at one moment.
    pub fn read(&self) -> C {
        loop {
            let before = self.inner.version.load(Ordering::Acquire);
            let counters = C::load(&self.inner.cells);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.inner.version.load(Ordering::Relaxed) == before {
                return counters;
            }
            std::hint::spin_loop();
        }
    }
}

impl<C: CounterSet + Debug> Debug for Published<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Published").field(&self.read()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_reader_never_sees_half_a_publication() {
        let published = Arc::new(Published::<[u64; 4]>::default());
        let writer = Arc::clone(&published);
        let thread = std::thread::spawn(move || (1..=200_000).for_each(|count| writer.publish(&[count; 4])));
        let mut last = 0;
        while last < 200_000 {
            let values = published.read();
            assert_eq!(values, [values[0]; 4]);
            assert!(values[0] >= last, "counters do not run backwards");
            last = values[0];
        }
        thread.join().expect("the writer ends");
    }
}
