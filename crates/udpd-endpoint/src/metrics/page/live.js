// The connection, and what the readings mean together: the verdict at the top, the notice after a restart.

/** Readings of the last minute, oldest first. */
let readings = [];
let only = null;
let restarted = null;
/** When the last reading came. */
let taken = 0;
/** How many times udpd was looked for since it last told something. */
let tries = 0;

const RATE_SPAN = 5;
const VERDICT_SPAN = 60;
/** By how much the clock of a daemon may seem to be late when a connection begins. */
const LATE_SECONDS = 6;

/** The latest reading that is at least so many seconds old, or the oldest there is. */
function readingBefore(age) {
  const now = readings.at(-1);
  return readings.findLast((reading) => now.uptime_seconds - reading.uptime_seconds >= age - 0.5) ?? readings[0];
}

function take(reading, isFirst) {
  const last = readings.at(-1);
  const now = Date.now();
  // A daemon that began while no page looked may have run for longer by now than the one before had. The first reading
  // of a connection is a second old at most; later ones may have waited in it while this machine slept.
  const missing = last && isFirst ? last.uptime_seconds + (now - taken) / 1000 - reading.uptime_seconds : 0;
  [taken, reading.takenAt] = [now, now];
  if (last && (reading.uptime_seconds < last.uptime_seconds || missing > LATE_SECONDS)) {
    [readings, toldUntil] = [[], 0];
    restarted = now - reading.uptime_seconds * 1000;
    marks.push({ at: restarted, what: "restart" });
    sumCertain(null, reading);
  } else {
    sumCertain(last, reading);
    if (last && reading.uptime_seconds > last.uptime_seconds) addSecond(last, reading);
  }
  readings.push(reading);
  readings = readings.filter((old) => reading.uptime_seconds - old.uptime_seconds <= VERDICT_SPAN + 1);
  show();
}

function show() {
  const now = readings.at(-1);
  if (!now) return;
  say($("about"), `${now.version}, running for ${lasting(now.uptime_seconds)}`);
  showChoice(now);
  const before = readingBefore(RATE_SPAN);
  const rates = ratesOf(before, now, only);
  showVerdict(now);
  if (now.draining_since !== undefined) showLink("draining", "draining");
  showFlow(rates);
  showTables(before, now, only);
  showHour();
  askLonger();
  const notice = restarted === null ? "" : `udpd started anew at ${clock(restarted)}. Its counters began at 0 then.`;
  $("notice").hidden = notice === "";
  say($("notice"), notice);
}

function showChoice(now) {
  const names = now.listeners.map((listener) => listener.name);
  if (only !== null && !names.includes(only)) only = null;
  $("choice").hidden = names.length < 2;
  const options = [["", "all of them"], ...names.map((name) => [name, name])];
  const choose = $("choose");
  const isSame = ([, text], index) => choose.options[index].text === text;
  if (choose.options.length !== options.length || !options.every(isSame)) {
    choose.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  }
  choose.selectedIndex = only === null ? 0 : names.indexOf(only) + 1;
}

/** The worst layer of the last minute in words, and how to cure it. */
function showVerdict(now) {
  const before = readings[0];
  const span = now.uptime_seconds - before.uptime_seconds;
  const [old, new_] = [totals(before, only), totals(now, only)];
  const lost = lostSince(lossesOf(before, only), lossesOf(now, only)).filter((loss) => !loss.wanted);
  const own = lost.filter((loss) => !loss.ofHost);
  const foreign = lost.filter((loss) => loss.ofHost);
  const key = new_.arrived === null || old.arrived === null ? "received" : "arrived";
  const arrived = new_[key] - old[key];
  const of = span > 50 ? "In the last minute" : `In the last ${lasting(Math.max(1, span))}`;
  const lower = (text) => text.charAt(0).toLowerCase() + text.slice(1);
  const line = (loss) => `${count(loss.lost)} ${stageOf(loss.stage).where}, ${loss.place}: ${lower(loss.help)}`;
  let [tone, title, words, cure, more] = ["ok", "Nothing is being lost", "", "", []];
  if (new_.residual !== null && new_.residual !== 0) {
    more.push(`The ledger does not close by ${count(new_.residual)}, which is a bug of udpd: please report it.`);
  }
  if (own.length) {
    const byStage = Map.groupBy(own, (loss) => loss.stage);
    const sumOf = (losses) => losses.reduce((total, loss) => total + loss.lost, 0);
    const [stage, losses] = [...byStage].sort((one, other) => sumOf(other[1]) - sumOf(one[1]))[0];
    const share = sumOf(losses) / Math.max(1, stage === "upstream" ? arrived + sumOf(losses) : stage === "queue"
      || stage === "sink" ? new_.offered - old.offered : arrived);
    [tone, title] = ["loss", `Datagrams are being lost ${stageOf(stage).where}`];
    words = `${of} ${count(sumOf(losses))}, which is ${percent(Math.min(1, share))} of what came there. `
      + `Worst is ${losses[0].place}: ${lower(losses[0].help)}`;
    cure = losses[0].cure;
    more.push(...own.filter((loss) => loss !== losses[0]).slice(0, 4).map((loss) => `Also ${line(loss)}`));
  } else if (span === 0) {
    [tone, title] = ["idle", "Waiting for the first numbers"];
  } else if (arrived === 0) {
    [tone, title] = ["idle", "Nothing arrives"];
    words = `${of}, no datagram reached a socket of udpd. If some should: udpd explain says what may be in the way.`;
  } else {
    words = `${of}, ${count(arrived)} datagrams arrived, and udpd lost none of them.`;
  }
  if (foreign.length) {
    if (tone === "ok") {
      [tone, title, cure] = ["note", "udpd loses nothing, but this host drops packets", foreign[0].cure];
    }
    more.push(...foreign.slice(0, 3).map((loss) => `On this host, of any program: ${line(loss)}`));
  }
  const wasLost = [...lossesOf(now, only).values()].filter((loss) => loss.lost > 0 && !loss.wanted && !loss.ofHost);
  if (!own.length && wasLost.length) {
    const worst = wasLost.sort((one, other) => other.lost - one.lost)[0];
    more.push(`Earlier, since the start: ${line(worst)}`);
  }
  if (now.readiness && !now.readiness.ready) {
    more.unshift(`Not ready, so balancers send elsewhere: ${now.readiness.text}.`);
    if (now.drain) more.unshift(`${count(now.drain.arrived)} datagrams have arrived since udpd was told to leave.`);
  }
  if (now.draining_since !== undefined) {
    // What is lost from now on no key cures.
    [tone, title, cure, more] = ["note", `Draining since ${clock(dateOf(now.draining_since))}`, "", []];
    words = "udpd was told to end. It takes nothing new and hands on what it holds: "
      + `${count(new_.inFlight)} datagrams are under way to sinks.`;
  }
  $("verdict").dataset.tone = tone;
  say($("verdict-title"), title);
  say($("verdict-words"), words);
  say($("verdict-cure"), cure);
  each($("verdict-more"), more, () => element("li"), say);
  document.title = tone === "loss" ? `Losing ${stageOf(own[0].stage).where} - udpd` : `${title} - udpd`;
}

