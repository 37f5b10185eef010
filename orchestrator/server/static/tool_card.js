// A call of a tool with its result as one card: what it was asked in words that a person reads, what
// came out, how long it took. A long text is folded; the whole of it comes when somebody asks.

import { get } from "./api.js";
import { hasFailed, resultOf } from "./conversation.js";
import { attempt, copyable, copyButton } from "./dialogs.js";
import { marked } from "./changes_view.js";
import { pairOfLines } from "./diff_lines.js";
import { fill, h } from "./dom.js";
import { codeElement } from "./markdown.js";
import { bytes, json, number, oneLine, seconds } from "./text.js";

const SHOWN_LINES = 12; // of an output before it is folded
const SHOWN_CHARACTERS = 3_000;
const MAX_SHOWN = 1_000_000; // characters of a text that is shown whole
const LOOKS = new Set(["ls", "read_file", "glob", "grep", "check_task", "list_tasks", "wait_tasks"]); // their output is rarely read
const MAIN = ["command", "file_path", "path", "pattern", "query", "url", "description", "skill", "name"];

export function toolCard(call, { isOpen, onToggle, jobId, now }) {
  const body = h("div", { class: "tool-body", hidden: !isOpen });
  const status = h("span", { class: "tool-status" }, statusOf(call, now));
  const button = h(
    "button",
    { type: "button", class: "tool-line", "aria-expanded": String(isOpen) },
    h("span", { class: `lamp lamp-${toneOf(call)}`, role: "img", "aria-label": TONES[toneOf(call)] }),
    h("span", { class: "tool-name" }, call.tool),
    h("span", { class: "tool-title" }, titleOf(call)),
    status,
  );
  const fillBody = () => fill(body, bodyOf(call, jobId));
  button.addEventListener("click", () => {
    body.hidden = !body.hidden;
    button.setAttribute("aria-expanded", String(!body.hidden));
    if (!body.firstChild) fillBody();
    onToggle(!body.hidden);
  });
  if (isOpen) fillBody();
  const card = h("article", { class: `tool-card tone-${toneOf(call)}`, "aria-label": `${call.tool} ${oneLine(titleOf(call), 80)}` }, h("div", { class: "tool-head" }, button, copyOf(call)), body);
  card.tick = (time) => call.state === "running" && fill(status, statusOf(call, time));
  return card;
}

// Of a call that runs a command, which its line may show cut.
function copyOf(call) {
  const command = call.arguments?.command;
  return typeof command === "string" && command ? copyButton(command, "the command") : null;
}

const TONES = { running: "running", good: "done", bad: "failed", missing: "without a result", asked: "not begun" };

export function toneOf(call) {
  if (call.state === "done") return hasFailed(call) ? "bad" : "good";
  return call.state in TONES ? call.state : "asked";
}

// What failed is open, and so is what is short; what only looks at files is not.
export function opensItself(call) {
  if (toneOf(call) === "bad" || call.state === "missing") return true;
  if (call.state === "running") return Boolean(call.live);
  if (LOOKS.has(call.tool) || call.state !== "done") return false;
  const lines = outputOf(call).split("\n").length + textsOf(call).reduce((sum, text) => sum + text.split("\n").length, 0);
  return lines <= SHOWN_LINES && call.tool in PRESENTED;
}

export function statusOf(call, now) {
  if (call.state === "running") return call.isWaiting ? "waits for its tasks" : seconds(now - (call.startedAt ?? call.at));
  if (call.state === "missing") return "no result";
  if (call.state === "asked") return "not begun";
  const code = call.result?.exit_code;
  const took = call.startedAt && call.endedAt - call.startedAt >= 0.05 ? seconds(call.endedAt - call.startedAt) : "";
  return [hasFailed(call) && (Number.isInteger(code) && code !== 0 ? `exit code ${code}` : "failed"), took].filter(Boolean).join(" · ");
}

export function titleOf(call) {
  const given = call.arguments ?? {};
  const main = MAIN.find((name) => typeof given[name] === "string" && given[name]);
  if (!main) return oneLine(Object.entries(given).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" "), 200);
  const where = main === "pattern" && typeof given.path === "string" ? ` in ${given.path}` : "";
  return oneLine(given[main], 200) + where;
}

// Tools whose arguments have a better form than a list of names and values.
const PRESENTED = {
  execute: (given) => [isLong(given.command) && codeElement(given.command, "sh"), rest(given, ["command"])],
  edit_file: (given) => [editLines(given), rest(given, ["file_path", "old_string", "new_string"])],
  write_file: (given) => [folded(String(given.content ?? ""), { language: extension(given.file_path) }), rest(given, ["file_path", "content"])],
};

function textsOf(call) {
  const given = call.arguments ?? {};
  return ["old_string", "new_string", "content"].map((name) => given[name]).filter((one) => typeof one === "string");
}

const isLong = (text) => typeof text === "string" && (text.includes("\n") || text.length > 100);
const extension = (path) => /\.(\w{1,10})$/.exec(String(path ?? ""))?.[1] ?? "";

function bodyOf(call, jobId) {
  const given = call.arguments ?? {};
  const present = PRESENTED[call.tool];
  let shown;
  try {
    shown = present ? present(given) : argumentsOf(given, titleOf(call));
  } catch {
    shown = argumentsOf(given, ""); // of a form that this page does not know
  }
  return [shown, outcome(call, jobId)];
}

