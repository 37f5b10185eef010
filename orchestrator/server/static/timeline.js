// A run as a timeline: one row for each job, with bars for what it did when. Only the rows in sight
// exist. It is a treegrid: by keyboard, and with all times as text, for who does not see the bars.

import { h, fill, setText } from "./dom.js";
import { clock, compact, cost, duration, moment, oneLine, stateName, titleOf, tokens, until } from "./text.js";
import { childrenOf, marks, ordered, ownUsages, verdictText } from "./trees.js";
import { VirtualList } from "./virtual_list.js";

const PHASES = ["queued", "running", "waiting", "verifying", "landing"];
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400];
const TICK_PX = 90; // between two times of the axis: room for "10m 30s"
const MIN_SECONDS = 1; // of the whole axis
const MIN_SHOWN = 5; // seconds of the part that is shown when somebody zooms in
const MIN_DRAWN_PX = 5; // less is a click
const PANNED = 0.25; // of the shown part, by one press of a key
const SLIDER_STEPS = 1000;
const narrow = matchMedia("(max-width: 700px)");
const rowHeight = () => (narrow.matches ? 62 : 40);

export class Timeline {
  constructor() {
    this.jobs = new Map();
    this.closed = new Set();
    this.span = { begin: 0, end: 1 }; // of the whole run
    this.part = null; // of it that is shown: `begin`, `seconds`, and whether it follows the present; null: all
    this.list = new VirtualList({
      label: "Jobs of this run",
      rowHeight,
      keyOf: (job) => job.id,
      make: (job) => this.makeRow(job),
      update: (row, job, index) => this.updateRow(row, job, index),
    });
    this.list.element.addEventListener("keydown", (event) => this.onKey(event), true);
    this.axis = h("span", { role: "columnheader", class: "axis" });
    const head = h("div", { role: "row", class: "bar-row head", "aria-rowindex": "1" }, ["Job", "Time", "Cost"].map((name) => h("span", { role: "columnheader" }, name)), this.axis);
    this.grid = h("div", { class: "gantt", role: "treegrid", "aria-label": "Timeline of the run" }, h("div", { role: "rowgroup", class: "gantt-head" }, head), this.list.element);
    this.element = h("section", { class: "timeline", "aria-labelledby": "timeline-title" }, h("div", { class: "timeline-title" }, h("h2", { id: "timeline-title" }, "Timeline"), legend(), this.zoomTools()), this.grid);
    this.axis.addEventListener("pointerdown", (event) => this.onDrag(event));
    this.onResize = () => this.render();
    narrow.addEventListener("change", this.onResize);
    this.observer = new ResizeObserver(() => this.drawAxis());
    this.observer.observe(this.axis);
    this.timer = setInterval(() => this.tick(), 1000);
  }

  zoomTools() {
    const button = (label, name, click) => h("button", { type: "button", class: "quiet", "aria-label": name, title: name, on: { click } }, label);
    this.out = button("−", "Zoom out", () => this.zoom(2));
    this.into = button("+", "Zoom in", () => this.zoom(1 / 2));
    this.whole = button("Whole run", "Show the whole run", () => this.showPart(null));
    this.slider = h("input", { type: "range", class: "zoom-slider", min: "0", max: String(SLIDER_STEPS), "aria-label": "Shown part of the run" });
    this.slider.addEventListener("input", () => this.showFrom(this.span.begin + (this.slider.value / SLIDER_STEPS) * (length(this.span) - this.part.seconds)));
    return h("span", { class: "zoom", role: "group", "aria-label": "Zoom" }, this.slider, this.out, this.into, this.whole);
  }

  // Shows `factor` times as much time as now, around the middle of what is shown.
  zoom(factor) {
    const { begin, end } = this.shown;
    const seconds = Math.max(MIN_SHOWN, (end - begin) * factor);
    if (seconds >= length(this.span)) this.showPart(null);
    else this.showFrom((begin + end - seconds) / 2, seconds);
  }

  pan(share) {
    if (this.part) this.showFrom(this.shown.begin + share * this.part.seconds);
  }

