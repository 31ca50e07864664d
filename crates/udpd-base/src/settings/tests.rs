//! A made-up table, declared and read.

use std::time::Duration;

use super::kinds::{ByteSize, Flat, List, OneOf, Or, QuotedText, SubTable, TimeSpan, WholeNumber};
use super::{Findings, Keys, Problem, Problems, Section, TableSettings, TomlTable, settings, toml_errors};

settings! {
    /// A kettle.
    #[derive(Debug, Clone, PartialEq)]
    struct Kettle {
        /// Who owns it.
        owner: String = required like "anna", QuotedText(|text| Ok(text.to_owned()));
        /// How many cups.
        cups: u8 = 4, WholeNumber(1..=12), elsewhere "mugs", formerly "portions";
        /// How much water.
        water_bytes as water: Option<u64> = "auto", Or(&[("auto", None)], ByteSize(1..=4096), Some);
        /// How it boils.
        boil: Boil = {}, SubTable;
        /// What is in it.
        leaves: Leaves = {}, Flat;
    }
}

settings! {
    /// How water boils.
    #[derive(Debug, Clone, PartialEq)]
    struct Boil {
        /// Until then.
        time: Duration = "3m", TimeSpan(Duration::ZERO..=Duration::from_secs(600));
        /// With a lid.
        lid: bool = "on", OneOf(&[("on", true), ("off", false)]);
    }
}

settings! {
    /// Tea.
    #[derive(Debug, Clone, PartialEq)]
    struct Leaves {
        /// By name.
        teas: Vec<String> = [] like ["assam"], List(|text| Ok(text.to_owned()));
    }
}

fn keys() -> Keys {
    Keys(Kettle::keys(""))
}

/// What the text means, and what is warned of.
fn read(text: &str) -> Result<(Kettle, Vec<Problem>), Problems> {
    let mut findings = Findings::new("f", text, keys());
    let table = toml_errors::parse(text, &mut findings).expect("TOML");
    let section = Section::read(TomlTable::root(&table), &mut findings);
    findings.finish(section.settings)
}

fn refused(text: &str) -> Vec<String> {
    read(text).expect_err("the text is wrong").list().iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_absent_means_its_default_also_in_tables_within() {
    let (kettle, warnings) = read("owner = \"me\"\nboil = { lid = \"off\" }\n").expect("right");
    let boil = Boil { time: Duration::from_secs(180), lid: false };
    let expected = Kettle { owner: "me".into(), cups: 4, water_bytes: None, boil, leaves: Leaves::default() };
    assert_eq!((kettle, warnings), (expected, Vec::new()));
    let (kettle, _) = read("owner = \"\"\ncups = 12\nwater = \"1KiB\"\nteas = [\"mint\"]\n").expect("right");
    assert_eq!((kettle.cups, kettle.water_bytes, kettle.leaves.teas), (12, Some(1024), vec!["mint".to_owned()]));
}

#[test]
fn every_key_is_listed_with_its_default_an_example_its_bounds_and_its_help() {
    let listed: Vec<[String; 5]> = keys()
        .0
        .into_iter()
        .map(|key| [key.path, key.default.unwrap_or("required".into()), key.example, key.bounds, key.help])
        .collect();
    let expected = [
        ["owner", "required", "\"anna\"", "", "Who owns it."],
        ["cups", "4", "4", "1 to 12", "How many cups."],
        ["water", "\"auto\"", "\"auto\"", "\"auto\", or 1 to 4KiB", "How much water."],
        ["boil", "{ time = \"3m\", lid = \"on\" }", "{ time = \"3m\", lid = \"on\" }", "", "How it boils."],
        ["boil.time", "\"3m\"", "\"3m\"", "\"0s\" to \"10m\"", "Until then."],
        ["boil.lid", "\"on\"", "\"on\"", "\"on\" or \"off\"", "With a lid."],
        ["teas", "[]", "[\"assam\"]", "", "By name."],
    ];
    assert_eq!(listed, expected.map(|row| row.map(ToOwned::to_owned)));
}

#[test]
fn an_older_spelling_is_taken_with_one_warning_and_never_beside_the_newer() {
    let (kettle, warnings) = read("owner = \"me\"\nportions = 2\n").expect("right");
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        (kettle.cups, warnings.as_slice()),
        (2, ["f:2:1: portions: is the older spelling of cups; write cups instead".to_owned()].as_slice())
    );
    assert_eq!(
        refused("owner = \"me\"\nportions = 99\n"),
        ["f:2:12: portions: 99 is outside 1 to 12; write a number from 1 to 12; 4 is the default"]
    );
    assert_eq!(
        refused("owner = \"me\"\ncups = 2\nportions = 2\n"),
        ["f:3:1: portions: is the older spelling of cups, which is written as well; remove portions"]
    );
}

#[test]
fn what_is_missing_wrong_or_unknown_is_said_once_each_with_its_place() {
    assert_eq!(
        refused("cups = 13\nmugs = 1\nteas = [\"mint\", \"mint\"]\n[boil]\ntime = 3\n"),
        [
            "f:1:1: owner: is missing; write owner = \"anna\", for example",
            "f:1:8: cups: 13 is outside 1 to 12; write a number from 1 to 12; 4 is the default",
            "f:2:1: mugs: unknown key; what is mugs elsewhere is cups here: cups = 4",
            "f:3:17: teas: mint is named twice; name it once",
            "f:5:8: boil.time: must be a duration in quotes, not the number 3; write it as in time = \"3m\"",
        ]
    );
}
