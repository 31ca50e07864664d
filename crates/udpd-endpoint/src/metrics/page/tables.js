// Listeners, lanes, sinks, streams and what the kernel names, as tables. A click or a key on a heading sorts by it. At
// first the worst stands on top: what is down, then what loses most now, then what has lost most since the start.

/** So many rows are shown until all are asked for: a daemon may have a thousand lanes. */
const rowsShown = () => (innerWidth > 620 ? 10 : 5);

/** A loss as a cell: how many since the start, and how many a second now. It sorts by the latter first. */
function lostCell({ rate: now, total }) {
  if (typeof total !== "number") return { text: UNKNOWN, value: null };
  return { text: now > 0 ? `${count(total)} (${rate(now)})` : count(total), lossy: now > 0, value: [now, total] };
}

/** What a counter says of two readings. */
function lostOf(now, before, span) {
  const known = typeof now === "number" && typeof before === "number" && span > 0;
  return { total: now, rate: known ? Math.max(0, now - before) / span : 0 };
}

const rateCell = (now, before, span) => {
  const known = typeof now === "number" && typeof before === "number" && span > 0;
  const value = known ? Math.max(0, now - before) / span : null;
  return { text: known ? rate(value) : "", value };
};

const textCell = (text, value = text) => ({ text, value });
const fillCell = (fill, of) => ({ fill, text: `${percent(fill)} of ${bytes(of)}`, value: fill });

/** What its destination did not take, for whatever reason. */
function byDestination(dropped) {
  return dropped && dropped.sink_error + (dropped.too_large ?? 0) + (dropped.against_policy ?? 0);
}

function remarksOn(listener) {
  const remarks = [];
  if (listener.removed) remarks.push("No longer in the configuration.");
  if (listener.residual === null) remarks.push("The residual of its ledger is not known.");
  else if (listener.residual !== 0) remarks.push(`Its ledger does not close: ${count(listener.residual)} left over.`);
  const dropped = Object.entries(listener.dropped ?? {}).filter(([, lost]) => lost > 0);
  if (dropped.length) {
    remarks.push(`In its lanes: ${dropped.map(([name, lost]) => `${spoken(name)} ${count(lost)}`).join(", ")}.`);
  }
  if (listener.kernel_dropped_unit === "buffers") remarks.push("A dropped train of datagrams counts as one.");
  if (listener.shared_with?.length) {
    const others = listener.shared_with.map((other) => other.command ?? "unknown").join(", ");
    remarks.push(`Other processes share its port: ${others}.`);
  }
  return remarks.join(" ") || "The ledger closes.";
}

function stateCell(state) {
  const rank = { down: 2, slow: 1, up: 0 };
  if (!state) return textCell("not seen yet", null);
  return { text: `${state.name} since ${moment(dateOf(state.since))}`, more: state.error ?? "", tone: state.name,
    value: rank[state.name] };
}

function connectionCell({ state, since }) {
  const rank = { down: 2, new: 1, up: 0 };
  if (state === "new") return textCell("not used yet", rank.new);
  return { text: `${state} since ${moment(dateOf(since))}`, tone: state, value: rank[state] };
}

function streamCell(stream) {
  if (stream.silent) return { text: `silent since ${moment(dateOf(stream.heard))}`, value: 2, tone: "down" };
  if (stream.losing) return { text: "loses", value: 1, tone: "slow" };
  return { text: "loses nothing now", value: 0, tone: "up" };
}

/** What a stream lost for certain sorts it; the bounds are told where there is no number. */
function missingCell(now, before, span) {
  const cell = lostCell(lostOf(now.missing_at_least, before?.missing_at_least, span));
  const isExact = typeof now.missing === "number";
  return isExact ? cell : { ...cell, text: `${count(now.missing_at_least)} to ${count(now.missing_at_most)}` };
}

function residenceCell(residence) {
  if (!residence) return textCell("not measured yet", null);
  const parts = [["50 %", residence.p50_seconds], ["99 %", residence.p99_seconds], ["99.9 %", residence.p999_seconds]];
  const words = parts.map(([part, value]) =>
    `${part} ${value === null ? overLongest : seconds(value)}`.replaceAll(" ", "\u00a0"));
  return textCell(words.join(", "), residence.p99_seconds ?? Infinity);
}

