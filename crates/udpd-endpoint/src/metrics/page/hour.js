// The last hour in pictures: what arrived, what was lost, how full it was, how long datagrams stayed, what the host
// dropped, and a strip for each listener that lost something. The daemon keeps the hour; the page asks for it when it
// connects and goes on from the stream.

const STEP_MS = 10_000;
const HOUR_MS = 3_600_000;

/** The steps of the hour by the time at which they end, oldest first. */
let hour = [];

/** How long the daemon had run, in milliseconds, when it told the hour: what was before stands in it already. */
let toldUntil = 0;

/** How many listeners have no hour of their own in what the daemon told. */
let leftOut = 0;

const LOST_KEYS = ["lost_socket", "lost_listener", "lost_queue", "lost_sink"];
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
const COUNTED = ["arrived", "delivered", ...LOST_KEYS, "host_nic", "host_kernel"];
const BEFORE_SOCKETS = { host_nic: ["nic"], host_kernel: ["softnet", "conntrack", "ip"] };

/**
 * Takes the hour as the daemon tells it, and adds what the stream has told since. Every reading of the stream is an end
 * of a point of the hour, so the two join without a gap. What the page knows from before a restart stays.
 */
function takeHour(told, now, readings) {
  const taken = told.end_seconds.map((end, index) => {
    const of = (key) => told.series[key]?.[index] ?? null;
    const part = (value, whole) => (value === null ? null : value / whole);
    const span = told.seen_seconds[index];
    const step = { at: now - (told.uptime_seconds - end) * 1000, span, buffer: part(of("buffer_fill_permille"), 1e3),
      queue: part(of("queue_fill_permille"), 1e3), residence: part(of("residence_p99_micros"), 1e6), by: new Map() };
    for (const key of COUNTED) step[key] = span ? part(of(key), span) : null;
    return step;
  });
  const steps = new Map(told.end_seconds.map((end, index) => [end, taken[index]]));
  told.by_listener?.end_seconds.forEach((end, index) => {
    for (const row of told.by_listener.listeners) steps.get(end)?.by.set(row.name, row.lost[index]);
  });
  // All that this daemon has seen came by the stream as well.
  if (!taken.length) return;
  leftOut = told.by_listener?.left_out ?? 0;
  hour = [...hour.filter((step) => step.at <= taken[0].at - STEP_MS), ...taken];
  toldUntil = Math.round(told.uptime_seconds * 1000);
  hasGap = false;
  for (let index = 1; index < readings.length; index += 1) addSecond(readings[index - 1], readings[index]);
}

/** What is longer than this between two readings belongs to no one step: only the daemon can tell it. */
const LONGEST_SECOND = 5;

/** Whether the stream has left something out that the daemon is to be asked for. */
let hasGap = false;

/** What the host dropped in some layers since the daemon started; null before the first look. */
function droppedIn(reading, layers) {
  const host = reading.host;
  if (!Object.keys(host?.nic ?? {}).length && !Object.keys(host?.softnet ?? {}).length) return null;
  return sum((host.lost?.lost ?? []).filter((loss) => layers.includes(loss.layer)), (loss) => loss.count);
}

/** Within which time 99 of 100 went through the slowest sink between two readings; null where nothing was measured. */
function slowestSince(before, now) {
  let slowest = null;
  for (const sink of now.listeners.flatMap((listener) => listener.sinks)) {
    if (!sink.residence) continue;
    const old = byName(before.listeners.flatMap((listener) => listener.sinks), sink.name)?.residence;
    const countOf = (le_seconds) => old?.buckets.find((other) => other.le_seconds === le_seconds)?.count ?? 0;
    const counts = sink.residence.buckets.map(({ le_seconds, count }) => [le_seconds, count - countOf(le_seconds)]);
    const wanted = Math.ceil(counts.reduce((total, [, count]) => total + count, 0) * 0.99);
    let seen = 0;
    const reached = wanted > 0 && counts.find(([, count]) => (seen += count) >= wanted);
    if (reached) slowest = Math.max(slowest ?? 0, reached[0] ?? LONGEST_RESIDENCE_SECONDS + 1);
  }
  return slowest;
}

/** What udpd lost of each listener between two readings. */
function lostBy(before, now) {
  const lost = new Map(now.listeners.map((listener) => [listener.name, listener.kernel_dropped === null ? null : 0]));
  for (const loss of lostSince(lossesOf(before, null), lossesOf(now, null))) {
    const isOwn = !loss.wanted && !loss.ofHost && !loss.foreign;
    const sum = lost.get(loss.listener);
    if (isOwn && typeof sum === "number") lost.set(loss.listener, sum + loss.lost);
  }
  return lost;
}

