// The hour, or a day or a week, in pictures. All charts share a span, a cursor and the part that is zoomed into; marks
// show when udpd was started and its configuration read again. Below them stands a strip for each listener that lost
// something.

const LOST_NAMES = { lost_socket: "at the socket", lost_listener: "in the lane", lost_queue: "in a sink's queue",
  lost_sink: "at a sink" };

const CHARTS = [
  { key: "arrived", title: "Arrived", unit: rate, series: [{ key: "arrived", tone: "flow" }] },
  { key: "lost", title: "Lost", unit: rate, least: 1, none: "nothing lost",
    series: LOST_KEYS.map((key, index) => ({ key, tone: `loss${index}`, name: LOST_NAMES[key] })) },
  { key: "fill", title: "Fullest receive buffer and queue", unit: percent, most: 1, lines: true,
    series: [{ key: "buffer", tone: "flow", name: "receive buffer" },
      { key: "queue", tone: "other", name: "sink's queue" }] },
  { key: "residence", title: "99 of 100 were delivered within", unit: stay, least: 1e-6, lines: true,
    unknown: "not measured", series: [{ key: "residence", tone: "flow", name: "slowest sink" }] },
  { key: "host", title: "Dropped before the sockets, any protocol", unit: rate, least: 1, none: "nothing dropped",
    series: [{ key: "host_nic", tone: "loss0", name: "network card" },
      { key: "host_kernel", tone: "loss1", name: "kernel" }] },
];
const SPANS = {
  hour: { ms: HOUR_MS, step: STEP_MS, words: "hour" },
  day: { ms: 24 * HOUR_MS, step: 300_000, words: "day" },
  week: { ms: 168 * HOUR_MS, step: 1_800_000, words: "week" },
};
/** Which span is shown, and the steps and marks of a longer one than the hour as the daemon told them last. */
let span = "hour";
let longer = { steps: [], marks: [], at: 0 };
/** How long the part is that is zoomed into, and when it ends: null where it goes on with the time. Null for all. */
let zoomed = null;
/** Where the cursor of all charts stands; null for nowhere. */
let cursorAt = null;

const stepsShown = () => (span === "hour" ? hour : longer.steps);
const marksShown = () => (span === "hour" ? marks : longer.marks);
const windowShown = () => {
  const end = zoomed?.end ?? Date.now();
  return [end - (zoomed?.length ?? SPANS[span].ms), end];
};

/** Where in the window a time is, from 0 to 1. */
function shareOf(at) {
  const [from, to] = windowShown();
  return (at - from) / (to - from);
}

const WIDTH = 600;
const HEIGHT = 120;
/** Less of a window than this shows nothing more. */
const STEPS_LEAST = 6;

function zoomTo(from, to) {
  const now = Date.now();
  const { ms, step } = SPANS[span];
  const length = Math.min(ms, Math.max(STEPS_LEAST * step, to - from));
  const end = Math.min(Math.max((from + to + length) / 2, now - ms + length), now);
  zoomed = length >= ms ? null : { length, end: now - end < step ? null : end };
  showHour();
}

/** Makes the window shorter or longer around the cursor, or up to its end. */
function zoomBy(factor) {
  const [from, to] = windowShown();
  const middle = cursorAt ?? to;
  zoomTo(middle - (middle - from) * factor, middle + (to - middle) * factor);
}

/** Goes to a time with all cursors: what was then stands below each chart. `isSaid`: aloud as well, for this one. */
function moveCursor(at, isSaid = null) {
  const [from, to] = windowShown();
  cursorAt = at === null ? null : Math.min(to, Math.max(from, at));
  [...$("hour").children].forEach((figure, index) => tellStep(figure, CHARTS[index]));
  if (isSaid) say($("told-aloud"), isSaid.querySelector(".told").textContent);
}

