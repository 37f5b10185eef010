// Texts and numbers for people. What others have written is shown as it is: characters that would
// hide or reorder text are made visible, and nothing else is changed.

// Control characters (without tab and line feed), marks that change the direction of text,
// invisible characters that carry text, and joiners where no script and no emoji has one: what
// `printable` of valid_text.py shows in the same way on a terminal.
const NEVER_SHOWN = String.raw`\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}`;
const LETTER = String.raw`[^\u0000-\u007f${NEVER_SHOWN}\u200c\u200d`; // the beginning of a class
const HIDDEN = new RegExp(
  String.raw`[${NEVER_SHOWN}]|(?<!${LETTER}\ufe0f])(?<![0-9#*])\ufe0f|(?<!${LETTER}])[\u200c\u200d]|[\u200c\u200d](?!${LETTER}\ufe0f])`,
  "gu",
);
const COLOURS = /\u001b\[[0-9;]*m/g; // of terminals: they only decorate

export function visible(text) {
  return String(text).toWellFormed().replace(COLOURS, "").replaceAll("\r\n", "\n").replace(HIDDEN, symbol);
}

function symbol(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

export function cut(text, length) {
  const whole = String(text);
  return whole.length <= length ? whole : `${whole.slice(0, length)}…`;
}

export function oneLine(text, length = 300) {
  return cut(String(text ?? "").slice(0, length * 4).replace(/\s+/g, " ").trim(), length);
}

export function firstLine(text, length = 300) {
  const line = String(text ?? "").split("\n").find((each) => each.trim());
  return oneLine(line, length);
}

// What people read of a job: a call of a script begins with the label that its author gave it.
export function titleOf(job, length = 300) {
  const label = job.parent_id && job.labels?.label;
  return label ? oneLine(`${label}: ${firstLine(job.description, length)}`, length) : firstLine(job.description, length);
}

// The labels of a job as texts, without those that a script has given it.
export function labelsOf(job) {
  const shown = Object.entries(job.labels).filter(([name]) => !job.parent_id || (name !== "phase" && name !== "label"));
  return shown.map(([name, value]) => `${name}=${value}`);
}

export function json(value, length = 50_000) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "";
  const more = text.length - length;
  return more <= 0 ? text : `${text.slice(0, length)}\n… (${number(more)} more characters)`;
}

const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => NUMBER.format(value);
export const compact = (value) => COMPACT.format(value);

export function tokens(usage) {
  return usage ? usage.input_tokens + usage.output_tokens : 0;
}

export function cost(usage) {
  if (!usage || usage.cost_usd == null) return "";
  const value = usage.cost_usd;
  return `$${value === 0 || value >= 0.01 ? value.toFixed(2) : value.toPrecision(1)}`;
}

// What of a budget's limits is reserved for model calls in progress, and what is left.
export function budgetText(budget) {
  if (!budget) return "";
  const money = (dollars) => cost({ cost_usd: dollars });
  const of = (most, reserved, left, shown, unit = "") => most != null && `${shown(left)} of ${shown(most)}${unit} left${reserved ? `, ${shown(reserved)} reserved` : ""}`;
  return [
    of(budget.max_cost_usd, budget.reserved_cost_usd, budget.left_cost_usd, money),
    of(budget.max_tokens, budget.reserved_tokens, budget.left_tokens, compact, " tokens"),
  ].filter(Boolean).join(" · ");
}

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}m ${whole % 60}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h ${minutes % 60}m` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

// A short time with a tenth, a long one as `duration`.
export function seconds(value) {
  if (!Number.isFinite(value)) return "";
  if (value >= 60) return duration(value);
  return value < 0.05 || value >= 9.95 ? `${Math.round(Math.max(0, value))}s` : `${value.toFixed(1)}s`;
}

const now = () => Date.now() / 1000;

export function elapsed(job) {
  if (!job.started_at) return "";
  return duration((job.finished_at ?? now()) - job.started_at);
}

export function age(at) {
  return at ? duration(now() - at).split(" ")[0] : "";
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

export function moment(at) {
  return at ? new Date(at * 1000).toLocaleString("sv-SE") : "";
}

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB"];
  let value = count;
  let unit = -1;
  do {
    value /= 1024;
    unit += 1;
  } while (value >= 1024 && unit < units.length - 1);
  return `${value.toFixed(1)} ${units[unit]}`;
}

export const stateName = (state) => String(state).replace("_", " ");
export const ENDED = new Set(["succeeded", "failed", "timed_out", "cancelled"]);
export const STATES = ["queued", "running", "waiting", "succeeded", "failed", "timed_out", "cancelled"];

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

const DAY_MS = 86_400_000;

// Until when a job waits for a model: "until 14:02", "until 24 Nov 14:02" if that is not today.
export function until(at, now = Date.now()) {
  if (at * 1000 <= now) return "tried again now";
  const date = new Date(at * 1000);
  const isToday = date.toDateString() === new Date(now).toDateString();
  return `until ${isToday ? "" : `${day(date, new Date(now))} `}${date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}

// When something was, as people say it: "today 14:02", "yesterday 09:30", "24 Nov", "24 Nov 2025".
export function when(at, now = Date.now()) {
  if (!at) return "";
  const date = new Date(at * 1000);
  const today = new Date(now);
  const midnight = new Date(today.getFullYear(), today.getMonth(), today.getDate()).getTime();
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (date >= midnight) return date < midnight + DAY_MS ? `today ${time}` : day(date, today);
  if (date >= new Date(today.getFullYear(), today.getMonth(), today.getDate() - 1)) return `yesterday ${time}`;
  return day(date, today);
}

function day(date, today) {
  const year = date.getFullYear() === today.getFullYear() ? {} : { year: "numeric" };
  return date.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...year });
}
