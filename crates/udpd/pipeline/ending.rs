//! What is left of a pipeline when its heir receives: consumers that finish, consumers that have yet to go over, and
//! the books, which are closed when there are none of either.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::books::Books;
use super::chronicle::Chronicle;
use super::relief::Relief;

/// A pipeline whose heir receives, and which has yet to hand on what it holds.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) books: Arc<Books>,
    /// Of sinks that the heir does not go on with.
    pub(super) consumers: Vec<LastConsumer>,
    pub(super) followers: Vec<JoinHandle<()>>,
    /// Of consumers that go on in the heir when they are done here.
    pub(super) staying: Vec<Arc<Relief>>,
    pub(super) receivers_ended_well: bool,
}

/// A consumer that finishes and ends.
#[derive(Debug)]
pub(super) struct LastConsumer {
    /// The name of its sink.
    pub(super) sink: String,
    /// What its sink writes.
    pub(super) writes: Writes,
    pub(super) thread: JoinHandle<()>,
}

/// What a sink writes and nobody else may write meanwhile.
#[derive(Debug, Clone, Default)]
pub(super) struct Writes {
    pub(super) files: BTreeSet<String>,
    pub(super) standard_output: bool,
}

impl Writes {
    /// What both write, for the log.
    pub(super) fn in_common(&self, other: &Self) -> Option<String> {
        if self.standard_output && other.standard_output {
            return Some("standard output".to_owned());
        }
        self.files.intersection(&other.files).next().map(|file| format!("its file {file}"))
    }
}

impl LastConsumer {
    /// What it still writes and another sink wants to write.
    pub(super) fn is_in_the_way_of(&self, writes: &Writes) -> Option<String> {
        if self.thread.is_finished() { None } else { self.writes.in_common(writes) }
    }
}

impl Ending {
    /// The threads that end with it.
    pub(super) fn threads(&self) -> impl Iterator<Item = &JoinHandle<()>> {
        self.consumers.iter().map(|consumer| &consumer.thread).chain(&self.followers)
    }

    /// Whether some sink that stays has yet to go over to the heir.
    pub(super) fn has_staying_sinks(&self) -> bool {
        self.staying.iter().any(|relief| relief.is_due())
    }

    /// The names of the sinks that have yet to finish.
    pub(super) fn sinks_that_finish(&self) -> impl Iterator<Item = &str> {
        let consumers = self.consumers.iter().filter(|consumer| !consumer.thread.is_finished());
        consumers.map(|consumer| consumer.sink.as_str())
    }

    /// Whether everything is handed on.
    pub(super) fn is_over(&self) -> bool {
        self.threads().all(JoinHandle::is_finished) && !self.has_staying_sinks()
    }

    /// Closes its books.
    pub(super) fn close(self, chronicle: &Chronicle) {
        let stay = !self.has_staying_sinks();
        let mut threads = self.consumers.into_iter().map(|consumer| consumer.thread).chain(self.followers);
        let all_ended_well = threads.all(has_ended_well) && self.receivers_ended_well && stay;
        chronicle.close(&self.books, all_ended_well);
    }
}

/// Whether a thread is over, and not by a panic.
pub(super) fn has_ended_well(thread: JoinHandle<()>) -> bool {
    thread.is_finished() && thread.join().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_of_a_reload_before_is_in_the_way_of_its_file_until_it_ends() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let writes = |file: &str| Writes { files: [file.to_owned()].into(), standard_output: false };
        let thread = std::thread::spawn(move || ended.recv().unwrap_or(()));
        let consumer = LastConsumer { sink: "archive".to_owned(), writes: writes("/a.log"), thread };
        assert_eq!(consumer.is_in_the_way_of(&writes("/a.log")), Some("its file /a.log".to_owned()));
        assert_eq!(consumer.is_in_the_way_of(&writes("/b.log")), None);
        drop(end);
        while !consumer.thread.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(consumer.is_in_the_way_of(&writes("/a.log")), None);
    }

    #[test]
    fn two_sinks_have_standard_output_in_common_without_a_file() {
        let standard = Writes { standard_output: true, ..Writes::default() };
        assert_eq!(standard.in_common(&standard), Some("standard output".to_owned()));
        assert_eq!(standard.in_common(&Writes::default()), None);
    }
}
