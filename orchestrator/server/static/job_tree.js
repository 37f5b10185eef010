// The tree of a run: each job with its state, time, tokens and cost, live.

import { get } from "./api.js";
import { h, keyed, setText } from "./dom.js";
import { Latest } from "./latest.js";
import { compact, cost, elapsed, ENDED, firstLine, number, oneLine, tokens } from "./text.js";
import { childrenOf, ordered } from "./tree_order.js";
import { verdictText } from "./verdict.js";

const MAX_JOBS = 1000; // of a tree, as the service allows them by default

export class JobTree {
  constructor(live, currentId) {
    this.live = live;
    this.currentId = currentId;
    this.jobs = new Map();
    this.latest = new Latest();
    this.items = h("ul", { class: "tree-items", role: "tree", "aria-label": "Jobs of this run" });
    this.items.addEventListener("keydown", (event) => this.onKey(event));
    this.sum = h("span", { class: "muted" });
    this.timeline = h("a", { class: "to-run" }, "Timeline of the run");
    this.element = h("details", { class: "tree", open: matchMedia("(min-width: 901px)").matches }, h("summary", {}, h("span", {}, "Tree "), this.sum), this.timeline, this.items);
  }

  async load(rootId) {
    this.rootId = rootId;
    this.timeline.href = `?${new URLSearchParams({ run: rootId })}`;
    const ask = (signal) => get(`/v1/jobs/${encodeURIComponent(rootId)}/tree`, {}, { signal });
    const [found, newer] = await this.live.reading(() => this.latest.read(ask).catch(() => null));
    if (!found) return; // the job itself says what is wrong
    this.jobs = new Map(found.items.map((job) => [job.id, job]));
    this.changed(newer);
    this.render();
  }

  changed(lines) {
    const mine = lines.filter((line) => line.root_id === this.rootId);
    for (const line of mine) this.jobs.set(line.id, line);
    if (mine.length) this.render();
  }

  render() {
    const jobs = ordered(this.jobs).slice(0, MAX_JOBS);
    keyed(this.items, jobs, (job) => job.id, (job) => this.make(job), (element, job) => update(element, job));
    const ended = jobs.filter((job) => ENDED.has(job.state)).length;
    setText(this.sum, `${number(this.jobs.size)} jobs, ${number(ended)} ended`);
    if (!this.items.querySelector('[tabindex="0"]')) this.items.querySelector("a")?.setAttribute("tabindex", "0");
  }

  make(job) {
    const isCurrent = job.id === this.currentId;
    const parts = { name: h("span", { class: "name" }), dot: h("span", { class: "dot" }), step: h("span", { class: "step" }), use: h("span", { class: "use" }) };
    const link = h("a", { role: "treeitem", href: `?${new URLSearchParams({ job: job.id })}`, tabIndex: isCurrent ? 0 : -1, "aria-level": String(job.depth + 1), "aria-current": isCurrent ? "true" : undefined, class: `depth-${Math.min(job.depth, 8)}` }, parts.dot, parts.name, parts.use, parts.step);
    const element = h("li", { role: "none" }, link);
    Object.assign(element, { parts, link });
    return element;
  }

  countLiveBelow(id) {
    const below = childrenOf(this.jobs);
    const jobs = [...(below.get(id) ?? [])];
    for (const job of jobs) jobs.push(...(below.get(job.id) ?? [])); // grows while it is read
    return jobs.filter((job) => !ENDED.has(job.state)).length;
  }

  focus() {
    this.element.open = true;
    (this.items.querySelector('[aria-current="true"]') ?? this.items.querySelector("a"))?.focus();
  }

  onKey(event) {
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 };
    const links = [...this.items.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    let wanted = at + (steps[event.key] ?? 0);
    if (event.key === "Home") wanted = 0;
    else if (event.key === "End") wanted = links.length - 1;
    else if (!(event.key in steps)) return;
    const link = links[Math.max(0, Math.min(wanted, links.length - 1))];
    for (const other of links) other.tabIndex = other === link ? 0 : -1;
    link?.focus();
    event.preventDefault();
    event.stopPropagation();
  }
}

function update(element, job) {
  const { parts, link } = element;
  if (element.shown === job) return;
  element.shown = job;
  parts.dot.className = `dot state-${job.state}`;
  setText(parts.name, `${job.agent}: ${firstLine(job.description, 100)}`);
  const use = [elapsed(job), job.usage && tokens(job.usage) ? compact(tokens(job.usage)) : "", cost(job.usage)];
  setText(parts.use, use.filter(Boolean).join(" · "));
  const step = ENDED.has(job.state) ? job.reason : job.waiting_for ?? job.last_event;
  setText(parts.step, oneLine(`${verdictText(job)}${step && step !== job.state ? ` — ${step}` : ""}`, 120));
  link.classList.toggle("needs", job.approvals.length > 0);
}
