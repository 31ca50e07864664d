//! What a counter is: a plain number where it is counted, a cell where it is published, and the facts that everybody
//! who shows it needs. `counters!` makes all three from one line, so no other file repeats a name or a position.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

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
