// The review page: one thing after the other, so that fast typing is never answered in the wrong order.
import { ask, tell } from "./ask.js";
import { helpTable, hints, KEYS } from "./keys.js";
import { LongList } from "./list.js";
import { Group } from "./group.js";
import { NameField } from "./names.js";
import { Player } from "./sound.js";
import { Pictures, View } from "./view.js";

const $ = (id) => document.getElementById(id);
const QUEUES = { uncertain: "most uncertain", random: "random", site_hour: "site and hour", recording: "by recording",
  cluster: "look-alikes", plan: "annotation plan" };
const SPEEDS = [1, 0.5, 0.25, 0.125];
const MARKS = { right: "✓", wrong: "✗", "": "○" };
const MARGIN_S = 0.3;

const run = await ask("run");
const view = new View($("canvas"), run.hertz, run.bins);
view.threshold = run.threshold;
const pictures = new Pictures(), player = new Player();
const state = { queue: "", part: 0, index: -1, item: null, speed: 1, band: false, mode: "" };
const names = new NameField($("name-form"), $("name"), $("names"), run.names, () => $("canvas").focus());
const list = new LongList($("list"), $("spacer"), $("rows"),
  (first, count) => ask("queue", { name: state.queue, part: state.part, first, count }), drawRow, (index) => enqueue(() => go(index)));
const group = new Group($("members"), pictures, run.recordings);

// ---- one thing after the other

let chain = Promise.resolve(), waiting = 0;
function enqueue(work) {
  waiting += 1;
  document.body.dataset.busy = waiting;
  chain = chain.then(work).catch((error) => say(error.message)).finally(() => {
    waiting -= 1;
    document.body.dataset.busy = waiting;
  });
  return chain;
}

function say(text) { $("message").textContent = text ?? ""; }

// ---- where we are

async function openQueue(name, part = 0) {
  Object.assign(state, { queue: name, part, index: -1, item: null, mode: "" });
  view.draft = null;
  for (const button of $("queues").children) button.setAttribute("aria-pressed", String(button.dataset.queue === name));
  $("part-place").hidden = name !== "site_hour";
  if (name === "site_hour") await fillParts();
  const [{ index }] = await Promise.all([ask("next", { name, part, after: -1 }), list.reset()]);
  if (list.total) await go(index < 0 ? 0 : index); else showNothing();
  await figures();
}

async function fillParts() {
  const cells = await ask("cells");
  $("part").replaceChildren(...cells.map((cell) => {
    const option = document.createElement("option");
    option.value = cell.part;
    option.selected = cell.part === state.part;
    option.textContent = `${cell.site || "(no site)"} ${cell.hour < 0 ? "" : `${String(cell.hour).padStart(2, "0")} h`} (${cell.judged} of ${cell.num})`;
    return option;
  }));
}

async function go(index) {
  if (index < 0 || index >= list.total) return;
  say("");
  state.index = index;
  state.item = await list.item(index);
  list.select(index);
  const { item } = state;
  $("members").hidden = item.kind !== "cluster";
  $("view").hidden = item.kind === "cluster";
  if (item.kind === "cluster") {
    await group.show(await ask("members", { number: item.number }));
    describe();
    return;
  }
  const middle_s = (item.begin_s + item.end_s) / 2;
  const seconds = item.kind === "task" ? item.end_s - item.begin_s : Math.max(view.wanted_s ?? 10.24, (item.end_s - item.begin_s) * 1.3);
  await show(item.recording, item.kind === "task" ? item.begin_s : middle_s - seconds / 2, seconds);
  choose(item.kind === "task" ? "" : item.id);
  prefetch(index + 1);
}

async function show(recording, begin_s, seconds) {
  const duration_s = run.recordings[recording][2];
  seconds = Math.min(Math.max(seconds, 0.5), 120);
  begin_s = Math.round(Math.max(0, Math.min(begin_s, duration_s - seconds)) * 100) / 100;
  const [picture, answer] = await Promise.all([pictures.get(recording, begin_s, seconds), ask("boxes", { recording, begin_s, seconds })]);
  Object.assign(view, { recording, begin_s, seconds, picture, boxes: answer.boxes, spans: answer.spans });
  view.draw();
  describe();
}

