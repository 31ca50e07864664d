// Each listener with its lanes and its sinks, as tables. Only those that are open are kept up to date.

const LANE_COLUMNS =
  ["Lane", "Core", "Receive queue", "Received", "Receive buffer", "Lost at the socket", "Busiest senders"];
const SINK_COLUMNS = ["Sink", "Offered", "Delivered", "Queue", "Queue full", "Sink errors", "Residence"];

function makeTable(caption, columns) {
  const heads = columns.map((column) => element("th", { scope: "col" }, column));
  return element("div", { class: "table", role: "region", "aria-label": caption, tabindex: "0" },
    element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)),
      element("tbody")));
}

function makeListener() {
  const details = element("details", {}, element("summary", {}, element("h3"), element("span", { class: "sums" })));
  details.append(element("p", { class: "aside" }), makeTable("Lanes", LANE_COLUMNS), makeTable("Sinks", SINK_COLUMNS));
  return details;
}

const makeRow = (columns) => () => {
  const row = element("tr", {}, element("th", { scope: "row" }));
  for (const column of columns.slice(1)) row.append(element("td", { "data-label": column }));
  return row;
};

/** Brings a row up to date: texts, or a bar with its text, or a text with a tone. */
function updateRow(row, cells) {
  cells.forEach((cell, index) => {
    const place = row.children[index];
    if (cell.fill === undefined) {
      say(place, cell.text ?? cell);
    } else {
      if (!place.firstElementChild) place.append(fillBar(), element("span"));
      setBar(place.firstElementChild, cell.fill);
      say(place.lastElementChild, cell.text);
    }
    place.classList.toggle("lossy", Boolean(cell.lossy));
  });
}

function lostCell(now, before, span) {
  if (now === null || now === undefined) return UNKNOWN;
  const more = span > 0 && before !== null && before !== undefined ? Math.max(0, now - before) / span : 0;
  return { text: more > 0 ? `${count(now)} (${rate(more)})` : count(now), lossy: more > 0 };
}

const perSecond = (now, before, span) =>
  (typeof now === "number" && typeof before === "number" && span > 0 ? rate(Math.max(0, now - before) / span) : "");

function laneCells(lane, before, span) {
  const senders = (lane.senders ?? []).slice(0, 3);
  return [
    String(lane.lane), lane.cpu === null ? "not pinned" : String(lane.cpu),
    lane.queue === null ? "any" : String(lane.queue),
    perSecond(lane.received, before?.received, span),
    { fill: bufferFill(lane), text: `${percent(bufferFill(lane))} of ${bytes(lane.receive_buffer_bytes)}` },
    lostCell(lane.kernel_dropped, before?.kernel_dropped, span),
    lane.senders === undefined ? UNKNOWN : senders.length === 0 ? "none" :
      senders.map((sender) => `${sender.address} ${percent(sender.share)}`).join(", "),
  ];
}

/** What its destination did not take, for whatever reason. */
function byDestination(dropped) {
  return dropped && dropped.sink_error + (dropped.too_large ?? 0) + (dropped.against_policy ?? 0);
}

function sinkCells(sink, before, span) {
  const residence = sink.residence;
  const parts = residence && [["50 %", residence.p50_seconds], ["99 %", residence.p99_seconds],
    ["99.9 %", residence.p999_seconds]].map(([part, value]) => `${part} ${within(value)}`).join(", ");
  return [
    sink.name, perSecond(sink.offered, before?.offered, span), perSecond(sink.delivered, before?.delivered, span),
    { fill: queueFill(sink), text: sink.inline ? "inline, no queue"
      : `${percent(queueFill(sink))} of ${bytes(sink.queue_capacity)}` },
    lostCell(sink.dropped?.queue_full, before?.dropped?.queue_full, span),
    lostCell(byDestination(sink.dropped), byDestination(before?.dropped), span),
    parts ? `since the start: ${parts}` : "not measured yet",
  ];
}

function updateListener(details, { now, before, span }) {
  say(details.querySelector("h3"), now.name);
  const lost = (now.kernel_dropped ?? 0) + values(now.dropped).reduce((total, one) => total + one, 0)
    + now.sinks.flatMap((sink) => values(sink.dropped)).reduce((total, one) => total + one, 0);
  const received = perSecond(now.received, before?.received, span) || "…";
  say(details.querySelector(".sums"),
    `${now.address}: received ${received}, since the start ${count(now.received)}, not handed on ${count(lost)}`);
  if (!details.open) return;
  const unit = now.kernel_dropped_unit === "buffers" ? " The kernel counts a dropped train of datagrams as one." : "";
  const dropped = Object.entries(now.dropped ?? {}).filter(([, lost]) => lost > 0)
    .map(([name, lost]) => `${spoken(name)} ${count(lost)}`);
  const residual = now.residual === 0 ? "The ledger closes: every datagram is accounted for." : now.residual === null ?
    "The residual of the ledger is not known here." : `The ledger does not close: ${count(now.residual)} left over.`;
  const shared = now.shared_with?.length ? ` Other processes share its port: ${now.shared_with.map((other) =>
    other.command ?? "unknown").join(", ")}.` : "";
  const inLanes = dropped.length ? ` Dropped in its lanes: ${dropped.join(", ")}.` : "";
  say(details.querySelector(".aside"), `${residual}${inLanes}${unit}${shared}`);
  const [lanes, sinks] = details.querySelectorAll("tbody");
  each(lanes, now.lanes, makeRow(LANE_COLUMNS), (row, lane) => {
    updateRow(row, laneCells(lane, before?.lanes.find((other) => other.lane === lane.lane), span));
  });
  each(sinks, now.sinks, makeRow(SINK_COLUMNS), (row, sink) => {
    updateRow(row, sinkCells(sink, before && byName(before.sinks, sink.name), span));
  });
}

function showListeners(before, now, only) {
  const shown = listenersOf(now, only);
  const span = now.uptime_seconds - before.uptime_seconds;
  const isNew = $("listeners").children.length === 0;
  const both = shown.map((listener) => ({ now: listener, before: byName(before.listeners, listener.name), span }));
  each($("listeners"), both, makeListener, updateListener);
  if (isNew && shown.length <= 3) for (const details of $("listeners").children) details.open = true;
  else if (only !== null && $("listeners").firstElementChild) $("listeners").firstElementChild.open = true;
}