function makeChart(chart) {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const figure = element("figure", { tabindex: "0", "data-chart": chart.key });
  const legend = chart.series.filter((one) => one.name).map((one) =>
    element("span", { class: `key ${one.tone}` }, one.name));
  const plot = element("div", { class: "plot" }, svg, element("span", { class: "marks" }),
    element("span", { class: "picked", hidden: "" }), element("span", { class: "cursor", hidden: "" }));
  figure.append(
    element("figcaption", {}, element("b", {}, chart.title), element("span", { class: "top" })), plot,
    element("div", { class: "axis", "aria-hidden": "true" }, ...[0, 1, 2].map(() => element("span"))),
    element("p", { class: "legend" }, ...legend), element("p", { class: "told" }));
  listenToPointer(figure, plot);
  figure.addEventListener("blur", () => moveCursor(null));
  figure.addEventListener("keydown", (event) => {
    const [from, to] = windowShown();
    const step = Math.max(SPANS[span].step, (to - from) / 360);
    const moves = { ArrowLeft: -step, ArrowRight: step, PageUp: -10 * step, PageDown: 10 * step };
    const does = { "+": () => zoomBy(0.5), "-": () => zoomBy(2), 0: () => zoomTo(0, Infinity), Escape: () =>
      zoomTo(0, Infinity), Home: () => moveCursor(from, figure), End: () => moveCursor(to, figure) };
    if (moves[event.key]) moveCursor((cursorAt ?? to) + moves[event.key], figure);
    else if (does[event.key]) does[event.key]();
    else return;
    event.preventDefault();
  });
  return figure;
}

/** The pointer moves the cursor; where it is pressed and moved, the part that it goes over is zoomed into. */
function listenToPointer(figure, plot) {
  let pressedAt = null;
  const timeAt = (event) => {
    const box = plot.getBoundingClientRect();
    const [from, to] = windowShown();
    return from + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (to - from);
  };
  const pick = (to) => {
    const [first, last] = [Math.min(pressedAt, to), Math.max(pressedAt, to)].map(shareOf);
    const picked = plot.querySelector(".picked");
    picked.hidden = last - first < 0.02;
    Object.assign(picked.style, { left: `${first * 100}%`, width: `${(last - first) * 100}%` });
    return !picked.hidden;
  };
  const isWide = (to) => pressedAt !== null && pick(to);
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressedAt = timeAt(event);
    plot.setPointerCapture(event.pointerId);
  });
  figure.addEventListener("pointermove", (event) => {
    moveCursor(timeAt(event));
    if (pressedAt !== null) pick(timeAt(event));
  });
  plot.addEventListener("pointerup", (event) => {
    const to = timeAt(event);
    const isPicked = isWide(to);
    plot.querySelector(".picked").hidden = true;
    if (isPicked) zoomTo(Math.min(pressedAt, to), Math.max(pressedAt, to));
    pressedAt = null;
  });
  plot.addEventListener("pointercancel", () => {
    pressedAt = null;
    plot.querySelector(".picked").hidden = true;
  });
  figure.addEventListener("pointerleave", () => moveCursor(null));
}

/** Says what was at the cursor, in one chart. */
function tellStep(figure, chart) {
  const cursor = figure.querySelector(".cursor");
  const told = figure.querySelector(".told");
  cursor.hidden = cursorAt === null;
  if (cursorAt === null) return say(told, "");
  cursor.style.left = `${Math.min(1, Math.max(0, shareOf(cursorAt))) * 100}%`;
  const step = stepsShown().find((one) => one.at >= cursorAt && one.at - SPANS[span].step <= cursorAt);
  const parts = step && chart.series.map((one) => `${one.name ? `${one.name} ` : ""}${chart.unit(step[one.key])}`);
  return say(told, `${moment(cursorAt)}: ${parts ? parts.join(", ") : "no numbers"}`);
}

/** The steps of which something is known, in runs without a gap between them. */
function runs(steps, isKnown) {
  const found = [];
  let last = null;
  for (const step of steps) {
    if (isKnown(step)) {
      if (last && step.at - last.at < 2.5 * SPANS[span].step) found.at(-1).push(step);
      else found.push([step]);
    }
    last = isKnown(step) ? step : null;
  }
  return found;
}

/** What is drawn in one go: areas stand on each other, lines have their gaps each. */
function runsOf(chart, steps) {
  const together = chart.lines ? chart.series.map((one) => [one]) : [chart.series];
  return together.flatMap((series) =>
    runs(steps, (step) => series.some((one) => step[one.key] !== null)).map((run) => [run, series]));
}

/** The most that a chart shows, in words: what is not known is not told as nothing. */
function peakWords(chart, steps, peak) {
  const values = steps.flatMap((step) => chart.series.map((one) => step[one.key]));
  if (values.every((value) => value === null)) return chart.unknown ?? UNKNOWN;
  if (peak > 0 || !chart.none) return `peak ${chart.unit(peak)}`;
  return values.includes(null) ? `${chart.none}, as far as known` : chart.none;
}

