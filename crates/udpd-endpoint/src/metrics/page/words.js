// How numbers and names become text and elements. Every name comes from outside: it goes in as text and never as
// markup.

const $ = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const UNKNOWN = "not known";

/** A count with all of its digits. */
function count(value) {
  return value === null || value === undefined ? UNKNOWN : whole.format(value);
}

/** A number in as few characters as still tell it: 1.23 million is 1.23M. */
function short(value) {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [unit, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= unit * 0.9995) return three.format(value / unit) + sign;
  }
  return value >= 99.5 || value === 0 ? whole.format(value) : three.format(value);
}

const rate = (value) => (value === null || value === undefined ? UNKNOWN : `${short(value)}/s`);

function bytes(value) {
  for (const [unit, sign] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= unit) return `${three.format(value / unit)} ${sign}`;
  }
  return `${whole.format(value)} B`;
}

/** A part of something; what is little is not shown as nothing. */
function percent(part) {
  if (part === null || !Number.isFinite(part)) return UNKNOWN;
  if (part > 0 && part < 0.0001) return "under 0.01 %";
  if (part < 1 && part > 0.9999) return "over 99.99 %";
  return `${three.format(Math.round(part * 10000) / 100)} %`;
}

function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value < 0.001) return `${three.format(value * 1e6)} µs`;
  return value < 1 ? `${three.format(value * 1e3)} ms` : `${three.format(value)} s`;
}

/** The longest residence that udpd tells: the hour has what was longer as a little more. */
const LONGEST_RESIDENCE_SECONDS = 700;
const overLongest = `over ${seconds(LONGEST_RESIDENCE_SECONDS)}`;

/** A residence. */
const stay = (value) => (value > LONGEST_RESIDENCE_SECONDS ? overLongest : seconds(value));

/** Within which time a part was through: null where that was longer than any that udpd tells. */
const within = (value) => (value === null ? overLongest : `within ${seconds(value)}`);

/** How long something lasts, in its two largest units. */
function lasting(value) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = Math.max(0, parts.findIndex(([unit]) => value >= unit));
  const from = value < 1 ? 3 : first;
  let rest = Math.floor(value);
  return parts.slice(from, from + 2).map(([unit, sign]) => {
    const number = Math.floor(rest / unit);
    rest -= number * unit;
    return `${number} ${sign}`;
  }).join(" ");
}

const clock = (at) => new Date(at).toLocaleTimeString("en-GB");

/** What a key of the ledger reads like. */
const spoken = (key) => key.replaceAll("_", " ");

/** A name with its noun, unless it has that already. */
const called = (noun, name) => (new RegExp(`^${noun}\\b`, "i").test(name) ? name : `${noun} ${name}`);

const plural = (number, noun) => `${whole.format(number)} ${noun}${number === 1 ? "" : "s"}`;

/** By how much the clock of this machine is ahead of the daemon's, in milliseconds. */
let clockAhead = 0;

/** A date of the daemon, in seconds since 1970, by the clock of this machine. */
const dateOf = (seconds) => seconds * 1000 + clockAhead;

/** A time, with its day where that is not today. */
function moment(at) {
  const day = new Date(at).toDateString() === new Date().toDateString() ? ""
    : `${new Date(at).toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short" })}, `;
  return day + clock(at);
}

/** Sets a text where it is another one, so that no reader reads out or selects again what has not changed. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** An element with attributes and children; strings become text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Makes the children of an element as many as there are things, and brings each up to date. */
function each(parent, things, make, update) {
  while (parent.children.length > things.length) parent.lastElementChild.remove();
  things.forEach((thing, index) => {
    if (!parent.children[index]) parent.append(make(thing));
    update(parent.children[index], thing);
  });
}

/** A bar that shows how full something is, for eyes; its text stands beside it. */
function fillBar() {
  return element("span", { class: "bar", "aria-hidden": "true" }, element("span"));
}

function setBar(bar, part) {
  const known = Number.isFinite(part);
  bar.firstElementChild.style.width = known ? `${Math.min(100, Math.max(part > 0 ? 2 : 0, part * 100))}%` : "0";
  bar.dataset.level = known && part >= 0.8 ? "high" : known && part >= 0.5 ? "mid" : "low";
}

