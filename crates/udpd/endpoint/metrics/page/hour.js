// The last hour as three pictures: what arrived, what was lost, how full it was. The daemon keeps the hour; the page asks
// for it when it connects and goes on from the stream.

const STEP_MS = 10_000;
const HOUR_MS = 3_600_000;

/** The steps of the hour by the time at which they end, oldest first. */
let hour = [];

const LOST_KEYS = ["lost_socket", "lost_listener", "lost_queue", "lost_sink"];
const LOST_NAMES = { lost_socket: "at the socket", lost_listener: "in the lane", lost_queue: "in a sink's queue",
  lost_sink: "at a sink" };

const CHARTS = [
  { key: "arrived", title: "Arrived", unit: rate, series: [{ key: "arrived", tone: "flow" }] },
  { key: "lost", title: "Lost", unit: rate, least: 1, none: "nothing lost",
    series: LOST_KEYS.map((key, index) => ({ key, tone: `loss${index}`, name: LOST_NAMES[key] })) },
  { key: "fill", title: "Fullest receive buffer and queue", unit: percent, most: 1, lines: true,
    series: [{ key: "buffer", tone: "flow", name: "receive buffer" }, { key: "queue", tone: "other", name: "sink's queue" }] },
];

/** Takes the hour as the daemon tells it; what the page knows from before a restart stays. */
function takeHour(told, now) {
  const taken = told.end_seconds.map((end, index) => {
    const of = (key) => told.series[key]?.[index] ?? null;
    const span = told.seen_seconds[index];
    const step = { at: now - (told.uptime_seconds - end) * 1000, span, buffer: of("buffer_fill_permille") / 1000,
      queue: of("queue_fill_permille") / 1000 };
    for (const key of ["arrived", "delivered", ...LOST_KEYS]) step[key] = of(key) === null || !span ? null : of(key) / span;
    return step;
  });
  const from = taken.length ? taken[0].at - STEP_MS : Infinity;
  hour = [...hour.filter((step) => step.at <= from), ...taken];
}

/** What is longer than this between two readings belongs to no one step. */
const LONGEST_SECOND = 5;

/** Adds a second of the stream to the step that it belongs to. */
function addSecond(before, now, at) {
  const span = now.uptime_seconds - before.uptime_seconds;
  if (span > LONGEST_SECOND) return;
  const [old, new_] = [totals(before, null), totals(now, null)];
  const lost = { socket: 0, lane: 0, queue: 0, sink: 0 };
  for (const loss of lostSince(lossesOf(before, null), lossesOf(now, null))) {
    if (!loss.wanted && !loss.ofHost && loss.stage in lost) lost[loss.stage] += loss.lost;
  }
  const more = { arrived: new_.arrived === null || old.arrived === null ? null : new_.arrived - old.arrived,
    delivered: new_.delivered - old.delivered, lost_socket: new_.arrived === null ? null : lost.socket,
    lost_listener: lost.lane, lost_queue: lost.queue, lost_sink: lost.sink };
  let step = hour.at(-1);
  if (!step || at > step.at) {
    step = { at: Math.max(at, (step?.at ?? 0) + (at - (step?.at ?? at) > STEP_MS ? 0 : STEP_MS)), span: 0, buffer: 0,
      queue: 0 };
    hour.push(step);
  }
  for (const [key, value] of Object.entries(more)) {
    const known = value !== null && step[key] !== null;
    step[key] = known ? ((step[key] ?? 0) * step.span + value) / (step.span + span) : null;
  }
  step.span += span;
  step.buffer = Math.max(step.buffer, new_.bufferFill);
  step.queue = Math.max(step.queue, new_.queueFill);
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
    element("div", { class: "axis", "aria-hidden": "true" }, element("span", {}, "60 min ago"), element("span", {}, "30"),
      element("span", {}, "now")),
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

/** The steps in runs without a gap between them. */
function runs(steps) {
  const found = [];
  for (const step of steps) {
    const last = found.at(-1)?.at(-1);
    if (last && step.at - last.at < 2.5 * STEP_MS) found.at(-1).push(step);
    else found.push([step]);
  }
  return found;
}

function updateChart(figure, chart) {
  const end = Date.now();
  const sums = hour.map((step) => chart.series.reduce((total, one) => (chart.lines ? Math.max(total, step[one.key] ?? 0) :
    total + (step[one.key] ?? 0)), 0));
  const peak = Math.max(0, ...sums);
  const most = chart.most ?? Math.max(chart.least ?? 1, peak * 1.1);
  const x = (at) => Math.max(0, WIDTH * (1 - (end - at) / HOUR_MS)).toFixed(1);
  const y = (value) => (HEIGHT - 2 - (HEIGHT - 6) * Math.min(1, value / most)).toFixed(1);
  const paths = [];
  for (const run of runs(hour)) {
    const below = run.map(() => 0);
    for (const one of chart.series) {
      const heights = run.map((step, index) => (chart.lines ? step[one.key] ?? 0 : below[index] + (step[one.key] ?? 0)));
      if (chart.key === "lost" && heights.every((height, index) => height === below[index])) continue;
      const line = run.map((step, index) => `${x(step.at - STEP_MS)} ${y(heights[index])} L${x(step.at)} ${y(heights[index])}`);
      const floor = run.map((step, index) => `${x(step.at)} ${y(below[index])} L${x(step.at - STEP_MS)} ${y(below[index])}`);
      if (!chart.lines) paths.push(drawn("path", { class: `area ${one.tone}`, d: `M${line.join(" L")} L${floor.reverse().join(" L")} Z` }));
      paths.push(drawn("path", { class: `line ${one.tone}`, d: `M${line.join(" L")}` }));
      if (!chart.lines) heights.forEach((height, index) => { below[index] = height; });
    }
  }
  figure.querySelector("svg").replaceChildren(...paths);
  const words = peak === 0 && chart.none ? chart.none : `peak ${chart.unit(peak)}`;
  say(figure.querySelector(".top"), hour.length ? words : "no numbers yet");
  figure.setAttribute("aria-label", `${chart.title}, last hour: ${words}. The arrow keys go through it.`);
}

function showHour() {
  each($("hour"), CHARTS, makeChart, updateChart);
  const seen = hour.reduce((total, step) => total + step.span, 0);
  const lossy = hour.filter((step) => LOST_KEYS.some((key) => step[key] > 0));
  const lost = hour.reduce((total, step) => total + step.span * LOST_KEYS.reduce((sum, key) => sum + (step[key] ?? 0), 0), 0);
  const when = lossy.length ? `Lost ${count(Math.round(lost))}, the last of them about ${clock(lossy.at(-1).at)}.` : "Nothing lost.";
  say($("hour-words"), seen ? `All listeners together; seen: ${lasting(seen)}. ${when}` : "");
}

