//! One server that speaks S3: how a file gets there in requests.
//!
//! A file that is longer than a part goes in parts ([`PART_BYTES`]), each read from the file while it is sent, so that
//! memory does not grow with files. Before that it is read once for its checksums (MD5: the one that every server has
//! in its ETag). The server is told each, and refuses what does not fit; and what it answers is compared.
//!
//! The first question is whether the server has the object. If it has this very file, an attempt before has succeeded,
//! whose answer was lost. If it has another one of that name, the checksum becomes a part of the name: nothing that is
//! there is overwritten. For a file in parts it is asked next for an upload that was begun and for the parts that it
//! has: those that fit are not sent again.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff_of_s3::Timestamp;
use rusty_s3::signing::sign;
use rusty_s3::{Bucket, Credentials, Method, UrlStyle};
use ureq::http::{self, HeaderMap, HeaderName, HeaderValue, Response};

use super::super::connection::exchange::Exchange;
use super::answers::{checksum, elements, is_encrypted, refusal, text};
use crate::secrets::{self, HiddenSecrets};
use udpd_base::seams::clock;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::base64;
use udpd_file::upload::UploadJob;

/// How long a part is. A connection that breaks costs at most one.
const PART_BYTES: u64 = 8 << 20;

/// No server takes more parts, so those of a longer file are longer.
const PARTS_MAX: u64 = 10_000;

/// How much is read at once for a checksum.
const CHUNK_BYTES: usize = 256 << 10;

/// The memory of uploads besides a connection: a chunk, the checksums, the longest list and the longest answer.
pub(super) const MEMORY_BYTES: usize = CHUNK_BYTES + PARTS_MAX as usize * (size_of::<Digest>() + 128) + (2 << 20);

/// How long a signature is valid: as far as clocks may be apart.
const SIGNATURE_SECONDS: u64 = 900;

type Digest = [u8; 16];

/// Where files go.
#[derive(Debug, Clone)]
pub(super) struct BucketPlace {
    bucket: Bucket,
    /// What names of objects begin with.
    prefix: String,
    /// The directory below which the rest of a path is the rest of the name.
    base: PathBuf,
}

impl BucketPlace {
    pub(super) fn read(url: &str, region: &str, base: &Path) -> Result<Self, ValueAdvice> {
        let wrong = |what: String| {
            ValueAdvice::new(what, "write it as \"https://HOST/BUCKET\" or \"https://HOST/BUCKET/PREFIX\"")
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.!*'()/".contains(c);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(format!("{url:?} is no URL")))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, prefix) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(wrong(format!("{url:?} names no bucket")));
        }
        if !path.chars().all(is_plain) || path.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(wrong(format!("{path:?} holds characters that names in a bucket have not")));
        }
        if region.is_empty() || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(ValueAdvice::new(
                format!("region = {region:?} is none"),
                "write it as in region = \"eu-central-1\"",
            ));
        }
        let endpoint =
            format!("{scheme}://{host}").parse().map_err(|error| wrong(format!("{url:?} is no URL: {error}")))?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, name.to_owned(), region.to_owned())
            .map_err(|error| wrong(format!("{url:?} leads to no bucket: {error}")))?;
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { bucket, prefix, base: base.components().collect() })
    }

    /// The name of the object for a file.
    pub(super) fn key_of(&self, path: &Path) -> String {
        format!("{}{}", self.prefix, path.strip_prefix(&self.base).unwrap_or(path).to_string_lossy())
    }
}

/// The name for a file where another one has its name: with its checksum before the last suffix.
fn other_key(key: &str, digest: &str) -> String {
    match key.rsplit_once('.').filter(|(_, suffix)| !suffix.contains('/')) {
        Some((stem, suffix)) => format!("{stem}-{digest}.{suffix}"),
        None => format!("{key}-{digest}"),
    }
}

