//! Every counter of the ledger, one line each: its name, what it counts, and how others call it.
//!
//! The structs are what the threads count in. The ledger as JSON, the metrics, `udpd stats`, the log of losses and
//! docs/ledger.md are made from the same lines, and the residual subtracts whatever is in the tables of drops.

use super::counter::{LedgerCounter, counters};

/// How many sinks one listener can feed; the width of [`LaneTally::offered`].
pub const SINKS_PER_LISTENER_MAX: usize = 16;

/// What the kernel drops at a socket. It counts that itself, in the listener's `kernel_dropped_unit`.
pub const KERNEL_DROPPED: LedgerCounter = LedgerCounter {
    name: "socket",
    help: "The receive buffer was full, or the socket refused arrivals at the end.",
    cure: "Raise `receive_buffer` or `absorb`, or add lanes.",
    ..LedgerCounter::dropped_by("kernel")
};

/// The same of a receive queue past the kernel's stack, where the words of a socket would mislead.
pub const QUEUE_DROPPED: LedgerCounter = LedgerCounter {
    name: "receive queue",
    help: "With engine = \"af_xdp\" frames wait in the memory of their lane, and it was full.",
    cure: "Raise `absorb`, or give the interface more receive queues; udpd explain tells which helps.",
    ..LedgerCounter::dropped_by("kernel")
};

counters! {
    /// What a receiver counts, in its own memory; published once per batch. A listener's is the sum over its lanes.
    pub struct LaneTally = LedgerCounter::of("datagrams") => {
        received: "Datagrams read from the sockets.", metric = "udpd_received_datagrams_total", by_lane = true;
        bytes: "Payload bytes read from the sockets.", unit = "bytes", metric = "udpd_received_bytes_total";
        truncated: "Datagrams longer than `max_length`, whether their head was kept or they were dropped.",
            metric = "udpd_truncated_datagrams_total";
        calls: "Receive calls that returned datagrams.",
            unit = "calls", metric = "udpd_receive_calls_total", by_lane = true;
        receive_errors: "Receive calls that failed; a failed call loses nothing.",
            unit = "calls", metric = "udpd_receive_errors_total", by_lane = true;
        deduplicate_overflow: "Datagrams handed on that `deduplicate` could not remember, its table being full: their \
            copies are handed on, too.",
            metric = "udpd_deduplicate_overflow_datagrams_total";
        proxy_flows_evicted: "With `proxy_protocol = \"v2-first\"`, flows that had to make room for others.",
            unit = "flows", metric = "udpd_proxy_flows_evicted_total";
        proxy_flows_changed: "Headers that named another sender for a flow in use: its port was given anew, or a \
            sender forges headers.",
            unit = "headers", metric = "udpd_proxy_flows_changed_total";
    } beside {
        /// Datagrams read and not offered to the sinks, by reason.
        dropped: ListenerDropped,
        /// Datagrams handed to each sink of the listener, by its place in the listener's list.
        #[serde(skip)]
        offered: [u64; SINKS_PER_LISTENER_MAX],
    }
}

counters! {
    /// Why a received datagram was not offered to the sinks.
    pub struct ListenerDropped = LedgerCounter::dropped_by("listener") => {
        truncated: "Longer than `max_length` with `on_truncate = \"drop\"`.",
            cure = "Raise `max_length`, or keep their heads with `on_truncate = \"keep\"`.";
        denied: "`allow`, `deny` or one of their files refuse its source, here or in the kernel.",
            cure = "Nothing: you asked for it.", is_quiet = true;
        rate_limited: "Its source was beyond `rate_limit`.",
            cure = "Raise `burst` for senders that pause and catch up.", is_quiet = true;
        duplicate: "`deduplicate`: another side of its feed had brought it before.",
            cure = "Nothing: you asked for it.", is_quiet = true;
        repeated: "`deduplicate`: its own side had brought it before.",
            cure = "Find out why one side brings it twice, if that is news.", is_quiet = true;
        no_batch: "Every batch was in use; the size of the pool rules this out.",
            cure = "This is a bug of udpd: please report it.";
        unsplit: "A GRO train without its segment size; counts as one.", cure = "Set `gro = \"off\"`.";
        unread: "It was in the socket at the end, and its receiver could not take it.",
            cure = "See the log: the kernel denies receive calls.", is_quiet = true;
        proxy_missing: "It came from `proxy_from` without a PROXY header.",
            cure = "Have the proxy send PROXY protocol v2, or take its address out of `proxy_from`.";
        proxy_malformed: "It came from `proxy_from` with a PROXY header that is damaged, unknown or cut off.",
            cure = "See what the proxy sends; raise `max_length` if headers are longer.";
        proxy_untrusted: "It begins with a PROXY header and did not come from `proxy_from`.",
            cure = "Add the proxy to `proxy_from`, if it is one of yours.";
        malformed: "Past the kernel's stack: its lengths contradict each other; the kernel would have dropped it.",
            cure = "Find the sender: no network makes these.";
        header_checksum: "Past the kernel's stack: the checksum of its IPv4 header is wrong.",
            cure = "Look for a broken cable, card or router.";
        checksum: "Past the kernel's stack: its UDP checksum is wrong.",
            cure = "Look for a broken cable, card or router; `xdp_checksums` says what is looked at.";
        no_checksum: "Past the kernel's stack: IPv6 without a UDP checksum.",
            cure = "Find the sender: IPv6 wants one.";
    }
}

