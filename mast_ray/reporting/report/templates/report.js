"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  document.body.classList.add("scripted");

  // ---- contents: mark the section in view
  const links = new Map(all("nav a").map((a) => [a.getAttribute("href").slice(1), a]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && links.has(entry.target.id)) {
        links.forEach((a) => a.classList.remove("here"));
        links.get(entry.target.id).classList.add("here");
      }
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  all("main > section[id]").forEach((section) => watcher.observe(section));

  // ---- threshold slider
  const slider = byId("threshold-slider");
  const scores = JSON.parse(byId("slider-data").textContent || "{}");
  const follow = () => {
    const threshold = Number(slider.value);
    byId("threshold-value").textContent = threshold.toFixed(2);
    let kept = 0, total = 0;
    scores.counts.forEach((count, i) => {
      const low = scores.edges[i], high = scores.edges[i + 1];
      total += count;
      kept += count * Math.min(Math.max((high - threshold) / (high - low), 0), 1);
    });
    kept = Math.round(kept);
    const parts = [`${kept.toLocaleString("en")} of ${total.toLocaleString("en")} detections kept`];
    if (scores.hours) parts.push(`${(kept / scores.hours).toFixed(1)} per analysed hour`);
    if (scores.curve && scores.curve.thresholds.length) {
      let best = 0;
      scores.curve.thresholds.forEach((t, i) => {
        if (Math.abs(t - threshold) < Math.abs(scores.curve.thresholds[best] - threshold)) best = i;
      });
      const at = (name) => scores.curve[name][best].toFixed(2);
      parts.push(`${scores.curve.name}: precision ${at("precision")}, recall ${at("recall")}, F1 ${at("f1")}`);
    }
    byId("threshold-readout").textContent = parts.join(" · ");
    all(".scores .bar").forEach((bar) => bar.classList.toggle("below", Number(bar.dataset.low) < threshold - 1e-9));
    all(".scores .mark").forEach((mark) => {
      const left = Number(mark.dataset.left), right = Number(mark.dataset.right);
      const first = scores.edges[0], last = scores.edges[scores.edges.length - 1];
      const x = left + Math.min(Math.max((threshold - first) / (last - first), 0), 1) * (right - left);
      mark.setAttribute("x1", x); mark.setAttribute("x2", x);
    });
    all(".overlay .box.prediction").forEach((box) =>
      box.classList.toggle("below", box.dataset.score !== "" && Number(box.dataset.score) < threshold));
  };
  if (slider) { slider.addEventListener("input", follow); follow(); }

  // ---- read a cell of a heat map
  all("svg[data-cells]").forEach((svg) => {
    const cells = JSON.parse(svg.dataset.cells);
    const caption = svg.closest("figure").querySelector("figcaption");
    const resting = caption.textContent;
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const column = Math.floor(((event.clientX - box.left) * scale - cells.left) / cells.width);
      const hour = 23 - Math.floor(((event.clientY - box.top) * scale - cells.top) / cells.height);
      const at = column * 24 + hour;
      if (column < 0 || hour < 0 || hour > 23 || at >= cells.calls.length) { caption.textContent = resting; return; }
      const day = new Date(Date.parse(cells.first + "T00:00:00Z") + column * cells.days * 864e5).toISOString().slice(0, 10);
      const span = cells.days > 1 ? `${cells.days} days from ${day}` : day;
      const effort = cells.effort[at];
      caption.textContent = `${resting}: ${span} ${String(hour).padStart(2, "0")}:00, ` + (effort > 0
        ? `${cells.calls[at]} calls in ${effort.toFixed(effort < 0.1 ? 4 : 2)} h = ${(cells.calls[at] / effort).toFixed(1)} per hour`
        : "nothing recorded");
    });
    svg.addEventListener("pointerleave", () => { caption.textContent = resting; });
  });

  // ---- gallery
  const cards = all(".example");
  if (!cards.length) return;
  const key = "mast-verdicts-" + document.body.dataset.key;
  const verdicts = new Map();
  try { for (const [id, v] of JSON.parse(localStorage.getItem(key) || "[]")) verdicts.set(id, v); } catch { /* private mode */ }
  let current = null, playing = null, frame = 0;

  const boxesOf = (card) => all(".overlay .box", card);
  const chosenOf = (card) => card.querySelector(".overlay .box.chosen") || boxesOf(card)[Number(card.dataset.focus)];
  const shown = () => cards.filter((card) => !card.parentElement.hidden);

  const stop = () => {
    cancelAnimationFrame(frame);
    if (!playing) return;
    playing.audio.pause();
    playing.head.setAttribute("x1", "-1%"); playing.head.setAttribute("x2", "-1%");
    playing = null;
  };
  const play = (card, from, to) => {
    const audio = card.querySelector("audio");
    if (!audio) return;
    const last = playing && playing.audio;
    stop();
    if (last && last !== audio) { last.preload = "none"; last.load(); }  // browsers allow few open players
    const begin = Number(card.dataset.begin), length = Number(card.dataset.end) - begin;
    const start = Math.max(from - begin, 0), end = Math.min(to - begin, length);
    playing = { audio, head: card.querySelector(".head") };
    const go = () => {
      audio.currentTime = start;
      audio.play().catch(() => stop());
      const step = () => {
        if (!playing || playing.audio !== audio) return;
        if (audio.currentTime >= end || audio.ended) { stop(); return; }
        const x = `${(100 * audio.currentTime / length).toFixed(2)}%`;
        playing.head.setAttribute("x1", x); playing.head.setAttribute("x2", x);
        frame = requestAnimationFrame(step);
      };
      frame = requestAnimationFrame(step);
    };
    if (audio.readyState >= 1) go();
    else { audio.preload = "auto"; audio.addEventListener("loadedmetadata", go, { once: true }); audio.load(); }
  };
  const hear = (card) => {
    const box = chosenOf(card);
    if (box) play(card, Number(box.dataset.begin) - 1, Number(box.dataset.end) + 1);
  };

  const paint = (card) => {
    const box = chosenOf(card);
    const verdict = box ? (verdicts.get(box.dataset.id) || {}).verdict : undefined;
    card.querySelector(".yes").setAttribute("aria-pressed", String(verdict === "y"));
    card.querySelector(".no").setAttribute("aria-pressed", String(verdict === "n"));
    card.querySelector("p.chosen").textContent = box ? box.getAttribute("aria-label") : "";
  };
  const choose = (card, box) => {
    boxesOf(card).forEach((b) => b.classList.toggle("chosen", b === box));
    paint(card);
  };
  // Verdicts on detections are what `mast evaluate` reads; those on labels (which have no score) go to a file of their own.
  const judged = (labels) => [...verdicts].filter(([id]) => id.startsWith("label-") === labels);
  const count = () => {
    byId("verdict-count").textContent = verdicts.size ? `${verdicts.size} judged` : "";
    byId("download-verdicts").disabled = judged(false).length === 0;
    byId("download-labels").hidden = judged(true).length === 0;
  };
  const judge = (card, verdict) => {
    const box = chosenOf(card);
    if (!box) return;
    const id = box.dataset.id;
    if (verdict === null) verdicts.delete(id);
    else verdicts.set(id, { path: card.dataset.path, begin_s: box.dataset.begin, end_s: box.dataset.end,
      low_hz: box.dataset.low, high_hz: box.dataset.high, score: box.dataset.score, verdict });
    try { localStorage.setItem(key, JSON.stringify([...verdicts])); } catch { /* private mode */ }
    paint(card); count();
  };
  const visit = (card, move = true) => {
    if (current) {
      current.classList.remove("current");
      boxesOf(current).forEach((b) => b.setAttribute("tabindex", "-1"));
    }
    current = card;
    card.classList.add("current");
    boxesOf(card).forEach((b) => b.setAttribute("tabindex", "0"));
    if (move) { card.focus({ preventScroll: true }); card.scrollIntoView({ block: "start" }); }
  };

  for (const card of cards) {
    const audio = card.querySelector("audio");
    if (audio) audio.removeAttribute("controls");
    card.addEventListener("click", () => { if (current !== card) visit(card, false); });
    for (const box of boxesOf(card)) {
      const open = () => { visit(card, false); choose(card, box); hear(card); };
      box.addEventListener("click", open);
      box.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); open(); }
      });
    }
    card.querySelector(".play-box").addEventListener("click", () => hear(card));
    card.querySelector(".play-all").addEventListener("click", () => play(card, 0, Infinity));
    card.querySelector(".yes").addEventListener("click", () => judge(card, "y"));
    card.querySelector(".no").addEventListener("click", () => judge(card, "n"));
    paint(card);
  }
  count();

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const list = shown();
    if (event.key === "j" || event.key === "k") {
      if (!list.length) return;
      const at = list.indexOf(current);
      const next = event.key === "j" ? at + 1 : Math.max(at - 1, 0);
      stop();
      visit(list[Math.min(next, list.length - 1)]);
      event.preventDefault();
      return;
    }
    if (!current) return;
    const boxes = boxesOf(current);
    switch (event.key) {
      case "y": judge(current, "y"); break;
      case "n": judge(current, "n"); break;
      case "u": judge(current, null); break;
      case "b": if (boxes.length) choose(current, boxes[(boxes.indexOf(chosenOf(current)) + 1) % boxes.length]); break;
      case " ":
        if (event.target.tagName === "BUTTON" || event.target.tagName === "SUMMARY") return;
        if (playing) stop(); else hear(current);
        event.preventDefault();
        break;
      case "Escape": stop(); break;
    }
  });

  byId("kind-filter").addEventListener("change", (event) => {
    const kind = event.target.value;
    cards.forEach((card) => { card.parentElement.hidden = kind !== "" && card.dataset.kind !== kind; });
  });
  byId("colour-map").addEventListener("change", (event) => {
    document.querySelector(".gallery").dataset.colours = event.target.value;
  });

  const field = (text) => {
    const safe = /^[=+\-@\t\r]/.test(text) ? "'" + text : text;  // a spreadsheet must not take it for a formula
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const columns = ["detection_id", "path", "begin_s", "end_s", "low_hz", "high_hz", "score", "verdict"];
  const save = (name, rows) => {
    const lines = rows.map(([id, v]) => columns.map((c) => field(String(c === "detection_id" ? id : v[c] ?? ""))).join(","));
    const blob = new Blob([[columns.join(","), ...lines].join("\r\n") + "\r\n"], { type: "text/csv" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  byId("download-verdicts").addEventListener("click", () => save("verdicts.csv", judged(false)));
  byId("download-labels").addEventListener("click", () => save("label_checks.csv", judged(true)));
})();
