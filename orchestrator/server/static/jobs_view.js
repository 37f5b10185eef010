// The list of runs or of all jobs: searched, filtered, sorted, live, of any length.
// What was submitted together is one row that opens, and so is a run.

import { get, Latest } from "./api.js";
import { attempt, notice } from "./dialogs.js";
import { empty, fill, h, setText } from "./dom.js";
import { compact, cost, elapsed, ENDED, firstLine, labelsOf, moment, number, oneLine, plural, stateName, STATES, titleOf, tokens, when } from "./text.js";
import { countStates, ordered, ownUsages, reasonText, treeUsage, verdictBadge, verdictText } from "./trees.js";
import { VirtualList } from "./virtual_list.js";

const PAGE = 200;
const SORTED = 2000; // jobs that are read at once to sort them by something else than their newest first
const SEARCH_MS = 200;
const narrow = matchMedia("(max-width: 700px)");
const rowHeight = () => (narrow.matches ? 76 : 48);

export class JobsView {
  constructor(app) {
    this.app = app;
    this.items = [];
    this.known = new Map();
    this.opened = new Set();
    this.trees = new Map();
    this.latest = new Latest();
    this.title = "Runs";
    this.list = new VirtualList({
      label: "Jobs",
      rowHeight,
      keyOf: (row) => row.key,
      make: (row) => this.makeRow(row),
      update: updateRow,
      onEnd: () => this.more(),
    });
    this.list.element.addEventListener("keydown", (event) => this.onListKey(event), true);
    this.build();
    this.unsubscribe = app.live.subscribe({ changed: (lines) => this.changed(lines), missed: () => this.load() });
    this.timer = setInterval(() => this.tick(), 1000);
    this.onResize = () => this.list.render();
    narrow.addEventListener("change", this.onResize);
  }

  stop() {
    this.isStopped = true;
    this.latest.stop();
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
    this.sort = h("select", { "aria-label": "Sort", class: "sort" }, Object.entries(SORTS).map(([name, { label }]) => h("option", { value: name }, `By ${name === "time" ? "time" : label.toLowerCase()}`)));
    this.sort.addEventListener("change", () => this.sortBy(this.sort.value));
    this.count = h("span", { class: "count", role: "status" }, "Loading …");
    this.none = h("div", { class: "none" });
    const readOn = h("button", { type: "button", class: "more", on: { click: () => attempt(readOn, () => this.readOn()) } }, `Read ${number(SORTED)} more`);
    this.partial = h("p", { class: "partial", hidden: true }, (this.partialText = h("span", { role: "status" })), readOn);
    this.heads = ["state", null, null, "agent", null, null, "cost", "time"].map((name, at) => this.columnHead(name, COLUMNS[at]));
    const head = h("div", { class: "job-row head", role: "row", "aria-rowindex": "1" }, this.heads);
    this.element = h(
      "section",
      { class: "jobs" },
      h("h1", { class: "hidden-title" }, "Runs"),
      h("div", { class: "toolbar", role: "search" }, this.search, this.agent, this.sort, this.label, h("span", { class: "toolbar-end" }, this.all, this.count)),
      h("div", { class: "chips", role: "group", "aria-label": "States" }, [...this.chips.values()]),
      this.partial,
      (this.table = h("div", { class: "table", role: "treegrid", "aria-label": "Jobs" }, h("div", { role: "rowgroup" }, head), this.list.element)),
      this.none,
    );
    this.agentsKnown();
  }

  chip(state) {
    return h("button", { type: "button", class: `chip state state-${state}`, "aria-pressed": "false", on: { click: () => this.toggle(state) } }, stateName(state));
  }

  columnHead(name, label) {
    if (!name) return h("span", { role: "columnheader" }, label);
    const button = h("button", { type: "button", class: "sorter", on: { click: () => this.sortBy(this.wanted.sort === name ? `-${name}` : name) } }, label);
    return Object.assign(h("span", { role: "columnheader" }, button), { sorts: name });
  }

