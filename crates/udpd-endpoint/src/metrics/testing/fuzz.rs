//! A fuzz target: the head of a request, and who may ask.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

use super::access::{TokenFile, is_own_name};
use super::http::{HttpRequest, HttpResponse, head_length};

const TOKEN: &str = "a-token-of-some-length";

/// A token, which is read once.
fn token() -> &'static TokenFile {
    static READ: OnceLock<TokenFile> = OnceLock::new();
    READ.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("udpd-fuzz-token-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(TOKEN.as_bytes())).expect("a file of ours");
        let read = TokenFile::read(&path).expect("a token");
        std::fs::remove_file(path).expect("a file of ours");
        read
    })
}

/// The end of a head is found where it first comes, a request is read of its head alone, and nothing that a client
/// sends makes another field of an answer.
pub(crate) fn request(input: &[u8]) {
    let length = head_length(input);
    if let Some(length) = length {
        assert!(input[..length].windows(2).all(|pair| pair != b"\n\n"));
        assert!(input[..length].windows(4).all(|four| four != b"\r\n\r\n"));
        assert_eq!(head_length(&input[..input.len().min(length + 4)]), Some(length));
    }
    let head = &input[..length.unwrap_or(input.len())];
    let Some(request) = HttpRequest::read(head) else { return };
    assert_eq!(HttpRequest::read(head).as_ref(), Some(&request));
    for part in [request.method, request.path, request.query, request.host] {
        assert!(!part.contains([' ', '\n']), "{part:?}");
    }
    assert!(!request.host.is_empty() && !request.host.contains(char::is_control));
    assert!(request.path.starts_with('/') && !request.path.contains('?'));
    if let Some(step) = request.parameter("step") {
        assert!(request.query.contains(step));
    }
    let _ = is_own_name(request.host, "machine");
    // A foreign name is none of this machine; what is below localhost is, whatever it begins with.
    let name = request.host.to_ascii_lowercase();
    assert!(!is_own_name(request.host, "") || !name.starts_with("evil.") || name.contains(".localhost"));
    if token().allows(request.authorization) {
        let sent = request.authorization.unwrap_or_default().to_ascii_lowercase();
        let is_bearer = sent.starts_with("bearer ") && sent.trim_end().ends_with(TOKEN);
        assert!(is_bearer || sent.starts_with("basic "), "{sent:?}");
    }
    let bytes = HttpResponse::words("404 Not Found", "no\n").bytes(request.method != "HEAD");
    assert_eq!(
        head_length(&bytes).map(|length| length + 4),
        Some(bytes.len() - usize::from(request.method != "HEAD") * 3)
    );
}