impl ListenerDropped {
    /// Dropped because of headers that name senders, before what they carry was looked at.
    pub fn of_proxies(&self) -> u64 {
        self.proxy_missing + self.proxy_malformed + self.proxy_untrusted
    }
}

counters! {
    /// What a consumer counts for one listener, in its own memory; published once per batch. A sink's is the sum over
    /// its consumers, and over what the lanes could not give it.
    pub struct SinkTally = LedgerCounter::of("datagrams") => {
        delivered: "Datagrams that a sink has handed on.", metric = "udpd_sink_delivered_datagrams_total";
        spilled: "Datagrams that wait in the spill of a sink, on the disk.", metric = "udpd_sink_spilled_datagrams";
        spilled_before: "Datagrams that a process before this one had left in the spill: its opening balance.",
            metric = "udpd_sink_spilled_before_datagrams_total";
        spill_repeats_at_most: "Of those so many at most had been sent before, by a process that was killed.",
            metric = "udpd_sink_spill_repeats_at_most_datagrams_total";
        stream_repeats_at_most: "Datagrams that a TCP peer had not acknowledged, or a server not answered, when \
            its connection broke. They are sent again, so each of them may be there twice.",
            metric = "udpd_sink_stream_repeats_at_most_datagrams_total";
        templates_forgotten: "Templates of NetFlow 9 and IPFIX that a relay no longer keeps, because it had no room.",
            unit = "templates", metric = "udpd_sink_templates_forgotten_total";
    } beside {
        /// Datagrams offered and not handed on, by reason.
        dropped: SinkDropped,
        /// Datagrams in the batches it took from its channel.
        #[serde(skip)]
        taken: u64,
        /// Datagrams taken and not yet decided.
        #[serde(skip)]
        pending: u64,
        /// Datagrams that were found in the spill and that another ledger of this process has.
        #[serde(skip)]
        spilled_again: u64,
    }
}

counters! {
    /// Why an offered datagram was not delivered.
    pub struct SinkDropped = LedgerCounter::dropped_by("sink") => {
        queue_full: "The consumer was too slow, and `when_full` dropped.",
            cure = "Raise `queue_bytes` for bursts, set `consumers = \"per_lane\"`, or make the destination faster.";
        sink_error: "The destination refused it, or did not take it before the end.", cure = "The log has the error.";
        too_large: "The destination takes no message of its size, not even alone.",
            cure = "Raise the limit: for Kafka `max.message.bytes` of the topic, `message.max.bytes` in `properties`.";
        against_policy: "The destination refuses what it is, for good: its time, or that it has no key.",
            cure = "See what the topic wants: its times, its compaction, its validation.";
        refused: "The server has said that it will never take it.",
            cure = "The log has the words of the server; `refused` keeps such datagrams, and `udpd replay` sends them.";
        spill_full: "It found no room in the spill, or made room there, as `when_full` says.",
            cure = "Raise `bytes` of `spill`, see to its disk, or bring the destination back.";
        spill_torn: "It was in the spill and cannot be read: damaged, or not written to its end.",
            cure = "The log has the file; see to its disk.";
    }
}

impl SinkDropped {
    /// What its destination did not take, for whatever reason.
    pub fn by_destination(&self) -> u64 {
        self.sink_error + self.too_large + self.against_policy + self.refused
    }
}

