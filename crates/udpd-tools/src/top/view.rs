//! What the operator looks at, which keys a terminal sends, and what each changes of the view.
//!
//! crossterm would read keys as well; its events stand on mio, which is the poll of an async runtime and banned here.
//! These few are less than that.

use std::cmp::Reverse;

use super::model::{LaneRow, Model, RateAndTotal, SinkRow, sum};
use udpd_base::ledger::snapshot::SinkCondition;

/// By how many lanes a page key moves.
const PAGE: isize = 10;

/// In which order listeners stand, lanes below their listener, and sinks beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RowOrder {
    /// What is down first, then what loses most now, then what has lost most.
    #[default]
    Loss,
    /// As the configuration has them.
    Number,
    Received,
    Buffer,
}

impl RowOrder {
    fn next(self) -> Self {
        match self {
            Self::Loss => Self::Number,
            Self::Number => Self::Received,
            Self::Received => Self::Buffer,
            Self::Buffer => Self::Loss,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Number => "lane",
            Self::Received => "received",
            Self::Buffer => "buffer",
        }
    }
}

/// A lane by its name, so that it stays chosen when others come and go.
pub(super) type LaneName = (String, usize);

/// How many lines of a zoomed-in lane do not fit, and how many do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub hidden: usize,
    pub shown: usize,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View {
    pub order: RowOrder,
    pub chosen: Option<LaneName>,
    pub is_zoomed: bool,
    /// How many lines of the zoomed-in lane are above the screen.
    pub scrolled: usize,
    pub is_frozen: bool,
    pub has_help: bool,
    pub is_over: bool,
    /// Colours may be used; never the only sign of anything.
    pub has_colour: bool,
}

impl View {
    /// Executes a key. `extent` is that of the zoomed-in lane as it was last drawn.
    pub(super) fn press(&mut self, key: KeyCommand, model: &Model, extent: Extent) {
        if self.is_zoomed && !self.has_help && self.scroll(key, extent) {
            return;
        }
        if self.has_help && key != KeyCommand::Quit {
            self.has_help = false;
            return;
        }
        match key {
            KeyCommand::Quit => self.is_over = true,
            KeyCommand::Help => self.has_help = true,
            KeyCommand::Freeze => self.is_frozen = !self.is_frozen,
            KeyCommand::Sort => self.order = self.order.next(),
            KeyCommand::Up => self.step(model, -1),
            KeyCommand::Down => self.step(model, 1),
            KeyCommand::PageUp => self.step(model, -PAGE),
            KeyCommand::PageDown => self.step(model, PAGE),
            KeyCommand::Next => self.step(model, 1),
            KeyCommand::Previous => self.step(model, -1),
            KeyCommand::First => self.choose(model, 0),
            KeyCommand::Last => self.choose(model, usize::MAX),
            KeyCommand::Enter => {
                self.is_zoomed = self.chosen(model).is_some();
                self.scrolled = 0;
            }
            KeyCommand::Back => self.is_zoomed = false,
        }
    }

    /// Scrolls the zoomed-in lane; returns whether the key does that.
    fn scroll(&mut self, key: KeyCommand, Extent { hidden, shown }: Extent) -> bool {
        let page = shown.saturating_sub(1).max(1);
        // The terminal may have grown since.
        let from = self.scrolled.min(hidden);
        self.scrolled = match key {
            KeyCommand::Up => from.saturating_sub(1),
            KeyCommand::Down => (from + 1).min(hidden),
            KeyCommand::PageUp => from.saturating_sub(page),
            KeyCommand::PageDown => (from + page).min(hidden),
            KeyCommand::First => 0,
            KeyCommand::Last => hidden,
            _ => return false,
        };
        true
    }

    /// The places of all listeners in the model, in the order in which they are shown.
    pub(super) fn listeners(&self, model: &Model) -> Vec<usize> {
        let mut places: Vec<usize> = (0..model.listeners.len()).collect();
        let rank = |listener: usize| {
            let lanes = || model.lanes.iter().filter(|lane| lane.listener == listener);
            let sinks = &model.listeners[listener].sinks;
            match self.order {
                RowOrder::Loss => {
                    let lost = sum(lanes().map(LaneRow::lost).chain(sinks.iter().map(|sink| sink.lost)));
                    (sinks.iter().map(condition).max().flatten(), loss(lost))
                }
                RowOrder::Number => (None, (0, 0)),
                RowOrder::Received => (None, (thousandths(sum(lanes().map(|lane| lane.received)).rate), 0)),
                RowOrder::Buffer => (None, (lanes().map(|lane| thousandths(lane.buffer)).max().unwrap_or(0), 0)),
            }
        };
        places.sort_by_cached_key(|&listener| (Reverse(rank(listener)), listener));
        places
    }

