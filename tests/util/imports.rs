//! Which file of a crate imports which, so that a test can hold the order of the files.
//!
//! The module tree is read from the `mod` lines, beginning at the crate's root; so files that only tests declare are
//! left out, as everything behind `#[cfg(test)]` is. Every path in the code counts, in a `use` or where it stands, and
//! leads to the file that defines what it names: a name that a module only hands on (`pub use`) is followed to where it
//! comes from. A `pub use` is an import as well. Names behind a glob are not followed, and all features count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::source::{Source, is_word, line_of};

/// How many names that stand for other names are followed; a name may stand for itself.
const FOLLOWED_MAX: usize = 8;

/// The words that an item begins with; before a comma ends a field, it ends nothing of these.
const ITEMS: &[&str] = &[
    "pub", "fn", "mod", "use", "impl", "struct", "enum", "const", "static", "type", "trait", "unsafe", "extern",
    "async",
];

/// One path in one file that leads to another file of the same crate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    /// The file that imports, from the root of the repository.
    pub(crate) from: String,
    /// The file that defines what is imported.
    pub(crate) to: String,
    /// The line of the path in `from`, from 1.
    pub(crate) line: usize,
}

impl std::fmt::Display for Import {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{} imports {}", self.from, self.line, self.to)
    }
}

/// Every circle of imports between files of the crate whose root file is `crate_root`: for each file that is in one,
/// the shortest, as `a.rs:3 -> b.rs:7 -> a.rs`, where each number is the line of the import.
pub(crate) fn import_circles(sources: &[Source], crate_root: &str) -> Vec<String> {
    let imports = imports(sources, crate_root);
    let mut edges: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for import in &imports {
        edges.entry(&import.from).or_default().entry(&import.to).or_insert(import.line);
    }
    let (mut seen, mut circles) = (BTreeSet::new(), Vec::new());
    for start in edges.keys() {
        let Some(circle) = shortest_circle(&edges, start) else { continue };
        if seen.insert(circle.iter().copied().collect::<BTreeSet<&str>>()) {
            let steps = circle.iter().zip(circle.iter().cycle().skip(1));
            let text: String = steps.map(|(from, to)| format!("{from}:{} -> ", edges[from][to])).collect();
            circles.push(text + start);
        }
    }
    circles
}

/// The files of the shortest way from `start` back to it.
fn shortest_circle<'a>(edges: &BTreeMap<&'a str, BTreeMap<&'a str, usize>>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(at) = waiting.pop_front() {
        for to in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
            if *to == start {
                let mut way = vec![at];
                while let Some(before) = came_from.get(way[way.len() - 1]) {
                    way.push(before);
                }
                way.reverse();
                return Some(way);
            }
            if !came_from.contains_key(to) {
                came_from.insert(to, at);
                waiting.push_back(to);
            }
        }
    }
    None
}

/// Every import between two files of the crate whose root file is `crate_root` ("crates/mmsg/src/lib.rs"), sorted.
pub(crate) fn imports(sources: &[Source], crate_root: &str) -> Vec<Import> {
    let tree = Tree::read(sources, crate_root);
    let mut found = BTreeSet::new();
    for path in &tree.paths {
        let Some((home, _)) = tree.home_of(&path.module, &path.segments, 0) else { continue };
        for to in tree.modules[&home].files.iter().filter(|to| **to != path.file) {
            found.insert(Import { from: path.file.clone(), to: to.clone(), line: path.line });
        }
    }
    found.into_iter().collect()
}

/// Every file of the crate whose root file is `crate_root`, but for those that only tests declare.
pub(crate) fn files(sources: &[Source], crate_root: &str) -> BTreeSet<String> {
    Tree::read(sources, crate_root).modules.into_values().flat_map(|module| module.files).collect()
}

/// A module and what it is made of.
#[derive(Default)]
struct Module {
    /// More than one where a feature chooses between them.
    files: BTreeSet<String>,
    /// What each name that a `use` brings in stands for.
    names: BTreeMap<String, Vec<String>>,
}

/// A path as it stands in the code.
struct Written {
    module: String,
    file: String,
    line: usize,
    segments: Vec<String>,
}

