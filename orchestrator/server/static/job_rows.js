// The rows of the list of runs: what was submitted together is one row that opens, and so is a run.

import { ordered, ownUsages, treeUsage } from "./tree_order.js";
import { STATES, tokens } from "./text.js";

export const SORTS = {
  time: { label: "Submitted", of: (row) => -row.job.submitted_at },
  state: { label: "State", of: (row) => STATES.indexOf(row.job.state) },
  agent: { label: "Agent", of: (row) => row.job.agent },
  cost: { label: "Cost", of: (row) => [-(row.usage?.cost_usd ?? 0), -tokens(row.usage)] },
};

// Returns the rows for jobs, newest first: each with its `job` (of a group the newest one), its
// `usage`, its `level`, and of a group its `jobs`. `isOpen(key)` says which rows show what is below
// them, and `treeOf(id)` returns the jobs of a run's tree as far as they are known.
export function rowsOf(jobs, { sort, isFlat, isOpen, treeOf }) {
  const groups = isFlat ? jobs.map((job) => [job]) : grouped(jobs);
  const rows = sorted(groups.map(topRow), sort);
  return rows.flatMap((row) => {
    row.isOpen = row.canOpen && isOpen(row.key);
    return [row, ...(row.isOpen ? below(row, treeOf) : [])];
  });
}

// Jobs of one submission have a common root (of a file), or are one batch (of a request).
function grouped(jobs) {
  const groups = new Map();
  for (const job of jobs) {
    const key = job.batch ?? job.root_id;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(job);
  }
  return [...groups.values()];
}

function topRow(jobs) {
  const [job] = jobs;
  if (jobs.length > 1) {
    const roots = new Set(jobs.map((one) => one.root_id));
    const usage = treeUsage(new Map(jobs.map((one) => [one.id, one])));
    return { key: `together ${job.batch ?? job.root_id}`, job, jobs, usage, level: 0, canOpen: true, run: roots.size === 1 ? job.root_id : null };
  }
  const isRun = !job.parent_id && job.tree_size > 1;
  return { key: job.id, job, usage: job.usage, level: 0, canOpen: isRun, run: isRun ? job.root_id : null };
}

function below(row, treeOf) {
  const jobs = row.jobs ? new Map([...row.jobs].reverse().map((job) => [job.id, job])) : treeOf(row.job.root_id);
  if (!jobs) return [];
  const own = ownUsages(jobs);
  const shown = row.jobs ? [...jobs.values()] : ordered(jobs).filter((job) => job.id !== row.job.id);
  return shown.map((job) => ({ key: `${row.key} ${job.id}`, job, usage: own.get(job.id), level: row.jobs ? 1 : Math.max(1, job.depth), canOpen: false, run: null }));
}

function sorted(rows, sort) {
  const isReversed = sort.startsWith("-");
  const { of } = SORTS[sort.replace("-", "")] ?? SORTS.time;
  const order = (one, other) => compare(of(one), of(other)) || compare(-one.job.submitted_at, -other.job.submitted_at) || compare(other.key, one.key);
  return [...rows].sort((one, other) => (isReversed ? order(other, one) : order(one, other)));
}

function compare(one, other) {
  if (Array.isArray(one)) return compare(one[0], other[0]) || compare(one[1], other[1]);
  return one < other ? -1 : Number(one > other);
}