/// The keys in a file, as the tools of AWS write them; of several profiles the first.
pub(super) fn read_keys(path: &Path) -> Result<Credentials, String> {
    let text = secrets::read(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])).peekable();
    lines.next_if(|line| line.starts_with('['));
    let written: Vec<(&str, &str)> =
        lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('=')).collect();
    let value = |name: &str| {
        let found = written.iter().find(|(own, _)| own.trim().eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let needed = |name: &str| value(name).ok_or_else(|| format!("{} has no line {name} = ...", path.display()));
    let (key, secret) = (needed("aws_access_key_id")?, needed("aws_secret_access_key")?);
    Ok(match value("aws_session_token") {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    })
}

/// Why a file is not there.
#[derive(Debug)]
pub(super) enum UploadTrouble {
    /// It cannot be read, or is another one now.
    File(io::Error),
    Server {
        what: String,
        cure: &'static str,
        after: Option<Duration>,
    },
    /// The sink has ended.
    Ended,
}

impl From<io::Error> for UploadTrouble {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// What is sent of a file, or other bytes.
enum Body<'a> {
    None,
    Bytes(&'a [u8]),
    Part { file: &'a File, at: u64, bytes: u64 },
}

impl Body<'_> {
    fn length(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Part { bytes, .. } => *bytes,
        }
    }
}

/// Reads a part of a file without its position.
struct PartReader<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for PartReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut into[..most], self.at)?;
        (self.at, self.left) = (self.at + count as u64, self.left - count as u64);
        Ok(count)
    }
}

/// A file that is being brought, with the checksum of each part.
struct Upload<'a> {
    job: &'a UploadJob,
    file: File,
    part_bytes: u64,
    digests: Vec<Digest>,
}

impl Upload<'_> {
    fn part(&self, index: usize) -> Body<'_> {
        let at = index as u64 * self.part_bytes;
        Body::Part { file: &self.file, at, bytes: self.part_bytes.min(self.job.bytes() - at) }
    }

    /// The checksum as a server has it of the object.
    fn checksum(&self) -> String {
        match self.digests.as_slice() {
            [only] => hex(only),
            parts => format!("{}-{}", hex(&md5::compute(parts.concat()).0), parts.len()),
        }
    }
}

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends requests to the server of one bucket.
#[derive(Debug)]
pub(super) struct S3Server {
    exchange: Exchange,
    place: BucketPlace,
    credentials_file: PathBuf,
    credentials: Option<Credentials>,
    hidden: HiddenSecrets,
    answer: Vec<u8>,
    part_bytes: u64,
}

impl S3Server {
    pub(super) fn new(exchange: Exchange, place: BucketPlace, credentials_file: PathBuf) -> Self {
        let (credentials, hidden, answer) = (None, HiddenSecrets::default(), Vec::new());
        Self { exchange, place, credentials_file, credentials, hidden, answer, part_bytes: PART_BYTES }
    }

    #[cfg(test)]
    pub(super) fn in_parts_of(self, part_bytes: u64) -> Self {
        Self { part_bytes, ..self }
    }

    /// Returns when the server has a file, with its checksum.
    pub(super) fn bring(&mut self, job: &UploadJob) -> Result<(), UploadTrouble> {
        // Other programs write new keys there before the old ones expire.
        let credentials = read_keys(&self.credentials_file).map_err(|why| UploadTrouble::Server {
            what: format!("takes no files without keys: {why}"),
            cure: "; see credentials_file",
            after: None,
        })?;
        self.hidden.add(credentials.secret());
        credentials.token().into_iter().for_each(|token| self.hidden.add(token));
        self.credentials = Some(credentials);
        let upload = self.read(job)?;
        let expected = upload.checksum();
        let mut key = self.place.key_of(&job.path);
        if let Some(found) = self.object(&key)? {
            if found == expected {
                return Ok(());
            }
            key = other_key(&key, &expected);
            if self.object(&key)?.is_some_and(|found| found == expected) {
                return Ok(());
            }
        }
        match upload.digests.len() {
            1 => self.put(&key, &[], &upload, 0).map(drop),
            _ => self.bring_in_parts(&key, &upload, &expected),
        }
    }

