//! What was probably meant: the known word that differs from the written one by a slip of the finger.

/// The candidate that differs from `written` by so few letters that it was probably meant.
pub fn nearest<'c>(written: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    // Nothing that is far longer than any word here can be a slip for one, and comparing it would take long.
    if written.len() > 64 {
        return None;
    }
    let lower = written.to_lowercase().replace('-', "_");
    let allowed = |candidate: &str| (candidate.len().max(lower.len()) / 3).clamp(1, 3);
    candidates
        .map(|candidate| (strsim::osa_distance(&lower, candidate), candidate))
        .filter(|(steps, candidate)| *steps <= allowed(candidate))
        .min_by_key(|(steps, _)| *steps)
        .map(|(_, candidate)| candidate)
}