/** Of each table: its columns, by which it sorts at first, and the cells of one thing between two readings. */
const TABLES = [
  { key: "listeners", title: "Listeners", sortBy: 3,
    columns: ["Listener", "Address", "Received", "Lost", "Received in all", "Remarks"],
    cells: ({ now, before, span, lost }) => [
      textCell(now.name), textCell(now.address), rateCell(now.received, before?.received, span), lostCell(lost),
      textCell(count(now.received), now.received), textCell(remarksOn(now))] },
  { key: "lanes", title: "Lanes", sortBy: 5,
    columns: ["Lane", "Core", "Receive queue", "Received", "Receive buffer", "Lost at the socket", "Busiest senders"],
    cells: ({ now, before, span, listener }) => [
      textCell(`${listener}, lane ${now.lane}`), textCell(now.cpu === null ? "not pinned" : String(now.cpu), now.cpu),
      textCell(now.queue === null ? "any" : String(now.queue), now.queue),
      rateCell(now.received, before?.received, span), fillCell(bufferFill(now), now.receive_buffer_bytes),
      lostCell(lostOf(now.kernel_dropped, before?.kernel_dropped, span)),
      textCell(now.senders === undefined ? UNKNOWN : now.senders.slice(0, 3).map((sender) =>
        `${sender.address} ${percent(sender.share)}`).join(", ") || "none", now.senders?.[0]?.share ?? null)] },
  { key: "sinks", title: "Sinks", sortBy: 2,
    columns: ["Sink", "Listener", "State", "Offered", "Delivered", "Queue", "Queue full", "Sink errors",
      "Within, since the start"],
    cells: ({ now, before, span, listener }) => [
      textCell(now.name), textCell(listener), stateCell(now.state), rateCell(now.offered, before?.offered, span),
      rateCell(now.delivered, before?.delivered, span),
      now.inline ? textCell("inline, no queue", 0) : fillCell(queueFill(now), now.queue_capacity),
      lostCell(lostOf(now.dropped?.queue_full, before?.dropped?.queue_full, span)),
      lostCell(lostOf(byDestination(now.dropped), byDestination(before?.dropped), span)),
      residenceCell(now.residence)] },
  { key: "connections", title: "Connections of sinks to their servers", sortBy: 2,
    columns: ["Sink", "Server", "State", "On the way", "Last error"],
    cells: ({ now }) => [
      textCell(now.sink), textCell(now.peer), connectionCell(now), textCell(count(now.on_the_way), now.on_the_way),
      now.error ? textCell(`${moment(dateOf(now.error_at))}: ${now.error}`, now.error_at) : textCell("none", null)] },
  { key: "refusals", title: "What servers have refused for good", sortBy: 2,
    columns: ["Sink", "Its reason", "Refused"],
    cells: ({ now, before, span }) => [
      textCell(now.sink), textCell(now.reason), lostCell(lostOf(now.datagrams, before?.datagrams ?? 0, span))] },
  { key: "streams", title: "Streams that lost most on the way to this host", sortBy: 3,
    columns: ["Stream", "Listener", "State", "Missing", "Arrived", "Duplicate", "Late", "Restarts"],
    cells: ({ now, before, span, listener }) => [
      textCell([`${now.source} port ${now.port}`, now.domain, now.protocol].filter(Boolean).join(", ")),
      textCell(listener), streamCell(now), missingCell(now, before, span),
      textCell(`${count(now.arrived)} ${now.unit}`, now.arrived), textCell(count(now.duplicate), now.duplicate),
      textCell(count(now.late), now.late), textCell(count(now.restarts), now.restarts)] },
  { key: "kernel", title: "What the kernel names on this host, of any program", sortBy: 2,
    columns: ["Its counter", "Where", "Dropped"],
    cells: ({ now, before, span }) => [
      textCell(spoken(now.counter)), textCell(`${spoken(now.layer)}, ${now.place}`),
      lostCell(lostOf(now.count, before?.count ?? 0, span))] },
];

/** What a table is made of: the things of a reading, each with what it was in the reading before. */
function rowsOf(key, before, now, only) {
  const span = now.uptime_seconds - before.uptime_seconds;
  const listeners = listenersOf(now, only).map((listener) =>
    ({ now: listener, before: byName(before.listeners, listener.name), span, listener: listener.name }));
  const inside = (of, isSame) => listeners.flatMap((own) => of(own.now).map((thing) =>
    ({ now: thing, before: own.before && of(own.before).find((other) => isSame(thing, other)), span,
      listener: own.listener })));
  if (key === "listeners") {
    const lost = new Map(listeners.map((own) => [own.listener, { rate: 0, total: 0 }]));
    const old = lossesOf(before, only);
    for (const [place, loss] of lossesOf(now, only)) {
      const sum = lost.get(loss.listener);
      if (!sum || loss.wanted || loss.foreign) continue;
      sum.total += loss.lost;
      sum.rate += span > 0 ? Math.max(0, loss.certain - (old.get(place)?.certain ?? 0)) / span : 0;
    }
    return listeners.map((own) => ({ ...own, lost: lost.get(own.listener) }));
  }
  if (key === "lanes") return inside((of) => of.lanes, (one, other) => one.lane === other.lane);
  if (key === "streams") {
    const isSame = (one, other) => ["source", "port", "destination", "domain", "protocol"].every((part) =>
      one[part] === other[part]);
    return inside((of) => of.upstream?.worst ?? [], isSame);
  }
  if (key === "connections" || key === "refusals") {
    // They are those of a sink, whichever of its listeners shows them.
    const own = (of) => of.sinks.flatMap((sink) => (sink[key] ?? []).map((thing, place) =>
      ({ ...thing, sink: sink.name, id: `${sink.name} ${thing.reason ?? place}` })));
    const rows = inside(own, (one, other) => one.id === other.id);
    return rows.filter((row, place) => rows.findIndex((other) => other.now.id === row.now.id) === place);
  }
  if (key === "sinks") return inside((of) => of.sinks, (one, other) => one.name === other.name);
  const lost = (reading) => reading.host?.lost?.lost ?? [];
  return lost(now).map((loss) => ({ now: loss, span, before: lost(before).find((other) =>
    other.counter === loss.counter && other.place === loss.place) }));
}

