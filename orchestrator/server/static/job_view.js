// One job and its tree: its conversation, what it changed, its result, its task, and what one can do.

import { actionButtons } from "./actions.js";
import { get, Latest } from "./api.js";
import { ChangesView } from "./changes_view.js";
import { ConversationView, failureSentence } from "./conversation_view.js";
import { copyButton, notice } from "./dialogs.js";
import { empty, externalLink, fill, h, keyed, setText, stateBadge } from "./dom.js";
import { markdown } from "./markdown.js";
import { ScriptView } from "./script_view.js";
import { budgetText, bytes, compact, cost, duration, elapsed, ENDED, json, labelsOf, moment, number, oneLine, plural, titleOf, tokens } from "./text.js";
import { childrenOf, ordered, Overdue, verdictText } from "./trees.js";

const TABS = ["conversation", "changes", "result", "task"];

const FACT_CLASSES = { "Waits for": "wide", Why: "wide", Worker: "wide-only", Submitted: "wide-only" }; // a phone has no room for all

export class JobView {
  constructor(app, parameters) {
    this.app = app;
    this.id = parameters.get("job");
    this.title = "Job";
    this.tree = new JobTree(app.live, this.id);
    this.latest = new Latest();
    this.panels = Object.fromEntries(TABS.map((name) => [name, h("div", { class: "panel", role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true })]));
    this.tabs = Object.fromEntries(TABS.map((name) => [name, this.tab(name)]));
    this.head = h("header", { class: "job-head" }, h("p", { class: "muted", role: "status" }, "Loading the job …"));
    this.facts = h("dl", { class: "facts" });
    this.actions = h("div", { class: "buttons" });
    this.script = h("div", { hidden: true });
    const tabList = h("div", { class: "tabs", role: "tablist", "aria-label": "About this job" }, Object.values(this.tabs));
    tabList.addEventListener("keydown", (event) => this.onTabKey(event));
    this.element = h(
      "section",
      { class: "job" },
      this.tree.element,
      h("div", { class: "detail" }, this.head, this.facts, this.script, tabList, Object.values(this.panels)),
    );
    this.unsubscribe = [
      app.live.subscribe({ changed: (lines) => this.changed(lines), missed: () => this.load() }),
      app.inbox.subscribe(() => this.countApprovals()),
    ];
    this.overdue = new Overdue();
    this.timer = setInterval(() => this.job && this.tick(), 1000);
  }

  accepts(parameters) {
    return parameters.get("job") === this.id;
  }

  stop() {
    this.latest.stop();
    this.tree.latest.stop();
    clearInterval(this.timer);
    for (const end of this.unsubscribe) end();
    this.conversation?.stop();
    this.scriptView?.stop();
    this.changes?.stop();
  }

