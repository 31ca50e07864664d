// The way of a datagram from left to right: a card for each stage, and above them a river. It is as thick as the rate
// is high, gets thinner, and loses red, where datagrams are lost.

/** What stands on the card of each stage. */
function cardsOf(rates) {
  const lost = (key) => rates.lost.filter((loss) => loss.stage === key);
  const perCall = rates.calls > 0 ? `${three.format(rates.received / rates.calls)} a call` : "";
  const wrong = rates.wrongCpu > 0 ? `${rate(rates.wrongCpu)} on a wrong core` : "";
  const slow = rates.residence.map((one) => one.p99_seconds);
  const slowest = slow.includes(null) ? null : Math.max(...slow);
  const cards = {
    upstream: { flow: rates.upstream ? rates.arrived : null, words: "by sequence numbers" },
    nic: { flow: rates.packets, unit: "packets of any protocol",
      words: rates.interfaces ? plural(rates.interfaces, "interface") : "the host's counters are not known" },
    core: { flow: rates.processed, unit: "packets of any protocol",
      words: rates.squeezed > 0 ? `budget used up ${rate(rates.squeezed)}` : rates.cores ? plural(rates.cores, "core") :
        "the host's counters are not known" },
    socket: { flow: rates.arrived, unit: "datagrams arrive", fill: rates.bufferFill, fillOf: "receive buffer" },
    lane: { flow: rates.received, unit: "datagrams received",
      words: [plural(rates.lanes.length, "lane"), perCall, wrong].filter(Boolean).join(", ") },
    queue: { flow: rates.offered, unit: "offered to sinks", fill: rates.queueFill, fillOf: "queue" },
    sink: { flow: rates.delivered, unit: "delivered",
      words: slow.length ? `99 % ${within(slowest)} since the start` :
        plural(new Set(rates.sinks.map((sink) => sink.name)).size, "sink") },
  };
  return STAGES.filter((stage) => stage.key !== "upstream" || rates.upstream)
    .map((stage) => ({ ...stage, ...cards[stage.key], lost: lost(stage.key) }));
}

function makeCard() {
  const card = element("li", {}, element("h3"), element("p", { class: "flow" }), element("p", { class: "unit" }));
  const fill = element("p", { class: "fill" }, fillBar(), element("span", { class: "fill-words" }));
  card.append(element("p", { class: "words" }), fill, element("p", { class: "lost" }));
  return card;
}

function updateCard(card, stage) {
  const part = (name) => card.querySelector(`.${name}`);
  const wanted = stage.lost.every((loss) => loss.wanted);
  const total = stage.lost.reduce((total, loss) => total + loss.rate, 0);
  card.dataset.stage = stage.key;
  card.dataset.tone = total === 0 ? "ok" : wanted || stage.lost.every((loss) => loss.ofHost) ? "note" : "loss";
  say(card.querySelector("h3"), stage.title);
  say(part("flow"), rate(stage.flow));
  part("flow").classList.toggle("unknown", stage.flow === null);
  say(part("unit"), stage.flow === null ? "" : stage.unit ?? "");
  say(part("words"), stage.words ?? "");
  part("fill").hidden = stage.fill === undefined;
  if (stage.fill !== undefined) {
    setBar(part("bar"), stage.fill);
    say(part("fill-words"), `${stage.fillOf} ${percent(stage.fill)} full`);
  }
  const names = [...new Set(stage.lost.map((loss) => spoken(loss.name)))].slice(0, 3);
  say(part("lost"), total > 0 ? `${wanted ? "refuses" : "loses"} ${rate(total)}${reasonWords(stage, names)}` :
    stage.flow === null ? "" : "loses nothing");
}

function reasonWords(stage, names) {
  if (stage.key === "socket") return ": receive buffer full";
  return names.length ? `: ${names.join(", ")}` : "";
}

/** How much of what came to each stage leaves it, from 0 to 1. */
function passing(cards) {
  return cards.map((card) => {
    const lost = card.lost.reduce((total, loss) => total + loss.rate, 0);
    // The flow of socket and channel is what comes to them; that of the others is what is left.
    const came = card.key === "socket" || card.key === "queue" ? card.flow : (card.flow ?? 0) + lost;
    return lost > 0 && came > 0 ? Math.max(0, 1 - lost / came) : 1;
  });
}

const RIVER_HEIGHT = 72;
/** How thick the river is at the highest rate of the hour. */
const BAND = 40;

/** Draws the river over the cards: what is lost falls out of it over the middle of its card. */
function drawRiver(cards, arrives) {
  const svg = $("river");
  const boxes = [...$("way").children];
  const width = $("way").clientWidth;
  const stacked = boxes.length > 1 && boxes[1].offsetLeft <= boxes[0].offsetLeft;
  const isDry = !(arrives > 0);
  svg.toggleAttribute("hidden", stacked || isDry);
  $("river-words").hidden = stacked || isDry;
  if (stacked || isDry || !width) return svg.replaceChildren();
  const full = Math.max(arrives, ...hour.map((step) => step.arrived ?? 0));
  say($("river-words"), `The band is as thick as the rate: full at ${rate(full)}, the most of the hour.`);
  const top = 6;
  // A little is still to be seen, and nothing is not.
  let height = Math.max(1, (BAND * arrives) / full);
  let edge = `M0 ${top} L0 ${top + height}`;
  const falls = [];
  passing(cards).forEach((share, index) => {
    if (share === 1) return;
    const middle = boxes[index].offsetLeft - $("way").offsetLeft + boxes[index].offsetWidth / 2;
    const thick = Math.max(Math.min(height, 2), height * (1 - share));
    const low = top + height;
    const [from, bend, foot] = [middle - 40, middle - 6, middle + 10];
    const wanted = cards[index].lost.every((loss) => loss.wanted || loss.ofHost);
    falls.push(drawn("path", { class: wanted ? "falls note" : "falls loss",
      d: `M${from} ${low - thick} C${bend} ${low - thick} ${foot} ${low - thick} ${foot} ${RIVER_HEIGHT} `
        + `L${foot - thick} ${RIVER_HEIGHT} C${foot - thick} ${low} ${bend - thick} ${low} ${from} ${low} Z` }));
    height = Math.max(0, height - thick);
    edge += ` L${from} ${low} L${from} ${top + height}`;
  });
  const band = drawn("path", { class: "band", d: `${edge} L${width} ${top + height} L${width} ${top} Z` });
  svg.setAttribute("viewBox", `0 0 ${width} ${RIVER_HEIGHT}`);
  return svg.replaceChildren(band, ...falls);
}

function showFlow(rates) {
  const cards = cardsOf(rates);
  each($("way"), cards, makeCard, updateCard);
  $("way").style.setProperty("--stages", cards.length);
  drawRiver(cards, rates.arrived ?? rates.received);
}