    /// The same of lanes, below their listeners.
    pub(super) fn lanes(&self, model: &Model) -> Vec<usize> {
        let rank = |lane: &LaneRow| match self.order {
            RowOrder::Loss => loss(lane.lost()),
            RowOrder::Number => (0, 0),
            RowOrder::Received => (thousandths(lane.received.rate), 0),
            RowOrder::Buffer => (thousandths(lane.buffer), 0),
        };
        let mut places: Vec<usize> = (0..model.lanes.len()).collect();
        places.sort_by_cached_key(|&place| (Reverse(rank(&model.lanes[place])), place));
        let mut below = vec![Vec::new(); model.listeners.len()];
        places.into_iter().for_each(|place| below[model.lanes[place].listener].push(place));
        self.listeners(model).into_iter().flat_map(|listener| std::mem::take(&mut below[listener])).collect()
    }

    /// The sinks of a listener in the order in which they are shown.
    pub(super) fn sinks<'a>(&self, sinks: &'a [SinkRow]) -> Vec<&'a SinkRow> {
        let mut sorted: Vec<&SinkRow> = sinks.iter().collect();
        if self.order == RowOrder::Loss {
            sorted.sort_by_key(|sink| Reverse((condition(sink), loss(sink.lost))));
        }
        sorted
    }

    /// The lane that is chosen: the first one shown, unless it is another.
    pub(super) fn chosen(&self, model: &Model) -> Option<usize> {
        let lanes = self.lanes(model);
        let named = self.chosen.as_ref().and_then(|name| lanes.iter().find(|&&place| name_of(model, place) == *name));
        named.or(lanes.first()).copied()
    }

    fn step(&mut self, model: &Model, by: isize) {
        let chosen = self.chosen(model);
        let place = self.lanes(model).iter().position(|&place| Some(place) == chosen).unwrap_or(0);
        self.choose(model, place.saturating_add_signed(by));
    }

    fn choose(&mut self, model: &Model, place: usize) {
        let lanes = self.lanes(model);
        self.scrolled = 0;
        self.chosen = lanes.get(place).or(lanes.last()).map(|&place| name_of(model, place));
    }
}

fn name_of(model: &Model, place: usize) -> LaneName {
    let lane = &model.lanes[place];
    (model.listeners[lane.listener].name.clone(), lane.lane)
}

/// By how much it loses: now, and then in all.
fn loss(lost: RateAndTotal) -> (u64, u64) {
    (thousandths(lost.rate.filter(|rate| *rate > 0.0)), lost.total.unwrap_or(0))
}

fn condition(sink: &SinkRow) -> Option<SinkCondition> {
    sink.state.as_ref().map(|state| state.name).filter(|name| *name != SinkCondition::Up)
}

/// A number that can be sorted; unknown ones go last.
fn thousandths(number: Option<f64>) -> u64 {
    number.map_or(0, |number| 1 + (number * 1000.0) as u64)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyCommand {
    Quit,
    Help,
    Freeze,
    Sort,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    /// Another lane, while one is zoomed in.
    Next,
    Previous,
    Enter,
    Back,
}

/// The keys in what one read returned. A sequence arrives as a whole; unknown ones are ignored.
pub(super) fn parse_keys(mut bytes: &[u8]) -> Vec<KeyCommand> {
    let mut keys = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        let (key, after) = match (first, rest) {
            (0x1b, [b'[' | b'O', sequence @ ..]) => after_escape(sequence),
            (0x1b, _) => (Some(KeyCommand::Back), rest),
            _ => (plain(first), rest),
        };
        keys.extend(key);
        bytes = after;
    }
    keys
}

fn plain(byte: u8) -> Option<KeyCommand> {
    Some(match byte {
        b'q' | b'Q' | 0x03 | 0x04 => KeyCommand::Quit,
        b'?' | b'h' => KeyCommand::Help,
        b' ' | b'p' => KeyCommand::Freeze,
        b's' => KeyCommand::Sort,
        b'k' => KeyCommand::Up,
        b'j' => KeyCommand::Down,
        b'\t' | b'n' => KeyCommand::Next,
        b'N' => KeyCommand::Previous,
        b'g' => KeyCommand::First,
        b'G' => KeyCommand::Last,
        b'\r' | b'\n' => KeyCommand::Enter,
        0x7f | 0x08 => KeyCommand::Back,
        _ => return None,
    })
}

