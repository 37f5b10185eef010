// How each item of a conversation looks.

import { approvalCard } from "./approvals_view.js";
import { get } from "./api.js";
import { textOf } from "./conversation.js";
import { attempt } from "./dialogs.js";
import { fill, h, stateBadge } from "./dom.js";
import { markdown, plainText } from "./markdown.js";
import { clock, compact, cost, elapsed, ENDED, firstLine, json, moment, number, oneLine, seconds, stateName, tokens } from "./text.js";
import { folded, opensItself, toneOf, toolCard } from "./tool_card.js";

const LONG_TEXT = 6_000; // characters of what was said before it is folded

// Returns the content of an item; `view` knows the job, its tree, and what the reader has opened.
export function itemContent(item, view) {
  return (CONTENTS[item.kind] ?? CONTENTS.system)(item, view);
}

// What a search looks at.
export function itemText(item) {
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

export const jobAddress = (id) => `?${new URLSearchParams({ job: id })}`;

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
