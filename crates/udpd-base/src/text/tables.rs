//! Tables for a terminal and for a spreadsheet, from the same rows.

use std::fmt::Write as _;

/// Rows of text under headings. Numbers stand to the right, as does everything but the first column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextTable {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub fn new<H: Into<String>>(headings: impl IntoIterator<Item = H>) -> Self {
        Self { headings: headings.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; cells that are missing stay empty, and there is no place for more than there are headings.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.headings.len(), String::new());
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// For a terminal: columns two spaces apart.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let padding = " ".repeat(self.width(column) - cell.chars().count());
                let gap = if column == 0 { "" } else { "  " };
                match column {
                    0 => line.push_str(&format!("{cell}{padding}")),
                    _ => line.push_str(&format!("{gap}{padding}{cell}")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// For a spreadsheet: RFC 4180, with line feeds.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            // A String takes everything.
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        std::iter::once(&self.headings).chain(&self.rows).map(|row| row[column].chars().count()).max().unwrap_or(0)
    }
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

/// A whole number with commas, as people read it.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number, or "-" where there is none.
pub fn or_dash(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), grouped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(["layer", "lost"]);
        table.row(["kernel, lane 0", "1,234"]);
        table.row(["a \"b\""]);
        table
    }

    #[test]
    fn the_first_column_stands_left_and_the_others_right() {
        assert_eq!(table().text(), "layer            lost\nkernel, lane 0  1,234\na \"b\"\n");
    }

    #[test]
    fn a_cell_with_a_comma_or_a_quote_is_one_cell_in_csv() {
        assert_eq!(table().csv(), "layer,lost\n\"kernel, lane 0\",\"1,234\"\n\"a \"\"b\"\"\",\n");
    }

    #[test]
    fn thousands_are_set_apart() {
        let shown = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
