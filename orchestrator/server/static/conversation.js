// What a job's journal says, as a conversation: who said what, each call of a tool with its result,
// tasks that others got, decisions of people. It makes no elements; the view shows its items.
//
// An item is {key, kind, at, version, ...}: its key stays, and its version grows with each change.

import { ENDED } from "./text.js";

const DELEGATES = new Set(["task", "start_task", "tasks"]);
const HIDDEN_STREAMS = new Set(["text", "output"]); // live output: the reply and the result replace it
const MAX_LIVE = 4_000; // characters of output that are kept while a tool runs

export class Conversation {
  constructor() {
    this.items = [];
    this.todos = [];
    this.calls = new Map(); // by the id of the call
    this.open = new Set(); // calls without a result
    this.children = new Map(); // by the id of the job
    this.approvals = new Map();
    this.request = null; // the request to a model that has no reply yet
    this.partial = ""; // the end of the reply that is being written
    this.attempt = 0;
    this.end = null;
  }

  static of(events) {
    const made = new Conversation();
    for (const event of events) made.add(event);
    return made;
  }

  // An event of another release, or of another form than this page knows, is shown as it is.
  add(event) {
    const handler = HANDLERS[event.type];
    try {
      if (handler) handler.call(this, event, event.data ?? {});
      else this.system(event);
    } catch {
      this.system(event);
    }
  }

  put(kind, event, fields = {}) {
    const item = { key: `${kind}-${event.id}`, kind, at: event.at, version: 0, ...fields };
    this.items.push(item);
    return item;
  }

  // A step of the plan begins with the reply that has planned it.
  putStep(event, fields) {
    const step = this.put("step", event, fields);
    const place = this.items.lastIndexOf(this.planned?.firstOfReply);
    if (place >= 0) this.items.splice(place, 0, this.items.splice(this.items.indexOf(step), 1)[0]);
  }

  system(event) {
    this.put("system", event, { event });
  }

  // What the job does now: [{call, request or landing, since}], oldest first. A call that waits for
  // tasks does nothing itself.
  now() {
    if (this.end) return [];
    const running = [...this.open].filter((call) => call.state === "running" && !call.isWaiting && !call.children.length);
    const found = running.map((call) => ({ call, since: call.startedAt ?? call.at }));
    const { landing } = this;
    if (landing && new Set(landing.landed.map((one) => one.id)).size < landing.children.length) found.push({ landing, since: landing.at });
    if (this.request) found.push({ request: this.request, since: this.request.at });
    return found;
  }

  call(id, event, tool) {
    let call = this.calls.get(id);
    if (!call) {
      call = this.put("call", event, { id, tool, state: "asked", children: [], isHidden: tool === "write_todos" });
      call.key = `call-${id}`;
      call.attempt = event.attempt;
      this.calls.set(id, call);
      this.open.add(call);
    }
    return call;
  }

  child(id, event, agent) {
    let child = this.children.get(id);
    if (!child) {
      child = { id, agent: agent ?? "", state: "queued", version: 0 };
      this.children.set(id, child);
      const call = [...this.open].find((one) => awaits(one, child));
      if (call) {
        call.children.push(child);
        child.owner = call;
      } else child.owner = this.put("child", event, { children: [child] });
    }
    changed(child.owner);
    return child;
  }

  // Calls that nobody will answer any more say so.
  abandon(why, isAbandoned = () => true) {
    for (const call of this.open) {
      if (!isAbandoned(call)) continue;
      this.open.delete(call);
      call.state = "missing";
      call.why = why;
      changed(call);
    }
  }
}

const changed = (item) => {
  item.version += 1;
};

// Whether a task that was just submitted can be what a call of a tool has asked for.
function awaits(call, child) {
  if (!DELEGATES.has(call.tool)) return false;
  const given = call.arguments ?? {};
  if (call.tool === "tasks") return call.children.length < (Array.isArray(given.tasks) ? given.tasks.length : 0);
  return !call.children.length && (given.subagent_type ?? "general-purpose") === child.agent;
}

