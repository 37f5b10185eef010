// A job's conversation on the screen: the newest part first, older parts on demand, live at its end.
// Who has scrolled up stays where they read; at the end the page follows.

import { tellForm } from "./actions.js";
import { follow, get, Latest } from "./api.js";
import { approvalCard } from "./approvals_view.js";
import { Conversation, textOf } from "./conversation.js";
import { attempt } from "./dialogs.js";
import { fill, h, keyed, setText, stateBadge } from "./dom.js";
import { markdown, plainText } from "./markdown.js";
import { clock, compact, cost, elapsed, ENDED, firstLine, json, moment, number, oneLine, seconds, stateName, tokens } from "./text.js";
import { folded, opensItself, statusOf, titleOf, toneOf, toolCard } from "./tool_card.js";

const PAGE = 400; // entries that are read at once
const MAX_ENTRIES = 4_000; // kept while nobody reads further up; earlier ones can be read again
const MAX_SUMMARIES = 100; // read one after another
const NEAR_END = 40; // pixels
const SHOW_SYSTEM = "fanout.system";
const TYPES = [
  "job.state", "sandbox.ready", "session.event", "model.request", "model.reply", "model.state", "tool.call", "tool.result",
  "todos", "approval.requested", "approval.resolved", "child.submitted", "child.finished", "child.landed", "landing", "message",
  "verify", "changes.collected", "checkpoint", "network.connection", "network.summary", "network.limit", "log",
]; // a stream of events passes on only those that are asked for by name

export class ConversationView {
  // `job` is the job's record; `tree` knows the lines of the jobs below it.
  constructor(app, job, tree) {
    this.app = app;
    this.job = job;
    this.line = job;
    this.tree = tree;
    this.task = { key: "task", kind: "task", at: job.submitted_at, version: 0, text: job.description };
    this.events = [];
    this.reading = new Latest();
    this.conversation = new Conversation();
    this.folds = new Map();
    this.approvalCards = new Map();
    this.summaries = new Map(); // by the id of the job
    this.before = null; // where the page of earlier entries ends
    this.isFollowing = !ENDED.has(job.state);
    this.showsSystem = localStorage.getItem(SHOW_SYSTEM) === "on";
    this.build();
    this.showTell();
    this.load();
    this.unsubscribe = app.inbox.subscribe(() => this.inboxChanged());
    this.observer = new ResizeObserver(() => this.toEnd());
    this.observer.observe(this.list);
    this.onScroll = () => this.scrolled();
    window.addEventListener("scroll", this.onScroll, { passive: true });
    this.element.addEventListener("scroll", this.onScroll, { passive: true });
  }

  build() {
    this.list = h("ol", { class: "conversation-items" });
    this.loading = h("p", { class: "empty", role: "status" }, "Loading the conversation …");
    this.earlier = h("button", { type: "button", class: "more earlier", hidden: true, on: { click: () => attempt(this.earlier, () => this.loadEarlier()) } }, "Show earlier entries");
    this.find = h("input", { type: "search", placeholder: "Find", "aria-label": "Find in the conversation", class: "short" });
    this.find.addEventListener("input", () => this.render());
    this.systemBox = h("input", { type: "checkbox", role: "switch", checked: this.showsSystem });
    this.systemBox.addEventListener("change", () => this.switchSystem());
    this.noMatch = h("p", { class: "empty no-match", role: "status", hidden: true }, "Nothing here fits. Earlier entries are searched when they are shown.");
    this.writing = h("div", { class: "writing", hidden: true });
    this.current = h("ul", { class: "now-list" });
    this.plan = h("details", { class: "plan", hidden: true }, (this.planHead = h("summary", {})), (this.planList = h("div", { class: "plan-list" })));
    this.latest = h("button", { type: "button", class: "latest", hidden: true, on: { click: () => this.followEnd() } }, "↓ Latest");
    this.needs = h("button", { type: "button", class: "needs-decision", hidden: true, on: { click: () => this.showApproval() } });
    this.dock = h("div", { class: "dock" }, this.latest, this.needs, this.plan, this.current);
    const tools = h("div", { class: "conversation-tools" }, this.find, h("label", { class: "check" }, this.systemBox, "System entries"));
    this.element = h("div", { class: "conversation", tabIndex: 0, role: "region", "aria-label": "Conversation" }, this.earlier, this.loading, this.noMatch, this.list, this.writing);
    this.whole = h("div", { class: "conversation-panel" }, tools, this.element, this.dock);
  }

