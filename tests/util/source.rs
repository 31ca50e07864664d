//! Reading Rust source the way the style test needs it: code only, and the names of its functions.
//!
//! Not a parser. Comments, strings and character literals are blanked out, line by line in place, and what is left is
//! looked at word by word. rustfmt has already made the rest regular.

use std::path::{Path, PathBuf};

/// One `.rs` file.
#[derive(Debug)]
pub(crate) struct Source {
    /// From the root of the repository, with forward slashes.
    pub(crate) path: String,
    /// As written.
    pub(crate) text: String,
    /// The same with everything that is not code turned into spaces; lines stay where they are.
    pub(crate) code: String,
}

/// Every `.rs` file of the repository, sorted by path.
pub(crate) fn all_sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["crates", "tests", "benches"].into_iter().flat_map(|folder| files_below(&root.join(folder)));
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|it| it == "rs")).collect();
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let path = file.strip_prefix(root).expect("found below the root").to_str().expect("UTF-8 paths").to_owned();
            Source { path, code: code_only(&text), text }
        })
        .collect()
}

/// Every file in `folder` and the folders in it.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// All text files of the repository, with their paths from its root.
pub(crate) fn texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [".ci", "benches", "config", "crates", "docs", "packaging", "tests"];
    let mut files: Vec<PathBuf> = folders.iter().flat_map(|folder| files_below(&root.join(folder))).collect();
    let at_root = std::fs::read_dir(root).expect("the repository").map(|entry| entry.expect("an entry").path());
    files.extend(at_root.filter(|path| path.is_file()));
    let relative = |path: &Path| path.strip_prefix(root).expect("below the root").to_str().expect("UTF-8").to_owned();
    // Records of benches name what there was at their time, and inputs of fuzz targets are any bytes.
    let left_out = ["benches/runs", "tests/corpus/fuzz"].map(|folder| root.join(folder));
    let files = files.iter().filter(|path| !left_out.iter().any(|folder| path.starts_with(folder)));
    files.filter_map(|path| Some((relative(path), std::fs::read_to_string(path).ok()?))).collect()
}

/// The text with comments, strings and character literals turned into spaces, and every line break kept.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = at + skipped(text, at);
        if end == at {
            code.push(bytes[at]);
            at += 1;
        } else {
            code.extend(bytes[at..end].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// How many bytes from `at` on are a comment or a literal; 0 when it is code.
fn skipped(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let rest = &bytes[at..];
    let inside_word = at > 0 && is_word(bytes[at - 1]);
    match rest[0] {
        b'/' if rest.starts_with(b"//") => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        b'/' if rest.starts_with(b"/*") => block_comment(rest),
        b'"' => quoted(rest, b'"'),
        b'r' | b'b' | b'c' if !inside_word => raw_string(rest),
        b'\'' => character(&text[at..]),
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a literal that opens and closes with `quote` and escapes with a backslash.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// The length of `r"..."`, `r#"..."#`, `br"..."` and the like; 0 when it is none. A plain `b"..."` is left to
/// [`quoted`].
fn raw_string(rest: &[u8]) -> usize {
    let prefix = rest.iter().take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
    if prefix > 2 || rest[prefix - 1] != b'r' {
        return 0;
    }
    let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
    let body = prefix + hashes + 1;
    if rest.get(body - 1) != Some(&b'"') {
        return 0;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    rest[body..]
        .windows(close.len())
        .position(|window| window == close)
        .map_or(rest.len(), |at| body + at + close.len())
}

/// The length of a character literal; 0 when the quote begins a lifetime.
fn character(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    let first = characters.next().map(|(_, character)| character);
    if first == Some('\\') {
        return quoted(rest.as_bytes(), b'\'');
    }
    match characters.next() {
        Some((at, '\'')) => at + 1,
        _ => 0,
    }
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// The words of the code, each with its place.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let bytes = code.as_bytes();
        let start = at + bytes[at..].iter().position(|byte| is_word(*byte))?;
        let end = bytes[start..].iter().position(|byte| !is_word(*byte)).map_or(bytes.len(), |length| start + length);
        at = end;
        Some((start, &code[start..end]))
    })
}

/// The line of a place, from 1.
pub(crate) fn line_of(code: &str, place: usize) -> usize {
    1 + code.as_bytes()[..place].iter().filter(|byte| **byte == b'\n').count()
}

/// The names of all functions.
pub(crate) fn functions(code: &str) -> Vec<&str> {
    let all: Vec<(usize, &str)> = words(code).collect();
    // `fn(u8)` is a type: the next word does not follow directly.
    let is_named = |pair: &&[(usize, &str)]| pair[0].1 == "fn" && code[pair[0].0 + 2..pair[1].0].trim().is_empty();
    all.windows(2).filter(is_named).map(|pair| pair[1].1).collect()
}
