// What a reading of the ledger says: what went through each stage, and what was lost where. What the ledger does not
// have, because this host or this version does not tell, is null here and "not known" on the page.

const REASONS = JSON.parse($("reasons").textContent);

/** The stages of the way, in its order, with the words for a loss in each. */
const STAGES = [
  { key: "upstream", title: "Network", where: "on the way to this host" },
  { key: "nic", title: "NIC queue", where: "at the network card" },
  { key: "core", title: "Core", where: "in the kernel, before the socket" },
  { key: "socket", title: "Socket", where: "at the socket" },
  { key: "lane", title: "Lane", where: "in the lane" },
  { key: "queue", title: "Channel", where: "in the sink's queue" },
  { key: "sink", title: "Sink", where: "at the sink" },
];
const stageOf = (key) => STAGES.find((stage) => stage.key === key);

const HOST_CURE = "These are packets of any protocol. udpd explain says whether they were datagrams, and what helps.";
const NAMESPACE_CURE =
  "All programs of this host share these counters. udpd explain says whose socket it was, and what helps.";

const listenersOf = (reading, only) =>
  reading.listeners.filter((listener) => only === null || listener.name === only);

/** A sum that is not known where any of its terms is not. */
function sum(things, of) {
  let total = 0;
  for (const thing of things) {
    const value = of(thing);
    if (value === null || value === undefined) return null;
    total += value;
  }
  return total;
}

const byName = (things, name) => things.find((thing) => thing.name === name);

const values = (object) => Object.values(object ?? {});

function reasonOf(layer, name) {
  return REASONS.find((reason) => reason.layer === layer && reason.name === name) ?? { help: spoken(name), cure: "" };
}

/** Everything that was lost since the daemon started, by place: what, where, how many. */
function lossesOf(reading, only) {
  const losses = new Map();
  // `lost` is what is told; `certain` is what a later reading is held against.
  const add = (stage, place, name, about, lost, certain = lost) => {
    if (typeof certain !== "number") return;
    losses.set(`${stage} ${place} ${name}`, { stage, place, name, ...about, lost, certain });
  };
  for (const listener of listenersOf(reading, only)) {
    const place = called("listener", listener.name);
    const own = (stage, where, name, about, ...counts) =>
      add(stage, where, name, { ...about, listener: listener.name }, ...counts);
    const upstream = listener.upstream;
    if (upstream) {
      const help = `Never reached this host, by the sequence numbers (in ${upstream.unit ?? "datagrams"}).`;
      own("upstream", place, "missing", { help, cure: "Look at the network and the senders.", foreign: true },
        upstream.missing ?? upstream.missing_at_least, upstream.certain?.lost);
    }
    own("socket", place, "socket", reasonOf("kernel", "socket"), listener.kernel_dropped);
    for (const [name, lost] of Object.entries(listener.dropped ?? {})) {
      own("lane", place, name, reasonOf("listener", name), lost);
    }
    for (const sink of listener.sinks) {
      for (const [name, lost] of Object.entries(sink.dropped ?? {})) {
        const stage = name === "queue_full" ? "queue" : "sink";
        own(stage, `${place}, ${called("sink", sink.name)}`, name, reasonOf("sink", name), lost);
      }
    }
  }
  hostLosses(reading.host ?? {}, add);
  return losses;
}

/**
 * What is missing upstream is a number that falls when something comes late, or two bounds that move apart and together
 * again as the ledger learns more. So each reading gets the sum of what was lost for certain. From one number to the
 * next that is by how much it rose, whatever it was before. With bounds it is by how much both rose beyond where they
 * have been: one that only comes back is no new loss.
 */
function sumCertain(before, now) {
  for (const listener of now.listeners) {
    const upstream = listener.upstream;
    if (!upstream) continue;
    const [least, most] = [upstream.missing ?? upstream.missing_at_least, upstream.missing ?? upstream.missing_at_most];
    const earlier = before && byName(before.listeners, listener.name)?.upstream?.certain;
    upstream.certain = certainAfter(earlier ?? { base: least, from: [least, most], high: [least, most], lost: least },
      [least, most]);
  }
}

/** `base` was lost for certain when the bounds were `from`; `high` is the highest that each has been since. */
function certainAfter({ base, from, high, lost }, [least, most]) {
  const isNumber = (bounds) => bounds[0] === bounds[1];
  const now = [Math.max(high[0], least), Math.max(high[1], most)];
  // Between two numbers it does not matter what was thought in between.
  const rose = isNumber(from) && least === most ? least - from[0] : Math.min(now[0] - from[0], now[1] - from[1]);
  const sum = Math.max(lost, base + rose);
  return least === most ? { base: sum, from: [least, most], high: [least, most], lost: sum }
    : { base, from, high: now, lost: sum };
}

