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

  // `reader.changed(lines)`, and `reader.missed()` when what was read before may be old.
  subscribe(reader) {
    this.readers.add(reader);
    return () => this.readers.delete(reader);
  }
}
