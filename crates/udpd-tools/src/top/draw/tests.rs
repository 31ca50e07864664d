//! Whole pictures, compared with text that was checked by eye: `screens/NAME.txt`.
//!
//! `UDPD_WRITE_SCREENS=1 cargo test -p udpd-tools top` writes them anew; look at them before you commit them.

use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use super::super::screen::paint;
use super::super::view::KeyCommand;
use super::*;
use udpd_base::ledger::snapshot::{LaneSnapshot, Snapshot};
use udpd_base::ledger::testing::example;
use udpd_base::ledger::{ResidenceTally, SenderSnapshot};

const SIZES: [(usize, usize); 3] = [(80, 24), (200, 50), (40, 10)];

/// A minute of a daemon with two listeners, one of which loses datagrams at its socket and at a sink.
fn busy() -> Model {
    let mut model = Model::default();
    let mut residence = ResidenceTally::default();
    let mut counted = [0_u64; 2];
    for second in 0..60_u64 {
        counted[0] += 200_000 + 150_000 * (second % 20) / 20;
        counted[1] += if second > 40 { 30_000 } else { 0 };
        residence.observe(std::time::Duration::from_micros(90), 980);
        residence.observe(std::time::Duration::from_micros(1_400), 19);
        residence.observe(std::time::Duration::from_micros(40_000), 1);
        model.read(reading(7_441 + second, counted, &residence), Instant::now());
    }
    model
}

fn reading(uptime: u64, counted: [u64; 2], residence: &ResidenceTally) -> Snapshot {
    let mut snapshot = example();
    snapshot.uptime_seconds = uptime as f64;
    let syslog = &mut snapshot.listeners[0];
    let sender = |address: &str, port, share| SenderSnapshot {
        address: address.parse::<IpAddr>().expect("an address"),
        port,
        share,
        datagrams: 1,
        error: 0,
    };
    let lane = &mut syslog.lanes[0];
    (lane.queue, lane.planned_cpus, lane.wrong_cpu) = (Some(3), vec![0], Some(12));
    lane.counts.received += counted[0];
    lane.counts.calls += counted[0] / 40;
    lane.receive_buffer_used_bytes = 6_800_000;
    lane.kernel_dropped = Some(1_000 + counted[1]);
    lane.senders =
        vec![sender("10.0.0.9", Some(51_423), 0.623), sender("2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", None, 0.1)];
    syslog.lanes[1].counts.received += counted[0] / 7;
    syslog.sinks[0].counts.delivered += counted[0];
    syslog.sinks[0].residence = residence.read();
    (syslog.sinks[0].queue_depth, syslog.sinks[0].queue_capacity) = (1 << 20, 32 << 20);
    (syslog.sinks[1].queue_depth, syslog.sinks[1].queue_capacity) = (30 << 20, 32 << 20);
    syslog.sinks[1].counts.dropped.queue_full += 3 * counted[1];
    let mut flows = example().listeners.remove(0);
    flows.name = "netflow\x1b[2J".into();
    flows.address = "[::]:2055".into();
    flows.residual = Some(-3);
    let quiet = flows.lanes[0].clone();
    flows.lanes = (0..6).map(|lane| LaneSnapshot { lane, cpu: Some(lane + 2), ..quiet.clone() }).collect();
    flows.lanes[5].kernel_dropped = None;
    flows.sinks.truncate(1);
    snapshot.listeners.push(flows);
    snapshot
}