  stop() {
    this.isStopped = true;
    this.reading.stop();
    this.unfollow?.();
    this.unsubscribe();
    this.observer.disconnect();
    window.removeEventListener("scroll", this.onScroll);
  }

  path() {
    return `/v1/jobs/${encodeURIComponent(this.job.id)}`;
  }

  async load() {
    try {
      const found = await this.readPage("end");
      if (!found) return;
      this.loading.hidden = true;
      this.setEvents(found.items, found.next_before);
      if (!this.conversation.end) this.followEvents(found.items.at(-1)?.id);
    } catch (problem) {
      if (problem.status !== 401) setText(this.loading, `The conversation cannot be shown: ${problem.message}`);
    }
  }

  readPage(before) {
    return this.reading.read((signal) => get(`${this.path()}/logs`, { before, limit: PAGE }, { signal }));
  }

  // All that is known is folded again: what was read later may complete what came before.
  setEvents(events, before) {
    this.events = events;
    this.before = before ?? null;
    this.conversation = Conversation.of(events);
    this.earlier.hidden = this.before === null;
    this.render();
  }

  async loadEarlier() {
    const found = await this.readPage(this.before);
    if (!found) return;
    const { scrollHeight, scrollTop } = this.scroller();
    this.setEvents([...found.items, ...this.events], found.next_before);
    this.scroller().scrollTop = scrollTop + this.scroller().scrollHeight - scrollHeight;
    if (this.earlier.hidden) this.element.focus({ preventScroll: true });
  }

  followEvents(after) {
    this.unfollow = follow(`${this.path()}/events`, TYPES, (_, event) => this.add(event), { resumable: true, after });
  }

