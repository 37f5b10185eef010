// What a tree of jobs tells: its order of reading, what each job has used itself, and how a run is
// going. A run that succeeded although tasks of it failed, or although changes of theirs are in
// nobody's files, is not plain green.

import { h } from "./dom.js";
import { number, plural, stateName, STATES, until } from "./text.js";

const USED = ["model_calls", "input_tokens", "output_tokens", "tool_calls"];

// Parents before their children, children by submission; `isClosed(id)` hides what is below a job.
export function ordered(jobs, isClosed = () => false) {
  const below = childrenOf(jobs);
  const found = [];
  const waiting = [...(below.get(null) ?? [])].reverse();
  while (waiting.length) {
    const job = waiting.pop();
    found.push(job);
    if (!isClosed(job.id)) waiting.push(...[...(below.get(job.id) ?? [])].reverse());
  }
  return found;
}

export function childrenOf(jobs) {
  const below = new Map();
  for (const job of jobs.values()) {
    const parent = jobs.has(job.parent_id) ? job.parent_id : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(job);
  }
  return below;
}

// The service counts with each job what the jobs below it have used, and with the root of a tree
// what all its jobs have used: this takes it off again, so that the rows of a tree add up.
export function ownUsages(jobs) {
  const below = childrenOf(jobs);
  const siblings = below.get(null) ?? [];
  const found = new Map();
  for (const job of jobs.values()) {
    const parts = [...(below.get(job.id) ?? [])];
    if (job.id === job.root_id && !job.parent_id) parts.push(...siblings.filter((one) => one !== job && one.root_id === job.id));
    found.set(job.id, parts.reduce((left, part) => minus(left, part.usage), job.usage));
  }
  return found;
}

function minus(usage, part) {
  if (!usage || !part) return usage;
  const left = Object.fromEntries(USED.map((name) => [name, Math.max(0, usage[name] - part[name])]));
  const cost = usage.cost_usd == null ? null : Math.max(0, usage.cost_usd - (part.cost_usd ?? 0));
  return { ...usage, ...left, cost_usd: cost };
}

// What jobs have used together, with those below them. Jobs of one tree are in the usage of its root.
export function treeUsage(jobs) {
  const first = (childrenOf(jobs).get(null) ?? []).filter((job) => job.id === job.root_id || !jobs.has(job.root_id));
  return first.map((job) => job.usage).reduce(plus, null);
}

function plus(usage, other) {
  if (!usage || !other) return usage ?? other;
  const sums = Object.fromEntries(USED.map((name) => [name, usage[name] + other[name]]));
  const known = [usage.cost_usd, other.cost_usd].filter((cost) => cost != null);
  return { ...usage, ...sums, cost_usd: known.length ? known.reduce((sum, one) => sum + one) : null };
}

const SAME_SECONDS = 5; // a verification that fails ends its job some seconds later

// Why a job did not succeed, in words for people.
export function reasonText(job) {
  return job.reason ?? "";
}

// What went wrong below a job, as texts; none for most jobs.
export function setbacks(job) {
  return [
    job.tasks_unmerged > 0 && `${number(job.tasks_unmerged)} not merged`,
    job.tasks_failed > 0 && `${number(job.tasks_failed)} failed`,
  ].filter(Boolean);
}

export function verdictText(job) {
  return [stateName(job.state), job.waits_until && until(job.waits_until), ...setbacks(job)].filter(Boolean).join(", ");
}

export function verdictBadge(job) {
  const isMixed = job.state === "succeeded" && setbacks(job).length > 0;
  return h("span", { class: `state state-${isMixed ? "mixed" : job.state}` }, stateAndSetbacks(job));
}

function stateAndSetbacks(job) {
  const progress = job.progress ?? (job.waits_until && until(job.waits_until));
  const [first, ...more] = progress ? [progress] : setbacks(job);
  return h("span", { class: "verdict" }, stateName(job.state), first && h("span", { class: progress ? "setbacks is-progress" : "setbacks" }, h("span", { class: "comma" }, ", "), [first, ...more].join(", ")));
}

const OVERDUE_SECONDS = 3; // clocks differ, and a trial takes a moment
const REREAD_SECONDS = 10;

// The models for which jobs wait, as sentences: each once, with how many jobs wait for it.
export function modelWaits(jobs) {
  const waiting = jobs.filter((job) => job.waits_until);
  const counts = new Map();
  for (const job of waiting) counts.set(job.waiting_for, (counts.get(job.waiting_for) ?? 0) + 1);
  return [...counts].map(([sentence, count]) => (jobs.length > 1 ? `${plural(count, "job")}: ${sentence}` : sentence));
}

// A trial that fails tells only the job that has made it: the others have to be read again.
export class Overdue {
  // Whether to read jobs again, because the time has passed at which a model was to be tried again.
  is(jobs, now = Date.now() / 1000) {
    if (now < this.next || !jobs.some((job) => job.waits_until && job.waits_until + OVERDUE_SECONDS < now)) return false;
    this.next = now + REREAD_SECONDS;
    return true;
  }
}

// How many jobs are in which state: "3 running, 12 succeeded".
export function countStates(jobs) {
  const counts = STATES.map((state) => [state, jobs.filter((job) => job.state === state).length]);
  return counts.filter(([, count]) => count).map(([state, count]) => `${number(count)} ${stateName(state)}`).join(", ");
}

// What went wrong with a job, each with its time, its sentence and its kind: `failed` and `conflict`
// are so at the end; a `setback` is what was repaired, or may be: a verification that failed, and
// changes that were sent back to their agent.
export function marks(job) {
  const found = [];
  const isFailed = ["failed", "timed_out"].includes(job.state);
  for (const phase of job.phases ?? []) {
    const isTheEnd = isFailed && phase.end > job.finished_at - SAME_SECONDS; // its reason says it
    if (phase.exit_code && !isTheEnd) found.push({ at: phase.end, kind: "setback", text: `The verification failed (exit code ${phase.exit_code}).` });
  }
  if (isFailed) found.push({ at: job.finished_at, kind: "failed", text: reasonText(job) || stateName(job.state) });
  const { landed } = job;
  if (landed?.is_unmerged) found.push({ at: landed.at, kind: "conflict", text: `Not merged: ${landed.why}` });
  else if (landed?.outcome === "sent back") found.push({ at: landed.at, kind: "setback", text: `Returned to its agent: ${landed.why}` });
  return found;
}
