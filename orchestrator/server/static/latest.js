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