  add(event) {
    this.events.push(event);
    this.conversation.add(event);
    if (this.conversation.end) this.unfollow(); // nothing comes after the end
    if (this.events.length > MAX_ENTRIES && this.isFollowing) {
      const kept = this.events.slice(MAX_ENTRIES / 2);
      this.reading.stop(); // a page of earlier entries would no longer be next to these
      this.setEvents(kept, kept[0].id);
    }
    this.schedule();
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      if (!this.isStopped) this.render();
    });
  }

  // What the items ask.
  now() {
    return Date.now() / 1000;
  }

  isEnded() {
    return ENDED.has(this.line.state);
  }

  childLine(id) {
    return this.tree.jobs.get(id);
  }

  // A card in which a person types stays the same element.
  approvalCard(approval, make) {
    if (!this.approvalCards.has(approval.id)) this.approvalCards.set(approval.id, make());
    return this.approvalCards.get(approval.id);
  }

  replaced(item, fields) {
    Object.assign(item, fields, { version: item.version + 1 });
    this.render();
  }

  render() {
    const wanted = this.find.value.trim().toLowerCase();
    const known = this.loading.hidden && this.before === null ? [this.task, ...this.conversation.items] : this.conversation.items;
    const items = known.filter((item) => (this.showsSystem || (item.kind !== "system" && !item.isHidden)) && (!wanted || itemText(item).toLowerCase().includes(wanted)));
    keyed(this.list, items, (item) => item.key, (item) => h("li", { class: `item item-${item.kind}` }), (element, item) => this.update(element, item));
    this.noMatch.hidden = !wanted || items.length > 0;
    this.showWriting();
    this.showPlan();
    this.readSummaries();
    this.tick();
    this.toEnd();
  }

  update(element, item) {
    if (element.item === item && element.version === item.version) return;
    element.item = item;
    element.version = item.version;
    const content = itemContent(item, this);
    if (element.firstChild !== null && element.firstChild === content) return; // somebody may type in it
    const hadFocus = element.contains(document.activeElement);
    fill(element, content);
    if (hadFocus) element.querySelector("button, a, summary")?.focus({ preventScroll: true });
  }

  // The end of a reply that is being written.
  showWriting() {
    const { partial } = this.conversation;
    this.writing.hidden = !partial;
    if (partial) setText(this.writing, partial);
    else fill(this.writing);
  }

  showPlan() {
    const { todos } = this.conversation;
    this.plan.hidden = !todos.length;
    if (!todos.length || this.shownTodos === todos) return;
    this.shownTodos = todos;
    const done = todos.filter((one) => one.status === "completed").length;
    const current = todos.find((one) => one.status === "in_progress");
    fill(this.planHead, h("strong", {}, `Plan: ${number(done)} of ${number(todos.length)} done`), current && h("span", { class: "muted" }, ` · ${firstLine(current.content, 120)}`));
    fill(this.planList, todoList(todos));
  }

  // What the job does now, each second.
  tick() {
    const time = this.now();
    const lines = this.nowLines(time);
    this.current.hidden = this.isEnded();
    this.dock.classList.toggle("bare", this.isEnded() && this.plan.hidden);
    keyed(this.current, lines, (one) => one.key, (one) => h("li", { class: `now-line tone-${one.tone}` }, h("span", { class: `lamp lamp-${one.tone}`, "aria-hidden": "true" }), h("span", { class: "now-text", role: "status" }), h("span", { class: "now-time", "aria-hidden": "true" })), (element, one) => {
      setText(element.children[1], one.text);
      setText(element.children[2], one.time);
    });
    for (const element of this.list.children) {
      if (element.item.kind === "call" && element.item.state === "running") element.querySelector(".tool-card")?.tick?.(time);
    }
  }

  nowLines(time) {
    const { state } = this.line;
    if (ENDED.has(state) || this.conversation.end) return [];
    if (state !== "running") return [{ key: state, tone: "asked", text: `${stateName(state)}${this.line.waiting_for ? `: ${this.line.waiting_for}` : ""}`, time: "" }];
    const activity = this.line.activity ?? null;
    const found = this.conversation.now().map(({ call, request, landing, since }) => {
      if (call) return { key: call.key, tone: "running", text: oneLine(`${call.tool}: ${titleOf(call)}`, 160), time: statusOf(call, time) };
      if (landing) return { key: "landing", tone: "running", text: `merges the changes of ${number(landing.children.length)} ${landing.children.length === 1 ? "job" : "jobs"}`, time: seconds(time - since) };
      const known = activity?.kind === "model" ? activity : {};
      return { key: "model", tone: "running", text: activityText({ kind: "model", attempt: request.tries, ...known, model: known.model ?? request.model }), time: timeOf(known, time, since) };
    });
    if (found.length) return found.slice(-3);
    if (activity) return [{ key: "activity", tone: "running", text: activityText(activity), time: timeOf(activity, time) }];
    return [{ key: "starts", tone: "running", text: firstLine(this.line.last_event, 160) || "works", time: "" }];
  }

  // What jobs below this one said at their end; a tool's result says it later, and not of each.
  async readSummaries() {
    if (this.isReading) return;
    this.isReading = true;
    for (const child of this.conversation.children.values()) {
      const isEnded = ENDED.has(this.childLine(child.id)?.state);
      if (!isEnded || child.summary || this.summaries.has(child.id) || this.summaries.size >= MAX_SUMMARIES) continue;
      this.summaries.set(child.id, "");
      const found = await get(`/v1/jobs/${encodeURIComponent(child.id)}`).catch(() => null);
      if (this.isStopped) return;
      this.summaries.set(child.id, found?.result?.summary ?? "");
      child.owner.version += 1;
      this.schedule();
    }
    this.isReading = false;
  }

  switchSystem() {
    this.showsSystem = this.systemBox.checked;
    localStorage.setItem(SHOW_SYSTEM, this.showsSystem ? "on" : "off");
    this.treeLoaded(); // the calls of children have more to show
    this.render();
  }

  jobChanged(job) {
    this.job = job;
    this.line = job;
    this.showTell();
    const { end } = this.conversation;
    if (end) end.version += 1; // the record says more about a failure
    this.render();
  }

  showTell() {
    const mayTell = this.app.session.scopes.includes("submit") && !this.isEnded();
    if (mayTell && !this.tell) this.dock.append((this.tell = tellForm(this.job.id)));
    if (!mayTell) this.tell?.remove();
  }

  // Lines of this job and of those below it, as they change.
  linesChanged(lines) {
    for (const line of lines) {
      if (line.id === this.job.id) this.line = line;
      const child = this.conversation.children.get(line.id);
      if (child) child.owner.version += 1;
    }
    this.schedule();
  }

  treeLoaded() {
    for (const item of this.conversation.items) if (item.children?.length) item.version += 1;
    this.schedule();
  }

  inboxChanged() {
    const mine = this.app.inbox.items.filter((one) => one.job_id === this.job.id);
    for (const approval of this.conversation.approvals.values()) approval.version += 1;
    this.needs.hidden = !mine.length;
    setText(this.needs, `${number(mine.length)} ${mine.length === 1 ? "call waits" : "calls wait"} for your decision`);
    this.schedule();
  }

  showApproval() {
    this.list.querySelector(".decide")?.closest(".item").scrollIntoView({ block: "center" });
    this.list.querySelector(".decide input")?.focus({ preventScroll: true });
  }

  // The box on a wide screen, the document on a phone.
  scroller() {
    return getComputedStyle(this.element).overflowY === "auto" ? this.element : document.scrollingElement;
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller();
    return scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  scrolled() {
    if (!this.element.checkVisibility()) return;
    const top = this.scroller().scrollTop;
    if (this.isAtEnd()) this.isFollowing = !this.isEnded();
    else if (top < (this.lastTop ?? 0) - 2) this.isFollowing = false;
    this.lastTop = top;
    this.latest.hidden = this.isAtEnd();
  }

  followEnd() {
    this.isFollowing = true;
    this.toEnd();
    this.isFollowing = !this.isEnded();
    this.element.focus({ preventScroll: true });
  }

  toEnd() {
    if (!this.element.checkVisibility()) return;
    const scroller = this.scroller();
    if (this.isFollowing) {
      scroller.scrollTop = scroller.scrollHeight;
      this.lastTop = scroller.scrollTop;
    }
    this.latest.hidden = this.isAtEnd();
  }
}

