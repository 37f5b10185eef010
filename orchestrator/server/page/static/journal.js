// A job's journal: live, filtered by kind, bounded, each entry opened on demand.

import { follow } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { clock, firstLine, json, moment, number, oneLine } from "./text.js";

const MAX_ENTRIES = 2000; // shown ones; `fanout logs` and /v1/jobs/ID/logs have all
const PER_FRAME = 250;
const TYPES = [
  "job.state", "sandbox.ready", "session.event", "model.request", "model.reply", "tool.call", "tool.result", "todos",
  "approval.requested", "approval.resolved", "child.submitted", "child.finished", "child.landed", "landing", "message",
  "verify", "checkpoint", "network.connection", "network.summary", "network.limit", "log",
];
const GROUPS = {
  agent: ["model.reply", "message", "todos"],
  tools: ["tool.call", "tool.result", "verify"],
  log: ["log"],
  tasks: ["child.submitted", "child.finished", "child.landed", "landing"],
  approvals: ["approval.requested", "approval.resolved"],
  system: ["job.state", "sandbox.ready", "session.event", "model.request", "checkpoint", "network.connection", "network.summary", "network.limit"],
};
const GROUP_OF = new Map(Object.entries(GROUPS).flatMap(([group, types]) => types.map((type) => [type, group])));
const QUIET = new Set(["model.request", "session.event", "checkpoint"]);

export class Journal {
  // `onTodos(todos)` is called with each new plan of the agent.
  constructor(jobId, { onTodos }) {
    this.onTodos = onTodos;
    this.waiting = [];
    this.dropped = 0;
    this.hiddenGroups = new Set();
    this.build();
    this.stop = follow(`/v1/jobs/${encodeURIComponent(jobId)}/events`, TYPES, (_, event) => this.add(event), { resumable: true });
  }

  build() {
    this.entries = h("ol", { class: "entries", tabIndex: 0, "aria-label": "Journal" });
    this.earlier = h("p", { class: "muted", hidden: true });
    this.follows = h("input", { type: "checkbox", checked: true });
    this.follows.addEventListener("change", () => this.toEnd());
    this.find = h("input", { type: "search", placeholder: "Filter entries", "aria-label": "Filter entries", class: "short" });
    this.find.addEventListener("input", () => this.applyFilter());
    const chips = Object.keys(GROUPS).map((group) => this.chip(group));
    this.entries.addEventListener("wheel", (event) => event.deltaY < 0 && this.pause(), { passive: true });
    this.entries.addEventListener("scroll", () => this.onScroll(), { passive: true });
    this.element = h(
      "div",
      { class: "journal" },
      h("div", { class: "chips", role: "group", "aria-label": "Kinds of entries" }, chips, this.find, h("label", { class: "check" }, this.follows, "Follow")),
      this.earlier,
      this.entries,
    );
  }

  chip(group) {
    const chip = h("button", { type: "button", class: "chip", "aria-pressed": "true" }, group);
    chip.addEventListener("click", () => {
      const isShown = this.hiddenGroups.delete(group);
      if (!isShown) this.hiddenGroups.add(group);
      chip.setAttribute("aria-pressed", String(isShown));
      this.entries.classList.toggle(`hide-${group}`, !isShown);
      this.toEnd();
    });
    return chip;
  }

  add(event) {
    if (event.type === "todos" && Array.isArray(event.data.todos)) this.onTodos(event.data.todos);
    this.waiting.push(event);
    if (this.waiting.length > 2 * MAX_ENTRIES) this.drop(this.waiting.splice(0, MAX_ENTRIES).length);
    this.schedule();
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.flush();
    });
  }

  flush() {
    if (this.waiting.length > MAX_ENTRIES) this.drop(this.waiting.splice(0, this.waiting.length - MAX_ENTRIES).length);
    const fragment = document.createDocumentFragment();
    for (const event of this.waiting.splice(0, PER_FRAME)) fragment.append(entry(event));
    for (const element of fragment.children) this.match(element);
    this.entries.append(fragment);
    let more = this.entries.childElementCount - MAX_ENTRIES;
    if (more > 0) this.drop(more);
    for (; more > 0; more -= 1) this.entries.firstElementChild.remove();
    this.toEnd();
    if (this.waiting.length) this.schedule();
  }

  drop(count) {
    this.dropped += count;
    this.earlier.hidden = false;
    setText(this.earlier, `${number(this.dropped)} earlier entries are not shown here; fanout logs prints all.`);
  }

  toEnd() {
    if (this.follows.checked) this.entries.scrollTop = this.entries.scrollHeight;
  }

  pause() {
    if (this.entries.scrollHeight > this.entries.clientHeight) this.follows.checked = false;
  }

  // Reading further up ends the following, and reading to the end begins it again.
  onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.entries;
    if (scrollHeight - scrollTop - clientHeight < 4) this.follows.checked = true;
    else if (scrollTop < (this.lastTop ?? 0) - 4) this.follows.checked = false;
    this.lastTop = scrollTop;
  }

  applyFilter() {
    for (const element of this.entries.children) this.match(element);
    this.toEnd();
  }

  match(element) {
    const wanted = this.find.value.trim().toLowerCase();
    element.hidden = Boolean(wanted) && !element.searched.includes(wanted);
  }
}