counters! {
    /// What a sink has written to files. Bytes of records, as the files hold them.
    pub struct FileTally = LedgerCounter::of("files") => {
        written_bytes: "Bytes written to files.",
            unit = "bytes", metric = "udpd_sink_written_bytes_total";
        unsynced_bytes: "Bytes written to files that a power loss could take.",
            unit = "bytes", metric = "udpd_sink_unsynced_bytes";
        doubtful_bytes: "Bytes written to files that udpd could not sync to the disk.",
            unit = "bytes", metric = "udpd_sink_doubtful_bytes_total";
        sync_failures: "Files that udpd could not sync to the disk and set aside.",
            metric = "udpd_sink_sync_failures_total";
        finished: "Files that udpd finished because they were full or their time was over.",
            metric = "udpd_sink_finished_files_total";
        removed: "Finished files that udpd removed to keep what `keep` says.", metric = "udpd_sink_removed_files_total";
        compressed: "Finished files that udpd compressed (`compress`).",
            metric = "udpd_sink_compressed_files_total";
        compressed_from_bytes: "Bytes of those files as they were written.",
            unit = "bytes", metric = "udpd_sink_compressed_from_bytes_total";
        compressed_to_bytes: "Bytes of those files as they are compressed.",
            unit = "bytes", metric = "udpd_sink_compressed_to_bytes_total";
        uncompressed: "Finished files that wait to be compressed; with `{source}` in `path` sources with such files.",
            metric = "udpd_sink_uncompressed_files";
        compress_failures: "Files that udpd could not compress and left as they were, each time.",
            metric = "udpd_sink_compress_failures_total";
        uploaded: "Finished files that a server has by `upload`, with their checksums.",
            metric = "udpd_sink_uploaded_files_total";
        uploaded_bytes: "Bytes of those files.", unit = "bytes", metric = "udpd_sink_uploaded_bytes_total";
        not_uploaded: "Finished files that wait to be uploaded; with `{source}` in `path` sources with such files.",
            metric = "udpd_sink_not_uploaded_files";
        upload_failures: "Tries to upload a file that failed; the file is tried again.",
            metric = "udpd_sink_upload_failures_total";
        removed_unsent: "Finished files that `keep` removed before they were uploaded; `removed` counts them as well.",
            metric = "udpd_sink_removed_unsent_files_total";
        sources: "Sources that have a file of their own (`{source}` in `path`).",
            unit = "sources", metric = "udpd_sink_sources";
        overflow: "Datagrams in an overflow file, because `sources_max` sources had files of their own already.",
            unit = "datagrams", metric = "udpd_sink_overflow_datagrams_total";
    }
}

counters! {
    /// What a relay has sent to one destination.
    pub struct DestinationTally = LedgerCounter::of("datagrams") => {
        sent: "Datagrams that the kernel took for a destination.",
            metric = "udpd_relay_sent_datagrams_total";
        failed: "Datagrams that the kernel did not take for a destination.",
            metric = "udpd_relay_failed_datagrams_total";
        too_long: "Datagrams that failed because they are longer than the route takes whole.",
            metric = "udpd_relay_too_long_datagrams_total";
        icmp_errors: "Errors with which the network answered for a destination, such as a port without a listener.",
            unit = "answers", metric = "udpd_relay_icmp_errors_total";
        templates: "Datagrams of templates that udpd made for a destination (`templates`). They are in no other sum.",
            metric = "udpd_relay_templates_datagrams_total";
    }
}

counters! {
    /// What the thread that keeps the streams of a listener counts.
    pub struct UpstreamTally = LedgerCounter::of("units") => {
        late: "Numbers that came after they had counted as missing; as far as udpd remembers they count no more.",
            metric = "udpd_upstream_late_total";
        duplicate: "Numbers that came twice.", metric = "udpd_upstream_duplicate_total";
        reordered: "Numbers that were overtaken and came before they would have counted as missing.",
            metric = "udpd_upstream_reordered_total";
        restarts: "Streams whose numbers began anew.",
            unit = "streams", metric = "udpd_upstream_restarts_total";
        forgotten: "Streams that were idle and gave their place to others.",
            unit = "streams", metric = "udpd_upstream_forgotten_streams_total";
        streams: "Streams that udpd remembers.", unit = "streams", metric = "udpd_upstream_streams";
        losing: "Streams that lost something on their way here within the last minute.",
            unit = "streams", metric = "udpd_upstream_losing_streams";
        silent: "Streams that have sent nothing for as long as `silence` says.",
            unit = "streams", metric = "udpd_upstream_silent_streams";
        silences: "How often a stream fell silent.", unit = "silences", metric = "udpd_upstream_silences_total";
    } beside {
        /// Numbers that count as missing, wherever they were lost.
        #[serde(skip)]
        gone: u64,
        /// Numbers that are missing, or belong to a datagram of which it is not known how many it covers.
        #[serde(skip)]
        uncertain: u64,
        /// Of those that are gone, what this host has dropped.
        #[serde(skip)]
        dropped_sure: u64,
        /// The same with what may not have left its gap yet.
        #[serde(skip)]
        dropped_perhaps: u64,
    }
}