const ACTIVITIES = { environment: "prepares its environment", sandbox: "opens its sandbox", queue: "waits for the rate limit of the model", verification: "runs the verification", landing: "merges changes", changes: "collects its changes" };

// What a running job does, as its record says it; a kind of another release is shown by its name.
function activityText({ kind, model, tool, attempt, error }) {
  if (kind !== "model") return ACTIVITIES[kind] ?? oneLine(tool ?? kind, 100);
  const tries = attempt > 1 ? `, try ${attempt}${error ? `: ${oneLine(error, 80)}` : ""}` : "";
  return `model ${oneLine(String(model ?? "").split("/").at(-1), 60)}${tries}`;
}

// Nobody wants these read aloud each second.
function timeOf({ tokens, since }, time, begin = time) {
  return [seconds(time - (since ?? begin)), tokens ? `${compact(tokens)} tokens` : ""].filter(Boolean).join(" · ");
}

const LONG_TEXT = 6_000; // characters of what was said before it is folded

// Returns the content of an item; `view` knows the job, its tree, and what the reader has opened.
function itemContent(item, view) {
  return (CONTENTS[item.kind] ?? CONTENTS.system)(item, view);
}

// What a search looks at.
function itemText(item) {
  if (item.kind === "call") return [item.tool, json(item.arguments ?? "", 20_000), json(item.result ?? "", 20_000)].join(" ");
  if (item.kind === "system") return `${item.event.type} ${json(item.event.data ?? "", 5_000)}`;
  return json({ ...item, event: undefined, children: undefined, data: item.data }, 50_000);
}

const when = (item) => h("time", { title: moment(item.at) }, clock(item.at));

function bubble(kind, who, item, meta, ...content) {
  return h("article", { class: `bubble ${kind}`, "aria-label": who }, h("header", {}, h("span", { class: "speaker" }, who), h("span", { class: "muted" }, meta), when(item)), content);
}