/** Adds a second of the stream to the step that it belongs to, unless the daemon has told it. */
function addSecond(before, now) {
  // The daemon tells whole milliseconds of the hour, as here.
  if (Math.floor(before.uptime_seconds * 1000) < toldUntil) return;
  const at = now.takenAt;
  const span = now.uptime_seconds - before.uptime_seconds;
  if (span > LONGEST_SECOND) hasGap = true;
  if (span <= 0 || span > LONGEST_SECOND) return;
  const [old, new_] = [totals(before, null), totals(now, null)];
  const lost = { socket: 0, lane: 0, queue: 0, sink: 0 };
  for (const loss of lostSince(lossesOf(before, null), lossesOf(now, null))) {
    if (!loss.wanted && !loss.ofHost && loss.stage in lost) lost[loss.stage] += loss.lost;
  }
  const more = { arrived: new_.arrived === null || old.arrived === null ? null : new_.arrived - old.arrived,
    delivered: new_.delivered - old.delivered, lost_socket: new_.arrived === null ? null : lost.socket,
    lost_listener: lost.lane, lost_queue: lost.queue, lost_sink: lost.sink };
  for (const [key, layers] of Object.entries(BEFORE_SOCKETS)) {
    const [old, new_] = [droppedIn(before, layers), droppedIn(now, layers)];
    more[key] = old === null || new_ === null ? null : Math.max(0, new_ - old);
  }
  let step = hour.at(-1);
  if (!step || at > step.at) {
    step = { at: Math.max(at, (step?.at ?? 0) + (at - (step?.at ?? at) > STEP_MS ? 0 : STEP_MS)), span: 0, buffer: null,
      queue: null, residence: null, by: new Map() };
    hour.push(step);
  }
  for (const [key, value] of Object.entries(more)) {
    const known = value !== null && step[key] !== null;
    step[key] = known ? ((step[key] ?? 0) * step.span + value) / (step.span + span) : null;
  }
  step.span += span;
  step.buffer = Math.max(step.buffer ?? 0, new_.bufferFill);
  step.queue = Math.max(step.queue ?? 0, new_.queueFill);
  const slowest = slowestSince(before, now);
  if (slowest !== null) step.residence = Math.max(step.residence ?? 0, slowest);
  for (const [name, lost] of lostBy(before, now)) {
    const sum = step.by.get(name);
    step.by.set(name, lost === null || sum === null ? null : (sum ?? 0) + lost);
  }
  hour = hour.filter((one) => one.at > at - HOUR_MS);
}

const WIDTH = 600;
const HEIGHT = 120;

function makeChart(chart) {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const figure = element("figure", { tabindex: "0", role: "group", "data-chart": chart.key });
  const legend = chart.series.filter((one) => one.name).map((one) =>
    element("span", { class: `key ${one.tone}` }, one.name));
  figure.append(
    element("figcaption", {}, element("b", {}, chart.title), element("span", { class: "top" })),
    element("div", { class: "plot" }, svg, element("span", { class: "cursor", hidden: "" })),
    element("div", { class: "axis", "aria-hidden": "true" },
      ...["60 min ago", "30", "now"].map((words) => element("span", {}, words))),
    element("p", { class: "legend" }, ...legend),
    element("p", { class: "told", role: "status" }));
  const point = (share) => tellStep(figure, chart, share);
  figure.addEventListener("pointermove", (event) => {
    const box = figure.querySelector(".plot").getBoundingClientRect();
    point((event.clientX - box.left) / box.width);
  });
  figure.addEventListener("pointerleave", () => point(null));
  figure.addEventListener("blur", () => point(null));
  figure.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = Number(figure.dataset.at ?? 1);
    point(Math.min(1, Math.max(0, at + (step * STEP_MS) / HOUR_MS)));
  });
  return figure;
}

/** Says what was at a moment of the hour: where the pointer is, or where the arrow keys have gone. */
function tellStep(figure, chart, share) {
  const cursor = figure.querySelector(".cursor");
  const told = figure.querySelector(".told");
  cursor.hidden = share === null;
  if (share === null) {
    delete figure.dataset.at;
    return say(told, "");
  }
  figure.dataset.at = share;
  cursor.style.left = `${Math.min(1, Math.max(0, share)) * 100}%`;
  const at = Date.now() - (1 - share) * HOUR_MS;
  const step = hour.find((one) => one.at >= at && one.at - STEP_MS <= at);
  const parts = step && chart.series.map((one) => `${one.name ? `${one.name} ` : ""}${chart.unit(step[one.key])}`);
  return say(told, `${clock(at)}: ${parts ? parts.join(", ") : "no numbers"}`);
}

/** The steps of which something is known, in runs without a gap between them. */
function runs(steps, isKnown) {
  const found = [];
  let last = null;
  for (const step of steps) {
    if (isKnown(step)) {
      if (last && step.at - last.at < 2.5 * STEP_MS) found.at(-1).push(step);
      else found.push([step]);
    }
    last = isKnown(step) ? step : null;
  }
  return found;
}

/** What is drawn in one go: areas stand on each other, lines have their gaps each. */
function runsOf(chart) {
  const together = chart.lines ? chart.series.map((one) => [one]) : [chart.series];
  return together.flatMap((series) =>
    runs(hour, (step) => series.some((one) => step[one.key] !== null)).map((run) => [run, series]));
}

/** The most that a chart shows, in words: what is not known is not told as nothing. */
function peakWords(chart, peak) {
  const values = hour.flatMap((step) => chart.series.map((one) => step[one.key]));
  if (values.every((value) => value === null)) return chart.unknown ?? UNKNOWN;
  if (peak > 0 || !chart.none) return `peak ${chart.unit(peak)}`;
  return values.includes(null) ? `${chart.none}, as far as known` : chart.none;
}