async function prefetch(index) {  // what will be asked for next is drawn meanwhile
  if (index >= list.total) return;
  const item = await list.item(index);
  if (item.kind !== "box" || state.item?.kind !== "box") return;
  const seconds = Math.min(Math.max(view.wanted_s ?? 10.24, (item.end_s - item.begin_s) * 1.3), 120);
  const begin_s = Math.max(0, Math.min((item.begin_s + item.end_s) / 2 - seconds / 2, run.recordings[item.recording][2] - seconds));
  pictures.get(item.recording, Math.round(begin_s * 100) / 100, seconds);
}

function choose(id) {
  view.chosen = id;
  view.draw();
  describe();
}

const chosen = () => view.boxes.find((box) => box.id === view.chosen) ?? null;

// ---- what is said in words

function drawRow(item) {
  const row = document.createElement("div"), first = document.createElement("div"), second = document.createElement("div");
  const [mark, label, side] = ["mark", "label", "side"].map((name) => {
    const part = document.createElement("span");
    part.className = name;
    first.append(part);
    return part;
  });
  first.className = "first"; second.className = "second";
  row.append(first, second);
  if (item.kind === "cluster") {
    mark.textContent = item.judged === item.num ? "✓" : "○";
    label.textContent = `group ${item.number + 1}`;
    side.textContent = `${item.judged} of ${item.num}`;
    second.textContent = `in ${item.num_recordings} recordings`;
    return row;
  }
  const [path, site] = run.recordings[item.recording];
  second.textContent = `${item.begin_s.toFixed(1)} s  ${path}`;
  if (item.kind === "task") {
    row.classList.toggle("right", item.looked);
    mark.textContent = item.looked ? "✓" : "○";
    label.textContent = item.reason || "look through";
    return row;
  }
  if (item.verdict) row.classList.add(item.verdict);
  mark.textContent = MARKS[item.verdict];
  label.textContent = item.label || site || "(no name)";
  side.textContent = item.score.toFixed(2);
  return row;
}

function describe() {
  const { item } = state;
  const isGroup = item?.kind === "cluster";
  const box = isGroup ? group.current() : chosen();
  const recording = box ? box.recording : isGroup ? -1 : view.recording;
  if (recording >= 0) {
    const [path, site, , when] = run.recordings[recording];
    const strong = document.createElement("b");
    strong.textContent = path;
    $("place").replaceChildren(strong, `  ${[site, when].filter(Boolean).join("  ·  ")}`);
  }
  $("what").textContent = isGroup ? `${group.chosen().length} of ${group.boxes.length} look-alikes chosen` : box ? words(box) : "no box chosen";
  $("mode").textContent = [state.mode === "draw" ? "drawing" : state.mode === "change" ? "moving" : "", state.band ? "band only" : "",
    state.speed < 1 ? `speed 1/${1 / state.speed}` : ""].filter(Boolean).join(" · ");
  $("hints").replaceChildren(...hints(state.mode !== ""));
}

function words(box) {
  const verdict = { right: "✓ a call", wrong: "✗ no call", "": "not judged" }[box.verdict];
  const score = box.score === null ? "drawn" : `score ${box.score.toFixed(2)}`;
  return [verdict, box.label, score, `${box.begin_s.toFixed(2)} to ${box.end_s.toFixed(2)} s`,
    `${(box.low_hz / 1000).toFixed(2)} to ${(box.high_hz / 1000).toFixed(2)} kHz`].filter(Boolean).join("  ·  ");
}

function showNothing() {
  view.boxes = []; view.picture = null; view.draw();
  $("what").textContent = "nothing in this queue";
}

