"use strict";
// Shows what the balancer says of itself once a second. Nothing here is trusted: all text goes in as text.

const byId = (id) => document.getElementById(id);
// Where a page beside this one is; without name and password, which fetch refuses in an address.
const beside = (page) => new URL(page, location.origin + location.pathname);
const KEPT = 120, LEAST = 20; // seconds of the two lines
const MODEL = "model";

function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

// How numbers are written; null is what is infinite or unknown.
const count = (x) => (x === null || x === undefined ? "–" : Math.round(x).toLocaleString("en"));
const decimal = (x) => (x === null || x === undefined ? "–" : x.toLocaleString("en", { maximumSignificantDigits: 3 }));
const rate = (x) => (x === null ? "–" : x.toLocaleString("en", { maximumFractionDigits: x < 10 ? 1 : 0 }));
const share = (x) => (x === null || x === undefined ? "–" : `${(100 * x).toLocaleString("en", { maximumFractionDigits: 1 })} %`);
function time(s) {
  if (s === null || s === undefined) return "–";
  if (s < 1) return `${(1000 * s).toLocaleString("en", { maximumFractionDigits: s < 0.01 ? 1 : 0 })} ms`;
  return s < 120 ? `${decimal(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}
const plain = (name) => name.replaceAll("_", " ").replaceAll(".", ", ");
const times = (x) => (x === 1 ? "once" : x ? `${x} times` : "never");
const ago = (s) => `${time(Math.max(Math.round(s), 1))} ago`;
// For what a policy compares, to the last digit that may matter.
const precise = (s) => (s !== null && s < 1 ? `${decimal(1000 * s)} ms` : time(s));
const UNITS = { s: precise, share, requests: decimal, tokens: decimal, 1: decimal };

// Said outright: on a phone rows are stacked, and what is drawn as a block is no table to who hears the page.
const role = (element, name) => (element.setAttribute("role", name), element);

// A table is drawn by its columns: title, cell (a text, or text with kind and bar), what it sorts by, and whether it is text.
function table(element, caption) {
  element.append(make("caption", caption), make("thead"), make("tbody"));
  role(element, "table");
  for (const part of [element.tHead, element.tBodies[0]]) role(part, "rowgroup");
  return { element, key: null, down: false, titles: "" };
}

function head(shown, columns, redraw) {
  const titles = JSON.stringify([columns.map((each) => each.title), shown.key, shown.down]);
  if (titles === shown.titles) return;
  shown.titles = titles;
  const row = role(make("tr"), "row");
  for (const column of columns) {
    const cell = role(make("th", undefined, column.text ? "text" : ""), "columnheader");
    cell.scope = "col";
    if (column.says) cell.title = column.says;
    const button = make("button", column.title);
    button.type = "button";
    button.addEventListener("click", () => {
      shown.down = shown.key === column.title ? !shown.down : !column.text;
      shown.key = column.title;
      redraw();
      shown.element.tHead.querySelectorAll("button")[columns.indexOf(column)].focus();
    });
    if (shown.key === column.title) cell.ariaSort = shown.down ? "descending" : "ascending";
    cell.append(button);
    row.append(cell);
  }
  shown.element.tHead.replaceChildren(row);
}

const collator = new Intl.Collator("en", { numeric: true });
function compare(one, other) {
  if (typeof one === "string" && typeof other === "string") return collator.compare(one, other);
  return (one ?? Infinity) - (other ?? Infinity);
}

function draw(shown, columns, items) {
  // A column that says nothing of anyone is left out.
  columns = columns.filter((column) => !column.seldom || items.some((item) => !["", "–"].includes(column.cell(item).text)));
  shown.element.hidden = !items.length;
  head(shown, columns, () => draw(shown, columns, items));
  const by = columns.find((each) => each.title === shown.key);
  if (by) items = [...items].sort((a, b) => (shown.down ? compare(by.value(b), by.value(a)) : compare(by.value(a), by.value(b))));
  const body = shown.element.tBodies[0];
  while (body.rows.length > items.length) body.deleteRow(-1);
  items.forEach((item, at) => {
    const row = body.rows[at] ?? role(body.insertRow(), "row");
    while (row.cells.length > columns.length) row.deleteCell(-1);
    columns.forEach((column, place) => {
      const cell = row.cells[place] ?? row.appendChild(place ? role(make("td"), "cell") : role(make("th"), "rowheader"));
      const { text, kind = "", bar } = column.cell(item);
      if (!place) cell.scope = "row";
      if (cell.textContent !== text) cell.textContent = text;
      const name = [column.text && "text", kind, bar !== undefined && "bar"].filter(Boolean).join(" ");
      if (cell.className !== name) cell.className = name;
      if (bar !== undefined) cell.style.setProperty("--share", bar);
      cell.title = place ? "" : text;
      cell.dataset.title = column.title;
    });
  });
  overflow(shown.element.parentElement);
}

// What does not fit is said: scrollbars of phones hide themselves.
function overflow(part) {
  const right = part.scrollWidth - part.clientWidth - part.scrollLeft > 2, below = part.scrollHeight - part.clientHeight - part.scrollTop > 2;
  part.classList.toggle("right", right);
  part.nextElementSibling.textContent = [right && "more columns to the right →", below && "more below ↓"].filter(Boolean).join(", ");
}
for (const part of document.querySelectorAll(".scroll, .events")) {
  const place = make("p", "", "hint");
  place.setAttribute("aria-hidden", "true");
  part.after(place);
  part.addEventListener("scroll", () => overflow(part), { passive: true });
  new ResizeObserver(() => overflow(part)).observe(part);
}

const number = (title, field, written, says) => ({ title, says, value: (x) => x[field], cell: (x) => ({ text: written(x[field]) }) });
const text = (title, field, kind) => ({ title, text: true, value: (x) => x[field], cell: (x) => ({ text: x[field], kind }) });

const STATES = { ready: "good", listed: "good", draining: "warn", "drained by hand": "warn", "not ready": "bad", silent: "bad", "no report": "warn" };
const NOT_WELL = ["silent", "not ready", "no report", "drained by hand", "draining"];
const urgency = (worker) => (NOT_WELL.includes(worker.state) ? NOT_WELL.indexOf(worker.state) : NOT_WELL.length);
const device = (x) => ({ text: [x.device, x.utilisation === null ? "" : share(x.utilisation)].filter(Boolean).join(", ") });
const errors = (x) => ({ text: count(x.errors), kind: x.errors ? "bad" : "" });
const WORKERS = [
  text("worker", "name"),
  { title: "state", text: true, value: (x) => x.state, cell: (x) => ({ text: x.state, kind: STATES[x.state] }) },
  number("queue", "pending", decimal, "Requests queued or executing there, all balancers'"),
  number("in flight", "in_flight", decimal, "Of these, by this process"),
  number("wait", "backlog_s", time, "Until all that is there is done"),
  number("answers/s", "answers_per_s", rate, "Heard by this process"),
  { ...number("capacity, rows/s", "rows_per_s", rate, "What one instance serves of the chosen model at full batches, as learned"), seldom: true },
  number("p50", "p50_s", time),
  number("p99", "p99_s", time),
  { title: "errors", value: (x) => x.errors, cell: errors },
  number("report age", "report_age_s", time, "Since its agent last reported"),
  { title: "device", text: true, seldom: true, value: (x) => x.device, cell: device },
  { title: "why it gets no requests", text: true, seldom: true, value: (x) => x.why_not.join(), cell: (x) => ({ text: x.why_not.join("; "), kind: "long" }) },
];
const TRAFFIC = [
  { title: "model", text: true, value: (x) => x.model, cell: (x) => ({ text: x.model || "(none)" }) },
  { title: "policy", text: true, value: (x) => x.policy, cell: (x) => ({ text: x.policy || "none", kind: x.policy ? "" : "warn" }) },
  number("requests/s", "rate_per_s", rate),
  number("p50", "p50_s", time),
  number("p99", "p99_s", time),
  { title: "errors", value: (x) => x.errors, cell: errors },
];
const REFUSED = [text("what", "what"), text("why", "why"), number("requests", "count", count)];

const tables = {
  workers: table(byId("workers-table"), "Workers; a heading sorts"),
  why: table(byId("why-table"), "What the policy reads of each worker, and what it makes of it"),
  traffic: table(byId("traffic-table"), "Inferences that ended"),
  refused: table(byId("refused-table"), "Requests and messages"),
};

const lines = { rate: [], p99: [] };
function line(values) {
  const most = Math.max(...values, 1e-9), across = Math.max(values.length, LEAST) - 1;
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("viewBox", `0 0 ${across} 34`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const points = values.map((value, at) => `${across + 1 - values.length + at},${(32 - (30 * (value ?? 0)) / most).toFixed(1)}`);
  const ground = drawing.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
  ground.setAttribute("points", `0,33 ${across},33`);
  ground.setAttribute("class", "ground");
  const path = drawing.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
  path.setAttribute("points", points.join(" "));
  return drawing;
}

const quiet = (recent) => (recent.picked + recent.without_pick ? "" : `No requests in the last ${time(recent.window_s)}.`);

function now(shown) {
  byId("now-words").textContent = quiet(shown.recent);
  const recent = shown.recent, ready = (shown.states.ready ?? 0) + (shown.states.listed ?? 0);
  const workers = Object.values(shown.states).reduce((sum, each) => sum + each, 0);
  const inFlight = shown.workers.reduce((sum, worker) => sum + (worker.in_flight ?? 0), 0);
  for (const [name, value] of [["rate", recent.rate_per_s], ["p99", recent.p99_s]]) lines[name] = [...lines[name], value].slice(-KEPT);
  const tiles = [
    ["requests/s", rate(recent.rate_per_s), line(lines.rate)],
    ["p99", time(recent.p99_s), line(lines.p99)],
    ["p50", time(recent.p50_s)],
    ["errors", `${count(recent.errors)} in ${time(recent.window_s)}`],
    ["in flight", count(inFlight)],
    ["workers ready", `${ready} of ${workers}`],
    ["without a policy", count(recent.without_pick)],
  ];
  byId("now").replaceChildren(...tiles.map(([title, value, drawing]) => {
    const tile = make("div"), words = make("dd", value);
    if (drawing) words.append(drawing);
    tile.append(make("dt", title), words);
    return tile;
  }));
}

function notices(shown) {
  const found = [], process = shown.process;
  const tell = (words, kind) => found.push(make("p", words, `notice ${kind ?? ""}`));
  if (process.not_ready) tell(`Not ready: ${process.not_ready}`, "error");
  if (shown.config.problems.length) tell(`The newest config file is refused, the last good one stays in force:\n${shown.config.problems.join("\n")}`, "error");
  for (const [policy, guard] of Object.entries(shown.canary.guards)) {
    if (guard.fallen_back) tell(`The guard has taken ${policy} out of service ${ago(guard.for_s)}, a baseline decides: ${guard.why}`, "error");
  }
  if (shown.canary.rollout?.state === "returned") tell(`The rollout of ${shown.canary.rollout.to} has returned to ${shown.canary.rollout.from}: ${shown.canary.rollout.why}`, "error");
  if (process.not_deciding_because) tell(`Envoy asks the balancer for each request: ${process.not_deciding_because}`);
  const place = byId("notices"), words = found.map((each) => each.textContent).join();
  if (place.textContent !== words) place.replaceChildren(...found);
}

const ROLES = {
  hash: ", a hash of the request's key",
  baseline: ", the guard's baseline",
  rollout: ", which is being rolled out",
};
function why(shown) {
  const answer = shown.why, models = [...shown.models];
  const choice = byId(MODEL);
  if (answer.model && !models.includes(answer.model)) models.unshift(answer.model);
  models.sort(collator.compare);
  const names = JSON.stringify(models);
  if (choice.dataset.names !== names && document.activeElement !== choice) {
    choice.dataset.names = names;
    choice.replaceChildren(...models.map((name) => new Option(name, name)));
  }
  if (document.activeElement !== choice) choice.value = answer.model ?? "";
  const left = [answer.workers_left_out && `${answer.workers_left_out} workers are not shown.`, shown.models_left_out && `${shown.models_left_out} models are not listed; /?model=NAME shows one.`];
  const by = answer.answered_by ? `${answer.answered_by} decides${ROLES[answer.answered_as] ?? ""}. It goes by: ${shown.reads.map((each) => each.title).join(", ") || "nothing that differs from worker to worker"}.` : "";
  byId("why-words").textContent = [answer.refused, by, ...left].filter(Boolean).join(" ") || "No worker has a model yet.";
  const rows = answer.workers ?? [];
  const bar = (title, field) => {
    const most = Math.max(...rows.map((row) => row[field] ?? 0), 1e-9);
    return { title, value: (x) => x[field], cell: (x) => ({ text: share(x[field]), bar: (x[field] ?? 0) / most }) };
  };
  const columns = [text("worker", "worker"), bar("probability", "probability")];
  if (rows.some((row) => "shadow_probability" in row)) columns.push(bar("by the shadow", "shadow_probability"));
  for (const { name, title, unit, says } of shown.reads) {
    columns.push({ title, says: `${name}: ${says}`, value: (x) => x.sees[name], cell: (x) => ({ text: (UNITS[unit] ?? decimal)(x.sees[name]) }) });
  }
  if (answer.moved_by_is_in) {
    const moved = (x) => Object.entries(x.moved_by ?? {}).map(([name, by]) => `${plain(name)} ${by > 0 ? "+" : ""}${by}`).join(", ");
    columns.push({ title: `moved by (${answer.moved_by_is_in})`, text: true, value: moved, cell: (x) => ({ text: moved(x), kind: "long" }) });
  }
  columns.push({ title: "why it gets no requests", text: true, seldom: true, value: (x) => x.why_not.join(), cell: (x) => ({ text: x.why_not.join("; "), kind: "long" }) });
  draw(tables.why, columns, rows);
}

function fields(title, pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") list.append(make("dt", name), make("dd", String(value)));
  }
  return [make("h3", title), list];
}

function canary(shown) {
  const { guards, shadow, rollout } = shown.canary, parts = [make("p", `Decides now: ${shown.process.decides}.`)];
  if (shown.process.learning) parts.push(make("p", `Learning, for ${time(Math.max(Math.round(shown.at_s - shown.process.learning_since_s), 1))}: ${shown.process.learning}.`));
  for (const [policy, guard] of Object.entries(guards)) {
    parts.push(...fields(`Guard of ${policy}`, [
      ["state", guard.fallen_back ? `out of service for ${time(guard.for_s)}` : "in service"],
      ["why", guard.why],
      ["returns", guard.fallen_back ? `after ${time(guard.quiet_s)} without a cause; so far ${time(guard.quiet_for_s)}` : ""],
      ["last cause", guard.last_cause],
      ["taken out", times(guard.falls)],
    ]));
  }
  if (shadow) {
    parts.push(...fields(`Shadow: ${shadow.policy}`, [
      ["sees", `${share(shadow.share)} of the decisions, ${count(shadow.decisions)} so far`],
      ["same worker", shadow.agreement === null ? "" : share(shadow.agreement)],
      ["difference of shares", shadow.distance === null ? "" : decimal(shadow.distance)],
      ["time a decision", time(shadow.mean_decision_s)],
      ["failures", shadow.failures ? `${shadow.failures}: ${shadow.last_failure}` : ""],
    ]));
  }
  if (rollout) {
    const arm = (x) => `${count(x.requests)} requests, p50 ${time(x.p50_s)}, p99 ${time(x.p99_s)}, errors ${share(x.error_share)}`;
    parts.push(...fields(`Rollout from ${rollout.from} to ${rollout.to}`, [
      ["state", `${rollout.state}, step ${rollout.step} of ${rollout.steps}, ${share(rollout.share)} of the requests`],
      ["held back", rollout.held],
      ["why", rollout.why],
      [rollout.from, arm(rollout.old)],
      [rollout.to, arm(rollout.new)],
    ]));
  }
  if (!Object.keys(guards).length && !shadow && !rollout) parts.push(make("p", "There is no guard, shadow or rollout.", "note"));
  byId("canary").replaceChildren(...parts);
}

const clock = (s) => new Date(1000 * s).toLocaleString([], { dateStyle: "short", timeStyle: "medium" });
const when = (s, shown) => { const found = make("time", `${ago(shown.at_s - s)} `, "when"); found.dateTime = new Date(1000 * s).toISOString(); found.title = clock(s); return found; };
function list(items) {
  const found = make("ul");
  found.append(...items.map((each) => make("li", each)));
  return found;
}

let lastHash = "";
function config(shown) {
  const config = shown.config, parts = [];
  byId("config-words").textContent = `${config.source}, hash ${config.hash}; files refused: ${config.refused}`;
  if (config.waiting.length) parts.push(make("h3", "The newest file also changes"), list(config.waiting));
  if (config.problems.length) parts.push(make("h3", `Refused ${ago(shown.at_s - config.refused_at_s)}`), list(config.problems));
  const hint = make("p", "What a new file would change: ", "note");
  hint.append(make("code", `balancer check FILE --against ${location.origin}`));
  byId("config-new").replaceChildren(...parts, hint);
  byId("config-history").replaceChildren(...config.history.map((each) => {
    const item = make("li");
    item.append(when(each.at_s, shown), make("code", each.hash), each.changes.length ? list(each.changes) : " at the start");
    return item;
  }));
  overflow(byId("config-history"));
  if (config.hash !== lastHash) {
    lastHash = config.hash;
    wholeConfig();
  }
}

async function wholeConfig() {
  if (!byId("config-details").open) return;
  try {
    const answer = await fetch(beside("config"));
    byId("config-all").textContent = JSON.stringify((await answer.json()).config, null, 2);
  } catch (error) {
    byId("config-all").textContent = `not to be had: ${error.message}`;
  }
}

const REASONS = {
  unknown_model: "no worker has the model", no_worker: "no worker may serve it now", shed: "turned away by limits", per_server: "a call that changes one server",
  invalid: "out of bounds", tenant: "the tenant's limit", no_pick: "Envoy chose the worker", retried: "the chosen worker failed, another got it",
};
const LEVELS = { info: "", warning: "warn", error: "bad" };
function events(shown) {
  byId("events").replaceChildren(...shown.events.map((event) => {
    const item = make("li"), times = event.count > 1 ? ` (${count(event.count)} times)` : "";
    item.append(when(event.last_s, shown), make("span", `${event.kind}: ${event.words}${times}`, LEVELS[event.level]));
    return item;
  }));
  if (!shown.events.length) byId("events").replaceChildren(make("li", "none yet", "note"));
  overflow(byId("events"));
  const rows = [["answered without a worker", "refusals"], ["not served as chosen", "fallbacks"], ["message out of bounds", "refused_inputs"]]
    .flatMap(([what, field]) => Object.entries(shown[field]).map(([why, count]) => ({ what, why: REASONS[why] ?? plain(why), count })));
  byId("refused-words").textContent = rows.length ? "" : "nothing";
  draw(tables.refused, REFUSED, rows.sort((a, b) => b.count - a.count));
}

function show(shown) {
  const process = shown.process;
  const several = process.processes > 1 ? `, process ${process.number} of ${process.processes}: what this one sees` : "";
  byId("who").textContent = `policy ${process.decides}; decided by ${process.frontend === "native" && !process.not_deciding_because ? "Envoy (native)" : "the balancer"}${several}; version ${process.version}, up ${time(Math.round(process.up_s))}`;
  document.title = `${process.not_ready ? "✗ " : ""}balancer: ${shown.canary.decides}`;
  notices(shown);
  now(shown);
  const states = Object.entries(shown.states).map(([state, workers]) => `${workers} ${state}`).join(", ") || "none listed";
  byId("states").textContent = `${states}. ${shown.why.model ? `Of model ${shown.why.model}, where a number depends on the model.` : ""}` + (shown.workers_left_out ? ` ${shown.workers_left_out} more workers are not shown.` : "");
  draw(tables.workers, WORKERS, [...shown.workers].sort((a, b) => urgency(a) - urgency(b) || collator.compare(a.name, b.name)));
  why(shown);
  const recent = shown.recent;
  byId("traffic-words").textContent = quiet(recent) || `Of the last ${time(recent.window_s)}. Policy none: Envoy chose the worker by itself, or there was none.` + (recent.parts_left_out ? ` ${recent.parts_left_out} rows are not shown.` : "");
  draw(tables.traffic, TRAFFIC, recent.parts);
  canary(shown);
  config(shown);
  events(shown);
}

function status(words, kind) {
  const place = byId("live");
  if (place.textContent !== words) place.textContent = words;
  place.className = kind;
}

let source = null, again = 0, chosen = new URLSearchParams(location.search).get(MODEL) ?? "";
function watch() {
  clearTimeout(again);
  source?.close();
  const url = beside(chosen ? `page/events?${new URLSearchParams({ [MODEL]: chosen })}` : "page/events");
  source = new EventSource(url);
  source.onmessage = (message) => {
    status("live", "on");
    show(JSON.parse(message.data));
  };
  source.onerror = async () => {
    status("no answer; trying again", "off");
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries by itself
    again = setTimeout(watch, 5000);
    const stop = new AbortController();
    try { // why it was refused
      const answer = await fetch(url, { signal: stop.signal });
      if (!answer.ok) status(`not live: ${(await answer.json()).error}`, "off");
      stop.abort();
    } catch { /* nobody answers: it is said already */ }
  };
}

byId(MODEL).addEventListener("change", (event) => {
  chosen = event.target.value;
  history.replaceState(null, "", `?${new URLSearchParams({ [MODEL]: chosen })}`);
  event.target.blur();
  event.target.focus();
  watch();
});
byId("config-details").addEventListener("toggle", wholeConfig);
// Nobody looks: nothing is to be computed.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    clearTimeout(again);
    status("paused while nobody looks", "");
  } else watch();
});
watch();