function updateChart(figure, chart) {
  const end = Date.now();
  const fold = (total, value) => (chart.lines ? Math.max(total, value) : total + value);
  const sums = hour.map((step) => chart.series.reduce((total, one) => fold(total, step[one.key] ?? 0), 0));
  const peak = Math.max(0, ...sums);
  const most = chart.most ?? Math.max(chart.least ?? 1, peak * 1.1);
  const x = (at) => Math.max(0, WIDTH * (1 - (end - at) / HOUR_MS)).toFixed(1);
  const y = (value) => (HEIGHT - 2 - (HEIGHT - 6) * Math.min(1, value / most)).toFixed(1);
  const paths = [];
  // What is not known leaves a gap; it is not 0.
  for (const [run, series] of runsOf(chart)) {
    const below = run.map(() => 0);
    for (const one of series) {
      const heights = run.map((step, index) => (chart.lines ? 0 : below[index]) + (step[one.key] ?? 0));
      if (chart.none && !chart.lines && heights.every((height, index) => height === below[index])) continue;
      const [begin, end] = [(step) => x(step.at - STEP_MS), (step) => x(step.at)];
      const line = run.map((step, index) => `${begin(step)} ${y(heights[index])} L${end(step)} ${y(heights[index])}`);
      const floor = run.map((step, index) => `${end(step)} ${y(below[index])} L${begin(step)} ${y(below[index])}`);
      const area = `M${line.join(" L")} L${floor.reverse().join(" L")} Z`;
      if (!chart.lines) paths.push(drawn("path", { class: `area ${one.tone}`, d: area }));
      paths.push(drawn("path", { class: `line ${one.tone}`, d: `M${line.join(" L")}` }));
      if (!chart.lines) heights.forEach((height, index) => { below[index] = height; });
    }
  }
  figure.querySelector("svg").replaceChildren(...paths);
  const words = hour.length ? peakWords(chart, peak) : "no numbers yet";
  say(figure.querySelector(".top"), words);
  figure.setAttribute("aria-label", `${chart.title}, last hour: ${words}. The arrow keys go through it.`);
}

const STRIPS_MAX = 12;

function makeStrip() {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
  return element("li", {}, element("b"), svg, element("span"));
}

/** When a listener lost something: the darker, the more. */
function updateStrip(strip, { name, total, most, last, isKnown }) {
  const end = Date.now();
  const x = (step) => Math.max(0, WIDTH * (1 - (end - step.at + STEP_MS) / HOUR_MS)).toFixed(1);
  const opacity = (step) => (0.35 + (0.65 * step.by.get(name)) / most).toFixed(2);
  const lossy = hour.filter((step) => step.by.get(name) > 0);
  const marks = lossy.map((step) => drawn("rect", { class: "mark", y: 0, height: 10, x: x(step),
    width: (2 * WIDTH * STEP_MS) / HOUR_MS, "fill-opacity": opacity(step) }));
  strip.querySelector("svg").replaceChildren(...marks);
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
  each($("strips"), lossy.slice(0, STRIPS_MAX), makeStrip, updateStrip);
  const rest = [];
  if (lossy.length > STRIPS_MAX) rest.push(`${lossy.length - STRIPS_MAX} more lost less.`);
  const others = [...totals.values()].filter((row) => row.total === 0);
  const number = (rows) => `${rows.length} ${lossy.length ? "other" : "listener"}${rows.length === 1 ? "" : "s"}`;
  const [clean, unknown] = [others.filter((row) => row.isKnown), others.filter((row) => !row.isKnown)];
  if (lossy.length && clean.length) rest.push(`${number(clean)} lost nothing.`);
  if (unknown.length) rest.push(`What ${number(unknown)} lost is not known for all of the hour.`);
  if (leftOut) rest.push(`The daemon keeps no hour of ${leftOut} more: of these, only what this page saw.`);
  say($("strips-words"), rest.join(" "));
}

function showHour() {
  each($("hour"), CHARTS, makeChart, updateChart);
  showStrips();
  const seen = hour.reduce((total, step) => total + step.span, 0);
  const lossy = hour.filter((step) => LOST_KEYS.some((key) => step[key] > 0));
  const lostIn = (step) => step.span * LOST_KEYS.reduce((sum, key) => sum + (step[key] ?? 0), 0);
  const lost = hour.reduce((total, step) => total + lostIn(step), 0);
  const values = hour.flatMap((step) => LOST_KEYS.map((key) => step[key]));
  const isKnown = !values.includes(null);
  const [least, nothing] = isKnown ? ["", "Nothing lost."] : ["at least ", "Nothing lost, as far as known."];
  const without = values.every((value) => value === null) ? "What was lost is not known." : nothing;
  const when = lossy.length
    ? `Lost ${least}${count(Math.round(lost))}, the last of them about ${clock(lossy.at(-1).at)}.` : without;
  say($("hour-words"), seen ? `All listeners together; seen: ${lasting(seen)}. ${when}` : "");
}