async function figures() {
  const now = await ask("figures");
  $("progress").textContent = `${now.num_judged.toLocaleString("en")} of ${now.num_boxes.toLocaleString("en")} judged · ${now.num_drawn} drawn · ${Math.round(now.looked_s)} s looked at`;
  const { num, right, low, high } = now.precision;
  pair("precision", "precision", num ? `${(right / num).toFixed(2)} [${low.toFixed(2)}, ${high.toFixed(2)}]` : "–", num ? ` of ${num} at random` : " (random queue)");
  const own = now.agreement.filter((row) => [row.first, row.second].includes(run.reviewer));
  const both = own.reduce((sum, row) => sum + row.num_both, 0), same = own.reduce((sum, row) => sum + row.num_same, 0);
  $("agreement").hidden = !both;
  if (both) {
    pair("agreement", "agreement", `${Math.round((100 * same) / both)} %`, ` of ${both}`);
    $("agreement").title = own.map((row) => `${row.first} and ${row.second}: ${row.num_same} of ${row.num_both} the same`
      + (row.kappa === null ? "" : `, kappa ${row.kappa.toFixed(2)}`)
      + (row.num_named ? `; names: ${row.num_same_name} of ${row.num_named} the same` : "")).join("\n");
  }
  pair("who", "reviewer", run.reviewer, now.reviewers.length > 1 ? ` (+ ${now.reviewers.length - 1})` : "");
}

function pair(id, text, strong, after = "") {
  const bold = document.createElement("b");
  bold.textContent = strong;
  $(id).replaceChildren(`${text} `, bold, after);
}

let soon = 0;
function figuresSoon() { clearTimeout(soon); soon = setTimeout(() => enqueue(figures), 400); }

// ---- what is done

async function act(action, values) {
  const { changed } = await tell("act", { action, queue: state.queue, ...values });
  await take(changed);
  return changed;
}

async function take(changed) {
  for (const box of changed) {
    if (box.id) { list.put(box); group.put(box); }
    const at = view.boxes.findIndex((other) => other.id === box.id);
    if (box.gone) view.boxes = view.boxes.filter((other) => other.id !== box.id);
    else if (at >= 0) view.boxes[at] = { ...view.boxes[at], ...box };
    else if (box.id && box.recording === view.recording) view.boxes.push(box);
    if (box.looked !== undefined && box.looked === view.recording) {
      view.spans = (await ask("boxes", { recording: view.recording, begin_s: view.begin_s, seconds: view.seconds })).spans;
    }
  }
  if (changed.some((box) => box.looked !== undefined) && state.queue === "plan") { list.pages.clear(); list.show(); }
  view.draw();
  describe();
  figuresSoon();
}

async function judge(action) {
  if (state.item?.kind === "cluster") {
    const boxes = group.chosen().map((box) => box.id);
    if (boxes.length) await act(action, { boxes });
    list.pages.clear();
    return step(await nextOpen());
  }
  const box = chosen();
  if (!box) return say("no box is chosen: Tab chooses one, d draws one");
  const isQueued = box.id === state.item?.id;
  await act(action, { boxes: [box.id] });
  if (isQueued) await step(await nextOpen());
  else if (!view.boxes.some((other) => other.id === box.id)) choose("");
}

const nextOpen = async () => (await ask("next", { name: state.queue, part: state.part, after: state.index })).index;

async function step(index) {
  if (index < 0) return say("everything in this queue is judged");
  await go(index);
}

