// How a run is going, in one badge: a run that succeeded although tasks of it failed, or although
// changes of theirs are in nobody's files, is not plain green.

import { h } from "./dom.js";
import { number, STATES, stateName } from "./text.js";

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
  return [stateName(job.state), ...setbacks(job)].join(", ");
}

export function verdictBadge(job) {
  const isMixed = job.state === "succeeded" && setbacks(job).length > 0;
  return h("span", { class: `state state-${isMixed ? "mixed" : job.state}` }, stateAndSetbacks(job));
}

function stateAndSetbacks(job) {
  const [first, ...more] = job.progress ? [job.progress] : setbacks(job);
  return h("span", { class: "verdict" }, stateName(job.state), first && h("span", { class: job.progress ? "setbacks is-progress" : "setbacks" }, h("span", { class: "comma" }, ", "), [first, ...more].join(", ")));
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
  else if (landed?.outcome === "sent back") found.push({ at: landed.at, kind: "setback", text: `Sent back to its agent: ${landed.why}` });
  return found;
}