const CONTENTS = {
  task: (item, view) => bubble("of-person", view.job.parent_id ? "Task" : "You", item, "", foldedMarkdown(item.text, item, view)),

  message: (item) => bubble("of-person", "You", item, "message to the agent", h("p", { class: "prose" }, item.text)),

  said(item, view) {
    const meta = [item.seconds >= 0.05 && seconds(item.seconds), item.usage && `${compact(item.usage.output_tokens ?? 0)} tokens`, item.tries > 1 && `try ${item.tries}`, item.fallback && `instead of ${item.fallback}`];
    const thoughts = item.thoughts?.trim() ? fold(item, "thoughts", view, `Thinking (${number(item.thoughts.trim().split("\n").length)} ${item.thoughts.trim().includes("\n") ? "lines" : "line"})`, () => markdown(item.thoughts)) : null;
    const text = item.text.trim() ? foldedMarkdown(item.text, item, view) : null;
    const error = item.error ? h("p", { class: "problem-text" }, `The model's reply ended with ${item.error}.`) : null;
    return bubble("of-agent", item.author || view.job.agent, item, meta.filter(Boolean).join(" · "), thoughts, text, item.isWhole ? null : wholeButton(item, view), error);
  },

  call(item, view) {
    const card = () => toolCard(item, { isOpen: view.folds.get(item.key) ?? opensItself(item), onToggle: (isOpen) => view.folds.set(item.key, isOpen), jobId: view.job.id, now: view.now() });
    if (!item.children.length) return card();
    const hasMore = view.showsSystem || toneOf(item) === "bad" || item.state === "missing";
    return [item.children.map((child) => childCard(child, view, item)), hasMore ? fold(item, "call", view, "Call and answer", card) : null];
  },

  child: (item, view) => item.children.map((child) => childCard(child, view)),

  step: (item) => h("h3", { class: "plan-step" }, h("span", { class: "step-number" }, `${number(item.number)} of ${number(item.count)}`), item.text),

  approval(item, view) {
    const open = view.app.inbox.items.find((one) => one.id === item.id);
    if (open && !item.answer) return view.approvalCard(open, () => approvalCard(open, view.app));
    const { answer } = item;
    const decision = answer ? (DECISIONS[answer.decision] ?? String(answer.decision)) : view.isEnded() ? "Not decided" : "Waits for a decision";
    const tone = answer?.decision === "reject" ? "bad" : answer ? "good" : "asked";
    return h(
      "article",
      { class: `tool-card approval tone-${tone}`, "aria-label": `Approval of ${item.tool}` },
      h("p", { class: "approval-line" }, h("span", { class: `lamp lamp-${tone}`, "aria-hidden": "true" }), h("strong", {}, decision), " ", h("code", {}, item.tool), answer?.person && ` by ${answer.person}`, answer?.message && `: ${oneLine(answer.message, 500)}`, when(item)),
      fold(item, "arguments", view, "Arguments", () => folded(json(answer?.arguments ?? item.arguments))),
    );
  },

  verify(item, view) {
    const { data } = item;
    const isGood = data.exit_code === 0;
    const call = { tool: "verification", state: "done", arguments: { command: String(data.command ?? "") }, result: { exit_code: Number.isInteger(data.exit_code) ? data.exit_code : 1, output: String(data.output_tail ?? "") }, startedAt: item.at - (Number(data.seconds) || 0), endedAt: item.at, children: [], isWhole: true };
    return toolCard(call, { isOpen: view.folds.get(item.key) ?? !isGood, onToggle: (isOpen) => view.folds.set(item.key, isOpen), jobId: view.job.id, now: view.now() });
  },

  landing(item, view) {
    const last = new Map(item.landed.map((one) => [one.id, one]));
    const isOpen = !item.landed.length && !view.isEnded();
    const count = item.children.length;
    const merged = [...last.values()].filter((one) => one.outcome === "in").length;
    const jobs = `${number(count)} ${count === 1 ? "job" : "jobs"}`;
    const title = isOpen ? `Merging the changes of ${jobs} …` : merged === 0 ? `Merged no changes of ${jobs}` : `Merged the changes of ${merged === count ? "" : `${number(merged)} of `}${jobs}`;
    return h(
      "article",
      { class: `tool-card landing tone-${isOpen ? "running" : merged === count ? "good" : "warn"}`, "aria-label": title },
      h("p", { class: "approval-line" }, h("span", { class: `lamp lamp-${isOpen ? "running" : merged === count ? "good" : "warn"}`, "aria-hidden": "true" }), h("strong", {}, title), when(item)),
      h("ul", { class: "landed" }, item.children.map((id) => landedLine(id, last.get(id), view))),
      item.checks.length ? fold(item, "checks", view, `${number(item.checks.length)} ${item.checks.length === 1 ? "check" : "checks"} of ${oneLine(item.checks[0].command, 80)}`, () => item.checks.map(checkLine)) : null,
    );
  },

  note: (item) => h("p", { class: `note ${item.tone ?? ""}` }, item.stream && h("span", { class: "muted" }, `${oneLine(item.stream, 30)}: `), h("span", { class: "note-text" }, item.text), when(item)),

  end(item, view) {
    const { line, job } = view;
    const error = item.error ?? job.result?.error;
    const took = elapsed({ ...line, finished_at: line.finished_at ?? item.at });
    const why = item.state === "succeeded" ? "" : failureSentence(job, error) || item.reason || line.reason;
    return h("article", { class: `ended ended-${item.state === "succeeded" ? "good" : "bad"}`, "aria-label": "The end" }, h("p", {}, stateBadge(item.state), took && h("span", { class: "muted" }, ` after ${took}`), when(item)), why && h("p", { class: "problem-text" }, why));
  },

  system(item, view) {
    const { event } = item;
    return fold(item, "event", view, [h("span", { class: "kind" }, event.type), " ", h("span", { class: "muted" }, oneLine(brief(event), 160)), when(item)], () => h("pre", { class: "json", tabIndex: 0 }, json(event)));
  },
};