const commands = {
  accept: () => judge("accept"),
  reject: () => judge("reject"),
  undo: async () => { await comeBack((await tell("undo")).changed); },
  redo: async () => { await comeBack((await tell("redo")).changed); },
  next: () => go(Math.min(state.index + 1, list.total - 1)),
  previous: () => go(Math.max(state.index - 1, 0)),
  nextOpen: async () => step(await nextOpen()),
  back: () => (state.item?.kind === "cluster" ? group.move(-1, describe) : show(view.recording, view.begin_s - view.seconds / 4, view.seconds)),
  forth: () => (state.item?.kind === "cluster" ? group.move(1, describe) : show(view.recording, view.begin_s + view.seconds / 4, view.seconds)),
  closer: () => zoom(0.5),
  farther: () => zoom(2),
  zoomBand() {
    const box = chosen();
    if (view.high - view.low < 1 || !box) [view.low, view.high] = [0, 1];
    else {
      const [low, high] = [view.shareOf(box.low_hz), view.shareOf(box.high_hz)];
      [view.low, view.high] = [Math.max(0, low - 0.08), Math.min(1, high + 0.08)];
    }
    view.draw();
  },
  faint() { view.faint = !view.faint; view.draw(); },
  other() {
    const boxes = view.visible().sort((a, b) => a.begin_s - b.begin_s);
    if (boxes.length) choose(boxes[(boxes.findIndex((box) => box.id === view.chosen) + 1) % boxes.length].id);
  },
  leaveOut() { if (state.item?.kind === "cluster") { group.toggle(); describe(); } },
  band() { state.band = !state.band; describe(); },
  speed() { state.speed = SPEEDS[(SPEEDS.indexOf(state.speed) + 1) % SPEEDS.length]; describe(); },
  play: () => play(false),
  playAll: () => play(true),
  async looked() {
    if (state.item?.kind === "cluster") return say("look-alikes are judged box by box: y, n or Enter");
    const end_s = Math.min(view.begin_s + view.seconds, run.recordings[view.recording][2]);
    await act("looked", { recording: view.recording, corners: [view.begin_s, 0, end_s, 8000] });
    if (state.item?.kind === "task") await step(await nextOpen());
    else if (end_s < run.recordings[view.recording][2] - 0.05) { await show(view.recording, view.begin_s + view.seconds, view.seconds); choose(""); }
  },
  name() {
    const boxes = state.item?.kind === "cluster" ? group.chosen() : [chosen()].filter(Boolean);
    if (!boxes.length) return say("no box is chosen: Tab chooses one, d draws one");
    names.open(typedAhead.text || boxes[0].label, (label) => enqueue(async () => {
      const isQueued = boxes[0].id === state.item?.id || state.item?.kind === "cluster";
      await act("name", { boxes: boxes.map((box) => box.id), label });
      names.learn(label);
      if (state.item?.kind === "cluster") list.pages.clear();
      if (isQueued) await step(await nextOpen());
    }));
  },
  draw() {
    if (state.item?.kind === "cluster" || !view.picture) return;
    const middle_s = view.cursor_s ?? view.begin_s + view.seconds / 2;
    const [low, high] = [view.low + 0.4 * (view.high - view.low), view.low + 0.6 * (view.high - view.low)];
    view.draft = { begin_s: middle_s - view.seconds / 40, end_s: middle_s + view.seconds / 40,
      low_hz: view.hertzOf(low), high_hz: view.hertzOf(high) };
    edit("draw");
  },
  change() {
    const box = chosen();
    if (!box || state.item?.kind === "cluster") return say("no box is chosen: Tab chooses one, d draws one");
    view.draft = { begin_s: box.begin_s, end_s: box.end_s, low_hz: box.low_hz, high_hz: box.high_hz, label: box.label };
    edit("change");
  },
  help() { $("help").showModal(); },
};

async function comeBack(changed) {  // to where an undone action was
  if (!changed.length) return say("nothing to undo");
  await take(changed);
  if (state.item?.kind === "cluster") { list.pages.clear(); list.show(); return describe(); }
  const box = changed[0];
  if (box.gone || box.looked !== undefined) return;
  const { items } = await ask("queue", { name: state.queue, part: state.part, first: Math.max(0, state.index - 50), count: 51 });
  const at = items.findIndex((item) => item.id === box.id);
  if (at >= 0) return go(Math.max(0, state.index - 50) + at);
  if (box.recording >= 0) { await show(box.recording, (box.begin_s + box.end_s - view.seconds) / 2, view.seconds); choose(box.id); }
}

