// What of a job is only shown: its plan, its result, its task.

import { failureSentence } from "./conversation_items.js";
import { empty, h } from "./dom.js";
import { markdown } from "./markdown.js";
import { bytes, compact, cost, duration, json, moment, number } from "./text.js";

const MARKS = { completed: "✓", in_progress: "▸", pending: "○" };

export function todoList(todos) {
  return h("ol", { class: "todos" }, todos.map(todo));
}

function todo(one) {
  const status = String(one?.status ?? "pending");
  const isKnown = Object.hasOwn(MARKS, status);
  return h("li", { class: isKnown ? `todo-${status}` : "" }, h("span", { class: "mark", "aria-hidden": "true" }, isKnown ? MARKS[status] : "·"), h("span", {}, one?.content ?? ""), h("span", { class: "sr" }, ` (${status.replace("_", " ")})`));
}

export function resultPanel(job) {
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

export function taskPanel(job) {
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