const DECISIONS = { approve: "Approved", reject: "Rejected", edit: "Approved with other arguments", respond: "Answered instead of the tool" };

// Why a job did not succeed, in words for people; the class of the error is for programs.
export function failureSentence(job, error) {
  const why = job.error_type ? job.reason : error?.message; // such a record has a sentence too
  return [why, job.next_step].filter(Boolean).join(" ");
}

function brief(event) {
  const { event: _, ...data } = event.data ?? {};
  const shown = Object.entries(data).filter(([, value]) => value !== null && value !== "");
  return shown.map(([name, value]) => (name === "text" || name === "state" ? firstLine(value, 120) : `${name}=${oneLine(typeof value === "string" ? value : JSON.stringify(value), 60)}`)).join(" ");
}

// Something that is made when it is opened for the first time.
function fold(item, part, view, label, make) {
  const key = `${item.key}/${part}`;
  const inner = h("div", { class: "fold-body" });
  const element = h("details", { class: `fold fold-${part}`, open: view.folds.get(key) ?? false }, h("summary", {}, label), inner);
  if (element.open) fill(inner, make());
  element.addEventListener("toggle", () => {
    view.folds.set(key, element.open);
    if (element.open && !inner.firstChild) fill(inner, make());
  });
  return element;
}

function foldedMarkdown(text, item, view) {
  if (text.length <= LONG_TEXT || view.folds.get(`${item.key}/text`)) return markdown(text);
  const end = text.lastIndexOf("\n", LONG_TEXT);
  const shown = h("div", {}, markdown(text.slice(0, end > LONG_TEXT / 2 ? end : LONG_TEXT)));
  const more = h("button", { type: "button", class: "more" }, `Show all ${number(text.length)} characters`);
  more.addEventListener("click", () => {
    view.folds.set(`${item.key}/text`, true);
    fill(shown, markdown(text));
  });
  shown.append(more);
  return shown;
}

function wholeButton(item, view) {
  const button = h("button", { type: "button", class: "more" }, "Show the complete text");
  button.addEventListener("click", () =>
    attempt(button, async () => {
      const event = await get(`/v1/jobs/${encodeURIComponent(view.job.id)}/logs/${item.event.id}`);
      view.folds.set(`${item.key}/text`, true);
      view.replaced(item, { text: textOf(event), isWhole: true });
    }),
  );
  return button;
}