async function zoom(factor) {
  const box = chosen();
  const middle_s = box ? (box.begin_s + box.end_s) / 2 : view.begin_s + view.seconds / 2;
  const duration_s = run.recordings[view.recording][2];
  const seconds = Math.min(Math.max(view.seconds * factor, 0.64), 120, Math.max(duration_s, 0.64));
  view.wanted_s = seconds;
  await show(view.recording, middle_s - seconds / 2, seconds);
}

async function play(isWhole) {
  if (player.playing) return player.stop();
  const box = state.item?.kind === "cluster" ? group.current() : chosen();
  const recording = box ? box.recording : view.recording;
  const duration_s = run.recordings[recording][2];
  let [begin_s, end_s] = [view.begin_s, Math.min(view.begin_s + view.seconds, duration_s)];
  if (box && !isWhole) [begin_s, end_s] = [Math.max(0, box.begin_s - MARGIN_S), Math.min(duration_s, box.end_s + MARGIN_S)];
  await player.play(recording, begin_s, Math.min(end_s - begin_s, 120), state.band && box ? [box.low_hz, box.high_hz] : null, state.speed);
  requestAnimationFrame(follow);
}

function follow() {
  const now = player.position();
  view.cursor_s = now && now.recording === view.recording ? now.at_s : null;
  view.draw();
  if (now) requestAnimationFrame(follow);
}

// ---- moving a draft by keys

function edit(mode) { state.mode = mode; view.draw(); describe(); }

function nudge(event) {
  const { draft } = view;
  const [sign, isTime] = { ArrowLeft: [-1, true], ArrowRight: [1, true], ArrowUp: [1, false], ArrowDown: [-1, false] }[event.key];
  const [first, last] = isTime ? ["begin_s", "end_s"] : ["low_hz", "high_hz"];
  const moved = (name) => (isTime ? draft[name] + (sign * view.seconds) / 200
    : view.hertzOf(Math.max(0, view.shareOf(draft[name]) + (sign * (view.high - view.low)) / 64)));
  if (!event.shiftKey) draft[first] = moved(first);
  if (!event.altKey) draft[last] = moved(last);
  if (draft[first] > draft[last]) [draft[first], draft[last]] = [draft[last], draft[first]];
  view.draw();
}

async function keep() {
  const { begin_s, end_s, low_hz, high_hz } = view.draft;
  const mode = state.mode, id = view.chosen;
  leave();
  const corners = [begin_s, low_hz, end_s, high_hz];
  const [box] = mode === "draw" ? await act("draw", { recording: view.recording, corners }) : await act("change", { boxes: [id], corners });
  choose(box.id);
}

function leave() { view.draft = null; edit(""); }

// ---- keys and mouse

const typedAhead = { isWaiting: false, text: "" };  // letters of a name typed before its field was open

addEventListener("keydown", (event) => {
  if (typedAhead.isWaiting) {
    if (event.key.length === 1) typedAhead.text += event.key;
    event.preventDefault();
    return;
  }
  if (event.target === $("name") || $("help").open || event.ctrlKey || event.metaKey) return;
  if (event.target === $("part") && event.key !== "Escape") return;
  if (state.mode) {
    if (event.key.startsWith("Arrow")) enqueue(() => nudge(event));
    else if (event.key === "Enter") enqueue(() => (view.draft ? keep() : null));
    else if (event.key === "Escape") enqueue(leave);
    else return;
    event.preventDefault();
    return;
  }
  if (event.altKey) return;
  const name = KEYS.find((row) => row[0] === event.key)?.[1];
  const queue = [...$("queues").children][Number(event.key) - 1];
  if (!name && !queue) return;
  if (event.target.tagName === "BUTTON" && [" ", "Enter", "Tab"].includes(event.key)) return;
  event.preventDefault();
  say("");
  if (name === "name") Object.assign(typedAhead, { isWaiting: true, text: "" });
  enqueue(async () => {
    try {
      await (name ? commands[name]() : openQueue(queue.dataset.queue));
    } finally {
      if (name === "name") typedAhead.isWaiting = false;
    }
  });
});

