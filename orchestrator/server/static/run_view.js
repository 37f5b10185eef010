// A run: its sums, what one can do with it, what waits for a person, and its timeline.

import { actionButtons, applyToFolder, tellForm } from "./actions.js";
import { get, Latest, post } from "./api.js";
import { showCards } from "./approvals_view.js";
import { ask, attempt, copyButton, notice } from "./dialogs.js";
import { fill, h } from "./dom.js";
import { ScriptView } from "./script_view.js";
import { budgetText, clock, compact, cost, duration, ENDED, firstLine, json, number, oneLine, plural, titleOf, tokens, when, moment } from "./text.js";
import { Timeline } from "./timeline.js";
import { childrenOf, countStates, marks, modelWaits, Overdue, treeUsage, verdictBadge } from "./trees.js";

const MAX_MODELS = 3;
const MAX_LISTED = 50; // of what went wrong: a run of a thousand jobs may fail a thousand times

export class RunView {
  constructor(app, parameters) {
    this.app = app;
    this.id = parameters.get("run");
    this.title = "Run";
    this.jobs = new Map();
    this.latest = new Latest();
    this.timeline = new Timeline();
    this.head = h("header", { class: "job-head" });
    this.actions = h("div", { class: "buttons" });
    this.facts = h("dl", { class: "facts" });
    this.cards = h("div", { class: "cards", hidden: true });
    this.wrong = h("section", { "aria-labelledby": "wrong-title", hidden: true });
    this.result = h("section", { class: "result", hidden: true });
    this.told = h("div", {});
    this.script = h("div", { class: "script-place", hidden: true });
    this.status = h("p", { class: "empty", role: "status" }, "Loading …");
    this.element = h("section", { class: "run" }, this.head, this.facts, this.cards, this.script, this.status, this.timeline.element, this.wrong, this.result, this.told);
    this.timeline.element.hidden = true;
    this.unsubscribe = [
      app.live.subscribe({ changed: (lines) => this.changed(lines), missed: () => this.load() }),
      app.inbox.subscribe(() => this.showApprovals()),
    ];
    this.overdue = new Overdue();
    this.timer = setInterval(() => this.tick(), 1000);
  }

  accepts(parameters) {
    return parameters.get("run") === this.id;
  }

  stop() {
    this.latest.stop();
    clearInterval(this.timer);
    for (const end of this.unsubscribe) end();
    this.timeline.stop();
    this.scriptView?.stop();
  }

  show() {
    if (!this.jobs.size) this.load();
  }

  async load() {
    const path = `/v1/jobs/${encodeURIComponent(this.id)}`;
    try {
      const ask = (signal) => Promise.all([get(`${path}/tree`, {}, { signal }), get(path, {}, { signal })]);
      const [found, newer] = await this.app.live.reading(() => this.latest.read(ask));
      if (!found) return;
      const [tree, job] = found;
      this.jobs = new Map(tree.items.map((one) => [one.id, one]));
      this.job = job; // with its result, which the lines of a tree do not have
      this.render();
      this.changed(newer);
    } catch (problem) {
      if (problem.status === 401) return;
      if (this.jobs.size) notice(problem.message, true);
      else fill(this.element, h("div", { class: "page", role: "alert" }, h("h1", {}, "This run cannot be shown"), h("p", {}, problem.message), h("p", {}, h("a", { href: "/" }, "All runs"))));
    }
  }

  changed(lines) {
    const mine = lines.filter((line) => this.rootId && line.root_id === this.rootId);
    if (!mine.length) return;
    const was = this.root.state;
    for (const line of mine) this.jobs.set(line.id, line);
    this.scriptView?.changed();
    if (this.root.state !== was) this.load();
    else this.render();
  }

  // The job at the root; of jobs that were submitted together, the first one.
  get root() {
    return this.jobs.get(this.id) ?? (childrenOf(this.jobs).get(null) ?? [])[0];
  }

  get isSubmission() {
    return (childrenOf(this.jobs).get(null) ?? []).length > 1;
  }