function rest(given, without) {
  return argumentsOf(Object.fromEntries(Object.entries(given).filter(([name]) => !without.includes(name))), "");
}

// An argument that is the card's title is not shown again.
function argumentsOf(given, title) {
  const shown = Object.entries(given).filter(([, value]) => value !== null && value !== title);
  if (!shown.length) return null;
  return h("dl", { class: "tool-arguments" }, shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, typeof value === "string" || typeof value === "object" ? folded(json(value, MAX_SHOWN)) : String(value))]));
}

// The replaced lines and the new ones, with the words that differ.
function editLines(given) {
  const [before, after] = [given.old_string, given.new_string].map((text) => String(text ?? "").split("\n"));
  const lines = pairOfLines(before.slice(0, 200), after.slice(0, 200));
  const more = before.length + after.length - lines.length;
  return h("div", { class: "edit", tabIndex: 0, role: "region", "aria-label": "The edit" }, lines.map((line) => h("div", { class: `edit-line ${line.kind}` }, h("span", { class: "sign" }, line.kind === "add" ? "+" : "−"), h("code", {}, marked(line, line.text, String(given.file_path ?? ""))))), more > 0 && h("p", { class: "muted" }, `… ${number(more)} more lines`));
}

function outcome(call, jobId) {
  if (call.state === "missing") return h("p", { class: "hint" }, call.why);
  if (call.state !== "done") return call.live ? folded(call.live, { isTail: true }) : null;
  const text = outputOf(call);
  const whole = call.isWhole ? null : async () => outputOf({ ...call, result: resultOf(await get(`/v1/jobs/${encodeURIComponent(jobId)}/logs/${call.resultEvent.id}`), call.id) ?? call.result });
  if (!text) return call.tool in PRESENTED && call.tool !== "execute" ? null : h("p", { class: "muted" }, "No output.");
  return folded(text, { isTail: call.tool === "execute", whole, className: hasFailed(call) ? "output failed" : "output" });
}

const TEXTS = ["output", "content", "text", "stdout", "error", "message", "summary"];
const NOT_TOLD = new Set(["status", "success", "exit_code", "truncated", "isError"]);

// What a tool returned as a text: its main text and what else it says.
export function outputOf(call) {
  const { result } = call;
  if (result === null || result === undefined) return "";
  if (typeof result !== "object") return String(result);
  const texts = TEXTS.map((name) => textIn(result[name])).filter(Boolean);
  const asked = new Set(Object.values(call.arguments ?? {}));
  const others = Object.entries(result).filter(([name, value]) => !NOT_TOLD.has(name) && value !== null && !(TEXTS.includes(name) && textIn(value) !== null) && !asked.has(value) && !(name === "occurrences" && value === 1));
  const told = others.map(([name, value]) => line(name, value));
  return [...new Set(texts), ...(call.tool === "execute" ? [] : told)].join("\n");
}

// A text, or the texts of the parts that a server of MCP returns; null when it is something else.
function textIn(value) {
  if (typeof value === "string") return value;
  const isParts = Array.isArray(value) && value.length > 0 && value.every((one) => one?.type === "text" && typeof one.text === "string");
  return isParts ? value.map((one) => one.text).join("\n") : null;
}

function line(name, value) {
  if (Array.isArray(value) && value.length && value.every((one) => typeof one?.path === "string")) return value.map((one) => one.path + (one.is_dir ? "/" : "")).join("\n");
  if (Array.isArray(value) && value.every((one) => typeof one === "string")) return `${name}: ${value.join("\n")}`;
  return `${name}: ${typeof value === "object" ? JSON.stringify(value, null, 2) : value}`;
}

// A text of which the beginning (or the end) is shown, with a button for all of it.
export function folded(text, { isTail = false, language = "", whole = null, className = "" } = {}) {
  const lines = text.split("\n");
  const isShort = lines.length <= SHOWN_LINES + 3 && text.length <= SHOWN_CHARACTERS && !whole;
  const box = h("div", { class: `folded ${className}` });
  const copied = (element) => copyable(element, whole ?? text, "the text");
  const show = (shown) => (language ? codeElement(shown, language, text) : copied(h("pre", { tabIndex: shown.length > 500 ? 0 : undefined }, shown)));
  if (isShort) return fill(box, show(text.replace(/\n+$/, "")));
  const part = isTail ? lines.slice(-SHOWN_LINES).join("\n").slice(-SHOWN_CHARACTERS) : lines.slice(0, SHOWN_LINES).join("\n").slice(0, SHOWN_CHARACTERS);
  const what = whole ? "Show the complete text" : `Show all ${number(lines.length)} lines (${bytes(text.length)})`;
  const button = h("button", { type: "button", class: "more" }, what);
  button.addEventListener("click", () =>
    attempt(button, async () => {
      const found = whole ? await whole() : text;
      const shown = h("pre", { class: "whole", tabIndex: 0 }, json(found, MAX_SHOWN));
      fill(box, copied(shown));
      shown.focus({ preventScroll: true });
    }),
  );
  return fill(box, isTail ? [button, show(part)] : [show(part), button]);
}