/// The modules of a crate, by their full names: "crate", "crate::sink::file".
struct Tree<'a> {
    sources: &'a [Source],
    modules: BTreeMap<String, Module>,
    paths: Vec<Written>,
}

/// The code around the words that are read: of one module, whose children have their files in `folder`.
#[derive(Clone, Copy)]
struct Around<'a> {
    module: &'a str,
    folder: &'a str,
    source: &'a Source,
}

impl<'a> Tree<'a> {
    fn read(sources: &'a [Source], crate_root: &str) -> Self {
        let mut tree = Self { sources, modules: BTreeMap::new(), paths: Vec::new() };
        tree.read_file("crate", crate_root, crate_root.rsplit_once('/').map_or("", |(folder, _)| folder));
        tree
    }

    fn source(&self, path: &str) -> Option<&'a Source> {
        self.sources.iter().find(|source| source.path == path)
    }

    fn read_file(&mut self, module: &str, file: &str, folder: &str) {
        let source = self.source(file).unwrap_or_else(|| panic!("{file}, the file of {module}, is not there"));
        self.read_module(Around { module, folder, source }, &without_tests(&tokens(&source.code)));
    }

    fn read_module(&mut self, around: Around<'_>, tokens: &[Token<'_>]) {
        let word = |at: usize| tokens.get(at).map_or("", |token| token.1);
        self.modules.entry(around.module.to_owned()).or_default().files.insert(around.source.path.clone());
        let mut at = 0;
        while at < tokens.len() {
            let start = at;
            at = match word(at) {
                "mod" if word(at + 2) == ";" => {
                    self.read_child(around, word(at + 1), declaration(around.source, &tokens[..at + 1]));
                    at + 3
                }
                "mod" if word(at + 2) == "{" => {
                    let end = closing(tokens, at + 2);
                    let module = format!("{}::{}", around.module, word(at + 1));
                    let folder = format!("{}/{}", around.folder, word(at + 1));
                    self.read_module(Around { module: &module, folder: &folder, ..around }, &tokens[at + 3..end]);
                    end + 1
                }
                // `+ use<'a>` is a bound.
                "use" if word(at + 1) != "<" => self.read_use(around, &[], tokens, at + 1) + 1,
                // `pub(in super::super)` says who may see something, and uses nothing.
                "in" if start > 0 && word(start - 1) == "(" => {
                    at + tokens[at..].iter().position(|token| token.1 == ")").unwrap_or(1)
                }
                name if is_name(name) => {
                    let mut segments = vec![name.to_owned()];
                    while word(at + 1) == "::" && is_name(word(at + 2)) {
                        segments.push(word(at + 2).to_owned());
                        at += 2;
                    }
                    if segments.len() > 1 {
                        self.write(around, tokens[start].0, segments);
                    }
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    /// The file or files of `mod name;`: where they belong, and where an attribute says.
    fn read_child(&mut self, around: Around<'_>, name: &str, declaration: &str) {
        let (module, folder) = (format!("{}::{name}", around.module), format!("{}/{name}", around.folder));
        let beside = around.source.path.rsplit_once('/').map_or("", |(beside, _)| beside);
        let named = declaration.split("path = \"").nth(1).and_then(|rest| rest.split('"').next());
        let files = [
            Some(format!("{folder}.rs")),
            Some(format!("{folder}/mod.rs")),
            named.map(|named| format!("{beside}/{named}")),
        ];
        let files: Vec<String> = files.into_iter().flatten().filter(|file| self.source(file).is_some()).collect();
        assert!(!files.is_empty(), "{}: no file for mod {name}", around.source.path);
        for file in files {
            self.read_file(&module, &file, &folder);
        }
    }

    /// One branch of a `use`, from `at` on; says where it ends.
    fn read_use(&mut self, around: Around<'_>, before: &[String], tokens: &[Token<'_>], mut at: usize) -> usize {
        let word = |at: usize| tokens.get(at).map_or("", |token| token.1);
        let place = tokens[at].0;
        let mut segments = before.to_vec();
        loop {
            match word(at) {
                "::" => at += 1,
                "{" => {
                    at += 1;
                    while word(at) != "}" {
                        at = self.read_use(around, &segments, tokens, at);
                        at += usize::from(word(at) == ",");
                    }
                    return at + 1;
                }
                "*" => {
                    self.write(around, place, segments);
                    return at + 1;
                }
                name => {
                    if name != "self" || segments.is_empty() {
                        segments.push(name.to_owned());
                    }
                    at += 1;
                    if word(at) != "::" {
                        break;
                    }
                }
            }
        }
        let mut name = segments.last().expect("a path has a name").clone();
        if word(at) == "as" {
            name = word(at + 1).to_owned();
            at += 2;
        }
        self.modules.entry(around.module.to_owned()).or_default().names.insert(name, segments.clone());
        self.write(around, place, segments);
        at
    }

    fn write(&mut self, around: Around<'_>, place: usize, segments: Vec<String>) {
        let (module, file) = (around.module.to_owned(), around.source.path.clone());
        self.paths.push(Written { module, file, line: line_of(&around.source.code, place), segments });
    }

    /// The module that defines what a path means where it stands in `module`, and whether the path names that module
    /// itself; `None` for what comes from elsewhere.
    fn home_of(&self, module: &str, segments: &[String], followed: usize) -> Option<(String, bool)> {
        let mut at = module.to_owned();
        for (index, segment) in segments.iter().enumerate() {
            let child = format!("{at}::{segment}");
            match segment.as_str() {
                "crate" => at = "crate".to_owned(),
                "self" => {}
                "super" => at = at.rsplit_once("::")?.0.to_owned(),
                _ if self.modules.contains_key(&child) => at = child,
                _ => {
                    let stands_for = self.modules[&at].names.get(segment).filter(|_| followed < FOLLOWED_MAX);
                    match stands_for.and_then(|path| self.home_of(&at, path, followed + 1)) {
                        Some((home, true)) => at = home,
                        Some(item) => return Some(item),
                        None if index == 0 => return None,
                        None => return Some((at, false)),
                    }
                }
            }
        }
        Some((at, true))
    }
}

/// A word, `::` or one other character, with its place.
type Token<'a> = (usize, &'a str);

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let length = match code.as_bytes()[at] {
            byte if is_word(byte) => code[at..].bytes().take_while(|byte| is_word(*byte)).count(),
            b':' if code[at..].starts_with("::") => 2,
            _ => code[at..].chars().next().map_or(1, char::len_utf8),
        };
        if !code[at..at + length].trim().is_empty() {
            found.push((at, &code[at..at + length]));
        }
        at += length;
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first == '_' || first.is_ascii_alphabetic())
}