/** Compares what two cells sort by: lists item by item; what is not known comes after all that is. */
function compare(one, other, direction) {
  const [first, second] = [[one].flat(), [other].flat()];
  for (let index = 0; index < Math.max(first.length, second.length); index += 1) {
    const [left, right] = [first[index] ?? null, second[index] ?? null];
    if (left === right) continue;
    if (left === null || right === null) return left === null ? 1 : -1;
    return direction * (typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right);
  }
  return 0;
}

/** Shows which column a table sorts by. */
function markSorted(table, { sortedBy, direction }) {
  [...table.querySelectorAll("thead th")].forEach((head, index) => {
    if (index === sortedBy) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
}

function makeTable(table) {
  Object.assign(table, { sortedBy: table.sortBy, direction: -1, showsAll: false });
  const heads = table.columns.map((column, index) => {
    const button = element("button", { type: "button" }, column);
    button.addEventListener("click", () => {
      // Names begin with the first, numbers with the highest.
      const isText = typeof table.sorts?.[index] === "string";
      table.direction = table.sortedBy === index ? -table.direction : isText ? 1 : -1;
      table.sortedBy = index;
      show();
    });
    return element("th", { scope: "col" }, button);
  });
  const more = element("button", { type: "button", class: "more", hidden: "" });
  more.addEventListener("click", () => {
    table.showsAll = !table.showsAll;
    show();
  });
  const title = element("h2", { id: `${table.key}-title` }, table.title);
  const region = element("div", { class: "table", role: "group", "aria-labelledby": title.id, tabindex: "0" },
    element("table", { "aria-labelledby": title.id }, element("thead", {}, element("tr", {}, ...heads)),
      element("tbody")));
  return element("section", { id: table.key, "aria-labelledby": title.id }, title, region, more);
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
    if (cell.more !== undefined) {
      if (!place.firstElementChild) place.replaceChildren(element("span"), element("small"));
      say(place.firstElementChild, cell.text);
      say(place.lastElementChild, cell.more);
    } else if (cell.fill === undefined) {
      say(place, cell.text);
    } else {
      if (!place.firstElementChild) place.replaceChildren(fillBar(), element("span"));
      setBar(place.firstElementChild, cell.fill);
      say(place.lastElementChild, cell.text);
    }
    place.classList.toggle("lossy", Boolean(cell.lossy));
    place.classList.toggle("number", !cell.tone && typeof cell.value !== "string" && cell.text.length < 24);
    if (cell.tone) place.dataset.tone = cell.tone;
    else delete place.dataset.tone;
  });
}

function updateTable(section, { table, rows }) {
  section.hidden = rows.length === 0;
  if (section.hidden) return;
  const cells = rows.map((row) => table.cells(row));
  table.sorts = cells[0].map((cell) => cell.value);
  const by = table.sortedBy;
  cells.sort((one, other) => compare(one[by].value, other[by].value, table.direction) || worse(one, other)
    || compare(one[0].value, other[0].value, 1));
  const shown = table.showsAll ? cells : cells.slice(0, rowsShown());
  each(section.querySelector("tbody"), shown, makeRow(table.columns), updateRow);
  markSorted(section, table);
  const more = section.querySelector(".more");
  more.hidden = cells.length <= rowsShown();
  say(more, table.showsAll ? `Show the first ${rowsShown()}` : `Show all ${cells.length}`);
}

/** Which of two rows loses more now, in whatever column, and then since the start. */
function worse(one, other) {
  const sum = (cells, place) => cells.reduce((total, cell) =>
    total + (Array.isArray(cell.value) ? cell.value[place] : 0), 0);
  return sum(other, 0) - sum(one, 0) || sum(other, 1) - sum(one, 1);
}

function showTables(before, now, only) {
  const shown = TABLES.map((table) => ({ table, rows: rowsOf(table.key, before, now, only) }));
  each($("tables"), shown, ({ table }) => makeTable(table), updateTable);
}