  render() {
    this.rootId = this.root.root_id;
    this.status.hidden = true;
    this.timeline.element.hidden = false;
    const name = this.isSubmission ? `${plural(this.jobs.size, "job")}, submitted together` : firstLine(this.root.description, 300);
    this.title = firstLine(name, 60);
    document.title = `${this.title} · fanout`;
    this.showHead(name);
    this.showFacts();
    this.timeline.setJobs(this.jobs);
    this.showApprovals();
    this.showScript();
    this.showWrong();
    this.showResult();
    this.showTellForm();
  }

  showHead(name) {
    const { root } = this;
    const key = [name, root.state, root.tasks_failed, root.tasks_unmerged].join();
    if (this.shownHead === key) return;
    this.shownHead = key;
    const up = [h("a", { href: "/" }, "Runs"), root.continues && [" · continues ", h("a", { href: `?${new URLSearchParams({ job: root.continues })}` }, root.continues.slice(-8))]];
    const labels = Object.entries(root.labels).map(([label, value]) => h("span", { class: "label" }, oneLine(`${label}=${value}`, 80)));
    const about = h("p", { class: "about" }, this.isSubmission ? null : [h("span", {}, root.agent), " · "], h("code", {}, root.id), copyButton(root.id, "the id"), labels);
    fill(this.head, h("div", {}, h("nav", { class: "crumbs", "aria-label": "Where" }, up), h("h1", { tabIndex: -1 }, name), about), this.actions);
    fill(this.actions, this.isSubmission ? this.submissionButtons() : this.runButtons());
  }

  runButtons() {
    const job = { ...this.job, ...this.root, result: this.job.result };
    const conversation = h("a", { class: "button", href: `?${new URLSearchParams({ job: job.id })}` }, "Conversation");
    const isChanged = ENDED.has(job.state) && Boolean(job.result?.changes || job.result?.files_modified?.length);
    const apply = isChanged && this.app.session.folders && h("button", { type: "button", class: "primary", on: { click: () => attempt(apply, () => applyToFolder(job.id)) } }, "Apply to a folder …");
    return [apply, conversation, actionButtons(this.app, job, { countLiveBelow: () => this.countLive() - 1, onChange: () => this.load() })];
  }

  submissionButtons() {
    if (!this.countLive() || !this.app.session.scopes.includes("submit")) return null;
    const button = h("button", { type: "button", class: "danger", on: { click: () => attempt(button, () => this.cancelAll()) } }, "Cancel all");
    return button;
  }

  async cancelAll() {
    const count = this.countLive();
    const question = `Cancel ${count === 1 ? "the job that has" : `the ${number(count)} jobs that have`} not ended? What is cancelled cannot be resumed.`;
    if (!(await ask(question, { yes: "Cancel them", no: "Let them run", isDangerous: true }))) return;
    const live = (childrenOf(this.jobs).get(null) ?? []).filter((job) => !ENDED.has(job.state));
    await Promise.all(live.map((job) => post(`/v1/jobs/${encodeURIComponent(job.id)}:cancel`)));
    notice("The jobs are being cancelled.");
    this.load();
  }

  countLive() {
    return [...this.jobs.values()].filter((job) => !ENDED.has(job.state)).length;
  }

  tick() {
    this.showFacts();
    if (!document.hidden && this.overdue.is([...this.jobs.values()])) this.load();
  }

  showFacts() {
    if (!this.jobs.size || document.hidden) return;
    const jobs = [...this.jobs.values()];
    const begin = Math.min(...jobs.map((job) => job.submitted_at));
    const isLive = jobs.some((job) => !job.finished_at);
    const end = isLive ? Date.now() / 1000 : Math.max(...jobs.map((job) => job.finished_at));
    const usage = treeUsage(this.jobs);
    const used = tokens(usage);
    const state = this.isSubmission ? h("span", {}, countStates(jobs)) : verdictBadge(this.root);
    const facts = {
      State: state,
      "Waits for": modelWaits(jobs).slice(0, MAX_MODELS).join(" · "),
      Time: duration(end - begin),
      Work: duration(jobs.reduce((sum, job) => sum + workSeconds(job), 0)),
      Jobs: this.isSubmission ? number(jobs.length) : countStates(jobs),
      Tokens: used ? `${compact(used)} in ${plural(usage.model_calls, "call")}` : "",
      Cost: cost(usage),
      Budget: this.isSubmission ? "" : budgetText(this.root.budget),
      Submitted: h("span", { title: moment(begin) }, when(begin)),
    };
    const shown = Object.entries(facts).filter(([, value]) => value);
    const key = shown.map(([name, value]) => `${name}=${value.textContent ?? value}`).join("\n");
    if (this.shownFacts === key) return;
    this.shownFacts = key;
    fill(this.facts, shown.map(([name, value]) => h("div", { title: HINTS[name], class: name === "Waits for" ? "wide" : "" }, h("dt", {}, name), h("dd", {}, value))));
  }