// Whether an entry has the agent's event, and not only what is shown of a large one.
const isWhole = (data) => !data.event_blob && !data.event_outline;

const HANDLERS = {
  "model.request"(event, data) {
    const tries = (this.request?.tries ?? 0) + 1;
    this.request = { at: this.request?.at ?? event.at, lastAt: event.at, model: String(data.model ?? ""), tries };
    // Results come before the next request; tasks that run elsewhere answer later.
    this.abandon("No result came before the agent went on.", (call) => !call.children.length && !call.isWaiting && call.at < event.at);
    this.system(event);
  },

  "model.reply"(event, data) {
    const parts = partsOf(event);
    const text = textOf(event);
    const begin = this.items.length;
    const thoughts = parts.filter((part) => part.thought && part.text).map((part) => part.text).join("");
    const seconds = this.request ? event.at - this.request.at : null;
    if (text.trim() || thoughts.trim() || data.error) {
      this.put("said", event, { text, thoughts, author: data.author, seconds, tries: this.request?.tries ?? 1, usage: data.usage, error: data.error, fallback: data.fallback_from, isWhole: isWhole(data), event });
    } else this.system(event);
    this.request = null;
    this.partial = "";
    const given = new Map(parts.filter((part) => part.function_call).map((part) => [part.function_call.id, part.function_call.args]));
    for (const one of listOf(data.calls)) {
      const call = this.call(String(one.id ?? `${event.id}-${one.tool}`), event, String(one.tool ?? ""));
      if (given.has(one.id)) call.arguments = given.get(one.id);
      call.firstOfReply = this.items[begin];
      if (call.tool === "write_todos") this.planned = call;
    }
  },

  "tool.call"(event, data) {
    const call = this.call(String(data.id ?? event.id), event, String(data.tool ?? ""));
    call.arguments ??= data.arguments;
    call.startedAt = event.at;
    call.attempt = event.attempt;
    if (call.state !== "done") {
      call.state = "running";
      this.open.add(call);
    }
    this.partial = "";
    changed(call);
  },

  "tool.result"(event, data) {
    const whole = new Map(partsOf(event).filter((part) => part.function_response).map((part) => [part.function_response.id, part.function_response.response]));
    for (const one of listOf(data.results)) {
      const id = String(one.id ?? "");
      const call = this.call(id || `${event.id}-${one.tool}`, event, String(one.tool ?? ""));
      const result = whole.get(one.id) ?? one.result ?? one.response;
      changed(call);
      if (result?.status === "waiting_for_tasks") {
        call.isWaiting = true;
        continue;
      }
      this.open.delete(call);
      Object.assign(call, { state: "done", result, endedAt: event.at, live: "", resultEvent: event, isWhole: isWhole(data), isWaiting: false });
      if (call.tool === "write_todos") call.isHidden = !hasFailed(call);
      this.learn(result);
    }
  },

  todos(event, data) {
    this.todos = listOf(data.todos);
    const index = this.todos.findIndex((one) => one.status === "in_progress");
    const step = index < 0 ? "" : String(this.todos[index].content ?? "");
    if (step && step !== this.step) this.putStep(event, { text: step, number: index + 1, count: this.todos.length });
    this.step = step || this.step;
  },

  "approval.requested"(event, data) {
    const approval = this.put("approval", event, { id: String(data.id ?? ""), tool: String(data.tool ?? ""), arguments: data.arguments ?? {}, hint: data.hint, answer: null });
    this.approvals.set(approval.id, approval);
  },

  "approval.resolved"(event, data) {
    const approval = this.approvals.get(String(data.id ?? ""));
    if (!approval) {
      this.system(event);
      return;
    }
    approval.answer = { ...data, at: event.at };
    changed(approval);
  },

  "child.submitted"(event, data) {
    this.child(String(data.id ?? ""), event, String(data.agent ?? ""));
  },

  "child.finished"(event, data) {
    const child = this.child(String(data.id ?? ""), event);
    Object.assign(child, { state: String(data.state ?? ""), reason: data.reason });
    changed(child.owner);
    this.system(event);
  },

  "child.landed"(event, data) {
    const child = this.child(String(data.id ?? ""), event);
    child.landed = data;
    changed(child.owner);
    if (this.landing) {
      this.landing.landed.push(data);
      changed(this.landing);
    } else this.system(event);
  },

  landing(event, data) {
    const ids = listOfTexts(data.children);
    this.landing = ids.length ? this.put("landing", event, { children: ids, checks: [], landed: [] }) : null;
    if (!ids.length) this.put("note", event, { text: "An unfinished landing was undone." });
  },

  message(event, data) {
    this.put("message", event, { text: String(data.text ?? "") });
  },

  verify(event, data) {
    if (Array.isArray(data.children) && this.landing && !data.at_end) {
      this.landing.checks.push(data);
      changed(this.landing);
    } else this.put("verify", event, { data });
  },

  "job.state"(event, data) {
    const state = String(data.state ?? "");
    if (event.attempt > this.attempt && this.attempt > 0) {
      this.put("note", event, { text: `Attempt ${event.attempt} began${data.reason ? `: ${data.reason}` : "."}`, tone: "warn" });
      this.request = null;
      this.abandon("No result: the attempt was cut off.", (call) => call.attempt < event.attempt);
    }
    this.attempt = Math.max(this.attempt, event.attempt);
    if (state !== "running") this.request = null;
    if (ENDED.has(state)) {
      this.partial = "";
      this.abandon("No result: the job ended before it.");
      this.end = this.put("end", event, { state, error: data.error, reason: data.reason });
    } else this.system(event);
  },

  log(event, data) {
    const { stream } = data;
    const text = String(data.text ?? "");
    if (stream === "text") this.partial = text;
    if (stream === "output") {
      const call = [...this.open].findLast((one) => one.state === "running");
      if (call) {
        call.live = `${call.live ?? ""}${call.live ? "\n" : ""}${text}`.slice(-MAX_LIVE);
        changed(call);
      }
    }
    if (HIDDEN_STREAMS.has(stream)) this.system(event);
    else this.put("note", event, { text, stream });
  },
};