/// Parses what follows ESC [: parameters, and one byte that ends the sequence.
fn after_escape(sequence: &[u8]) -> (Option<KeyCommand>, &[u8]) {
    let Some(end) = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte)) else { return (None, &[]) };
    let key = match (sequence[end], &sequence[..end]) {
        (b'A', _) => Some(KeyCommand::Up),
        (b'B', _) => Some(KeyCommand::Down),
        (b'C', _) => Some(KeyCommand::Enter),
        (b'D', _) => Some(KeyCommand::Back),
        (b'Z', _) => Some(KeyCommand::Previous),
        (b'~', b"5") => Some(KeyCommand::PageUp),
        (b'~', b"6") => Some(KeyCommand::PageDown),
        (b'H', _) | (b'~', b"1" | b"7") => Some(KeyCommand::First),
        (b'F', _) | (b'~', b"4" | b"8") => Some(KeyCommand::Last),
        _ => None,
    };
    (key, &sequence[end + 1..])
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use udpd_base::ledger::testing::example;

    fn model() -> Model {
        let mut model = Model::default();
        let (first, mut second) = (example(), example());
        model.read(first, Instant::now());
        second.uptime_seconds += 1.0;
        second.listeners[0].lanes[1].counts.received += 10;
        model.read(second, Instant::now());
        model
    }

    fn press(view: &mut View, keys: &[KeyCommand], model: &Model) {
        keys.iter().for_each(|&key| view.press(key, model, Extent { hidden: 7, shown: 5 }));
    }

    #[test]
    fn arrows_choose_a_lane_and_stop_at_the_ends() {
        let (model, mut view) = (model(), View::default());
        assert_eq!(view.chosen(&model), Some(0));
        press(&mut view, &[KeyCommand::Down, KeyCommand::Down, KeyCommand::Down], &model);
        assert_eq!(view.chosen(&model), Some(1));
        press(&mut view, &[KeyCommand::Up], &model);
        assert_eq!(view.chosen(&model), Some(0));
        press(&mut view, &[KeyCommand::Last], &model);
        assert_eq!(view.chosen(&model), Some(1));
    }

    #[test]
    fn sorting_moves_the_busy_lane_up_and_keeps_the_choice() {
        let (model, mut view) = (model(), View::default());
        press(&mut view, &[KeyCommand::First, KeyCommand::Sort], &model);
        press(&mut view, &[KeyCommand::Sort], &model);
        assert_eq!((view.order, view.lanes(&model)), (RowOrder::Received, vec![1, 0]));
        assert_eq!(view.chosen(&model), Some(0), "the lane that was chosen, wherever it stands now");
        press(&mut view, &[KeyCommand::Sort, KeyCommand::Sort, KeyCommand::Sort], &model);
        assert_eq!((view.order, view.lanes(&model)), (RowOrder::Number, vec![0, 1]));
    }

    #[test]
    fn at_first_the_worst_stands_on_top_whatever_the_configuration_says() {
        let reading = |second: f64, lost: u64| {
            let mut snapshot = example();
            snapshot.uptime_seconds += second;
            let mut quiet = snapshot.listeners[0].clone();
            quiet.name = "quiet".to_owned();
            quiet.lanes[1].kernel_dropped = Some(0);
            snapshot.listeners.insert(0, quiet);
            snapshot.listeners[1].lanes[1].kernel_dropped = Some(100 + lost);
            snapshot.listeners[1].sinks[0].state = Some(udpd_base::ledger::snapshot::SinkStateSnapshot {
                name: SinkCondition::Down,
                since: 0.0,
                error: None,
            });
            snapshot
        };
        let (mut model, view) = (Model::default(), View::default());
        model.read(reading(0.0, 0), Instant::now());
        model.read(reading(1.0, 50), Instant::now());
        assert_eq!((view.listeners(&model), view.lanes(&model)), (vec![1, 0], vec![3, 2, 0, 1]));
        let names: Vec<&str> = view.sinks(&model.listeners[1].sinks).iter().map(|sink| sink.name.as_str()).collect();
        assert_eq!(names, ["archive", "relay"], "down before one that has lost more");
        let names: Vec<&str> = view.sinks(&model.listeners[0].sinks).iter().map(|sink| sink.name.as_str()).collect();
        assert_eq!(names, ["relay", "archive"]);
        let by_number = View { order: RowOrder::Number, ..View::default() };
        assert_eq!(by_number.lanes(&model), [0, 1, 2, 3]);
    }

    #[test]
    fn enter_zooms_in_escape_out_and_any_key_closes_the_help() {
        let (model, mut view) = (model(), View::default());
        press(&mut view, &[KeyCommand::Enter], &model);
        assert!(view.is_zoomed);
        press(&mut view, &[KeyCommand::Help, KeyCommand::Back], &model);
        assert!(view.is_zoomed && !view.has_help, "escape closed the help and nothing else");
        press(&mut view, &[KeyCommand::Back, KeyCommand::Freeze], &model);
        assert!(!view.is_zoomed && view.is_frozen);
        press(&mut view, &[KeyCommand::Quit], &model);
        assert!(view.is_over);
    }

    #[test]
    fn a_lane_from_near_moves_by_lines_and_pages_and_stops_at_its_ends() {
        let (model, mut view) = (model(), View::default());
        press(&mut view, &[KeyCommand::Enter], &model);
        for (key, scrolled) in [
            (KeyCommand::Up, 0),
            (KeyCommand::Down, 1),
            (KeyCommand::PageDown, 5),
            (KeyCommand::PageDown, 7),
            (KeyCommand::Down, 7),
            (KeyCommand::PageUp, 3),
            (KeyCommand::Last, 7),
            (KeyCommand::First, 0),
            (KeyCommand::Last, 7),
        ] {
            press(&mut view, &[key], &model);
            assert_eq!((view.scrolled, view.chosen(&model)), (scrolled, Some(0)), "{key:?}");
        }
        press(&mut view, &[KeyCommand::Next], &model);
        assert_eq!((view.scrolled, view.chosen(&model)), (0, Some(1)), "another lane begins at its top");
        press(&mut view, &[KeyCommand::Previous], &model);
        assert_eq!(view.chosen(&model), Some(0));
        // In a terminal that has grown nothing is hidden any more.
        view.scrolled = 7;
        view.press(KeyCommand::Down, &model, Extent { hidden: 0, shown: 40 });
        assert_eq!(view.scrolled, 0);
    }

    #[test]
    fn without_a_lane_nothing_is_chosen_and_nothing_breaks() {
        let (model, mut view) = (Model::default(), View::default());
        press(
            &mut view,
            &[KeyCommand::Down, KeyCommand::Up, KeyCommand::Last, KeyCommand::Enter, KeyCommand::Sort],
            &model,
        );
        assert_eq!((view.chosen(&model), view.is_zoomed), (None, false));
    }

    #[test]
    fn letters_arrows_and_escape_are_told_apart() {
        assert_eq!(parse_keys(b"s?p"), [KeyCommand::Sort, KeyCommand::Help, KeyCommand::Freeze]);
        assert_eq!(
            parse_keys(b"\x1b[A\x1b[B\x1bOA\x1b[1;5B"),
            [KeyCommand::Up, KeyCommand::Down, KeyCommand::Up, KeyCommand::Down]
        );
        assert_eq!(parse_keys(b"\x1b"), [KeyCommand::Back]);
        assert_eq!(parse_keys(b"\r\x1b[D\x1b[C"), [KeyCommand::Enter, KeyCommand::Back, KeyCommand::Enter]);
        assert_eq!(
            parse_keys(b"\x1b[H\x1b[4~gG"),
            [KeyCommand::First, KeyCommand::Last, KeyCommand::First, KeyCommand::Last]
        );
        assert_eq!(parse_keys(b"\x1b[5~\x1b[6~"), [KeyCommand::PageUp, KeyCommand::PageDown]);
        assert_eq!(
            parse_keys(b"\tn\x1b[ZN"),
            [KeyCommand::Next, KeyCommand::Next, KeyCommand::Previous, KeyCommand::Previous]
        );
        assert_eq!(parse_keys(b"\x03"), [KeyCommand::Quit]);
    }

    #[test]
    fn what_is_unknown_or_cut_off_asks_for_nothing() {
        assert_eq!(parse_keys(b"\x1b[15~x\x1b[200"), []);
        assert_eq!(parse_keys("é\u{1F600}".as_bytes()), []);
    }
}