const OUTCOMES = { in: ["good", "merged"], out: ["bad", "not merged"], "sent back": ["warn", "returned to its agent"] };

function outcomeOf(landed) {
  return OUTCOMES[landed?.outcome] ?? ["asked", landed ? oneLine(landed.outcome, 40) : ""];
}

function landedLine(id, landed, view) {
  const [tone, word] = outcomeOf(landed);
  const line = view.childLine(id);
  const paths = Array.isArray(landed?.paths) ? landed.paths.filter((one) => typeof one === "string") : [];
  const conflicts = Array.isArray(landed?.conflicts) ? landed.conflicts.map((one) => one?.path).filter((one) => typeof one === "string") : [];
  return h("li", { class: `tone-${tone}` }, h("span", { class: `lamp lamp-${tone}`, "aria-hidden": "true" }), h("span", {}, h("a", { href: jobAddress(id) }, line?.agent ?? id.slice(-8)), word && ` ${word}`, paths.length > 0 && [": ", h("code", {}, oneLine(paths.join(", "), 200))], landed?.reason && h("span", { class: "why" }, ` — ${oneLine(landed.reason, 400)}`), conflicts.length > 0 && [" (conflicts: ", h("code", {}, oneLine(conflicts.join(", "), 200)), ")"]));
}

function checkLine(check) {
  const count = Array.isArray(check.children) ? check.children.length : 0;
  const what = count ? `${number(count)} of ${number(Number(check.of) || count)} together` : "without any of them";
  const isGood = check.exit_code === 0;
  return h("div", { class: "check-line" }, h("p", {}, h("span", { class: `lamp lamp-${isGood ? "good" : "bad"}`, "aria-hidden": "true" }), `${what}: ${isGood ? "passes" : "fails"}`, Number.isFinite(check.seconds) && h("span", { class: "muted" }, ` ${seconds(check.seconds)}`)), !isGood && check.output_tail ? folded(String(check.output_tail), { isTail: true, className: "output failed" }) : null);
}

const jobAddress = (id) => `?${new URLSearchParams({ job: id })}`;

function childCard(child, view, call) {
  const line = view.childLine(child.id);
  const state = line?.state ?? child.state;
  const task = line?.description ?? call?.arguments?.description ?? "";
  const use = [elapsed(line ?? {}), line?.usage && tokens(line.usage) ? `${compact(tokens(line.usage))} tokens` : "", cost(line?.usage)].filter(Boolean).join(" · ");
  const [tone, word] = outcomeOf(child.landed);
  const says = ENDED.has(state) ? (child.summary || child.error || view.summaries.get(child.id) || line?.reason || child.reason) : (line?.waiting_for ?? line?.last_event);
  return h(
    "a",
    { class: `child-card state-${ENDED.has(state) ? "ended" : "live"}`, href: jobAddress(child.id), "aria-label": `${child.agent || line?.agent}: ${oneLine(task, 120)}, ${stateName(state)}` },
    h("span", { class: "child-head" }, stateBadge(state), h("strong", {}, child.agent || line?.agent), word && h("span", { class: `pill tone-${tone}` }, word), h("span", { class: "muted use" }, use)),
    h("span", { class: "child-task" }, firstLine(task, 300)),
    says && h("span", { class: "child-says" }, firstLine(plainText(says), 300)),
  );
}

const MARKS = { completed: "✓", in_progress: "▸", pending: "○" };

function todoList(todos) {
  return h("ol", { class: "todos" }, todos.map(todo));
}

function todo(one) {
  const status = String(one?.status ?? "pending");
  const isKnown = Object.hasOwn(MARKS, status);
  return h("li", { class: isKnown ? `todo-${status}` : "" }, h("span", { class: "mark", "aria-hidden": "true" }, isKnown ? MARKS[status] : "·"), h("span", {}, one?.content ?? ""), h("span", { class: "sr" }, ` (${status.replace("_", " ")})`));
}
