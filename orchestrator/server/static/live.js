// Which jobs change, for all views by one stream. Changes of one frame are passed on together.

import { follow } from "./api.js";

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
