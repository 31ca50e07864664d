//! What the unit tests share.

/// How many random inputs a decoder is shown: a million where the code is optimised, a taste under an interpreter.
pub(crate) fn rounds() -> usize {
    if cfg!(miri) {
        200
    } else if cfg!(debug_assertions) {
        50_000
    } else {
        1_000_000
    }
}