function updateChart(figure, chart) {
  const [from, to] = windowShown();
  const length = SPANS[span].step;
  const steps = stepsShown().filter((step) => step.at > from && step.at - length < to);
  const fold = (total, value) => (chart.lines ? Math.max(total, value) : total + value);
  const sums = steps.map((step) => chart.series.reduce((total, one) => fold(total, step[one.key] ?? 0), 0));
  const peak = Math.max(0, ...sums);
  const most = chart.most ?? Math.max(chart.least ?? 1, peak * 1.1);
  const x = (at) => (WIDTH * Math.min(1, Math.max(0, (at - from) / (to - from)))).toFixed(1);
  const y = (value) => (HEIGHT - 2 - (HEIGHT - 6) * Math.min(1, value / most)).toFixed(1);
  const paths = [];
  // What is not known leaves a gap; it is not 0.
  for (const [run, series] of runsOf(chart, steps)) {
    const below = run.map(() => 0);
    for (const one of series) {
      const heights = run.map((step, index) => (chart.lines ? 0 : below[index]) + (step[one.key] ?? 0));
      if (chart.none && !chart.lines && heights.every((height, index) => height === below[index])) continue;
      const [begin, end] = [(step) => x(step.at - length), (step) => x(step.at)];
      const line = run.map((step, index) => `${begin(step)} ${y(heights[index])} L${end(step)} ${y(heights[index])}`);
      const floor = run.map((step, index) => `${end(step)} ${y(below[index])} L${begin(step)} ${y(below[index])}`);
      const area = `M${line.join(" L")} L${floor.reverse().join(" L")} Z`;
      if (!chart.lines) paths.push(drawn("path", { class: `area ${one.tone}`, d: area }));
      paths.push(drawn("path", { class: `line ${one.tone}`, d: `M${line.join(" L")}` }));
      if (!chart.lines) heights.forEach((height, index) => { below[index] = height; });
    }
  }
  figure.querySelector("svg").replaceChildren(...paths);
  const marked = marksShown().filter((mark) => mark.at > from && mark.at < to);
  each(figure.querySelector(".marks"), marked, () => element("span"), (place, mark) => {
    place.className = `mark-${mark.what}`;
    place.style.left = `${shareOf(mark.at) * 100}%`;
    place.title = markWords(mark);
  });
  const words = steps.length ? peakWords(chart, steps, peak) : "no numbers yet";
  say(figure.querySelector(".top"), words);
  const ends = zoomed ? [moment(from), "", moment(to)] : { hour: ["60 min ago", "30", "now"],
    day: ["24 h ago", "12", "now"], week: ["7 days ago", "3½", "now"] }[span];
  [...figure.querySelectorAll(".axis span")].forEach((place, index) => say(place, ends[index]));
  tellStep(figure, chart);
  const shown = zoomed ? `${moment(from)} to ${moment(to)}` : `last ${SPANS[span].words}`;
  figure.setAttribute("aria-label",
    `${chart.title}, ${shown}: ${words}. The arrow keys go through it, + and - zoom, Escape shows all.`);
}

const MARKS = { start: "udpd was started", restart: "udpd was started anew", reload: "Configuration read again",
  reload_refused: "A reload was refused" };
const markWords = (mark) => `${moment(mark.at)}: ${MARKS[mark.what]}${mark.text ? `: ${mark.text}` : ""}`;
const MARKS_SAID = 6;

const STRIPS_MAX = 12;

function makeStrip() {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
  return element("li", {}, element("b"), svg, element("span"));
}

/** When a listener lost something: the darker, the more. */
function updateStrip(strip, { name, total, most, last, isKnown }) {
  const [from, to] = windowShown();
  const x = (step) => ((WIDTH * (step.at - STEP_MS - from)) / (to - from)).toFixed(1);
  const opacity = (step) => (0.35 + (0.65 * step.by.get(name)) / most).toFixed(2);
  const lossy = hour.filter((step) => step.by.get(name) > 0 && step.at > from && step.at - STEP_MS < to);
  const marked = lossy.map((step) => drawn("rect", { class: "mark", y: 0, height: 10, x: x(step),
    width: (2 * WIDTH * STEP_MS) / (to - from), "fill-opacity": opacity(step) }));
  strip.querySelector("svg").replaceChildren(...marked);
  say(strip.firstElementChild, name);
  say(strip.lastElementChild, `lost ${isKnown ? "" : "at least "}${short(total)}, last about ${clock(last)}`);
  strip.lastElementChild.title = count(total);
}