let drag = null;
$("canvas").addEventListener("pointerdown", (event) => {
  if (!view.picture || event.button) return;
  const box = view.boxAt(event.offsetX, event.offsetY);
  drag = { x: event.offsetX, y: event.offsetY, box, from: box && { ...box } };
  $("canvas").setPointerCapture(event.pointerId);
});
$("canvas").addEventListener("pointermove", (event) => {
  if (!drag || (Math.abs(event.offsetX - drag.x) < 5 && Math.abs(event.offsetY - drag.y) < 5 && !drag.moved)) return;
  drag.moved = true;
  const own = drag.box && drag.box.id === view.chosen ? drag.from : null;
  if (own) {  // the chosen box is moved, or resized near an edge
    view.draft = dragged(own, drag, event);
    if (!state.mode) edit("change");
  } else {
    const times = [view.secondAt(drag.x), view.secondAt(event.offsetX)], bands = [view.hertzAt(drag.y), view.hertzAt(event.offsetY)];
    view.draft = { begin_s: Math.min(...times), end_s: Math.max(...times), low_hz: Math.max(0, Math.min(...bands)), high_hz: Math.max(...bands) };
    if (!state.mode) edit("draw");
  }
  view.draw();
});
$("canvas").addEventListener("pointerup", () => {
  if (drag && drag.moved) enqueue(() => (view.draft ? keep() : null));
  else if (drag?.box) choose(drag.box.id);
  drag = null;
});

function dragged(box, from, event) {
  const edge = 7, [x0, x1, y0, y1] = [view.left(box.begin_s), view.left(box.end_s), view.top(box.high_hz), view.top(box.low_hz)];
  const [dx, dy] = [event.offsetX - from.x, event.offsetY - from.y];
  const near = [Math.abs(from.x - x0) < edge, Math.abs(from.x - x1) < edge, Math.abs(from.y - y0) < edge, Math.abs(from.y - y1) < edge];
  const all = !near.includes(true);
  const times = [view.secondAt(x0 + (all || near[0] ? dx : 0)), view.secondAt(x1 + (all || near[1] ? dx : 0))];
  const bands = [view.hertzAt(y1 + (all || near[3] ? dy : 0)), view.hertzAt(y0 + (all || near[2] ? dy : 0))];
  return { begin_s: Math.min(...times), end_s: Math.max(...times), low_hz: Math.max(0, Math.min(...bands)), high_hz: Math.max(...bands), label: box.label };
}
$("canvas").addEventListener("wheel", (event) => {
  event.preventDefault();
  if (waiting) return;
  enqueue(() => (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)
    ? commands[(event.deltaX || event.deltaY) > 0 ? "forth" : "back"]() : zoom(event.deltaY > 0 ? 1.5 : 1 / 1.5)));
}, { passive: false });

// ---- begin

$("title").textContent = run.title;
document.title = `${run.title} · mast review`;
run.queues.forEach((name, number) => {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.queue = name;
  const key = document.createElement("kbd");
  key.textContent = number + 1;
  button.append(QUEUES[name], key);
  button.addEventListener("click", () => { enqueue(() => openQueue(name)); button.blur(); });
  $("queues").append(button);
});
$("part").addEventListener("change", () => { enqueue(() => openQueue("site_hour", Number($("part").value))); $("part").blur(); });
$("help").append(helpTable());
$("help").addEventListener("click", () => $("help").close());
$("help-button").addEventListener("click", () => { commands.help(); $("help-button").blur(); });
enqueue(async () => {
  await openQueue(run.queues[0]);
  if (run.problems.length) say(`${run.problems.length} damaged lines in the log were left out`);
  $("canvas").focus();
});
