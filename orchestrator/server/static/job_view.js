// One job and its tree: its conversation, what it changed, its result, its task, and what one can do.

import { actionButtons } from "./actions.js";
import { get } from "./api.js";
import { ChangesView } from "./changes_view.js";
import { failureSentence } from "./conversation_items.js";
import { ConversationView } from "./conversation_view.js";
import { copyButton } from "./copy.js";
import { notice } from "./dialogs.js";
import { externalLink, fill, h, setText, stateBadge } from "./dom.js";
import { resultPanel, taskPanel } from "./job_panels.js";
import { JobTree } from "./job_tree.js";
import { Latest } from "./latest.js";
import { compact, cost, elapsed, ENDED, firstLine, moment, oneLine, tokens } from "./text.js";

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
    const tabList = h("div", { class: "tabs", role: "tablist", "aria-label": "About this job" }, Object.values(this.tabs));
    tabList.addEventListener("keydown", (event) => this.onTabKey(event));
    this.element = h(
      "section",
      { class: "job" },
      this.tree.element,
      h("div", { class: "detail" }, this.head, this.facts, tabList, Object.values(this.panels)),
    );
    this.unsubscribe = [
      app.live.subscribe({ changed: (lines) => this.changed(lines), missed: () => this.load() }),
      app.inbox.subscribe(() => this.countApprovals()),
    ];
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
      this.title = firstLine(job.description, 60);
      document.title = `${this.title} · fanout`;
      this.showHead();
      this.showActions();
      this.showFacts();
      this.showPanel();
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
  }

  showHead() {
    const { job } = this;
    const title = h("h1", { tabIndex: -1 }, firstLine(job.description, 300));
    const up = [h("a", { href: "/" }, "Runs")];
    if (job.parent_id) up.push(" / ", h("a", { href: `?${new URLSearchParams({ job: job.root_id })}` }, `run ${job.root_id.slice(-8)}`));
    if (job.continues) up.push(" · continues ", h("a", { href: `?${new URLSearchParams({ job: job.continues })}` }, job.continues.slice(-8)));
    const about = h("div", {}, h("nav", { class: "crumbs", "aria-label": "Where" }, up), title, h("p", { class: "about" }, h("span", {}, job.agent), " · ", h("code", {}, job.id), copyButton(job.id, "the id"), Object.entries(job.labels).map(([name, value]) => h("span", { class: "label" }, oneLine(`${name}=${value}`, 80)))));
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
