//! Uploads to a double of a server that speaks S3, which has objects, uploads and parts in memory, checks what it is
//! told, and fails where a test says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use super::super::connection::testing::{Reply, SeenRequest, TestServer};
use super::server::UploadTrouble;
use super::*;
use udpd_base::ledger::FileLedger;
use udpd_base::settings::TableSettings;
use udpd_base::text::base64;
use udpd_file::upload::testing::{Outcomes, job};
use udpd_file::upload::{UploadJob, UploadOutcome};

const SECRET: &str = "wJalrXUtnFEMI-secret";

/// What the double has.
#[derive(Debug, Default)]
struct Stored {
    objects: BTreeMap<String, Vec<u8>>,
    /// By id: the name, and the parts by number.
    uploads: BTreeMap<String, (String, BTreeMap<usize, Vec<u8>>)>,
    begun: usize,
    /// Its ETag is no checksum.
    encrypts: bool,
    /// What it has taken at the end of a part is another byte.
    corrupts: bool,
}

type Store = Arc<Mutex<Stored>>;

/// A failure in place of the answer; `true` where the request is done nevertheless.
type Fault = Box<dyn FnMut(&str) -> Option<(Reply, bool)> + Send>;

fn etag(body: &[u8]) -> String {
    format!("\"{:x}\"", md5::compute(body))
}

fn etag_of_parts(parts: &BTreeMap<usize, Vec<u8>>) -> String {
    let digests: Vec<u8> = parts.values().flat_map(|part| md5::compute(part).0).collect();
    format!("\"{:x}-{}\"", md5::compute(digests), parts.len())
}

impl Stored {
    fn answer(&mut self, request: &SeenRequest) -> Reply {
        let line = request.head.lines().next().expect("a line");
        let (method, target) = line.split_once(' ').expect("a method");
        let (path, query) = target.split_once('?').expect("a signature");
        assert!(query.contains("X-Amz-Credential=AKIA") && query.contains("X-Amz-Signature="), "{line}");
        assert!(!line.contains(SECRET), "{line}");
        let key = path.strip_prefix("/logs/").expect("the bucket").to_owned();
        let value = |name: &str| {
            let query = query.split(' ').next().unwrap_or_default();
            let pair = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(own, _)| *own == name)?;
            Some(pair.1.replace("%2F", "/").replace("%26", "&"))
        };
        let headers = if self.encrypts { "x-amz-server-side-encryption: aws:kms\r\n" } else { "" };
        let tag = |body: &[u8], encrypts: bool| if encrypts { "\"no-checksum\"".to_owned() } else { etag(body) };
        if let Some(told) = request.header("content-md5") {
            let mut own = Vec::new();
            base64::append(&mut own, &md5::compute(&request.body).0);
            assert_eq!(told.as_bytes(), own, "what the server would refuse as BadDigest");
        }
        let mut body = request.body.clone();
        if let (true, "PUT", Some(last)) = (self.corrupts, method, body.last_mut()) {
            *last ^= 1;
        }
        let (with_etag, text) = match (method, value("uploadId"), value("uploads")) {
            ("GET", None, None) => {
                let prefix = value("prefix").expect("a prefix");
                let found = self.objects.iter().find(|(key, _)| key.starts_with(&prefix));
                let found = found.map(|(key, object)| {
                    format!("<Contents><Key>{key}</Key><ETag>{}</ETag></Contents>", self.etag_of(object))
                });
                (None, format!("<ListBucketResult>{}</ListBucketResult>", found.unwrap_or_default()))
            }
            ("GET", None, Some(_)) => {
                let prefix = value("prefix").expect("a prefix");
                let of = |(id, (key, _)): (&String, &(String, _))| {
                    format!("<Upload><Key>{key}</Key><UploadId>{id}</UploadId></Upload>")
                };
                (None, self.uploads.iter().filter(|(_, (key, _))| key.starts_with(&prefix)).map(of).collect())
            }
            ("GET", Some(id), _) => {
                let part = |(number, body): (&usize, &Vec<u8>)| {
                    let etag = etag(body).replace('"', "&quot;");
                    format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
                };
                // Two at a time.
                let marker: usize = value("part-number-marker").expect("a marker").parse().expect("a number");
                let rest: Vec<_> = self.uploads[&id].1.iter().filter(|(number, _)| **number > marker).collect();
                let shown: String = rest.iter().take(2).map(|(number, body)| part((number, body))).collect();
                let next = rest.iter().take(2).next_back().map_or(0, |(number, _)| **number);
                let is_cut = rest.len() > 2;
                let more =
                    format!("<IsTruncated>{is_cut}</IsTruncated><NextPartNumberMarker>{next}</NextPartNumberMarker>");
                (None, shown + &more)
            }
            ("POST", None, Some(_)) => {
                self.begun += 1;
                let id = format!("id&{}", self.begun);
                self.uploads.insert(id.clone(), (key, BTreeMap::new()));
                (None, format!("<UploadId>{}</UploadId>", id.replace('&', "&amp;")))
            }
            ("PUT", Some(id), _) => {
                let number = value("partNumber").expect("a number").parse().expect("a number");
                let found = tag(&body, self.encrypts);
                let parts = &mut self.uploads.get_mut(&id).expect("begun").1;
                parts.insert(number, body);
                (Some(found), String::new())
            }
            ("POST", Some(id), _) => {
                let Some((key, parts)) = self.uploads.remove(&id) else {
                    return Reply::Answer(404, "", "<Error><Code>NoSuchUpload</Code></Error>".to_owned());
                };
                let asked = request.text().matches("<PartNumber>").count();
                assert_eq!(asked, parts.len(), "{}", request.text());
                let etag = if self.encrypts { "\"no-checksum\"".to_owned() } else { etag_of_parts(&parts) };
                self.objects.insert(key, parts.into_values().flatten().collect());
                (None, format!("<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"))
            }
            ("PUT", None, None) => {
                let found = tag(&body, self.encrypts);
                assert!(self.objects.insert(key.clone(), body).is_none(), "{key} is overwritten");
                (Some(found), String::new())
            }
            other => panic!("{other:?}"),
        };
        let headers = with_etag.map_or(headers.to_owned(), |etag| format!("ETag: {etag}\r\n{headers}"));
        Reply::Answer(200, headers.leak(), text)
    }

    /// As an object of parts of so many bytes has it.
    fn etag_of(&self, object: &[u8]) -> String {
        match object.len() as u64 {
            0..=PART => etag(object),
            _ => etag_of_parts(&object.chunks(PART as usize).map(<[u8]>::to_vec).enumerate().collect()),
        }
    }
}