  // All sentences of the marks, as a list: whole, and in the order in which it happened.
  showWrong() {
    const all = repeated([...this.jobs.values()].flatMap((job) => marks(job).map((mark) => ({ ...mark, job, times: 1 }))));
    all.sort((one, other) => one.at - other.at);
    const key = all.map((one) => `${one.job.id} ${one.at} ${one.text} ${one.times}`).join("\n");
    this.wrong.hidden = !all.length;
    if (this.shownWrong === key) return;
    this.shownWrong = key;
    const items = all.slice(0, MAX_LISTED).map(({ at, kind, text, job, times }) =>
      h("li", {}, h("time", {}, clock(at)), h("span", { class: `run-mark is-${kind}`, "aria-hidden": "true" }), h("span", {}, h("a", { href: `?${new URLSearchParams({ job: job.id })}` }, `${job.agent}: ${titleOf(job, 120)}`), h("span", { class: "sentence" }, oneLine(text, 2000), times > 1 && ` ${times} times.`))));
    const more = all.length - items.length;
    fill(this.wrong, h("h2", { id: "wrong-title" }, all.some((one) => one.kind !== "setback") ? "What went wrong" : "Setbacks"), h("ul", { class: "wrong" }, items), more > 0 && h("p", { class: "muted" }, `… and ${number(more)} more, on their jobs`));
  }

  showScript() {
    if (this.scriptView || !this.job.script || this.isSubmission) return;
    this.scriptView = new ScriptView(this.id);
    this.script.hidden = false;
    fill(this.script, this.scriptView.element);
    this.scriptView.changed();
  }

  showResult() {
    const { result } = this.job;
    const value = this.job.script && result?.output != null ? json(result.output) : "";
    const summary = this.isSubmission ? "" : value || (result?.summary ?? "");
    this.result.hidden = !summary;
    if (this.shownSummary === summary) return;
    this.shownSummary = summary;
    fill(this.result, h("h2", {}, "Result"), h("pre", { class: "prose" }, summary));
  }

  showApprovals() {
    const mine = this.app.inbox.items.filter((one) => this.jobs.has(one.job_id));
    this.cards.hidden = !mine.length;
    showCards(this.cards, mine, this.app);
  }

  showTellForm() {
    const isOpen = !ENDED.has(this.root.state) && !this.isSubmission && !this.job.script && this.app.session.scopes.includes("submit");
    if (isOpen && !this.told.firstChild) fill(this.told, tellForm(this.root.id));
    if (!isOpen) fill(this.told);
  }

  onKey(event) {
    if (this.timeline.onZoomKey(event)) return true;
    if (!["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) return false;
    this.timeline.focus();
    return true;
  }
}

// One entry for what a job says several times, such as of a verification that looks for its cause.
function repeated(all) {
  const found = new Map();
  for (const one of all) {
    const key = `${one.job.id} ${one.text}`;
    const known = found.get(key);
    if (known) known.times += 1;
    else found.set(key, one);
  }
  return [...found.values()];
}

const HINTS = {
  Time: "From the submission of the first job to the end of the last one",
  Budget: "What model calls in progress may use is reserved; what they do not use is free again when they end",
  Work: "The sum of the times in which jobs worked: several work at the same time",
};

// How long a job worked: neither in the queue nor waiting.
function workSeconds(job) {
  const now = Date.now() / 1000;
  const working = (job.phases ?? []).filter((phase) => !["queued", "waiting"].includes(phase.kind));
  return working.reduce((sum, phase) => sum + (phase.end ?? now) - phase.begin, 0);
}
