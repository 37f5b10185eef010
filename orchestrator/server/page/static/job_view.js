// One job and its tree: journal, plan, result, changes, approvals, task, and what one can do with it.

import { actionButtons, tellForm } from "./actions.js";
import { get } from "./api.js";
import { showCards } from "./approvals_view.js";
import { ChangesView } from "./changes_view.js";
import { notice } from "./dialogs.js";
import { empty, externalLink, fill, h, setText, stateBadge } from "./dom.js";
import { Journal } from "./journal.js";
import { resultPanel, taskPanel, todoPanel } from "./job_panels.js";
import { JobTree } from "./job_tree.js";
import { compact, cost, elapsed, ENDED, firstLine, moment, oneLine, tokens } from "./text.js";

const TABS = ["journal", "todos", "result", "changes", "approvals", "task"];

export class JobView {
  constructor(app, parameters) {
    this.app = app;
    this.id = parameters.get("job");
    this.title = "Job";
    this.todos = [];
    this.tree = new JobTree(this.id);
    this.panels = Object.fromEntries(TABS.map((name) => [name, h("div", { class: "panel", role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true })]));
    this.tabs = Object.fromEntries(TABS.map((name) => [name, this.tab(name)]));
    this.head = h("header", { class: "job-head" });
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
      app.inbox.subscribe(() => this.showApprovals()),
    ];
    this.timer = setInterval(() => this.job && this.showFacts(), 1000);
  }

  accepts(parameters) {
    return parameters.get("job") === this.id;
  }

  stop() {
    this.isStopped = true;
    clearInterval(this.timer);
    for (const end of this.unsubscribe) end();
    this.journal?.stop();
    this.changes?.stop();
  }

  tab(name) {
    const label = name[0].toUpperCase() + name.slice(1);
    const click = () => this.select(name);
    return h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, "aria-selected": "false", tabIndex: -1, on: { click } }, label, h("span", { class: "badge", hidden: true }));
  }

  select(name) {
    const parameters = new URLSearchParams({ job: this.id });
    if (name !== "journal") parameters.set("tab", name);
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
    this.current = TABS.includes(wanted) ? wanted : "journal";
    for (const name of TABS) {
      const isShown = name === this.current;
      this.panels[name].hidden = !isShown;
      this.tabs[name].setAttribute("aria-selected", String(isShown));
      this.tabs[name].tabIndex = isShown ? 0 : -1;
    }
    if (!this.job && !this.isLoading) this.load();
    else if (this.job) this.showPanel();
  }

  async load() {
    this.isLoading = true;
    try {
      const job = await get(`/v1/jobs/${encodeURIComponent(this.id)}`);
      if (this.isStopped) return;
      this.job = job;
      this.line = job;
      this.title = firstLine(job.description, 60);
      document.title = `${this.title} · fanout`;
      this.showHead();
      this.showActions();
      this.showFacts();
      this.showPanel();
      this.showApprovals();
      this.tree.load(job.root_id);
    } catch (problem) {
      if (problem.status !== 401 && !this.isStopped) this.failed(problem);
    } finally {
      this.isLoading = false;
    }
  }

  failed(problem) {
    if (this.job) notice(problem.message, true);
    else fill(this.element, h("div", { class: "page", role: "alert" }, h("h1", {}, "This job cannot be shown"), h("p", {}, problem.message), h("p", {}, h("a", { href: "/" }, "All runs"))));
  }

  changed(lines) {
    this.tree.changed(lines);
    const mine = lines.find((line) => line.id === this.id);
    if (!mine || !this.job) return;
    const isOther = mine.state !== this.line.state;
    this.line = mine;
    this.showFacts();
    if (isOther) this.load();
  }

  showHead() {
    const { job } = this;
    const title = h("h1", { tabIndex: -1 }, firstLine(job.description, 300));
    const up = [h("a", { href: "/" }, "Runs")];
    if (job.parent_id) up.push(" / ", h("a", { href: `?${new URLSearchParams({ job: job.root_id })}` }, `run ${job.root_id.slice(-8)}`));
    if (job.continues) up.push(" · continues ", h("a", { href: `?${new URLSearchParams({ job: job.continues })}` }, job.continues.slice(-8)));
    const about = h("div", {}, h("nav", { class: "crumbs", "aria-label": "Where" }, up), title, h("p", { class: "about" }, h("span", {}, job.agent), " · ", h("code", {}, job.id), Object.entries(job.labels).map(([name, value]) => h("span", { class: "label" }, oneLine(`${name}=${value}`, 80)))));
    fill(this.head, about, this.actions);
  }

  showFacts() {
    const { job, line } = this;
    const usage = line.usage;
    const waits = line.waiting_for ?? (ENDED.has(line.state) ? null : line.last_event);
    const facts = {
      State: stateBadge(line.state),
      [ENDED.has(line.state) ? "Reason" : "Now"]: oneLine(ENDED.has(line.state) ? line.reason : waits, 300),
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
    fill(this.facts, shown.map(([name, value]) => h("div", { class: name === "Now" || name === "Reason" ? "wide" : "" }, h("dt", {}, name), h("dd", {}, value))));
  }

  showActions() {
    const isEnded = ENDED.has(this.job.state);
    const buttons = actionButtons(this.app, this.job, { countLiveBelow: () => this.tree.countLiveBelow(this.id), onChange: () => this.load() });
    fill(this.actions, buttons, this.traceLink());
    if (this.app.session.scopes.includes("submit") && !isEnded && !this.tellForm) this.tellForm = tellForm(this.id);
    if (isEnded) this.tellForm?.remove();
  }

  traceLink() {
    const template = this.app.session.trace_url;
    const traceId = /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(this.job.traceparent ?? "")?.[1];
    if (!template || (template.includes("{trace_id}") && !traceId)) return null;
    return externalLink("Trace", template.replaceAll("{trace_id}", traceId ?? ""));
  }

  showPanel() {
    const panel = this.panels[this.current];
    if (!this.journal) {
      this.journal = new Journal(this.id, { onTodos: (todos) => this.planned(todos) });
      fill(this.panels.journal, this.journal.element);
    }
    if (this.tellForm && !ENDED.has(this.job.state) && !this.tellForm.isConnected) this.panels.journal.append(this.tellForm);
    if (this.current === "journal") this.journal.toEnd();
    else if (this.current === "todos") fill(panel, todoPanel(this.todos));
    else if (this.current === "result") fill(panel, resultPanel(this.job));
    else if (this.current === "task") fill(panel, taskPanel(this.job));
    else if (this.current === "changes") this.showChanges();
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

  planned(todos) {
    this.todos = todos;
    const open = todos.filter((one) => one.status !== "completed").length;
    this.count("todos", open ? `${todos.length - open}/${todos.length}` : "");
    if (this.current === "todos") fill(this.panels.todos, todoPanel(todos));
  }

  count(tab, text) {
    const badge = this.tabs[tab].querySelector(".badge");
    badge.hidden = !text;
    setText(badge, text);
  }

  showApprovals() {
    const mine = this.app.inbox.items.filter((one) => one.job_id === this.id);
    this.count("approvals", mine.length ? String(mine.length) : "");
    const panel = this.panels.approvals;
    if (!this.cards) this.cards = h("div", { class: "cards" });
    showCards(this.cards, mine, this.app, { withJob: false });
    if (mine.length) {
      if (this.cards.parentNode !== panel) fill(panel, this.cards);
    } else fill(panel, empty("Nothing of this job waits for a decision. Earlier decisions are in the journal."));
  }
}
