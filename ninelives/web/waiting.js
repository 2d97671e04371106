// The calls that wait for a person. Owns: asking the server for them again and again while the page is seen, and telling
// whoever listens. Refuses to know: how they are shown.

import { get, key, pause } from "./api.js";

const EVERY_MS = 2000;
const LIMIT = 100;

class Waiting extends EventTarget {
  runs = null; // null: not known yet
  more = false; // there are more than are listed
  everybody = false; // the key sees those of all owners
  failedSince = null; // when the server went away
  #round = 0;

  get count() { return this.runs === null ? 0 : this.runs.length; }

  // Ask now, and from then on.
  async start() {
    const round = (this.#round += 1);
    while (round === this.#round && key.get()) {
      if (!document.hidden) await this.#ask(round);
      await pause(this.failedSince ? Math.min(10_000, Date.now() - this.failedSince + 1000) : EVERY_MS);
    }
  }

  stop() {
    this.#round += 1;
    this.runs = null;
    this.failedSince = null;
    this.#tell();
  }

  async #ask(round) {
    try {
      const page = await get(`/api/runs?q=status:waiting&limit=${LIMIT}`);
      if (round !== this.#round) return;
      this.runs = page.data.filter((run) => run.approval).reverse(); // the oldest first
      this.more = page.next !== null;
      this.everybody = page.everybody;
      this.failedSince = null;
    } catch (error) {
      if (round !== this.#round || error.status === 401) return;
      this.failedSince ??= Date.now();
    }
    this.#tell();
  }

  #tell() { this.dispatchEvent(new Event("change")); }
}

export const waiting = new Waiting();
