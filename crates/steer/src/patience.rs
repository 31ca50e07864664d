//! Looking again, a bounded number of times, at what the kernel has been told and may not show yet.
//!
//! On some machines an interrupt moves only when it fires the next time. While it does, `smp_affinity_list` shows for a
//! moment what it was before, and until then `effective_affinity_list` shows where it still is. Neither can be waited
//! for: the kernel announces nothing. So what looks wrong is looked at again before anybody is told that it is.

/// How often to look.
pub(crate) const LOOKS: usize = 10;

/// Waits a little until the next look: all of them together take a tenth of a second.
#[cfg(not(test))]
pub(crate) fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(10));
}

#[cfg(test)]
type Meanwhile = (usize, Option<Box<dyn FnMut(usize)>>);

#[cfg(test)]
thread_local! {
    /// What happens while a test's thread waits, instead of time passing: called with the number of pauses before.
    pub(crate) static MEANWHILE: std::cell::RefCell<Meanwhile> =
        const { std::cell::RefCell::new((0, None)) };
}

#[cfg(test)]
pub(crate) fn pause() {
    MEANWHILE.with_borrow_mut(|(pauses, happens)| {
        if let Some(happens) = happens {
            happens(*pauses);
        }
        *pauses += 1;
    });
}