/// Where the bracket that opens at `at` closes.
fn closing(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.1 {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    tokens.len()
}

/// What is left when everything behind `#[cfg(test)]` and `#[cfg(all(test, ...))]` is taken away.
fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let begins = |at: usize, text: &[&str]| {
        tokens.len() >= at + text.len() && tokens[at..].iter().zip(text).all(|(token, word)| token.1 == *word)
    };
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if begins(at, &["#", "[", "cfg", "(", "test", ")"]) || begins(at, &["#", "[", "cfg", "(", "all", "(", "test"]) {
            at = item_end(tokens, at);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Behind the item, statement, field or arm whose first attribute begins at `at`.
fn item_end(tokens: &[Token<'_>], mut at: usize) -> usize {
    while tokens.get(at).is_some_and(|token| token.1 == "#") {
        at = closing(tokens, at + 1) + 1;
    }
    let is_item = tokens.get(at).is_some_and(|token| ITEMS.contains(&token.1));
    while let Some(token) = tokens.get(at) {
        match token.1 {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            "{" => return closing(tokens, at) + 1,
            "}" | ")" | "]" => return at,
            "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
    at
}

/// The attributes and comments before the `mod` that is the last of these tokens.
fn declaration<'a>(source: &'a Source, tokens: &[Token<'_>]) -> &'a str {
    let end = tokens[tokens.len() - 1].0;
    let start = tokens.iter().rev().find(|token| matches!(token.1, ";" | "{" | "}")).map_or(0, |token| token.0);
    &source.text[start..end]
}
