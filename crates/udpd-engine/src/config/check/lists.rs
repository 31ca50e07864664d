//! The lists of networks of the listeners: read from their files, compared with each other and with the keys, and made
//! into one table for each listener. Listeners with the same lists share a table.
//!
//! A file that is missing or wrong refuses the configuration: to go on without it would let in the senders that it was
//! there to keep out.

use std::path::Path;
use std::sync::Arc;

use crate::config::host_view::{HostView, Lists};
use crate::config::listener::ListenerConfig;
use udpd_base::settings::{Findings, Section, ValuePlace};
use udpd_base::text::advice::ValueAdvice;
use udpd_inspect::policy::lists::{self, NETWORKS_MAX};
use udpd_inspect::policy::{Access, AccessList, Conflict, NetworkOrigin, Networks};

/// Fills in the tables of all listeners.
pub(super) fn read(sections: &mut [Section<'_, ListenerConfig>], host: &HostView, findings: &mut Findings<'_>) {
    let mut made: Vec<(Access, Option<Arc<AccessList>>)> = Vec::new();
    for section in sections {
        let access = section.settings.access.clone();
        if access.is_open() || host.lists == Lists::Leave && access.files().next().is_some() {
            continue;
        }
        let known = made.iter().position(|(known, _)| *known == access);
        let index = known.unwrap_or_else(|| {
            made.push((access, table(section, findings).map(Arc::new)));
            made.len() - 1
        });
        section.settings.access.list = made[index].1.clone();
    }
}

/// A file of networks, and the place of the key that names it.
struct ListFile {
    place: ValuePlace,
    path: String,
    accept: bool,
}

/// The table that the keys and files of a listener make together, or `None` with the reasons in `findings`.
fn table(section: &Section<'_, ListenerConfig>, findings: &mut Findings<'_>) -> Option<AccessList> {
    let before = findings.count();
    let access = &section.settings.access;
    let mut networks = Networks::default();
    let written = NetworkOrigin { text: 0, line: 0 };
    access.allow.iter().for_each(|network| networks.push(*network, true, written));
    access.deny.iter().for_each(|network| networks.push(*network, false, written));
    let texts: Vec<ListFile> = [("allow_files", true), ("deny_files", false)]
        .into_iter()
        .flat_map(|(key, accept)| section.written.texts(key).into_iter().map(move |text| (text, accept)))
        .map(|(text, accept)| ListFile { path: text.value, place: text.place, accept })
        .collect();
    let mut allowed = access.allow.len();
    for (index, text) in texts.iter().enumerate() {
        let count_before = networks.count();
        read_file(index, text, &mut networks, findings);
        allowed += if text.accept { networks.count() - count_before } else { 0 };
        if networks.count() > NETWORKS_MAX {
            let what = format!("with {:?} the listener has more than {NETWORKS_MAX} networks", text.path);
            findings.say(&text.place, what, "join networks that lie side by side, or refuse them in a firewall");
            return None;
        }
    }
    check_allowed(&texts, allowed, before, findings);
    networks.sort(|conflict| report_conflict(&texts, &conflict, findings));
    (findings.count() == before).then(|| networks.into_list(access.allow.is_empty() && access.allow_files.is_empty()))
}

fn read_file(index: usize, text: &ListFile, networks: &mut Networks, findings: &mut Findings<'_>) {
    let ListFile { path, place, accept } = text;
    let number = index as u16 + 1;
    // One more than fits, which tells the caller that there are too many.
    let mut left = (NETWORKS_MAX + 1).saturating_sub(networks.count());
    let take = |network, line| {
        if left > 0 {
            left -= 1;
            networks.push(network, *accept, NetworkOrigin { text: number, line });
        }
    };
    let refuse = |line: u32, advice| findings.refuse_line(path, line as usize, &place.key, advice);
    if let Err(ValueAdvice { what, cure }) = lists::read(Path::new(path), take, refuse) {
        findings.say(place, format!("{path:?} {what}"), cure);
    }
}

/// An allow list that has become empty is most likely the output of a program that has failed.
fn check_allowed(texts: &[ListFile], allowed: usize, before: usize, findings: &mut Findings<'_>) {
    let Some(first) = texts.iter().find(|text| text.accept) else { return };
    if allowed == 0 && findings.count() == before {
        let what = format!("{:?} holds no network, so no sender would be accepted", first.path);
        findings.say(&first.place, what, "write networks into it, or take it from the list of files");
    }
}

/// The longest prefix decides, so a network that is in both lists is a contradiction. It is reported of the file.
fn report_conflict(texts: &[ListFile], conflict: &Conflict, findings: &mut Findings<'_>) {
    let Conflict { network, allowed, denied } = conflict;
    // Two keys that contradict each other have been reported by `listeners`.
    let Some(last) = allowed.text.max(denied.text).checked_sub(1) else { return };
    let text = &texts[usize::from(last)];
    let (here, there) = if text.accept { (allowed, denied) } else { (denied, allowed) };
    let other = if text.accept { "deny" } else { "allow" };
    let other = match there.text.checked_sub(1) {
        None => format!("{other} of the configuration"),
        Some(index) => format!("line {} of {:?}, in {other}_files", there.line, texts[usize::from(index)].path),
    };
    let advice = ValueAdvice::new(
        format!("{network} is in {other}, too"),
        "write it in one of the two; the longest prefix decides, and these are equal",
    );
    findings.refuse_line(&text.path, here.line as usize, &text.place.key, advice);
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;