    /// Reads a file for its checksums.
    fn read<'j>(&self, job: &'j UploadJob) -> Result<Upload<'j>, UploadTrouble> {
        let part_bytes = self.part_bytes.max(job.bytes().div_ceil(PARTS_MAX));
        let mut upload = Upload { job, file: job.open()?, part_bytes, digests: Vec::new() };
        let mut chunk = vec![0; CHUNK_BYTES];
        for index in 0..job.bytes().div_ceil(part_bytes).max(1) {
            let at = index * part_bytes;
            let mut part = PartReader { file: &upload.file, at, left: part_bytes.min(job.bytes() - at) };
            let mut digest = md5::Context::new();
            loop {
                if !job.is_wanted() {
                    return Err(UploadTrouble::Ended);
                }
                match part.read(&mut chunk)? {
                    0 => break,
                    count => digest.consume(&chunk[..count]),
                }
            }
            upload.digests.push(digest.finalize().0);
        }
        Ok(upload)
    }

    /// The checksum of the object of this name, if there is one.
    fn object(&mut self, key: &str) -> Result<Option<String>, UploadTrouble> {
        let query = [("list-type", "2"), ("max-keys", "1"), ("prefix", key)];
        let (_, list) = self.ask("list the bucket", Method::Get, "", &query, Body::None, None)?;
        // The object with just this name is the first whose name begins so.
        let found = elements(&list, "Contents").find(|found| text(found, "Key").as_deref() == Some(key));
        Ok(found.map(|found| checksum(&text(found, "ETag").unwrap_or_default())))
    }

    /// Sends a part of a file; returns its ETag.
    fn put(
        &mut self,
        key: &str,
        query: &[(&str, &str)],
        upload: &Upload<'_>,
        index: usize,
    ) -> Result<String, UploadTrouble> {
        let digest = &upload.digests[index];
        let asked = format!("take {key}");
        let (answer, _) = self.ask(&asked, Method::Put, key, query, upload.part(index), Some(digest))?;
        let etag = answer.headers().get("etag").and_then(|etag| etag.to_str().ok()).unwrap_or_default();
        self.compare(key, &hex(digest), etag, answer.headers(), upload)?;
        Ok(etag.to_owned())
    }

    /// Whether the server has what was sent.
    fn compare(
        &self,
        key: &str,
        expected: &str,
        etag: &str,
        headers: &HeaderMap,
        upload: &Upload<'_>,
    ) -> Result<(), UploadTrouble> {
        // Where it encrypts, its ETag is no checksum, and it has compared what it was told itself.
        if checksum(etag) == expected || is_encrypted(headers) {
            return Ok(());
        }
        // It is no fault of the server where the file was changed meanwhile.
        upload.job.open()?;
        Err(UploadTrouble::Server {
            what: format!("has {key} with the checksum {}, and not {expected}", checksum(etag)),
            cure: "; see what stands between udpd and the server",
            after: None,
        })
    }

    fn bring_in_parts(&mut self, key: &str, upload: &Upload<'_>, expected: &str) -> Result<(), UploadTrouble> {
        let asked = format!("take {key} in parts");
        let begun = self.begun(key)?;
        let id = match &begun {
            Some(id) => id.clone(),
            None => {
                let (_, body) = self.ask(&asked, Method::Post, key, &[("uploads", "")], Body::None, None)?;
                text(&body, "UploadId").ok_or_else(|| no_s3("the id of an upload"))?
            }
        };
        let known = if begun.is_some() { self.parts(key, &id)? } else { Vec::new() };
        let mut all = String::from("<CompleteMultipartUpload>");
        for (index, digest) in upload.digests.iter().enumerate() {
            let number = (index + 1).to_string();
            let is_there = |(own, etag): &&(String, String)| *own == number && checksum(etag) == hex(digest);
            let etag = match known.iter().find(is_there) {
                Some((_, etag)) => etag.clone(),
                None => self.put(key, &[("partNumber", &number), ("uploadId", &id)], upload, index)?,
            };
            all += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
        }
        all += "</CompleteMultipartUpload>";
        let (answer, body) =
            self.ask(&asked, Method::Post, key, &[("uploadId", &id)], Body::Bytes(all.as_bytes()), None)?;
        // An answer that begins as a success may end as a refusal.
        if text(&body, "ETag").is_none() {
            return Err(refusal(&asked, &answer, body.as_bytes(), clock::wall()));
        }
        let etag = text(&body, "ETag").unwrap_or_default();
        self.compare(key, expected, &etag, answer.headers(), upload)
    }

    /// The id of an upload of this object that was begun and not ended; of several the newest.
    fn begun(&mut self, key: &str) -> Result<Option<String>, UploadTrouble> {
        let query = [("prefix", key), ("uploads", "")];
        let (_, list) = self.ask("list uploads that were begun", Method::Get, "", &query, Body::None, None)?;
        let of_it = elements(&list, "Upload").filter(|upload| text(upload, "Key").as_deref() == Some(key));
        Ok(of_it.last().and_then(|upload| text(upload, "UploadId")))
    }

    /// The number and ETag of each part that the server has.
    fn parts(&mut self, key: &str, id: &str) -> Result<Vec<(String, String)>, UploadTrouble> {
        let (mut found, mut marker) = (Vec::new(), "0".to_owned());
        loop {
            let query = [("part-number-marker", marker.as_str()), ("uploadId", id)];
            let (_, list) = self.ask("list the parts of an upload", Method::Get, key, &query, Body::None, None)?;
            found.extend(
                elements(&list, "Part").filter_map(|part| Some((text(part, "PartNumber")?, text(part, "ETag")?))),
            );
            match text(&list, "NextPartNumberMarker") {
                Some(next) if text(&list, "IsTruncated").as_deref() == Some("true") && next != marker => marker = next,
                _ => return Ok(found),
            }
        }
    }

    /// Sends a request and reads the answer, which is a success.
    fn ask(
        &mut self,
        asked: &str,
        method: Method,
        key: &str,
        query: &[(&str, &str)],
        body: Body<'_>,
        digest: Option<&Digest>,
    ) -> Result<(Response<()>, String), UploadTrouble> {
        let mut headers = HeaderMap::new();
        if let Some(digest) = digest {
            let mut encoded = Vec::new();
            base64::append(&mut encoded, digest);
            let value = HeaderValue::from_bytes(&encoded).map_err(|_| no_s3("a checksum"))?;
            headers.insert(HeaderName::from_static("content-md5"), value);
        }
        let mut has_tried = false;
        loop {
            let target = self.signed(method, key, query);
            let http_method = http::Method::from_bytes(method.to_str().as_bytes()).unwrap_or_default();
            let mut none: &[u8] = &[];
            let (mut bytes, mut part);
            let reader: &mut dyn Read = match body {
                Body::None => &mut none,
                Body::Bytes(all) => {
                    bytes = all;
                    &mut bytes
                }
                Body::Part { file, at, bytes } => {
                    part = PartReader { file, at, left: bytes };
                    &mut part
                }
            };
            let sent = (reader, body.length());
            let answered = self.exchange.ask(http_method, &target, headers.clone(), sent, &mut self.answer);
            let trouble = match answered {
                Ok(answer) if answer.status().is_success() => {
                    return Ok((answer, String::from_utf8_lossy(&self.answer).into_owned()));
                }
                Ok(answer) => refusal(asked, &answer, &self.answer, clock::wall()),
                Err(_) if self.exchange.is_interrupted() => return Err(UploadTrouble::Ended),
                // By a connection that the server had closed meanwhile. What begins an upload may have been done.
                Err(trouble) if trouble.is_stale && method != Method::Post && !has_tried => {
                    has_tried = true;
                    continue;
                }
                Err(trouble) => UploadTrouble::Server { what: trouble.what, cure: trouble.cure, after: None },
            };
            return Err(match trouble {
                UploadTrouble::Server { what, cure, after } => {
                    UploadTrouble::Server { what: self.hidden.clean(&what).into_owned(), cure, after }
                }
                other => other,
            });
        }
    }

    /// The URL of a request, which says who asks. It is shown nowhere.
    fn signed(&self, method: Method, key: &str, query: &[(&str, &str)]) -> String {
        let bucket = &self.place.bucket;
        let Some(keys) = &self.credentials else { return String::new() };
        let now = Timestamp::try_from(clock::wall()).unwrap_or(Timestamp::UNIX_EPOCH);
        let (url, query) = (bucket.object_url(key), query.iter().copied());
        let (id, secret, token, region) = (keys.key(), keys.secret(), keys.token(), bucket.region());
        sign(&now, method, url, id, secret, token, region, SIGNATURE_SECONDS, query, std::iter::empty()).into()
    }
}

/// An answer without what every S3 has in it.
fn no_s3(missing: &str) -> UploadTrouble {
    let what = format!("has answered without {missing}");
    UploadTrouble::Server { what, cure: "; see whether url leads to a server that speaks S3", after: None }
}
