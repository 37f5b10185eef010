// The list of runs or of all jobs: searched, filtered, live, of any length.

import { get } from "./api.js";
import { notice } from "./dialogs.js";
import { empty, fill, h, setText, stateBadge } from "./dom.js";
import { age, compact, cost, elapsed, ENDED, firstLine, moment, oneLine, STATES, stateName, tokens } from "./text.js";
import { VirtualList } from "./virtual_list.js";

const PAGE = 200;
const SEARCH_MS = 200;
const narrow = matchMedia("(max-width: 700px)");
export const rowHeight = () => (narrow.matches ? 84 : 44);

export class JobsView {
  constructor(app) {
    this.app = app;
    this.items = [];
    this.known = new Map();
    this.title = "Runs";
    this.list = new VirtualList({
      label: "Jobs",
      rowHeight,
      keyOf: (job) => job.id,
      make: makeRow,
      update: updateRow,
      onEnd: () => this.more(),
    });
    this.build();
    this.unsubscribe = app.live.subscribe({ changed: (lines) => this.changed(lines), missed: () => this.load() });
    this.timer = setInterval(() => this.tick(), 1000);
    this.onResize = () => this.list.render();
    narrow.addEventListener("change", this.onResize);
  }

  stop() {
    this.isStopped = true;
    this.unsubscribe();
    this.list.stop();
    clearInterval(this.timer);
    clearTimeout(this.typing);
    narrow.removeEventListener("change", this.onResize);
  }

  build() {
    this.search = h("input", { type: "search", placeholder: "Search id, agent, task, label", "aria-label": "Search jobs", autocomplete: "off", spellcheck: "false" });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.filter("q", this.search.value.trim(), true), SEARCH_MS);
    });
    this.label = h("input", { type: "text", placeholder: "label=value", "aria-label": "Label", class: "short", autocomplete: "off" });
    this.label.addEventListener("change", () => this.filter("label", this.label.value.trim()));
    this.agent = h("select", { "aria-label": "Agent" });
    this.agent.addEventListener("change", () => this.filter("agent", this.agent.value));
    this.chips = new Map(STATES.map((state) => [state, this.chip(state)]));
    this.all = h("button", { type: "button", class: "chip", on: { click: () => this.filter("all", this.wanted.all ? "" : "1") } }, "With tasks");
    this.count = h("span", { class: "count", role: "status" });
    this.none = h("div", {});
    const heads = ["State", "Task", "Last event", "Time", "Tokens", "Cost", "Age"];
    const head = h("div", { class: "job-row head", role: "row", "aria-rowindex": "1" }, heads.map((name) => h("span", { role: "columnheader" }, name)));
    this.element = h(
      "section",
      { class: "jobs" },
      h("h1", { class: "hidden-title" }, "Runs"),
      h("div", { class: "toolbar", role: "search" }, this.search, this.agent, this.label, this.all, this.count),
      h("div", { class: "chips", role: "group", "aria-label": "States" }, [...this.chips.values()]),
      (this.table = h("div", { class: "table", role: "table", "aria-label": "Jobs" }, head, this.list.element)),
      this.none,
    );
    this.agentsKnown();
  }

  chip(state) {
    return h("button", { type: "button", class: `chip state state-${state}`, "aria-pressed": "false", on: { click: () => this.toggle(state) } }, stateName(state));
  }

  agentsKnown() {
    const names = new Set(this.app.agents.map((agent) => agent.name));
    if (this.wanted?.agent) names.add(this.wanted.agent);
    fill(this.agent, h("option", { value: "" }, "All agents"), [...names].map((name) => h("option", { value: name }, name)));
    this.agent.value = this.wanted?.agent ?? "";
  }

  show(parameters) {
    this.wanted = {
      q: parameters.get("q") ?? "",
      states: new Set(parameters.getAll("state")),
      label: parameters.get("label") ?? "",
      agent: parameters.get("agent") ?? "",
      all: parameters.get("all") === "1",
    };
    if (document.activeElement !== this.search) this.search.value = this.wanted.q;
    this.label.value = this.wanted.label;
    this.agentsKnown();
    this.all.setAttribute("aria-pressed", String(this.wanted.all));
    for (const [state, chip] of this.chips) chip.setAttribute("aria-pressed", String(this.wanted.states.has(state)));
    this.list.element.scrollTop = 0;
    this.load();
  }

  filter(name, value, replace = false) {
    const parameters = new URLSearchParams(location.search);
    if (value) parameters.set(name, value);
    else parameters.delete(name);
    this.app.navigate(parameters, { replace });
  }

  toggle(state) {
    const parameters = new URLSearchParams(location.search);
    const states = new Set(parameters.getAll("state"));
    if (!states.delete(state)) states.add(state);
    parameters.delete("state");
    for (const one of states) parameters.append("state", one);
    this.app.navigate(parameters);
  }

  query(cursor) {
    const { q, states, label, agent, all } = this.wanted;
    const labels = label.includes("=") ? label : undefined;
    return { q, state: [...states], label: labels, agent, roots_only: all ? undefined : "true", limit: PAGE, cursor };
  }

  async load() {
    const asked = (this.asked = this.query());
    await this.fetch(asked, () => {
      this.items = [];
      this.known = new Map();
    });
  }

  async more() {
    if (!this.cursor || this.isLoading) return;
    await this.fetch({ ...this.asked, cursor: this.cursor }, () => {});
  }

  async fetch(asked, prepare) {
    const loading = (this.loading = {});
    this.isLoading = true;
    try {
      const page = await get("/v1/jobs", asked);
      if (this.loading !== loading || this.isStopped) return; // the filter was changed meanwhile
      prepare();
      for (const job of page.items) if (!this.known.has(job.id)) this.items.push(job);
      for (const job of page.items) this.known.set(job.id, job);
      this.cursor = page.next_cursor;
    } catch (problem) {
      if (this.loading === loading && problem.status !== 401) notice(problem.message, true);
      this.cursor = null;
      return;
    } finally {
      if (this.loading === loading) this.isLoading = false;
    }
    this.refresh();
  }

  refresh() {
    const isEmpty = this.items.length === 0;
    this.table.hidden = isEmpty;
    this.table.setAttribute("aria-rowcount", this.cursor ? "-1" : String(this.items.length + 1)); // -1: there are more
    setText(this.count, `${this.items.length}${this.cursor ? "+" : ""} ${this.wanted.all ? "jobs" : "runs"}`);
    fill(this.none, isEmpty ? empty(this.isFiltered() ? "No job fits this filter." : "There are no jobs yet: start one with “New job”, or with fanout run.") : null);
    this.list.setItems(this.items);
  }

  isFiltered() {
    const { q, states, label, agent } = this.wanted;
    return Boolean(q || states.size || label || agent);
  }

  changed(lines) {
    const before = this.items.length;
    let isReordered = false;
    const replaced = new Map();
    for (const line of lines) {
      const fits = this.fits(line);
      if (this.known.has(line.id)) {
        replaced.set(line.id, fits ? line : null);
        if (fits) this.known.set(line.id, line);
        else this.known.delete(line.id);
      } else if (fits && !this.isBelow(line)) {
        this.known.set(line.id, line);
        this.items.push(line);
        isReordered = true;
      }
    }
    if (replaced.size) this.items = this.items.map((job) => replaced.has(job.id) ? replaced.get(job.id) : job).filter(Boolean);
    if (isReordered) this.items.sort(newestFirst);
    if (before !== this.items.length) this.refresh();
    else this.list.setItems(this.items);
  }

  // Whether a job belongs to a page that was not read yet.
  isBelow(line) {
    const last = this.items[this.items.length - 1];
    return Boolean(this.cursor && last && newestFirst(last, line) < 0);
  }

  fits(job) {
    const { q, states, label, agent, all } = this.wanted;
    if (!all && job.parent_id) return false;
    if (states.size && !states.has(job.state)) return false;
    if (agent && job.agent !== agent) return false;
    const [name, ...value] = label.split("=");
    if (value.length && job.labels[name] !== value.join("=")) return false;
    if (!q) return true;
    const texts = [job.id, job.agent, job.description, ...Object.entries(job.labels).map((pair) => pair.join("="))];
    return texts.some((text) => text.toLowerCase().includes(q.toLowerCase()));
  }

  tick() {
    if (document.hidden) return;
    for (const row of this.list.rows.values()) if (row.shownItem) updateTimes(row, row.shownItem);
  }

  focusSearch() {
    this.search.focus();
    this.search.select();
  }

  onKey(event) {
    if (!["j", "k", "ArrowDown", "ArrowUp"].includes(event.key) || !this.items.length) return false;
    this.list.focus(this.list.active);
    return true;
  }
}