/** What the host lost, of any protocol. What stands in two counters is taken from the outer one. */
function hostLosses(host, add) {
  const about = (help, cure = HOST_CURE) => ({ help, cure, ofHost: true });
  const backlog = sum(values(host.softnet), (core) => core.dropped) ?? 0;
  const cards = Object.entries(host.nic ?? {}).filter(([, card]) => !card.repeats_others);
  const all = { rx_missed_errors: "The receive ring had no room.", rx_errors: "Damaged packets." };
  for (const [name, card] of cards) {
    for (const [key, help] of Object.entries(all)) add("nic", called("interface", name), key, about(help), card[key]);
  }
  const dropped = sum(cards, ([, card]) => card.rx_dropped);
  if (dropped !== null && cards.length) {
    const help = "The driver or the stack dropped it.";
    add("nic", "this host", "rx_dropped", about(help), Math.max(0, dropped - backlog));
  }
  add("core", "this host", "softnet_dropped", about("The backlog of a core was full."), backlog);
  add("core", "this host", "conntrack_drop", about("The table of connections was full."), host.conntrack?.drop);
  for (const [family, ip] of [["IPv4", host.ip], ["IPv6", host.ip6]]) {
    const keys = { in_hdr_errors: "Its header was wrong.", reverse_path_filter: "The reverse path filter refused it.",
      in_discards: "Memory was short, or a policy refused it.", reasm_fails: "Fragments were missing." };
    for (const [key, help] of Object.entries(keys)) add("core", family, key, about(help), ip?.[key]);
  }
  for (const [family, udp] of [["UDP over IPv4", host.udp], ["UDP over IPv6", host.udp6]]) {
    const keys = { in_csum_errors: "Its checksum was wrong.", mem_errors: "All UDP memory was used up (udp_mem).",
      no_ports: "No socket has its port." };
    for (const [key, help] of Object.entries(keys)) {
      // No program waited for a stray datagram: it is shown, and no loss.
      add("core", family, key, { ...about(help, NAMESPACE_CURE), wanted: key === "no_ports" }, udp?.[key]);
    }
  }
}

/** What was lost between two readings, most first. */
function lostSince(before, now) {
  const lost = [];
  for (const [key, loss] of now) {
    const old = before.get(key) ?? (loss.ofHost ? loss : { certain: 0 });
    const more = loss.certain - old.certain;
    if (more > 0) lost.push({ ...loss, lost: more });
  }
  return lost.sort((one, other) => other.lost - one.lost);
}

const fullest = (things, of) => things.reduce((most, thing) => Math.max(most, of(thing)), 0);
const bufferFill = (lane) =>
  (lane.receive_buffer_bytes ? lane.receive_buffer_used_bytes / lane.receive_buffer_bytes : 0);
const queueFill = (sink) => (sink.queue_capacity ? sink.queue_depth / sink.queue_capacity : 0);

/** The counts of each stage since the daemon started. */
function totals(reading, only) {
  const listeners = listenersOf(reading, only);
  const lanes = listeners.flatMap((listener) => listener.lanes);
  const sinks = listeners.flatMap((listener) => listener.sinks);
  const host = reading.host ?? {};
  const cards = values(host.nic).filter((card) => !card.repeats_others);
  const cores = values(host.softnet);
  return {
    listeners, lanes, sinks,
    upstream: listeners.some((listener) => listener.upstream),
    packets: cards.length ? sum(cards, (card) => card.rx_packets) : null,
    processed: cores.length ? sum(cores, (core) => core.processed) : null,
    squeezed: cores.length ? sum(cores, (core) => core.time_squeeze) : null,
    interfaces: cards.length, cores: cores.length,
    arrived: sum(listeners, (listener) => listener.arrived),
    received: sum(listeners, (listener) => listener.received),
    bytes: sum(listeners, (listener) => listener.bytes),
    calls: sum(lanes, (lane) => lane.calls),
    wrongCpu: lanes.some((lane) => Number.isInteger(lane.wrong_cpu)) ? sum(lanes, (lane) => lane.wrong_cpu ?? 0) : null,
    offered: sum(sinks, (sink) => sink.offered),
    delivered: sum(sinks, (sink) => sink.delivered),
    inFlight: sum(sinks, (sink) => sink.in_flight),
    bufferFill: fullest(lanes, bufferFill),
    queueFill: fullest(sinks, queueFill),
    residual: sum(listeners, (listener) => listener.residual),
    residence: sinks.map((sink) => sink.residence).filter((residence) => residence),
  };
}

/** What happens a second, from one reading to a later one. */
function ratesOf(before, now, only) {
  const [old, new_] = [totals(before, only), totals(now, only)];
  const span = now.uptime_seconds - before.uptime_seconds;
  const rates = { ...new_ };
  for (const key of ["packets", "processed", "squeezed", "arrived", "received", "bytes", "calls", "wrongCpu", "offered",
    "delivered"]) {
    const known = old[key] !== null && new_[key] !== null && span > 0;
    rates[key] = known ? Math.max(0, new_[key] - old[key]) / span : null;
  }
  const lost = lostSince(lossesOf(before, only), lossesOf(now, only));
  rates.lost = lost.map((loss) => ({ ...loss, rate: loss.lost / span }));
  return rates;
}