/// The parts of these tests.
const PART: u64 = 1000;

/// A server, the thread that uploads to it, and files.
struct Subject {
    directory: tempfile::TempDir,
    server: TestServer,
    store: Store,
    outcomes: Arc<Outcomes>,
    told: Receiver<UploadOutcome>,
}

impl Subject {
    fn new(stored: Stored, mut fault: Fault) -> Self {
        let store = Arc::new(Mutex::new(stored));
        let own = Arc::clone(&store);
        let server = TestServer::replying(
            "127.0.0.1:0",
            move |request| {
                let reply = || own.lock().expect("no panic").answer(request);
                match fault(request.head.lines().next().unwrap_or_default()) {
                    None => reply(),
                    Some((instead, is_done)) => {
                        if is_done {
                            reply();
                        }
                        instead
                    }
                }
            },
            None,
        );
        let (outcomes, told) = unbounded();
        let directory = tempfile::tempdir().expect("a directory");
        let keys = format!("[default]\naws_access_key_id = AKIA\naws_secret_access_key = {SECRET}\n[other]\nx = y\n");
        fs::write(directory.path().join("keys"), keys).expect("written");
        Self { directory, server, store, outcomes: Arc::new(Outcomes(outcomes)), told }
    }

    fn settings(&self) -> FileSettings {
        let in_directory = |name: &str| self.directory.path().join(name).display().to_string();
        FileSettings {
            upload: UploadSettings {
                url: format!("http://{}/logs/host/", self.server.address),
                credentials_file: in_directory("keys"),
                timeout: Duration::from_secs(20),
                ..UploadSettings::defaults()
            },
            ..FileSettings::new(in_directory("{listener}.log"))
        }
    }

    fn uploads(&self) -> S3Uploads {
        S3Uploads::of(&self.settings()).expect("right")
    }

    fn client(&self) -> S3Server {
        let uploads = self.uploads();
        let peer = uploads.http.peer().expect("an address");
        let (registry, _events) = ThreadRegistry::new();
        let lookup = Lookup { registry: &registry, every: Duration::from_secs(60), sink: "s", bound: &[] };
        let target = Arc::new(DestinationTarget::at(peer, lookup).expect("an address"));
        let exchange = Exchange::new(&uploads.http, None, target, Arc::default()).expect("right");
        S3Server::new(exchange, uploads.place, uploads.credentials_file).in_parts_of(PART)
    }

