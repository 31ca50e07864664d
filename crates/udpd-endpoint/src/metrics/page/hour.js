// The last hour in numbers: what arrived, what was lost, how full it was, how long datagrams stayed, what the host
// dropped, what each listener lost, and when udpd was started or its configuration read again. The daemon keeps the
// hour; the page asks for it when it connects and goes on from the stream. Days are asked for as they are.

const STEP_MS = 10_000;
const HOUR_MS = 3_600_000;

/** The steps of the hour by the time at which they end, oldest first. */
let hour = [];

/** How long the daemon had run, in milliseconds, when it told the hour: what was before stands in it already. */
let toldUntil = 0;

/** Starts and reloads of the hour: when, what, and the words of a reload. */
let marks = [];

/** How many days the daemon keeps; null where it keeps none. */
let daysKept = null;

/** How many listeners have no hour of their own in what the daemon told. */
let leftOut = 0;

const LOST_KEYS = ["lost_socket", "lost_listener", "lost_queue", "lost_sink"];
const COUNTED = ["arrived", "delivered", ...LOST_KEYS, "host_nic", "host_kernel"];
const BEFORE_SOCKETS = { host_nic: ["nic"], host_kernel: ["softnet", "conntrack", "ip"] };

/** The steps that the daemon tells, with rates instead of counts. */
function stepsOf(told, atOf) {
  return told.end_seconds.map((end, index) => {
    const of = (key) => told.series[key]?.[index] ?? null;
    const part = (value, whole) => (value === null ? null : value / whole);
    const span = told.seen_seconds[index];
    const step = { at: atOf(end), span, buffer: part(of("buffer_fill_permille"), 1e3),
      queue: part(of("queue_fill_permille"), 1e3), residence: part(of("residence_p99_micros"), 1e6), by: new Map() };
    for (const key of COUNTED) step[key] = span ? part(of(key), span) : null;
    return step;
  });
}

const marksOf = (told) => (told.marks ?? []).map((mark) => ({ ...mark, at: dateOf(mark.at) }));

/**
 * Takes the hour as the daemon tells it, and adds what the stream has told since. Every reading of the stream is an end
 * of a point of the hour, so the two join without a gap. What the page knows from before a restart stays.
 */
function takeHour(told, now, readings) {
  const taken = stepsOf(told, (end) => now - (told.uptime_seconds - end) * 1000);
  if (told.now) clockAhead = now - told.now * 1000;
  daysKept = told.days_kept ?? null;
  const isOlder = (mark) => !told.now || mark.at < now - told.uptime_seconds * 1000 - 1000;
  marks = [...marks.filter(isOlder), ...marksOf(told)];
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
  const reload = now.last_reload;
  if (reload && reload.at !== before.last_reload?.at) {
    marks.push({ at: dateOf(reload.at), what: reload.done ? "reload" : "reload_refused", text: reload.text });
  }
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
  marks = marks.filter((one) => one.at > at - HOUR_MS);
}