function entry(event) {
  const group = GROUP_OF.get(event.type) ?? "system";
  const line = summary(event);
  const opened = h("div", { class: "body", hidden: true });
  const button = h(
    "button",
    { type: "button", class: "line", "aria-expanded": "false" },
    h("time", { title: moment(event.at) }, clock(event.at)),
    h("span", { class: "kind" }, event.type),
    h("span", { class: "what" }, line),
  );
  const element = h("li", { class: `entry of-${group}${QUIET.has(event.type) ? " quiet-entry" : ""}` }, button, opened);
  element.searched = `${event.type} ${line}`.toLowerCase();
  button.addEventListener("click", () => {
    if (!opened.firstChild) fill(opened, details(event));
    opened.hidden = !opened.hidden;
    button.setAttribute("aria-expanded", String(!opened.hidden));
  });
  return element;
}

const SUMMARIES = {
  "job.state": (data) => [data.state, data.reason].filter(Boolean).join(": "),
  "model.reply": (data) => firstLine(data.text) || (data.calls ?? []).map((one) => `→ ${one.tool ?? one.name ?? one}`).join(" "),
  "model.request": (data) => `${data.model} (some ${number(data.tokens ?? 0)} tokens)`,
  "tool.call": (data) => `${data.tool} ${flat(data.arguments)}`,
  "tool.result": (data) => flat(data.results),
  todos: (data) => plan(data.todos),
  log: (data) => (data.stream ? `[${data.stream}] ${data.text}` : data.text),
  message: (data) => data.text,
  verify: (data) => `${data.exit_code === 0 ? "passes" : `fails (${data.exit_code})`}: ${data.command}`,
  "child.submitted": (data) => `${data.agent} ${data.id}`,
  "child.finished": (data) => `${data.state} ${data.id}`,
  "child.landed": (data) => [data.outcome, data.id, data.reason].filter(Boolean).join(" "),
  "approval.requested": (data) => `${data.tool} ${flat(data.arguments)}`,
  "approval.resolved": (data) => [data.decision, data.person && `by ${data.person}`, data.message].filter(Boolean).join(" "),
  "network.connection": (data) => flat(data),
};

function summary(event) {
  try {
    return oneLine((SUMMARIES[event.type] ?? flat)(event.data));
  } catch {
    return oneLine(flat(event.data)); // a form of another release
  }
}

function flat(value) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object") return value === undefined ? "" : String(value);
  const { event, ...shown } = value; // the ADK event holds the same once more
  if (Array.isArray(value)) return value.slice(0, 20).map(flat).join(" ");
  return Object.entries(shown).slice(0, 20).map(([name, one]) => `${name}=${oneLine(flat(one), 120)}`).join(" ");
}

function plan(todos) {
  const done = todos.filter((one) => one.status === "completed").length;
  const current = todos.find((one) => one.status === "in_progress");
  return `${done} of ${todos.length} done${current ? `: ${current.content}` : ""}`;
}

function details(event) {
  const { event: _, ...data } = event.data;
  const text = typeof data.text === "string" && data.text ? [h("pre", {}, json(data.text))] : [];
  const output = typeof data.output_tail === "string" ? [h("pre", {}, data.output_tail)] : [];
  const rest = Object.fromEntries(Object.entries(data).filter(([name]) => name !== "text" && name !== "output_tail"));
  const others = Object.keys(rest).length ? [h("pre", { class: "json" }, json(rest))] : [];
  const isTask = event.type.startsWith("child.") && typeof data.id === "string";
  const task = isTask ? [h("p", {}, h("a", { href: `?${new URLSearchParams({ job: data.id })}` }, "Open the task"))] : [];
  return [...text, ...output, ...others, ...task, h("p", { class: "muted" }, `${event.id} · attempt ${event.attempt} · ${moment(event.at)}`)];
}