    /// A file with these bytes.
    fn file(&self, name: &str, bytes: &[u8]) -> UploadJob {
        let path = self.directory.path().join(name);
        fs::write(&path, bytes).expect("written");
        job(&path, &self.outcomes)
    }

    fn objects(&self) -> Vec<(String, Vec<u8>)> {
        let store = self.store.lock().expect("no panic");
        assert!(store.uploads.is_empty(), "nothing is left begun");
        store.objects.iter().map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// How many requests began like this.
    fn asked(&self, words: &str) -> usize {
        self.server.seen().iter().filter(|request| request.head.starts_with(words)).count()
    }
}

fn no_fault() -> Fault {
    Box::new(|_| None)
}

/// The nth request that has these words in its first line fails.
fn fault_at(words: &'static str, nth: usize, reply: fn() -> Reply, is_done: bool) -> Fault {
    let mut seen = 0;
    Box::new(move |line| {
        seen += usize::from(line.contains(words));
        (line.contains(words) && seen == nth).then(|| (reply(), is_done))
    })
}

/// Bytes of which no part is like another.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * at / 7 + at / 251) as u8).collect()
}

fn server_trouble(outcome: Result<(), UploadTrouble>) -> (String, &'static str) {
    match outcome {
        Err(UploadTrouble::Server { what, cure, .. }) => (what, cure),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_short_file_goes_in_one_request_and_a_long_one_in_parts_and_both_are_there_as_they_were() {
    let subject = Subject::new(Stored::default(), no_fault());
    let mut client = subject.client();
    for length in [1, 999, 1000, 1001, 5000, 5432] {
        client.bring(&subject.file(&format!("in.log.{length}"), &bytes(length))).expect("there");
    }
    let expected: BTreeMap<String, Vec<u8>> =
        [1, 999, 1000, 1001, 5000, 5432].map(|length| (format!("host/in.log.{length}"), bytes(length))).into();
    assert_eq!(subject.objects(), expected.into_iter().collect::<Vec<_>>());
    assert_eq!(subject.asked("PUT"), 3 + 2 + 5 + 6);
}

#[test]
fn what_the_server_has_already_is_not_sent_again_and_nothing_that_is_there_is_overwritten() {
    let subject = Subject::new(Stored::default(), no_fault());
    let mut client = subject.client();
    for _ in 0..3 {
        client.bring(&subject.file("a.log.gz", b"first")).expect("there");
        client.bring(&subject.file("b.log", &bytes(2500))).expect("there");
    }
    assert_eq!(subject.asked("PUT"), 1 + 3);
    for _ in 0..2 {
        client.bring(&subject.file("a.log.gz", b"another of that name")).expect("there");
    }
    let digest = format!("{:x}", md5::compute(b"another of that name"));
    let expected = [
        (format!("host/a.log-{digest}.gz"), b"another of that name".to_vec()),
        ("host/a.log.gz".to_owned(), b"first".to_vec()),
        ("host/b.log".to_owned(), bytes(2500)),
    ];
    assert_eq!(subject.objects(), expected);
    assert_eq!(subject.asked("PUT"), 1 + 3 + 1);
}

#[test]
fn an_upload_that_broke_off_goes_on_with_the_parts_that_are_missing() {
    let busy = || Reply::Answer(503, "Retry-After: 7\r\n", "<Error><Code>SlowDown</Code></Error>".to_owned());
    let subject = Subject::new(Stored::default(), fault_at("partNumber=5", 1, busy, false));
    let job = subject.file("long", &bytes(6500));
    let trouble = subject.client().bring(&job).expect_err("broken off");
    let UploadTrouble::Server { what, after, .. } = trouble else { panic!("{trouble:?}") };
    assert_eq!((what.as_str(), after), ("refuses to take host/long (503, SlowDown)", Some(Duration::from_secs(7))));
    assert_eq!(subject.asked("PUT"), 5);
    // Another process knows nothing but the file.
    subject.client().bring(&job).expect("there");
    assert_eq!(subject.asked("PUT"), 5 + 3, "four parts were there");
    assert_eq!(subject.objects(), [("host/long".to_owned(), bytes(6500))]);
    assert_eq!(subject.store.lock().expect("no panic").begun, 1);
}

#[test]
fn parts_of_another_file_of_that_name_are_sent_again() {
    let fault = fault_at("POST /logs/host/long?uploads", 9, Reply::taken, false);
    let stored = Stored {
        uploads: [("id&1".to_owned(), ("host/long".to_owned(), [(1, bytes(1000)), (2, vec![7; 1000])].into()))].into(),
        ..Stored::default()
    };
    let subject = Subject::new(stored, fault);
    subject.client().bring(&subject.file("long", &bytes(2500))).expect("there");
    assert_eq!(subject.objects(), [("host/long".to_owned(), bytes(2500))]);
    assert_eq!(subject.asked("PUT"), 2, "the second and the third part");
}

#[test]
fn whichever_answer_is_lost_the_next_attempt_leaves_one_object_of_the_right_bytes() {
    // The lists of objects and of uploads, the begin, two parts and the end.
    for (words, nth) in [("GET", 1), ("GET", 2), ("POST", 1), ("PUT", 1), ("partNumber=3", 1), ("POST", 2)] {
        for is_done in [false, true] {
            let subject = Subject::new(Stored::default(), fault_at(words, nth, || Reply::Raw(""), is_done));
            let job = subject.file("long", &bytes(2500));
            // A new process each time.
            let attempts = (1..4).find(|_| subject.client().bring(&job).is_ok());
            assert!(attempts.is_some_and(|count| count <= 2), "{words} {nth} {is_done}: {attempts:?}");
            assert_eq!(subject.objects(), [("host/long".to_owned(), bytes(2500))], "{words} {nth} {is_done}");
            assert_eq!(subject.store.lock().expect("no panic").begun, 1, "{words} {nth} {is_done}");
        }
    }
}

#[test]
fn what_the_server_has_must_be_what_was_sent() {
    for length in [500, 2500] {
        let subject = Subject::new(Stored { corrupts: true, ..Stored::default() }, no_fault());
        let (what, cure) = server_trouble(subject.client().bring(&subject.file("a", &bytes(length))));
        assert!(what.contains("has host/a with the checksum") && cure.contains("stands between"), "{what}{cure}");
    }
    let subject = Subject::new(Stored { encrypts: true, ..Stored::default() }, no_fault());
    subject.client().bring(&subject.file("a", &bytes(500))).expect("it has compared the checksum it was told");
    subject.client().bring(&subject.file("b", &bytes(2500))).expect("the same for parts");
    assert_eq!(subject.objects(), [("host/a".to_owned(), bytes(500)), ("host/b".to_owned(), bytes(2500))]);
}

#[test]
fn a_file_that_was_changed_or_removed_meanwhile_is_no_fault_of_the_server() {
    let subject = Subject::new(Stored::default(), no_fault());
    let job = subject.file("a", b"one");
    fs::write(&job.path, b"another").expect("written");
    assert!(matches!(subject.client().bring(&job), Err(UploadTrouble::File(_))));
    fs::remove_file(&job.path).expect("removed");
    assert!(matches!(subject.client().bring(&job), Err(UploadTrouble::File(_))));
    assert_eq!(subject.server.seen().len(), 0);
}

/// A refusal, and words of the line that tells of it.
fn refused(status: u16, headers: &'static str, code: &str, message: &str) -> String {
    let body = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    let mut once = Some(Reply::Answer(status, headers, body));
    let subject = Subject::new(Stored::default(), Box::new(move |_| once.take().map(|reply| (reply, false))));
    let (what, cure) = server_trouble(subject.client().bring(&subject.file("a", b"one")));
    format!("{what}{cure}")
}

#[test]
fn each_refusal_is_told_with_its_cause_and_its_cure_and_without_a_secret() {
    let wrong_key = refused(403, "", "SignatureDoesNotMatch", &format!("you sent {SECRET}"));
    assert_eq!(
        wrong_key,
        "refuses to list the bucket (403, SignatureDoesNotMatch: you sent (not shown)); write valid keys into \
         credentials_file, which udpd reads again"
    );
    for (status, headers, code, words) in [
        (403, "", "InvalidAccessKeyId", "write valid keys"),
        (403, "", "ExpiredToken", "write valid keys"),
        (403, "", "AccessDenied", "give those keys the rights"),
        (404, "", "NoSuchBucket", "make the bucket"),
        (301, "", "PermanentRedirect", "region of the bucket"),
        (400, "", "AuthorizationHeaderMalformed", "region of the bucket"),
        (403, "", "RequestTimeTooSkewed", "set the clock"),
        (
            403,
            "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            "AccessDenied",
            "s ahead of that of the server; set the clock",
        ),
        (403, "Date: Sun, 06 Nov 2101 08:49:37 GMT\r\n", "AccessDenied", "s behind that of the server; set the clock"),
        (507, "", "", "make room there"),
        (400, "", "QuotaExceeded", "make room there"),
        (503, "", "SlowDown", "see how the server fares"),
        (404, "", "", "leads to a server that speaks S3"),
    ] {
        let line = refused(status, headers, code, "m");
        assert!(line.contains(words) && line.contains(&status.to_string()), "{line}");
    }
}

#[test]
fn the_thread_tries_again_counts_what_failed_and_reads_the_keys_again() {
    let gone = || Reply::Answer(403, "", "<Error><Code>ExpiredToken</Code></Error>".to_owned());
    let subject = Subject::new(Stored::default(), fault_at("GET", 1, gone, false));
    let (registry, _events) = ThreadRegistry::new();
    let uploads = subject.uploads().start(&registry, "archive", &[]).expect("started");
    let ledgers: Vec<Arc<FileLedger>> = [("a", "one"), ("b", "two")]
        .into_iter()
        .map(|(name, text)| {
            let job = subject.file(name, text.as_bytes());
            let ledger = Arc::clone(&job.ledger);
            uploads.jobs.send(job).expect("a thread");
            ledger
        })
        .collect();
    let outcomes: Vec<UploadOutcome> = (0..2).map(|_| subject.told.recv().expect("an outcome")).collect();
    assert_eq!(outcomes, [UploadOutcome::Returned, UploadOutcome::Uploaded]);
    let failures = |ledger: &Arc<FileLedger>| FileLedger::sum([&**ledger].into_iter()).counts.upload_failures;
    assert_eq!(ledgers.iter().map(failures).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(subject.objects(), [("host/b".to_owned(), b"two".to_vec())]);
    fs::remove_file(subject.directory.path().join("keys")).expect("removed");
    let job = subject.file("c", b"three");
    let ledger = Arc::clone(&job.ledger);
    uploads.jobs.send(job).expect("a thread");
    assert_eq!(subject.told.recv(), Ok(UploadOutcome::Returned));
    assert_eq!(failures(&ledger), 1);
}

#[test]
fn a_server_that_never_answers_does_not_hold_up_the_end() {
    let (_never, released) = std::sync::mpsc::channel();
    let mut once = Some(Reply::After(released, Box::new(Reply::taken())));
    let subject = Subject::new(Stored::default(), Box::new(move |_| once.take().map(|reply| (reply, false))));
    let (registry, _events) = ThreadRegistry::new();
    let uploads = subject.uploads().start(&registry, "archive", &[]).expect("started");
    let job = subject.file("a", b"one");
    let ledger = Arc::clone(&job.ledger);
    uploads.jobs.send(job).expect("a thread");
    subject.server.until_seen(1);
    // The thread alone has the ledger besides this test, so its end is seen.
    drop(uploads);
    super::super::connection::testing::until("the thread ends", || Arc::strong_count(&ledger) == 1);
    assert!(subject.told.is_empty(), "the next start takes it up");
}

#[test]
fn keys_are_read_as_the_tools_of_aws_write_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys");
    let read = |text: &str| {
        fs::write(&path, text).expect("written");
        server::read_keys(&path)
            .map(|keys| (keys.key().to_owned(), keys.secret().to_owned(), keys.token().map(str::to_owned)))
    };
    let both = "# mine\n[default]\naws_access_key_id=A\nAWS_SECRET_ACCESS_KEY = B/c= \n";
    assert_eq!(read(both), Ok(("A".to_owned(), "B/c=".to_owned(), None)));
    let token = format!("{both}aws_session_token = T\n\n[other]\naws_access_key_id = C\n");
    assert_eq!(read(&token), Ok(("A".to_owned(), "B/c=".to_owned(), Some("T".to_owned()))));
    for (text, words) in [("", "empty"), ("aws_access_key_id = A", "aws_secret_access_key"), ("hunter2", "no line")] {
        let why = read(text).expect_err(words);
        assert!(why.contains(words) && !why.contains("hunter2"), "{why}");
    }
}

#[test]
fn a_place_is_a_bucket_and_what_names_begin_with() {
    let place = |url: &str| BucketPlace::read(url, "eu-1", Path::new("/log/"));
    let key = |url: &str| place(url).expect(url).key_of(Path::new("/log/2026/a.log"));
    assert_eq!(key("https://h/logs"), "2026/a.log");
    assert_eq!(key("http://10.0.0.1:9000/logs/"), "2026/a.log");
    assert_eq!(key("https://[::1]:9000/logs/host/1/"), "host/1/2026/a.log");
    for url in ["https://h", "https://h/", "h/logs", "https://h/a b", "https://h/logs/../other", "https://h/logs?x=y"] {
        place(url).expect_err(url);
    }
    BucketPlace::read("https://h/logs", "", Path::new("/")).expect_err("no region");
}