  tab(name) {
    const label = name[0].toUpperCase() + name.slice(1);
    const click = () => this.select(name);
    return h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, "aria-selected": "false", tabIndex: -1, on: { click } }, label, h("span", { class: "badge", hidden: true }));
  }

  select(name) {
    const parameters = new URLSearchParams({ job: this.id });
    if (name !== TABS[0]) parameters.set("tab", name);
    this.app.navigate(parameters, { replace: true });
  }

  onTabKey(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const ends = { Home: 0, End: TABS.length - 1 };
    if (!(event.key in steps) && !(event.key in ends)) return;
    const at = TABS.indexOf(this.current);
    const wanted = event.key in ends ? ends[event.key] : (at + steps[event.key] + TABS.length) % TABS.length;
    this.select(TABS[wanted]);
    this.tabs[TABS[wanted]].focus();
    event.preventDefault();
  }

  onKey(event) {
    const number = Number(event.key);
    if (number >= 1 && number <= TABS.length) this.select(TABS[number - 1]);
    else if (["j", "k", "ArrowDown", "ArrowUp"].includes(event.key) && !event.target.closest?.(".detail")) this.tree.focus();
    else return false;
    return true;
  }

  show(parameters) {
    const wanted = parameters.get("tab");
    this.current = TABS.includes(wanted) ? wanted : TABS[0];
    for (const name of TABS) {
      const isShown = name === this.current;
      this.panels[name].hidden = !isShown;
      this.tabs[name].setAttribute("aria-selected", String(isShown));
      this.tabs[name].tabIndex = isShown ? 0 : -1;
    }
    if (!this.job && !this.latest.isReading) this.load();
    else if (this.job) this.showPanel();
  }

  async load() {
    try {
      const ask = (signal) => get(`/v1/jobs/${encodeURIComponent(this.id)}`, {}, { signal });
      const [job, newer] = await this.app.live.reading(() => this.latest.read(ask));
      if (!job) return;
      this.job = job;
      this.line = job;
      this.title = titleOf(job, 60);
      document.title = `${this.title} · fanout`;
      this.showHead();
      this.showActions();
      this.showFacts();
      this.showPanel();
      this.showScript();
      this.conversation?.jobChanged(job);
      this.changed(newer);
      await this.tree.load(job.root_id);
      this.conversation?.treeLoaded();
    } catch (problem) {
      if (problem.status !== 401) this.failed(problem);
    }
  }

  failed(problem) {
    if (this.job) notice(problem.message, true);
    else fill(this.element, h("div", { class: "page", role: "alert" }, h("h1", {}, "This job cannot be shown"), h("p", {}, problem.message), h("p", {}, h("a", { href: "/" }, "All runs"))));
  }

  changed(lines) {
    this.tree.changed(lines);
    this.conversation?.linesChanged(lines);
    if (lines.some((line) => line.parent_id === this.id || line.id === this.id)) this.scriptView?.changed();
    const mine = lines.find((line) => line.id === this.id);
    if (!mine || !this.job) return;
    const isOther = mine.state !== this.line.state;
    this.line = mine;
    this.showFacts();
    if (isOther) this.load();
  }

  tick() {
    this.showFacts();
    this.conversation?.tick();
    if (!document.hidden && this.overdue.is([this.line, ...this.tree.jobs.values()])) this.load();
  }

  showHead() {
    const { job } = this;
    const title = h("h1", { tabIndex: -1 }, titleOf(job, 300));
    const up = [h("a", { href: "/" }, "Runs")];
    if (job.parent_id) up.push(" / ", h("a", { href: `?${new URLSearchParams({ job: job.root_id })}` }, `run ${job.root_id.slice(-8)}`));
    if (job.continues) up.push(" · continues ", h("a", { href: `?${new URLSearchParams({ job: job.continues })}` }, job.continues.slice(-8)));
    const about = h("div", {}, h("nav", { class: "crumbs", "aria-label": "Where" }, up), title, h("p", { class: "about" }, h("span", {}, job.agent), " · ", h("code", {}, job.id), copyButton(job.id, "the id"), labelsOf(job).map((label) => h("span", { class: "label" }, oneLine(label, 80)))));
    fill(this.head, about, this.actions);
  }

  showFacts() {
    const { job, line } = this;
    const usage = line.usage;
    const facts = {
      State: stateBadge(line.state),
      [ENDED.has(line.state) ? "Why" : "Waits for"]: oneLine(ENDED.has(line.state) ? failureSentence(job, job.result?.error) || line.reason : line.waiting_for, 300),
      Time: elapsed(line),
      Tokens: usage && tokens(usage) ? `${compact(tokens(usage))} in ${usage.model_calls} calls` : "",
      Cost: cost(usage),
      Budget: budgetText(line.budget),
      Attempt: line.attempt > 1 ? String(line.attempt) : "",
      Worker: line.worker ?? "",
      Submitted: moment(job.submitted_at),
    };
    const shown = Object.entries(facts).filter(([, value]) => value);
    const key = shown.map(([name, value]) => `${name}=${value instanceof Node ? value.textContent : value}`).join("\n");
    if (this.shownFacts === key) return;
    this.shownFacts = key;
    fill(this.facts, shown.map(([name, value]) => h("div", { class: FACT_CLASSES[name] }, h("dt", {}, name), h("dd", {}, value))));
  }

  showScript() {
    if (this.scriptView || !this.job.script) return;
    this.scriptView = new ScriptView(this.id);
    this.script.hidden = false;
    fill(this.script, this.scriptView.element);
    this.scriptView.changed();
  }

  showActions() {
    const buttons = actionButtons(this.app, this.job, { countLiveBelow: () => this.tree.countLiveBelow(this.id), onChange: () => this.load() });
    fill(this.actions, buttons, this.traceLink());
  }

  traceLink() {
    const template = this.app.session.trace_url;
    if (!template) return null;
    return externalLink("Trace", template.replaceAll("{trace_id}", this.job.trace_id ?? ""));
  }

  showPanel() {
    const panel = this.panels[this.current];
    if (!this.conversation) {
      this.conversation = new ConversationView(this.app, this.job, this.tree);
      fill(this.panels.conversation, this.conversation.whole);
    }
    if (this.current === "conversation") this.conversation.toEnd();
    else if (this.current === "changes") this.showChanges();
    else if (this.current === "result") fill(panel, resultPanel(this.job));
    else fill(panel, taskPanel(this.job));
  }

  showChanges() {
    const isNew = this.changes?.state !== this.job.state;
    if (!isNew) return this.changes.list?.render();
    this.changes?.stop();
    this.changes = new ChangesView(this.app, this.id);
    this.changes.state = this.job.state;
    fill(this.panels.changes, this.changes.element);
    return this.changes.load(this.job);
  }

  count(tab, text) {
    const badge = this.tabs[tab].querySelector(".badge");
    badge.hidden = !text;
    setText(badge, text);
  }

  countApprovals() {
    const mine = this.app.inbox.items.filter((one) => one.job_id === this.id);
    this.count("conversation", mine.length ? String(mine.length) : "");
  }
}

