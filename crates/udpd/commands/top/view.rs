//! What the operator looks at, and what each key changes of it.

use std::cmp::Reverse;

use super::keys::Key;
use super::model::{LaneRow, Model};

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

/// What is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View {
    pub order: Order,
    pub chosen: Option<LaneName>,
    pub is_zoomed: bool,
    pub is_frozen: bool,
    pub has_help: bool,
    pub is_over: bool,
    /// Colours may be used; never the only sign of anything.
    pub has_colour: bool,
}

impl View {
    /// Does what a key asks for.
    pub(super) fn press(&mut self, key: Key, model: &Model) {
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
            Key::First => self.choose(model, 0),
            Key::Last => self.choose(model, usize::MAX),
            Key::Enter => self.is_zoomed = self.chosen(model).is_some(),
            Key::Back => self.is_zoomed = false,
        }
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
    use crate::ledger::tests::example;

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
        keys.iter().for_each(|&key| view.press(key, model));
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
    fn without_a_lane_nothing_is_chosen_and_nothing_breaks() {
        let (model, mut view) = (Model::default(), View::default());
        press(&mut view, &[Key::Down, Key::Up, Key::Last, Key::Enter, Key::Sort], &model);
        assert_eq!((view.chosen(&model), view.is_zoomed), (None, false));
    }
}
