//! What the operator looks at, and what each key changes of it.

use std::cmp::Reverse;

use super::keys::Key;
use super::model::{LaneRow, Model};

/// By how many lanes a page key moves.
const PAGE: isize = 10;

/// In which order lanes stand below their listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    #[default]
    Number,
    Received,
    Lost,
    Buffer,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Number => Self::Received,
            Self::Received => Self::Lost,
            Self::Lost => Self::Buffer,
            Self::Buffer => Self::Number,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Number => "lane",
            Self::Received => "received",
            Self::Lost => "lost",
            Self::Buffer => "buffer",
        }
    }
}

/// A lane by its name, so that it stays chosen when others come and go.
pub(super) type LaneName = (String, usize);

/// How much of a lane from near does not fit, and how much does, in lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub hidden: usize,
    pub shown: usize,
}

/// What is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View {
    pub order: Order,
    pub chosen: Option<LaneName>,
    pub is_zoomed: bool,
    /// How many lines of the lane from near are above the screen.
    pub scrolled: usize,
    pub is_frozen: bool,
    pub has_help: bool,
    pub is_over: bool,
    /// Colours may be used; never the only sign of anything.
    pub has_colour: bool,
}

impl View {
    /// Does what a key asks for. `extent` is that of the lane from near as it was last drawn.
    pub(super) fn press(&mut self, key: Key, model: &Model, extent: Extent) {
        if self.is_zoomed && !self.has_help && self.scroll(key, extent) {
            return;
        }
        if self.has_help && key != Key::Quit {
            self.has_help = false;
            return;
        }
        match key {
            Key::Quit => self.is_over = true,
            Key::Help => self.has_help = true,
            Key::Freeze => self.is_frozen = !self.is_frozen,
            Key::Sort => self.order = self.order.next(),
            Key::Up => self.step(model, -1),
            Key::Down => self.step(model, 1),
            Key::PageUp => self.step(model, -PAGE),
            Key::PageDown => self.step(model, PAGE),
            Key::Next => self.step(model, 1),
            Key::Previous => self.step(model, -1),
            Key::First => self.choose(model, 0),
            Key::Last => self.choose(model, usize::MAX),
            Key::Enter => {
                self.is_zoomed = self.chosen(model).is_some();
                self.scrolled = 0;
            }
            Key::Back => self.is_zoomed = false,
        }
    }

    /// Moves a lane from near under the screen; returns whether the key asks for that.
    fn scroll(&mut self, key: Key, Extent { hidden, shown }: Extent) -> bool {
        let page = shown.saturating_sub(1).max(1);
        // The terminal may have grown since.
        let from = self.scrolled.min(hidden);
        self.scrolled = match key {
            Key::Up => from.saturating_sub(1),
            Key::Down => (from + 1).min(hidden),
            Key::PageUp => from.saturating_sub(page),
            Key::PageDown => (from + page).min(hidden),
            Key::First => 0,
            Key::Last => hidden,
            _ => return false,
        };
        true
    }

    /// The places of all lanes in the model, in the order in which they are shown.
    pub(super) fn lanes(&self, model: &Model) -> Vec<usize> {
        let mut places: Vec<usize> = (0..model.lanes.len()).collect();
        // Highest first, and below the listener, whose sinks stand beside.
        let rank = |lane: &LaneRow| match self.order {
            Order::Number => 0,
            Order::Received => thousandths(lane.received.rate),
            Order::Lost => thousandths(lane.lost().rate),
            Order::Buffer => thousandths(lane.buffer),
        };
        places.sort_by_key(|&place| {
            let lane = &model.lanes[place];
            (lane.listener, Reverse(rank(lane)), place)
        });
        places
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

/// A number that has an order. What is not known goes last.
fn thousandths(number: Option<f64>) -> u64 {
    number.map_or(0, |number| 1 + (number * 1000.0) as u64)
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

    fn press(view: &mut View, keys: &[Key], model: &Model) {
        keys.iter().for_each(|&key| view.press(key, model, Extent { hidden: 7, shown: 5 }));
    }

    #[test]
    fn arrows_choose_a_lane_and_stop_at_the_ends() {
        let (model, mut view) = (model(), View::default());
        assert_eq!(view.chosen(&model), Some(0));
        press(&mut view, &[Key::Down, Key::Down, Key::Down], &model);
        assert_eq!(view.chosen(&model), Some(1));
        press(&mut view, &[Key::Up], &model);
        assert_eq!(view.chosen(&model), Some(0));
        press(&mut view, &[Key::Last], &model);
        assert_eq!(view.chosen(&model), Some(1));
    }

    #[test]
    fn sorting_moves_the_busy_lane_up_and_keeps_the_choice() {
        let (model, mut view) = (model(), View::default());
        press(&mut view, &[Key::First, Key::Sort], &model);
        assert_eq!((view.order, view.lanes(&model)), (Order::Received, vec![1, 0]));
        assert_eq!(view.chosen(&model), Some(0), "the lane that was chosen, wherever it stands now");
        press(&mut view, &[Key::Sort, Key::Sort, Key::Sort], &model);
        assert_eq!((view.order, view.lanes(&model)), (Order::Number, vec![0, 1]));
    }

    #[test]
    fn enter_zooms_in_escape_out_and_any_key_closes_the_help() {
        let (model, mut view) = (model(), View::default());
        press(&mut view, &[Key::Enter], &model);
        assert!(view.is_zoomed);
        press(&mut view, &[Key::Help, Key::Back], &model);
        assert!(view.is_zoomed && !view.has_help, "escape closed the help and nothing else");
        press(&mut view, &[Key::Back, Key::Freeze], &model);
        assert!(!view.is_zoomed && view.is_frozen);
        press(&mut view, &[Key::Quit], &model);
        assert!(view.is_over);
    }

    #[test]
    fn a_lane_from_near_moves_by_lines_and_pages_and_stops_at_its_ends() {
        let (model, mut view) = (model(), View::default());
        press(&mut view, &[Key::Enter], &model);
        for (key, scrolled) in [
            (Key::Up, 0),
            (Key::Down, 1),
            (Key::PageDown, 5),
            (Key::PageDown, 7),
            (Key::Down, 7),
            (Key::PageUp, 3),
            (Key::Last, 7),
            (Key::First, 0),
            (Key::Last, 7),
        ] {
            press(&mut view, &[key], &model);
            assert_eq!((view.scrolled, view.chosen(&model)), (scrolled, Some(0)), "{key:?}");
        }
        press(&mut view, &[Key::Next], &model);
        assert_eq!((view.scrolled, view.chosen(&model)), (0, Some(1)), "another lane begins at its top");
        press(&mut view, &[Key::Previous], &model);
        assert_eq!(view.chosen(&model), Some(0));
        // In a terminal that has grown nothing is hidden any more.
        view.scrolled = 7;
        view.press(Key::Down, &model, Extent { hidden: 0, shown: 40 });
        assert_eq!(view.scrolled, 0);
    }

    #[test]
    fn without_a_lane_nothing_is_chosen_and_nothing_breaks() {
        let (model, mut view) = (Model::default(), View::default());
        press(&mut view, &[Key::Down, Key::Up, Key::Last, Key::Enter, Key::Sort], &model);
        assert_eq!((view.chosen(&model), view.is_zoomed), (None, false));
    }
}