#[track_caller]
fn assert_screen(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/draw/screens").join(name);
    if std::env::var_os("UDPD_WRITE_SCREENS").is_some() {
        std::fs::write(&path, text).expect("written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{name} is not as it was looked at:\n{text}\ninstead of\n{expected}");
}

fn text(lines: &[ScreenLine]) -> String {
    lines.iter().map(|line| line.text().trim_end().to_owned() + "\n").collect()
}

fn assert_screens(name: &str, view: &View, notice: &Notice, model: &Model) {
    for (width, height) in SIZES {
        let lines = screen(model, view, notice, (width, height));
        assert_eq!(lines.len(), height);
        let shown = text(&lines);
        assert!(!shown.contains(|character: char| character.is_control() && character != '\n'), "{shown}");
        // What is cut at the right is cut by the terminal's writer; here it is shown as it would be seen.
        let seen: String = shown.lines().map(|line| fit(line, width).trim_end().to_owned() + "\n").collect();
        assert_screen(&format!("{name}_{width}x{height}.txt"), &seen);
    }
}

#[test]
fn the_way_of_a_datagram_fits_small_and_large_terminals() {
    assert_screens("overview", &View::default(), &Notice::None, &busy());
}

#[test]
fn a_lane_from_near_fits_small_and_large_terminals() {
    let view = View { is_zoomed: true, ..View::default() };
    assert_screens("lane", &view, &Notice::None, &busy());
}

#[test]
fn a_lane_from_near_shows_the_connections_and_refusals_of_its_sinks() {
    let (mut model, mut snapshot) = (Model::default(), example());
    snapshot.listeners[0].sinks[0].peers = udpd_base::ledger::testing::peers();
    model.read(snapshot, Instant::now());
    let lines = text(&lane_lines(&model, 0, 80));
    for line in [
        "10.0.0.7:8123 is up, 7 datagrams on the way",
        "10.0.0.8:8123 is down, 3,000 datagrams on the way: it answered 503",
        "refused: 12 (400)",
        "refused: 3 (code 27)",
    ] {
        assert!(lines.lines().any(|own| own.trim_end() == line), "{line}: {lines}");
    }
}

#[test]
fn a_lane_that_is_longer_than_the_screen_is_seen_whole_by_scrolling() {
    let model = busy();
    let mut view = View { is_zoomed: true, ..View::default() };
    let whole: Vec<String> = text(&lane_lines(&model, 0, 80)).lines().map(str::to_owned).collect();
    for (size, key) in [((80, 10), KeyCommand::Down), ((80, 7), KeyCommand::PageDown), ((80, 3), KeyCommand::PageDown)]
    {
        view.scrolled = 0;
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..whole.len() {
            let lines = screen(&model, &view, &Notice::None, size);
            let footer = lines.last().expect("a footer").text();
            assert!(footer.starts_with(&format!("lines {}-", view.scrolled + 1)), "{footer}");
            for (place, line) in text(&lines[1..size.1 - 1]).lines().enumerate() {
                assert_eq!(line, whole[view.scrolled + place]);
                seen.insert(view.scrolled + place);
            }
            view.press(key, &model, extent(&model, &view, &Notice::None, size));
        }
        assert_eq!(seen.len(), whole.len());
    }
    let footer = |size: (usize, usize)| screen(&model, &view, &Notice::None, size)[size.1 - 1].text();
    assert!(footer((80, 50)).starts_with("q quit"), "what fits has no place: {}", footer((80, 50)));
}

#[test]
fn the_help_fits_small_and_large_terminals() {
    assert_screens("help", &View { has_help: true, ..View::default() }, &Notice::None, &busy());
}

#[test]
fn without_a_daemon_the_screen_says_what_it_waits_for() {
    let why = "no udpd is running: there is no control socket at /run/udpd/control.sock; start the daemon".to_owned();
    assert_screens("no_daemon", &View::default(), &Notice::Silent { seconds: 7, why }, &Model::default());
}

#[test]
fn after_a_restart_the_numbers_begin_anew_and_the_screen_says_so() {
    let mut model = busy();
    model.read(reading(1, [0, 0], &ResidenceTally::default()), Instant::now());
    assert_screens("restart", &View::default(), &Notice::None, &model);
}

#[test]
fn a_frozen_picture_says_so_and_the_chosen_lane_is_on_it_however_low_the_terminal_is() {
    let model = busy();
    let mut view = View::default();
    view.press(KeyCommand::Last, &model, Extent::default());
    view.press(KeyCommand::Freeze, &model, Extent::default());
    let lines = screen(&model, &view, &Notice::None, (40, 8));
    assert!(lines[0].text().contains("FROZEN"), "{}", text(&lines));
    let painted = paint(&lines, 40, 8, true);
    let chosen = painted.split("\r\n").skip(1).find(|line| line.starts_with("\x1b[K\x1b[7m")).unwrap_or_default();
    assert!(chosen.contains("    5"), "{painted}");
}

#[test]
fn no_size_of_a_terminal_is_too_small_and_none_too_large() {
    let model = busy();
    for width in [0, 1, 2, 39, 79, 81, 137, 139, 1_000] {
        for height in [0, 1, 2, 3, 5, 17, 200] {
            for is_zoomed in [false, true] {
                let view = View { is_zoomed, ..View::default() };
                assert_eq!(screen(&model, &view, &Notice::None, (width, height)).len(), height);
            }
        }
    }
}

#[test]
fn a_report_for_a_pipe_has_every_lane_and_only_ascii() {
    let text = report(&busy(), 80);
    assert!(text.is_ascii() && text.lines().count() > 12, "{text}");
    assert_screen("report.txt", &text);
}

#[test]
fn numbers_have_three_digits_and_five_columns_at_most() {
    let numbers = [0.0, 0.34, 7.0, 9.96, 812.4, 999.6, 1_234.0, 12_345.0, 123_456.0, 999_600.0, 1.5e6, 2e10];
    let shown = numbers.map(|number| short(Some(number)));
    assert_eq!(shown.join(" "), "0 0.3 7 10 812 1.00k 1.23k 12.3k 123k 1.00M 1.50M 20.0G");
    assert!(shown.iter().all(|text| text.len() <= 5));
    assert_eq!(short(None), "?");
}

#[test]
fn what_stayed_longer_than_any_bucket_is_no_dash() {
    let slow = ResidenceSnapshot { count: 2, p50_seconds: Some(0.5), ..ResidenceSnapshot::default() };
    assert_eq!(quantile(Some(&slow), |residence| residence.p50_seconds), "500 ms");
    assert_eq!(quantile(Some(&slow), |residence| residence.p99_seconds), ">700 s");
    assert_eq!(quantile(None, |residence| residence.p99_seconds), "-");
}

#[test]
fn a_bar_shows_the_least_as_something_and_the_most_as_full() {
    let shown = [None, Some(0.0), Some(0.001), Some(0.5), Some(1.0), Some(1.3)].map(|part| bar(part, 4));
    assert_eq!(shown, ["[    ]    ?", "[    ]   0%", "[#   ]   0%", "[##  ]  50%", "[####] 100%", "[####] 130%"]);
}

#[test]
fn a_curve_has_gaps_where_nothing_was_read_and_never_hides_a_loss() {
    let rates = [Some(0.0), None, Some(0.001), Some(50.0), Some(100.0)];
    assert_eq!(history(rates.into_iter(), 7), "  ▁ ▂▅█");
    assert_eq!(history([].into_iter(), 3), "   ");
}