// Results of tools that delegate say what became of a job.
Conversation.prototype.learn = function learn(result) {
  if (result === null || typeof result !== "object") return;
  for (const one of [result, ...listOf(result.results), ...listOf(result.tasks)]) {
    const child = this.children.get(String(one.job_id ?? one.task_id ?? ""));
    if (!child) continue;
    if (typeof one.summary === "string") child.summary = one.summary;
    if (typeof one.error === "string") child.error = one.error;
    changed(child.owner);
  }
};

export function hasFailed(call) {
  const { result } = call;
  if (result === null || typeof result !== "object") return false;
  return result.status === "error" || result.success === false || result.isError === true || Boolean(result.error) || (Number.isInteger(result.exit_code) && result.exit_code !== 0);
}

const listOf = (value) => (Array.isArray(value) ? value.filter((one) => one !== null && typeof one === "object") : []);
const listOfTexts = (value) => (Array.isArray(value) ? value.map(String) : []);

function partsOf(event) {
  return listOf(event.data?.event?.content?.parts);
}

// What an event says; its readable part is cut, the event of the agent is not.
export function textOf(event) {
  const texts = partsOf(event).filter((part) => typeof part.text === "string" && !part.thought);
  return texts.length ? texts.map((part) => part.text).join("") : String(event.data?.text ?? "");
}

// The whole result of a call from the complete event.
export function resultOf(event, id) {
  return partsOf(event).find((part) => part.function_response?.id === id)?.function_response.response;
}