  // Shows a part of the run; of one that works, the part at its end follows the present.
  showFrom(begin, seconds = this.part.seconds) {
    const last = this.span.end - seconds;
    this.showPart({ begin: Math.max(this.span.begin, Math.min(begin, last)), seconds, isFollowing: this.isLive && begin >= last });
  }

  showPart(part) {
    this.part = part;
    this.render();
  }

  get shown() {
    if (!this.part) return this.span;
    const begin = this.part.isFollowing ? this.span.end - this.part.seconds : this.part.begin;
    return { begin, end: begin + this.part.seconds };
  }

  // Drawing along the axis shows that part of the run.
  onDrag(down) {
    if (down.button !== 0) return;
    const { left, width } = this.axis.getBoundingClientRect();
    const { begin, end } = this.shown;
    const at = (event) => begin + Math.max(0, Math.min(1, (event.clientX - left) / width)) * (end - begin);
    const from = at(down);
    const drawn = h("span", { class: "drawn", "aria-hidden": "true" });
    const draw = (event) => {
      const [first, last] = [from, at(event)].sort((one, other) => one - other);
      if (!drawn.isConnected) this.axis.append(drawn);
      placed(drawn, (first - begin) / (end - begin)).style.width = `${(100 * (last - first)) / (end - begin)}%`;
    };
    const finish = (event) => {
      this.axis.removeEventListener("pointermove", draw);
      drawn.remove();
      const [first, last] = [from, at(event)].sort((one, other) => one - other);
      const isDrawn = Math.abs(event.clientX - down.clientX) > MIN_DRAWN_PX && length(this.span) > MIN_SHOWN;
      if (isDrawn && event.type === "pointerup") this.showFrom(first, Math.max(MIN_SHOWN, last - first));
    };
    this.axis.setPointerCapture(down.pointerId);
    this.axis.addEventListener("pointermove", draw);
    this.axis.addEventListener("pointerup", finish, { once: true });
    this.axis.addEventListener("pointercancel", finish, { once: true });
  }

  stop() {
    clearInterval(this.timer);
    this.list.stop();
    this.observer.disconnect();
    narrow.removeEventListener("change", this.onResize);
  }

  setJobs(jobs) {
    this.jobs = jobs;
    this.render();
  }

  render() {
    this.below = childrenOf(this.jobs);
    this.own = ownUsages(this.jobs);
    this.measure();
    const rows = ordered(this.jobs, (id) => this.closed.has(id));
    this.grid.setAttribute("aria-rowcount", String(rows.length + 1));
    this.list.element.style.height = `min(${rows.length * rowHeight()}px, 70vh)`;
    for (const row of this.list.rows.values()) row.shownItem = null; // the scale may be another one
    this.list.setItems(rows);
    this.drawAxis();
  }

  // The time that the axis shows; of a run that works, its right edge is now.
  measure() {
    let begin = Infinity;
    let end = 0;
    this.isLive = false;
    for (const job of this.jobs.values()) {
      begin = Math.min(begin, job.submitted_at);
      if (!job.finished_at) this.isLive = true;
      for (const mark of [job.finished_at, job.landed?.at]) end = Math.max(end, mark ?? 0);
    }
    if (this.isLive) end = Math.max(end, Date.now() / 1000);
    if (!Number.isFinite(begin)) begin = 0;
    this.span = { begin, end: Math.max(end, begin + MIN_SECONDS) };
  }

  tick() {
    if (!this.isLive || document.hidden) return;
    this.measure();
    for (const row of this.list.rows.values()) if (row.shownItem) this.drawRow(row, row.shownItem);
    this.drawAxis();
  }