function showLink(state, words) {
  $("link").dataset.state = state;
  document.body.dataset.link = state;
  say($("link-words"), words);
  $("retry").hidden = state !== "waiting";
}

/** The address of a path, without the user and password that may stand in that of the page. */
const at = (path) => location.origin + path;

const NO_ANSWER = "no answer from udpd";
const REFUSALS = { 401: "udpd asks for its token (401)", 503: "as many pages are open as udpd serves" };

/** Reads the stream until it ends; returns why it did. */
async function follow(stop) {
  const response = await fetch(at("/stream"), { cache: "no-store", signal: stop.signal });
  if (!response.ok) return REFUSALS[response.status] ?? `udpd refused (${response.status})`;
  showLink("live", "live");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let [rest, watch, isFirst] = ["", null, true];
  const expectMore = () => {
    clearTimeout(watch);
    watch = setTimeout(() => stop.abort(), SILENCE_MS);
  };
  try {
    for (;;) {
      expectMore();
      const { value, done } = await reader.read();
      if (done) return NO_ANSWER;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        take(JSON.parse(line), isFirst);
        // Not earlier: what the hour does not have yet has to come by this stream.
        if (isFirst || (hasGap && Date.now() - asked > HOUR_PAUSE_MS)) askHour(stop);
        [tries, isFirst] = [0, false];
      }
    }
  } finally {
    clearTimeout(watch);
  }
}

/** On a slow line the hour is not asked for with every gap. */
const HOUR_PAUSE_MS = 60_000;
/** When the hour was asked for last. */
let asked = 0;

async function askHour(stop) {
  asked = Date.now();
  const response = await fetch(at("/history"), { cache: "no-store", signal: stop.signal }).catch(() => null);
  if (!response?.ok) return;
  takeHour(await response.json(), Date.now(), readings);
  showHour();
}

/** Whether the daemon answers, asked in a frame: of a fetch that fails the browser tells its console. */
function isAlive() {
  const frame = element("iframe", { src: at("/alive"), hidden: "", title: "looks for udpd", "aria-hidden": "true" });
  return new Promise((resolve) => {
    frame.addEventListener("load", () => resolve(frame.contentDocument !== null));
    setTimeout(() => resolve(false), SILENCE_MS);
    document.body.append(frame);
  }).finally(() => frame.remove());
}

const SILENCE_MS = 15_000;
const HIDDEN_MS = 60_000;
const PAUSES = [1, 1, 2, 3, 5, 8, 13, 20, 30];
let stop = new AbortController();
let wake = () => {};

/** Waits, and says why each second; a click ends it. */
async function pause(length, reason) {
  const until = Date.now() + length * 1000;
  let woken = false;
  for (let left = length; left > 0 && !woken; left = Math.ceil((until - Date.now()) / 1000)) {
    showLink("waiting", `${reason}, trying again in ${left} s`);
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.min(1000, until - Date.now()));
      wake = () => { woken = true; clearTimeout(timer); resolve(); };
    });
  }
  wake = () => {};
}

/** Follows the stream for ever: after an end it looks for the daemon, after ever longer pauses. */
async function live() {
  for (let known = true, reason = NO_ANSWER; ;) {
    if (document.hidden && tries > 0) await new Promise((resolve) => { wake = resolve; });
    reason = NO_ANSWER;
    if (known) {
      stop = new AbortController();
      reason = await follow(stop).catch(() => NO_ANSWER);
    }
    await pause(PAUSES[Math.min(tries, PAUSES.length - 1)], reason);
    tries += 1;
    showLink("asking", "looking for udpd");
    known = await isAlive();
  }
}

let asleep = null;
/** A hidden page gives its place to others. */
function sleepIfHidden() {
  clearTimeout(asleep);
  if (document.hidden) asleep = setTimeout(() => stop.abort(), HIDDEN_MS);
}
document.addEventListener("visibilitychange", () => {
  sleepIfHidden();
  if (!document.hidden) wake();
});
// A page may be opened in a hidden tab.
sleepIfHidden();
$("retry").addEventListener("click", () => wake());
$("choose").addEventListener("change", (event) => {
  only = event.target.selectedIndex === 0 ? null : event.target.value;
  show();
});
addEventListener("resize", () => requestAnimationFrame(show));
live();
