//! What the kernel says of the record of a tracepoint: its number, where each field lies, and the names of values.
//!
//! The layout of a record changes from kernel to kernel, and so do the numbers behind the names, so both are read from
//! the tracepoint's `format` file and none is known here. Pure: takes the text, asks nobody.

/// Where a field lies in the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    offset: usize,
    bytes: usize,
    signed: bool,
}

impl Field {
    /// The value in `record`; `None` where the record is too short for it.
    pub(super) fn read(&self, record: &[u8]) -> Option<i64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.bytes)?)?;
        // Each arm is right about its length, because only these four are made.
        Some(match (bytes.len(), self.signed) {
            (1, false) => i64::from(bytes[0]),
            (1, true) => i64::from(bytes[0].cast_signed()),
            (2, false) => i64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            (2, true) => i64::from(i16::from_ne_bytes(bytes.try_into().ok()?)),
            (4, false) => i64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            (4, true) => i64::from(i32::from_ne_bytes(bytes.try_into().ok()?)),
            (8, _) => i64::from_ne_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    }
}

/// One `format` file, understood.
#[derive(Debug)]
pub(super) struct Format {
    /// As in `name: kfree_skb`.
    pub(super) name: String,
    /// The number by which `perf_event_open` knows the tracepoint. Another one after each boot.
    pub(super) id: u64,
    fields: Vec<(String, Field)>,
    print: String,
}

impl Format {
    /// Reads the text of a `format` file. The error says what is missing.
    pub(super) fn parse(text: &str) -> Result<Format, String> {
        let after = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let name = after("name:").ok_or("no line `name:`")?.to_owned();
        let id = after("ID:").ok_or("no line `ID:`")?;
        let id = id.parse().map_err(|_| format!("`ID: {id}` is no number"))?;
        let fields = text.lines().filter_map(field).collect();
        let print = after("print fmt:").unwrap_or_default().to_owned();
        Ok(Format { name, id, fields, print })
    }

    /// The field of this name, where the kernel has it.
    pub(super) fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(its, _)| its == name).map(|(_, field)| *field)
    }

    /// The names of the values of a field, from the list with which the kernel prints it. Empty where there is none.
    pub(super) fn names(&self, field: &str) -> Vec<(u32, String)> {
        let list = format!("__print_symbolic(REC->{field},");
        let Some(list) = self.print.split(&list).nth(1) else { return Vec::new() };
        let mut names = Vec::new();
        let mut left = list.trim_start();
        // One `{ 3, "NO_SOCKET" }` after the other. A value that is not a number is an enumerator that the kernel did
        // not resolve for us.
        while let Some((pair, after)) = left.strip_prefix('{').and_then(|left| left.split_once('}')) {
            if let Some((value, name)) = pair.split_once(',')
                && let Some(value) = number(value.trim())
            {
                names.push((value, name.trim().trim_matches('"').to_owned()));
            }
            left = after.trim_start().trim_start_matches(',').trim_start();
        }
        names
    }
}

/// One line such as `field:unsigned short protocol; offset:32; size:2; signed:0;`, with tabs between.
fn field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declared = parts.next()?.strip_prefix("field:")?;
    let name = declared.rsplit([' ', '*']).next()?;
    // An array has its length behind its name. None is looked at.
    let name = name.split('[').next()?;
    let mut value = |key: &str| parts.next()?.strip_prefix(key)?.parse::<usize>().ok();
    let field = Field { offset: value("offset:")?, bytes: value("size:")?, signed: value("signed:")? != 0 };
    Some((name.to_owned(), field))
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