  drawAxis() {
    const { begin, end } = this.shown;
    const seconds = end - begin;
    const count = Math.max(1, Math.floor(this.axis.clientWidth / TICK_PX));
    const step = STEPS.find((one) => seconds / one <= count) ?? Math.ceil(seconds / count / 86_400) * 86_400;
    const ticks = [];
    const first = Math.ceil((begin - this.span.begin) / step - 1e-6) * step; // after the beginning of the run
    for (let at = first; at <= end - this.span.begin; at += step) ticks.push(at);
    const share = (at) => (this.span.begin + at - begin) / seconds;
    fill(
      this.axis,
      h("span", { class: "sr" }, `From ${moment(begin)}, ${duration(seconds)}${this.isLive && end >= this.span.end ? ", until now" : ""}`),
      ticks.map((at) => placed(h("span", { class: "tick", "aria-hidden": "true" }, at ? duration(at) : "0"), share(at))),
    );
    const size = step / seconds;
    this.grid.style.setProperty("--step", `${100 * size}%`);
    this.grid.style.setProperty("--first", size < 1 ? `${(100 * share(first)) / (1 - size)}%` : "0%");
    this.showZoom();
  }

  showZoom() {
    const { begin, end } = this.shown;
    const whole = length(this.span);
    this.slider.hidden = this.part === null;
    this.whole.hidden = this.part === null;
    this.out.disabled = this.part === null;
    this.into.disabled = end - begin <= MIN_SHOWN;
    if (this.part && whole > this.part.seconds) this.slider.value = String((SLIDER_STEPS * (begin - this.span.begin)) / (whole - this.part.seconds));
    this.slider.setAttribute("aria-valuetext", `from ${duration(begin - this.span.begin)} to ${duration(end - this.span.begin)} of ${duration(whole)}`);
  }

  makeRow(job) {
    const parts = {
      toggle: h("button", { type: "button", class: "toggle", tabIndex: -1, "aria-label": "Show or hide the jobs below", on: { click: () => this.toggle(job.id) } }),
      dot: h("span", { class: "dot" }),
      name: h("a", { class: "name", href: `?${new URLSearchParams({ job: job.id })}` }),
      note: h("span", { class: "run-note" }),
      time: h("span", { role: "gridcell", class: "time" }),
      cost: h("span", { role: "gridcell", class: "cost" }),
      track: h("span", { class: "track", "aria-hidden": "true" }),
      said: h("span", { class: "sr" }),
    };
    const name = h("span", { role: "gridcell", class: "who-what" }, parts.toggle, parts.dot, h("span", { class: "texts" }, parts.name, parts.note));
    const row = h("div", { role: "row", class: "bar-row" }, name, parts.time, parts.cost, h("span", { role: "gridcell", class: "bars" }, parts.said, parts.track));
    row.parts = parts;
    row.focusable = parts.name;
    return row;
  }

  updateRow(row, job, index) {
    const { parts } = row;
    const hasChildren = (this.below.get(job.id) ?? []).length > 0;
    const isOpen = !this.closed.has(job.id);
    row.setAttribute("aria-rowindex", String(index + 2));
    row.setAttribute("aria-level", String(job.depth + 1));
    if (hasChildren) row.setAttribute("aria-expanded", String(isOpen));
    else row.removeAttribute("aria-expanded");
    row.classList.toggle("opens", hasChildren);
    setText(parts.toggle, isOpen ? "▾" : "▸");
    row.style.setProperty("--depth", Math.min(job.depth, 8));
    parts.dot.className = `dot state-${job.state}`;
    setText(parts.name, `${job.agent}: ${titleOf(job, 200)}`);
    parts.name.title = titleOf(job, 500);
    const own = this.own.get(job.id);
    setText(parts.cost, cost(own) || (tokens(own) ? `${compact(tokens(own))} tok` : ""));
    const last = marks(job).filter((one) => one.kind !== "setback" || job.landed).pop();
    const note = liveNote(job) || (last?.text ?? "");
    setText(parts.note, oneLine(note, 300));
    parts.note.title = oneLine(note, 2000);
    parts.note.className = `run-note ${last && job.finished_at ? `is-${last.kind}` : ""} ${job.approvals.length ? "needs" : ""}`;
    this.drawRow(row, job);
  }