function newestFirst(one, other) {
  return other.submitted_at - one.submitted_at || (one.id < other.id ? 1 : -1);
}

function makeRow(job) {
  const cell = (name, ...content) => h("span", { role: "cell", class: name }, ...content);
  const row = h("div", { class: "job-row", role: "row" });
  const parts = {
    title: h("a", { class: "title", href: `?${new URLSearchParams({ job: job.id })}` }),
    about: h("span", { class: "about" }),
    event: cell("event"),
    time: cell("time"),
    tokens: cell("tokens"),
    cost: cell("cost"),
    age: cell("age"),
    state: cell("state-cell"),
  };
  row.append(parts.state, cell("task", parts.title, parts.about), parts.event, parts.time, parts.tokens, parts.cost, parts.age);
  row.parts = parts;
  row.focusable = parts.title;
  return row;
}

function updateRow(row, job, index) {
  const { parts } = row;
  row.setAttribute("aria-rowindex", String(index + 2));
  if (parts.shownState !== job.state) {
    parts.shownState = job.state;
    fill(parts.state, stateBadge(job.state));
  }
  setText(parts.title, firstLine(job.description, 160) || job.id);
  const labels = Object.entries(job.labels).slice(0, 3).map(([name, value]) => `${name}=${value}`);
  setText(parts.about, oneLine([job.agent, job.id.slice(-8), ...labels].join(" · "), 160));
  const waits = job.approvals.length ? "waits for your decision" : job.waiting_for;
  const step = (ENDED.has(job.state) ? job.reason : waits) ?? job.last_event;
  setText(parts.event, step === job.state ? "" : oneLine(step, 160));
  parts.event.classList.toggle("needs", job.approvals.length > 0);
  const used = tokens(job.usage);
  setText(parts.tokens, used ? compact(used) : "");
  setText(parts.cost, cost(job.usage));
  updateTimes(row, job);
}

function updateTimes(row, job) {
  setText(row.parts.time, elapsed(job));
  setText(row.parts.age, age(job.submitted_at));
  if (row.shownAge !== job.submitted_at) {
    row.shownAge = job.submitted_at;
    row.parts.age.title = moment(job.submitted_at);
  }
}
