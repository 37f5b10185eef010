// The only way to the service: the routes below /v1 with the browser's session, which answers of
// them still count, and which jobs change.

import { notice } from "./dialogs.js";

export class Problem extends Error {
  constructor(status, detail, retrySeconds = 0) {
    super(detail);
    this.status = status;
    this.retrySeconds = retrySeconds; // after which the service wants to be asked again
  }
}

const UNREACHABLE = "The service does not respond: check the connection.";
const ANSWER_MS = 60_000; // no read of a page takes as long: its answer is lost
const PASSING = new Set([0, 429, 502, 503, 504]); // 0: no answer; another try may get one
const PAUSES_MS = [300, 1_000, 3_000, 10_000]; // before further tries of a read; the last one stays
const SAID_FROM = 2; // tries that may fail before a person reads of it
let trouble = null; // the notice that reads fail
let csrfToken = null;
let onLoggedOut = () => {};

export function whenLoggedOut(listener) {
  onLoggedOut = listener;
}

// Who is logged in; the token is sent with each change.
export async function session() {
  const found = await get("/session");
  csrfToken = found.csrf_token;
  return found;
}

// Reads, again and again while the service is away or busy: a view that has asked once is never left
// without its answer. `signal` gives the read up.
export async function get(path, query, { signal } = {}) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await readOnce(path + search(query), signal);
    } catch (problem) {
      if (signal?.aborted || !PASSING.has(problem.status)) throw problem;
      if (tries + 1 >= SAID_FROM) trouble ??= notice(`${problem.message} The page tries again.`, true);
      await pause(Math.max(1_000 * problem.retrySeconds, PAUSES_MS[Math.min(tries, PAUSES_MS.length - 1)]));
      signal?.throwIfAborted();
    }
  }
}

async function readOnce(path, signal) {
  const late = AbortSignal.timeout(ANSWER_MS);
  const response = await request(path, { signal: signal ? AbortSignal.any([signal, late]) : late });
  const answer = await response.json().catch(() => {
    throw new Problem(0, UNREACHABLE); // the connection ended within the answer
  });
  trouble?.remove();
  trouble = null;
  return answer;
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export async function post(path, body, headers = {}) {
  const isJson = !(body instanceof Blob);
  const response = await request(path, {
    method: "POST",
    body: isJson ? JSON.stringify(body ?? {}) : body,
    headers: {
      ...(isJson ? { "Content-Type": "application/json" } : {}),
      ...(csrfToken ? { "X-CSRF-Token": csrfToken } : {}),
      ...headers,
    },
  });
  return response.status === 204 ? null : response.json();
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", redirect: "error", ...options });
  } catch {
    throw new Problem(0, UNREACHABLE);
  }
  if (response.ok) return response;
  if (response.status === 401) onLoggedOut();
  const problem = await response.json().catch(() => ({}));
  const retrySeconds = Number(response.headers.get("Retry-After")) || 0; // a date is not used
  throw new Problem(response.status, problem.detail ?? `The service answered with ${response.status}.`, retrySeconds);
}

function search(query) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "" && one !== false) found.append(name, one);
    }
  }
  const text = found.toString();
  return text && `?${text}`;
}

const RETRY_MS = 3000;

// Follows a stream of events until `stop` is called. It pauses while nobody sees the page: a browser
// has six connections to a service for all its tabs, and a hidden one needs none. `after` is the id of
// the event behind which a resumable stream begins.
export function follow(path, names, onEvent, { resumable = false, after = null } = {}) {
  let source = null;
  let retry = null;
  let last = after;
  let isOver = false;

  const open = () => {
    if (source !== null || isOver || document.hidden) return;
    source = new EventSource(path + search(resumable && last ? { after: last } : {}));
    for (const name of names) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        onEvent(name, JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => {
      if (source === null || source.readyState !== EventSource.CLOSED) return; // it retries itself
      close();
      retry = setTimeout(() => session().then(open, open), RETRY_MS);
    });
  };
  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const onVisibility = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", onVisibility);
  open();
  return () => {
    isOver = true;
    close();
    document.removeEventListener("visibilitychange", onVisibility);
  };
}

// Of the answers that a view waits for, only the one to its newest request counts.
export class Latest {
  // Sends a request with `ask(signal)` and gives up the one before. Returns its answer; undefined when
  // a newer request, or the end of the view, has given this one up, whether it succeeds or fails.
  async read(ask) {
    this.stop();
    const own = (this.current = new AbortController());
    try {
      const answer = await ask(own.signal);
      return own.signal.aborted ? undefined : answer;
    } catch (problem) {
      if (own.signal.aborted) return undefined;
      throw problem;
    } finally {
      if (this.current === own) this.current = null;
    }
  }

  get isReading() {
    return Boolean(this.current);
  }

  stop() {
    this.current?.abort();
    this.current = null;
  }
}

// Which jobs change, for all views by one stream. Changes of one frame are passed on together.
export class LiveJobs {
  constructor() {
    this.readers = new Set();
    this.changed = new Map();
    this.isMissed = false;
    this.isScheduled = false;
  }

  start() {
    this.stop = follow("/v1/changes", ["job", "missed"], (name, data) => {
      if (name === "missed") this.isMissed = true;
      else this.changed.set(data.id, data);
      this.schedule();
    });
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.isScheduled = false;
    const changed = [...this.changed.values()];
    const isMissed = this.isMissed;
    this.changed.clear();
    this.isMissed = false;
    for (const reader of [...this.readers]) {
      if (isMissed) reader.missed?.();
      if (changed.length) reader.changed?.(changed);
    }
  }

  // Reads with `ask()` while jobs change. Returns its answer, and the lines that came meanwhile: what the
  // answer says of those jobs may be older.
  async reading(ask) {
    const newer = new Map();
    const end = this.subscribe({ changed: (lines) => lines.forEach((line) => newer.set(line.id, line)) });
    try {
      return [await ask(), [...newer.values()]];
    } finally {
      end();
    }
  }

  // `reader.changed(lines)`, and `reader.missed()` when what was read before may be old.
  subscribe(reader) {
    this.readers.add(reader);
    return () => this.readers.delete(reader);
  }
}
