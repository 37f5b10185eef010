// A job's conversation on the screen: the newest part first, older parts on demand, live at its end.
// Who has scrolled up stays where they read; at the end the page follows.

import { follow, get } from "./api.js";
import { tellForm } from "./actions.js";
import { Conversation } from "./conversation.js";
import { itemContent, itemText } from "./conversation_items.js";
import { attempt } from "./dialogs.js";
import { fill, h, keyed, setText } from "./dom.js";
import { Latest } from "./latest.js";
import { compact, ENDED, firstLine, number, oneLine, seconds, stateName } from "./text.js";
import { todoList } from "./job_panels.js";
import { statusOf, titleOf } from "./tool_card.js";

const PAGE = 400; // entries that are read at once
const MAX_ENTRIES = 4_000; // kept while nobody reads further up; earlier ones can be read again
const MAX_SUMMARIES = 100; // read one after another
const NEAR_END = 40; // pixels
const SHOW_SYSTEM = "fanout.system";
const TYPES = [
  "job.state", "sandbox.ready", "session.event", "model.request", "model.reply", "tool.call", "tool.result", "todos",
  "approval.requested", "approval.resolved", "child.submitted", "child.finished", "child.landed", "landing", "message",
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

  // What `conversation_items.js` asks.
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

const ACTIVITIES = { sandbox: "opens its sandbox", queue: "waits for the rate limit of the model", verification: "runs the verification", landing: "merges changes", changes: "collects its changes" };

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