  sortBy(name) {
    this.filter("sort", name === "time" ? "" : name);
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
      sort: parameters.get("sort") ?? "time",
    };
    if (document.activeElement !== this.search) this.search.value = this.wanted.q;
    this.label.value = this.wanted.label;
    this.agentsKnown();
    this.showSort();
    this.all.setAttribute("aria-pressed", String(this.wanted.all));
    for (const [state, chip] of this.chips) chip.setAttribute("aria-pressed", String(this.wanted.states.has(state)));
    this.list.element.scrollTop = 0;
    const asked = JSON.stringify(this.query());
    if (this.isRead && asked === this.shownQuery) this.refresh(); // only the order is another one
    else this.load();
    this.shownQuery = asked;
  }

  showSort() {
    const { sort } = this.wanted;
    this.sort.value = sort.replace("-", "");
    for (const head of this.heads) {
      if (!head.sorts) continue;
      const isSorted = head.sorts === this.sort.value;
      const isFalling = ["time", "cost"].includes(head.sorts) !== sort.startsWith("-");
      if (isSorted) head.setAttribute("aria-sort", isFalling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
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
    this.maxSorted = SORTED;
    await this.fetch(asked, () => {
      this.items = [];
      this.known = new Map();
    });
  }

  async more() {
    if (!this.cursor || this.latest.isReading) return;
    await this.fetch({ ...this.asked, cursor: this.cursor }, () => {});
  }

  async fetch(asked, prepare) {
    let page;
    let newer;
    try {
      [page, newer] = await this.app.live.reading(() => this.latest.read((signal) => get("/v1/jobs", asked, { signal })));
    } catch (problem) {
      this.cursor = null;
      setText(this.count, "");
      if (problem.status !== 401) notice(problem.message, true);
    }
    if (!page) return; // it failed, or the filter was changed meanwhile
    prepare();
    for (const job of page.items) if (!this.known.has(job.id)) this.items.push(job);
    for (const job of page.items) this.known.set(job.id, job);
    this.cursor = page.next_cursor;
    this.isRead = true;
    if (newer.length) this.changed(newer);
    this.refresh();
    if (this.isSorted() && this.items.length < this.maxSorted) this.more();
  }

  async readOn() {
    this.maxSorted = this.items.length + SORTED;
    await this.more();
  }

  // In another order than that in which the service lists jobs: newest first.
  isSorted() {
    return this.wanted.sort !== "time";
  }

  refresh() {
    const isEmpty = this.items.length === 0 && !this.cursor;
    this.list.element.hidden = isEmpty;
    fill(this.none, isEmpty ? empty(this.isFiltered() ? "No job fits this filter." : "There are no jobs yet: start one with “New job”, or with fanout run.") : null);
    this.showRows();
  }

  showRows() {
    const { all, sort } = this.wanted;
    const rows = rowsOf(this.items, { sort, isFlat: all, isOpen: (key) => this.opened.has(key), treeOf: (id) => this.trees.get(id) });
    this.table.setAttribute("aria-rowcount", this.cursor ? "-1" : String(rows.length + 1)); // -1: there are more
    const count = rows.filter((row) => !row.level).length;
    const noun = all ? "job" : "run";
    this.partial.hidden = !this.cursor || !this.isSorted();
    setText(this.partialText, `Only the newest ${number(this.items.length)} jobs are sorted; there are older ones.`);
    setText(this.count, this.cursor ? `${number(count)}+ ${noun}s` : plural(count, noun));
    this.list.setItems(rows);
  }

  toggleRow(row) {
    if (!this.opened.delete(row.key)) {
      this.opened.add(row.key);
      if (!row.jobs) this.readTree(row.job.root_id);
    }
    this.showRows();
  }

  async readTree(rootId) {
    const ask = () => get(`/v1/jobs/${encodeURIComponent(rootId)}/tree`).catch((problem) => notice(problem.message, true));
    const [found, newer] = await this.app.live.reading(ask);
    if (!found || this.isStopped) return;
    const lines = [...found.items, ...newer.filter((line) => line.root_id === rootId)];
    this.trees.set(rootId, new Map(lines.map((job) => [job.id, job])));
    this.showRows();
  }

  isFiltered() {
    const { q, states, label, agent } = this.wanted;
    return Boolean(q || states.size || label || agent);
  }

  changed(lines) {
    const before = this.items.length;
    let isReordered = false;
    for (const line of lines) this.trees.get(line.root_id)?.set(line.id, line);
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
    else this.showRows();
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
    for (const row of this.list.rows.values()) {
      if (!row.shownItem) continue;
      updateTimes(row, row.shownItem);
      showState(row.parts.state, row.shownItem); // the time at which a model is tried again may have come
    }
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

  onListKey(event) {
    const { items, active } = this.list;
    const row = items[active];
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    if (row.canOpen && event.key === (row.isOpen ? "ArrowLeft" : "ArrowRight")) this.toggleRow(row);
    else if (row.level && event.key === "ArrowLeft") this.list.focus(items.findLastIndex((one, at) => at < active && !one.level));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  makeRow(shown) {
    const cell = (name, ...content) => h("span", { role: "gridcell", class: name }, ...content);
    const row = h("div", { class: "job-row", role: "row" });
    const toggle = () => this.toggleRow(row.shownItem);
    const parts = {
      toggle: h("button", { type: "button", class: "toggle", tabIndex: -1, "aria-label": "Show or hide its jobs", on: { click: toggle } }),
      title: shown.jobs && !shown.run ? h("button", { type: "button", class: "title", on: { click: toggle } }) : h("a", { class: "title" }),
      about: h("span", { class: "about" }),
      event: cell("event"),
      agent: cell("agent"),
      time: cell("time"),
      tokens: cell("tokens"),
      cost: cell("cost"),
      when: cell("when"),
      state: cell("state-cell"),
    };
    const task = cell("task", parts.toggle, h("span", { class: "texts" }, parts.title, parts.about));
    row.append(parts.state, task, parts.event, parts.agent, parts.time, parts.tokens, parts.cost, parts.when);
    row.parts = parts;
    row.focusable = parts.title;
    return row;
  }
}

const COLUMNS = ["State", "Task", "Last event", "Agent", "Time", "Tokens", "Cost", "Submitted"];

function newestFirst(one, other) {
  return other.submitted_at - one.submitted_at || (one.id < other.id ? 1 : -1);
}

function updateRow(row, shown, index) {
  const { parts } = row;
  const { job, jobs } = shown;
  row.setAttribute("aria-rowindex", String(index + 2));
  row.setAttribute("aria-level", String(shown.level + 1));
  if (shown.canOpen) row.setAttribute("aria-expanded", String(shown.isOpen));
  else row.removeAttribute("aria-expanded");
  row.classList.toggle("opens", shown.canOpen);
  row.style.setProperty("--level", Math.min(shown.level, 6));
  setText(parts.toggle, shown.isOpen ? "▾" : "▸");
  if (parts.title.tagName === "A") parts.title.href = `?${new URLSearchParams(shown.run ? { run: shown.run } : { job: job.id })}`;
  showState(parts.state, shown);
  const task = titleOf(job, 200) || job.id;
  setText(parts.title, jobs ? `${plural(jobs.length, "job")}: ${firstLine(jobs[jobs.length - 1].description, 160)} …` : task);
  setText(parts.about, oneLine(aboutRow(shown).join(" · "), 160));
  const agents = new Set((jobs ?? [job]).map((one) => one.agent));
  setText(parts.agent, agents.size === 1 ? job.agent : plural(agents.size, "agent"));
  const step = jobs ? oneLine(reasonText(jobs.find((one) => one.reason) ?? {}), 160) : lastStep(job);
  setText(parts.event, step);
  parts.event.title = step;
  parts.event.classList.toggle("needs", job.approvals.length > 0);
  row.classList.toggle("no-event", !step);
  const used = tokens(shown.usage);
  setText(parts.tokens, used ? compact(used) : "");
  setText(parts.cost, cost(shown.usage));
  updateTimes(row, shown);
}

function showState(cell, { job, jobs }) {
  const text = jobs ? countStates(jobs) : verdictText(job);
  if (cell.shown === text) return;
  cell.shown = text;
  fill(cell, verdictBadge(jobs ? together(jobs) : job));
}

// Jobs that were submitted together, as one: it has succeeded when all have ended.
function together(jobs) {
  const live = jobs.filter((job) => !ENDED.has(job.state));
  const state = ["running", "waiting", "queued"].find((one) => live.some((job) => job.state === one));
  const counted = (name) => jobs.reduce((sum, job) => sum + (job[name] ?? 0), 0);
  const failed = jobs.filter((job) => ["failed", "timed_out"].includes(job.state)).length;
  const ended = failed === jobs.length ? "failed" : jobs.every((job) => job.state === "cancelled") ? "cancelled" : "succeeded";
  return { state: state ?? ended, tasks_failed: ended === "failed" ? 0 : failed + counted("tasks_failed"), tasks_unmerged: counted("tasks_unmerged"), progress: state && `${jobs.length - live.length} of ${jobs.length} ended` };
}

// From the first beginning to the last end.
function from(jobs) {
  const begun = jobs.map((job) => job.started_at).filter(Boolean);
  const isLive = jobs.some((job) => !job.finished_at);
  return { started_at: begun.length && Math.min(...begun), finished_at: isLive ? null : Math.max(...jobs.map((job) => job.finished_at)) };
}

function aboutRow({ job, jobs, level }) {
  const labels = labelsOf(job).slice(0, 3);
  if (jobs) return [countStates(jobs), ...labels];
  const size = !level && job.tree_size > 1 && !job.parent_id && job.id === job.root_id ? [plural(job.tree_size, "job")] : [];
  return [job.id.slice(-8), ...size, ...labels];
}

function lastStep(job) {
  const waits = job.approvals.length ? "waits for your decision" : job.waiting_for;
  const step = (ENDED.has(job.state) ? reasonText(job) || null : waits) ?? job.last_event;
  return step === job.state ? "" : oneLine(step, 160);
}

function updateTimes(row, { job, jobs }) {
  setText(row.parts.time, elapsed(jobs ? from(jobs) : job));
  setText(row.parts.when, when(job.submitted_at));
  if (row.shownMoment !== job.submitted_at) {
    row.shownMoment = job.submitted_at;
    row.parts.when.title = moment(job.submitted_at);
  }
}

const SORTS = {
  time: { label: "Submitted", of: (row) => -row.job.submitted_at },
  state: { label: "State", of: (row) => STATES.indexOf(row.job.state) },
  agent: { label: "Agent", of: (row) => row.job.agent },
  cost: { label: "Cost", of: (row) => [-(row.usage?.cost_usd ?? 0), -tokens(row.usage)] },
};

// Returns the rows for jobs, newest first: each with its `job` (of a group the newest one), its
// `usage`, its `level`, and of a group its `jobs`. `isOpen(key)` says which rows show what is below
// them, and `treeOf(id)` returns the jobs of a run's tree as far as they are known.
function rowsOf(jobs, { sort, isFlat, isOpen, treeOf }) {
  const groups = isFlat ? jobs.map((job) => [job]) : grouped(jobs);
  const rows = sorted(groups.map(topRow), sort);
  return rows.flatMap((row) => {
    row.isOpen = row.canOpen && isOpen(row.key);
    return [row, ...(row.isOpen ? below(row, treeOf) : [])];
  });
}

// Jobs of one submission have a common root (of a file), or are one batch (of a request).
function grouped(jobs) {
  const groups = new Map();
  for (const job of jobs) {
    const key = job.batch ?? job.root_id;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(job);
  }
  return [...groups.values()];
}

function topRow(jobs) {
  const [job] = jobs;
  if (jobs.length > 1) {
    const roots = new Set(jobs.map((one) => one.root_id));
    const usage = treeUsage(new Map(jobs.map((one) => [one.id, one])));
    return { key: `together ${job.batch ?? job.root_id}`, job, jobs, usage, level: 0, canOpen: true, run: roots.size === 1 ? job.root_id : null };
  }
  const isRun = !job.parent_id && job.tree_size > 1;
  return { key: job.id, job, usage: job.usage, level: 0, canOpen: isRun, run: isRun ? job.root_id : null };
}

function below(row, treeOf) {
  const jobs = row.jobs ? new Map([...row.jobs].reverse().map((job) => [job.id, job])) : treeOf(row.job.root_id);
  if (!jobs) return [];
  const own = ownUsages(jobs);
  const shown = row.jobs ? [...jobs.values()] : ordered(jobs).filter((job) => job.id !== row.job.id);
  return shown.map((job) => ({ key: `${row.key} ${job.id}`, job, usage: own.get(job.id), level: row.jobs ? 1 : Math.max(1, job.depth), canOpen: false, run: null }));
}

function sorted(rows, sort) {
  const isReversed = sort.startsWith("-");
  const { of } = SORTS[sort.replace("-", "")] ?? SORTS.time;
  const order = (one, other) => compare(of(one), of(other)) || compare(-one.job.submitted_at, -other.job.submitted_at) || compare(other.key, one.key);
  return [...rows].sort((one, other) => (isReversed ? order(other, one) : order(one, other)));
}

function compare(one, other) {
  if (Array.isArray(one)) return compare(one[0], other[0]) || compare(one[1], other[1]);
  return one < other ? -1 : Number(one > other);
}