const MAX_JOBS = 1000; // of a tree, as the service allows them by default

// The tree of a run: each job with its state, time, tokens and cost, live.
class JobTree {
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
    setText(this.sum, `${plural(this.jobs.size, "job")}, ${number(ended)} ended`);
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
  setText(parts.name, `${job.agent}: ${titleOf(job, 100)}`);
  const use = [elapsed(job), job.usage && tokens(job.usage) ? compact(tokens(job.usage)) : "", cost(job.usage)];
  setText(parts.use, use.filter(Boolean).join(" · "));
  const step = ENDED.has(job.state) ? job.reason : job.waiting_for ?? job.last_event;
  setText(parts.step, oneLine(`${verdictText(job)}${step && step !== job.state ? ` — ${step}` : ""}`, 120));
  link.classList.toggle("needs", job.approvals.length > 0);
}

function resultPanel(job) {
  const { result } = job;
  if (!result) return empty("The job has not ended.");
  return h(
    "div",
    { class: "result" },
    result.error && section("Why it did not succeed", h("p", { class: "problem-text" }, failureSentence(job, result.error))),
    result.summary && section("Summary", markdown(result.summary)),
    result.output !== null && result.output !== undefined && section("Output", h("pre", { class: "json", tabIndex: 0 }, json(result.output))),
    result.verified && verification(result.verified),
    result.unread_messages?.length ? section("Messages that the agent did not read", h("ul", {}, result.unread_messages.map((text) => h("li", {}, text)))) : null,
    section("Figures", figures(result, job)),
  );
}

function verification(verified) {
  const verdict = verified.exit_code === 0 ? "passes" : `fails with exit code ${verified.exit_code}`;
  return section("Verification", h("p", {}, h("code", {}, verified.command), ` ${verdict} after ${duration(verified.seconds)}`), verified.output_tail && h("pre", { tabIndex: 0 }, verified.output_tail));
}

function figures(result, job) {
  const all = job.usage;
  const files = (result.files_modified?.length ?? 0) + (result.files_omitted ?? 0);
  const facts = {
    "Changed files": number(files),
    "Model calls": number(result.usage.model_calls),
    "Tool calls": number(result.usage.tool_calls),
    "Tokens in, out, cached": [result.usage.input_tokens, result.usage.output_tokens, result.usage.cached_tokens].map(compact).join(", "),
    Cost: cost(result.usage),
    "Cost with its tasks": cost(all),
    Queued: duration(result.queued_seconds),
    Executed: duration(result.execution_seconds),
    Attempts: String(result.attempts),
    Sandbox: result.sandbox ?? "",
    Ended: moment(job.finished_at),
  };
  return table(facts);
}

function taskPanel(job) {
  const limits = Object.fromEntries(Object.entries(job.limits ?? {}).filter(([, value]) => value !== null));
  if (limits.memory_bytes) limits.memory_bytes = bytes(limits.memory_bytes);
  return h(
    "div",
    { class: "result" },
    section("Task", markdown(job.description)),
    job.context && section("Context", markdown(job.context)),
    section(
      "Specification",
      table({
        Agent: job.agent,
        Model: job.model ?? "",
        Owner: job.owner,
        Tenant: job.tenant,
        Verify: job.verify ?? "",
        "Verify merges": job.verify_merges ?? "",
        Priority: job.priority ? String(job.priority) : "",
        Snapshot: job.snapshot ?? "",
        Limits: Object.entries(limits).map(([name, value]) => `${name}=${value}`).join(", "),
        "Needs approval": Object.keys(job.interrupt_on ?? {}).join(", "),
      }),
    ),
  );
}

function section(title, ...content) {
  return h("section", {}, h("h3", {}, title), ...content);
}

function table(facts) {
  const shown = Object.entries(facts).filter(([, value]) => value);
  return h("dl", { class: "table-list" }, shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