/** A strip for each listener that lost something in the hour, the one that lost most first. */
function showStrips() {
  const totals = new Map();
  for (const step of hour) {
    for (const [name, lost] of step.by) {
      const row = totals.get(name) ?? { name, total: 0, most: 0, last: 0, isKnown: true };
      totals.set(name, row);
      if (lost === null) row.isKnown = false;
      if (!(lost > 0)) continue;
      row.total += lost;
      row.most = Math.max(row.most, lost);
      row.last = step.at;
    }
  }
  const lossy = [...totals.values()].filter((row) => row.total > 0).sort((one, other) => other.total - one.total);
  const isShown = span === "hour";
  each($("strips"), isShown ? lossy.slice(0, STRIPS_MAX) : [], makeStrip, updateStrip);
  const rest = [];
  if (lossy.length > STRIPS_MAX) rest.push(`${lossy.length - STRIPS_MAX} more lost less.`);
  const others = [...totals.values()].filter((row) => row.total === 0);
  const number = (rows) => `${rows.length} ${lossy.length ? "other" : "listener"}${rows.length === 1 ? "" : "s"}`;
  const [clean, unknown] = [others.filter((row) => row.isKnown), others.filter((row) => !row.isKnown)];
  if (lossy.length && clean.length) rest.push(`${number(clean)} lost nothing.`);
  if (unknown.length) rest.push(`What ${number(unknown)} lost is not known for all of the hour.`);
  if (leftOut) rest.push(`The daemon keeps no hour of ${leftOut} more: of these, only what this page saw.`);
  say($("strips-words"), isShown ? rest.join(" ") : "");
}

function showHour() {
  each($("hour"), CHARTS, makeChart, updateChart);
  showStrips();
  const [steps, past] = [stepsShown(), marksShown()];
  each($("marks"), past.slice(-MARKS_SAID), () => element("li"), (item, mark) => say(item, markWords(mark)));
  $("spans").hidden = daysKept === null;
  for (const button of $("spans").children) {
    button.setAttribute("aria-pressed", String(button.value === span));
    button.disabled = button.value === "week" && daysKept !== null && daysKept <= 1;
  }
  $("zoom-out").disabled = zoomed === null;
  say($("hour-title"), `The last ${SPANS[span].words}`);
  const seen = steps.reduce((total, step) => total + step.span, 0);
  const lossy = steps.filter((step) => LOST_KEYS.some((key) => step[key] > 0));
  const lostIn = (step) => step.span * LOST_KEYS.reduce((sum, key) => sum + (step[key] ?? 0), 0);
  const lost = steps.reduce((total, step) => total + lostIn(step), 0);
  const values = steps.flatMap((step) => LOST_KEYS.map((key) => step[key]));
  const isKnown = !values.includes(null);
  const [least, nothing] = isKnown ? ["", "Nothing lost."] : ["at least ", "Nothing lost, as far as known."];
  const without = values.every((value) => value === null) ? "What was lost is not known." : nothing;
  const when = lossy.length
    ? `Lost ${least}${count(Math.round(lost))}, the last of them about ${moment(lossy.at(-1).at)}.` : without;
  say($("hour-words"), seen ? `All listeners together; seen: ${lasting(seen)}. ${when}` : "");
}

/** A longer span is asked for when it is chosen, and again when its newest step is over. */
async function askLonger() {
  const asked = span;
  if (asked === "hour" || Date.now() - longer.at < SPANS[asked].step / 5) return;
  longer.at = Date.now();
  const response = await fetch(at(`/history?span=${asked}`), { cache: "no-store" }).catch(() => null);
  if (!response?.ok || asked !== span) return;
  const told = await response.json();
  Object.assign(longer, { steps: stepsOf(told, dateOf), marks: marksOf(told) });
  showHour();
}

for (const button of $("spans").children) {
  button.addEventListener("click", () => {
    [span, zoomed, cursorAt, longer] = [button.value, null, null, { steps: [], marks: [], at: 0 }];
    showHour();
    askLonger();
  });
}
$("zoom-in").addEventListener("click", () => zoomBy(0.5));
$("zoom-out").addEventListener("click", () => zoomTo(0, Infinity));

