// The jobs of a tree in the order of reading, and what each of them has used itself.

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