  drawRow(row, job) {
    const { parts } = row;
    const phases = job.phases ?? [];
    const { begin, end } = this.shown;
    const share = (at) => (at - begin) / (end - begin);
    const key = `${begin} ${end} ${phases.length} ${job.finished_at} ${job.landed?.at}`;
    setText(parts.time, duration((job.finished_at ?? Date.now() / 1000) - job.submitted_at));
    if (row.drawn === key) return;
    row.drawn = key;
    const now = this.span.end;
    const bars = phases.filter((phase) => phase.begin <= end && (phase.end ?? now) >= begin).map((phase) => bar(phase, Math.max(0, share(phase.begin)), Math.min(1, share(phase.end ?? now))));
    const inSight = marks(job).filter((one) => !this.part || (one.at >= begin && one.at <= end));
    const found = inSight.map((one) => placed(h("span", { class: `run-mark is-${one.kind}`, title: `${clock(one.at)}  ${one.text}` }), Math.min(1, share(one.at))));
    fill(parts.track, bars, found);
    setText(parts.said, spoken(job, phases));
  }

  toggle(id) {
    if (!this.closed.delete(id)) this.closed.add(id);
    this.render();
  }

  // Zooms and moves by keyboard; returns whether it did.
  onZoomKey(event) {
    const actions = { "+": () => this.zoom(1 / 2), "=": () => this.zoom(1 / 2), "-": () => this.zoom(2), 0: () => this.showPart(null) };
    if (event.shiftKey) Object.assign(actions, { ArrowLeft: () => this.pan(-PANNED), ArrowRight: () => this.pan(PANNED) });
    actions[event.key]?.();
    return event.key in actions;
  }

  onKey(event) {
    const at = this.list.items[this.list.active];
    if (!at || event.altKey || event.ctrlKey || event.metaKey) return;
    if (this.onZoomKey(event)) {
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    const hasChildren = (this.below.get(at.id) ?? []).length > 0;
    const isOpen = hasChildren && !this.closed.has(at.id);
    if (event.key === "ArrowLeft" && isOpen) this.toggle(at.id);
    else if (event.key === "ArrowRight" && hasChildren && !isOpen) this.toggle(at.id);
    else if (event.key === "ArrowLeft") this.list.focus(this.list.items.findIndex((job) => job.id === at.parent_id));
    else if (event.key === "ArrowRight" && isOpen) this.list.focus(this.list.active + 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  focus() {
    this.list.focus(this.list.active);
  }
}

function placed(element, share) {
  element.style.left = `${100 * share}%`;
  return element;
}

function bar(phase, begin, end) {
  const kind = PHASES.includes(phase.kind) ? phase.kind : "running";
  const name = phase.exit_code ? `${kind}, exit code ${phase.exit_code}` : kind;
  const until = phase.end ?? Date.now() / 1000;
  const element = placed(h("span", { class: `run-bar is-${kind}${phase.end === null ? " is-live" : ""}`, title: `${name}: ${shortTime(until - phase.begin)}, from ${clock(phase.begin)}` }), begin);
  element.style.width = `${100 * Math.max(0, end - begin)}%`;
  return element;
}

const length = ({ begin, end }) => end - begin;

function shortTime(seconds) {
  return seconds < 10 ? `${seconds.toFixed(1)}s` : duration(seconds);
}

function liveNote(job) {
  if (job.finished_at) return "";
  const waits = job.waits_until ? `${until(job.waits_until)}: ${job.waiting_for}` : job.waiting_for; // the end of a long line is cut
  return (job.approvals.length ? "waits for your decision" : waits ?? job.last_event) ?? "";
}

// What the bars show, as a sentence.
function spoken(job, phases) {
  const parts = phases.map((phase) => `${phase.kind} from ${clock(phase.begin)}${phase.end === null ? " until now" : ` for ${shortTime(phase.end - phase.begin)}`}`);
  const end = job.finished_at ? `${verdictText(job)} at ${clock(job.finished_at)}` : stateName(job.state);
  return [...parts, end, ...marks(job).map((one) => one.text)].join("; ");
}

function legend() {
  const item = (kind, text, name = "run-bar") => h("span", { class: "legend-item" }, h("span", { class: `${name} is-${kind}` }), text);
  return h("span", { class: "legend", "aria-hidden": "true" }, PHASES.map((kind) => item(kind, kind)), item("failed", "failed", "run-mark"), item("conflict", "not merged", "run-mark"), item("setback", "setback", "run-mark"));
}
