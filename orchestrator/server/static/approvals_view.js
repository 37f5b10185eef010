// Calls that wait for a person: the inbox of all jobs, and those of one job.

import { get, post } from "./api.js";
import { attempt, copyable, notice } from "./dialogs.js";
import { empty, fill, h, keyed, setText } from "./dom.js";
import { age, json } from "./text.js";

const SETTLE_MS = 150; // many jobs change at once; one request reads all

// The approvals of all jobs, read again when a job that has some changes.
export class ApprovalInbox {
  constructor(live) {
    this.items = [];
    this.readers = new Set();
    this.badge = h("span", { class: "badge", hidden: true });
    live.subscribe({ changed: (lines) => this.changed(lines), missed: () => this.refresh() });
  }

  changed(lines) {
    const waiting = new Set(this.items.map((one) => one.job_id));
    if (lines.some((line) => line.approvals.length || waiting.has(line.id))) this.refresh();
  }

  refresh() {
    this.isOld = true;
    this.reading ??= setTimeout(() => this.read(), SETTLE_MS);
  }

  // One request after another: what changes while one is answered is read by the next.
  async read() {
    try {
      while (this.isOld) {
        this.isOld = false;
        this.show((await get("/v1/approvals")).items);
      }
    } finally {
      this.reading = null;
      if (this.isOld) this.refresh(); // it failed, and something has changed since
    }
  }

  show(items) {
    this.items = items;
    this.badge.hidden = !items.length;
    setText(this.badge, String(items.length));
    for (const reader of [...this.readers]) reader(items);
  }

  subscribe(reader) {
    this.readers.add(reader);
    reader(this.items);
    return () => this.readers.delete(reader);
  }
}

export class ApprovalsView {
  constructor(app) {
    this.title = "Approvals";
    this.cards = h("div", { class: "cards" });
    this.none = h("div", {});
    this.element = h("section", { class: "page" }, h("h1", {}, "Approvals"), this.none, this.cards);
    this.unsubscribe = app.inbox.subscribe((items) => this.update(app, items));
    app.inbox.refresh();
  }

  show() {}

  update(app, items) {
    showCards(this.cards, items, app);
    fill(this.none, items.length ? null : empty("Nothing waits for a decision."));
  }

  stop() {
    this.unsubscribe();
  }
}

// A card stays the same element while its approval waits: what is typed in it is kept.
export function showCards(container, items, app) {
  keyed(container, items, (one) => one.id, (one) => approvalCard(one, app, { withJob: true }));
}

export function approvalCard(approval, app, { withJob = false } = {}) {
  const isAllowed = app.session.scopes.includes("approve");
  const message = h("input", { type: "text", placeholder: "Message to the agent (optional)", "aria-label": "Message to the agent", maxlength: 20000 });
  const extra = h("div", {});
  const answer = (button, decision, more = {}) =>
    attempt(button, async () => {
      await post(`/v1/approvals/${encodeURIComponent(approval.id)}`, { decision, message: message.value, ...more });
      notice(`Answered: ${decision} ${approval.tool}.`);
      app.inbox.refresh();
    });
  const buttons = approval.decisions.map((decision) => decisionButton(decision, approval, extra, answer));
  return h(
    "article",
    { class: "card", "aria-label": `Approval of ${approval.tool}` },
    h("header", {}, h("h2", {}, approval.tool), h("span", { class: "muted" }, approval.agent), approval.requested_at && h("span", { class: "muted" }, `${age(approval.requested_at)} ago`), withJob && h("a", { href: `?${new URLSearchParams({ job: approval.job_id })}` }, "Job ", approval.job_id.slice(-8))),
    approval.hint && h("p", { class: "hint" }, approval.hint),
    approval.truncated && h("p", { class: "hint" }, "Long arguments are cut here; the call itself has them completely."),
    argumentList(approval.arguments),
    isAllowed ? h("div", { class: "decide" }, message, h("div", { class: "buttons" }, buttons), extra) : h("p", { class: "muted" }, "Your key may not answer approvals."),
  );
}

function argumentList(given) {
  const names = Object.keys(given);
  if (!names.length) return h("p", { class: "muted" }, "Without arguments.");
  return h("dl", { class: "arguments" }, names.map((name) => [h("dt", {}, name), h("dd", {}, copyable(h("pre", { tabIndex: 0 }, json(given[name])), json(given[name], Infinity), `the ${name}`))]));
}

function decisionButton(decision, approval, extra, answer) {
  const kinds = { approve: "primary", reject: "danger" };
  const button = h("button", { type: "button", class: kinds[decision] ?? "" }, NAMES[decision] ?? decision);
  if (decision === "edit" && approval.truncated) button.disabled = true; // a person would send cut values
  button.addEventListener("click", () => {
    if (decision === "edit") form(extra, "Arguments (JSON)", json(approval.arguments), (send, text) => edit(send, text, answer));
    else if (decision === "respond") form(extra, "The agent gets this as the tool's result", "", (send, text) => answer(send, decision, { response: text }));
    else answer(button, decision);
  });
  return button;
}

const NAMES = { approve: "Approve", reject: "Reject", edit: "Edit …", respond: "Respond …" };

function form(extra, label, text, onSend) {
  const area = h("textarea", { "aria-label": label, rows: 8, spellcheck: "false", value: text });
  const send = h("button", { type: "button", class: "primary", on: { click: () => onSend(send, area.value) } }, "Send");
  const cancel = h("button", { type: "button", on: { click: () => fill(extra) } }, "Cancel");
  fill(extra, h("label", {}, label), area, h("div", { class: "buttons" }, send, cancel));
  area.focus();
}

function edit(send, text, answer) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    given = null;
  }
  if (given === null || typeof given !== "object" || Array.isArray(given)) {
    notice("The arguments are a JSON object: { \"name\": value }.", true);
    return;
  }
  answer(send, "edit", { arguments: given });
}
