// How a script stands: its phases with counts, what it waits for, and its newest log lines.

import { get, Latest } from "./api.js";
import { fill, h } from "./dom.js";
import { number, oneLine, plural } from "./text.js";

const PAUSE_MS = 1_000; // between two reads while jobs change: a tree of hundreds changes all the time
const SHOWN_LINES = 12;
const COLUMNS = [["asked", "Asked"], ["answered", "Answered"], ["reused", "Reused"], ["failed", "Failed"], ["waiting", "Waiting"]];

export class ScriptView {
  constructor(jobId) {
    this.path = `/v1/jobs/${encodeURIComponent(jobId)}/script`;
    this.latest = new Latest();
    this.element = h("section", { class: "script", "aria-labelledby": "script-title", hidden: true });
  }

  stop() {
    this.latest.stop();
    clearTimeout(this.timer);
    this.timer = null;
  }

  // Reads it again soon: all changes until then are in the answer.
  changed() {
    this.timer ??= setTimeout(() => this.load(), this.isRead ? PAUSE_MS : 0);
  }

  async load() {
    try {
      const progress = await this.latest.read((signal) => get(this.path, {}, { signal }));
      if (progress) this.show(progress);
    } catch (problem) {
      if (problem.status !== 401) fill(this.element, h("p", { role: "alert" }, problem.message));
    } finally {
      this.isRead = true;
      this.timer = null;
    }
  }

  show(progress) {
    const key = JSON.stringify(progress);
    if (this.shown === key) return;
    this.shown = key;
    this.element.hidden = false;
    fill(this.element, h("h2", { id: "script-title" }, "Script"), phases(progress), waits(progress), end(progress), log(progress));
  }
}

function phases({ phases: listed }) {
  if (!listed.length) return null;
  const columns = COLUMNS.filter(([name]) => name !== "reused" || listed.some((phase) => phase.reused));
  const head = h("tr", {}, h("th", { scope: "col" }, "Phase"), columns.map(([, title]) => h("th", { scope: "col" }, title)));
  const rows = listed.map((phase) =>
    h("tr", { class: phase.waiting ? "is-open" : "" }, h("th", { scope: "row" }, oneLine(phase.name, 80) || "Before the first phase"), columns.map(([name]) => count(name, phase[name]))));
  return h("table", { class: "script-phases" }, h("thead", {}, head), h("tbody", {}, rows));
}

function count(name, value) {
  const isFault = name === "failed" && value > 0;
  return h("td", { class: isFault ? "is-failed" : "" }, value || name === "asked" ? number(value) : "-");
}

function waits({ waits_for: labels, waits_for_count: total }) {
  if (!total) return null;
  const more = total - labels.length;
  return h("p", { class: "script-waits" }, h("span", { class: "muted" }, "Waits for "), labels.map((label) => oneLine(label, 80)).join(", "), more > 0 && ` and ${number(more)} more`);
}

function end({ end: counts }) {
  if (!counts) return null;
  const parts = [
    `${plural(counts.asked, "call")} asked for`,
    `${number(counts.answered)} answered`,
    counts.kept && `${number(counts.kept)} of them by an earlier run`,
    counts.reused && `${number(counts.reused)} of them reused`,
    counts.failed && `${number(counts.failed)} failed`,
    counts.cancelled && `${number(counts.cancelled)} cancelled`,
    counts.never_run && `${number(counts.never_run)} never run`,
  ];
  return h("p", { class: "script-end" }, parts.filter(Boolean).join(", "), ".", counts.reasons.map((reason) => h("span", { class: "sentence" }, oneLine(reason, 300))));
}

function log({ log: lines }) {
  if (!lines.length) return null;
  return h("pre", { class: "script-log", "aria-label": "Log" }, lines.slice(-SHOWN_LINES).join("\n"));
}
