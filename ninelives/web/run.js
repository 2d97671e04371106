// One run. Owns: its head, its answer, and its events as text, live. Text that streams grows in its place; the page
// follows the end only while the reader is there. Refuses to know: other runs.

import { events, get, post, runPath } from "./api.js";
import { bones, el, failure, isActive, number, shortId, span, status, visible, when } from "./dom.js";

const MOST_ROWS = 5000;

class RunView extends HTMLElement {
  #head = el("div");
  #list = el("ol", { class: "events", "aria-label": "Events" });
  #note = el("div");
  #growing = null; // the row of the message that streams

  connectedCallback() {
    this.run = this.getAttribute("run");
    this.leaving = new AbortController();
    this.replaceChildren(el("p", {}, el("a", { href: "#/runs" }, "‹ Runs")), this.#head, this.#note, el("h2", {}, "Events"), this.#list);
    this.#head.replaceChildren(...bones(2));
    this.#follow();
  }

  disconnectedCallback() { this.leaving.abort(); }

  async #follow() {
    const { signal } = this.leaving;
    try {
      await this.#renew(signal);
      const away = (failures) => this.#note.replaceChildren(...(failures === null ? [] : [el("p", { class: "note", role: "status" },
        "The stream broke. Connecting again; nothing is lost.")]));
      for await (const event of events(this.run, { signal, onAway: away })) {
        this.#add(event);
        if (event.event !== "message.delta") await this.#renew(signal);
      }
      await this.#renew(signal);
    } catch (error) {
      if (signal.aborted) return;
      if (!this.#head.querySelector("h1")) this.#head.replaceChildren();
      this.#note.replaceChildren(failure(error));
    }
  }

  async #renew(signal) {
    const run = await get(runPath(this.run), { signal });
    const ended = !isActive(run.status);
    const cancel = ended ? null : el("button", { type: "button", class: "stop", onclick: async () => {
      cancel.disabled = true;
      try { await post(runPath(this.run, "/stop"), {}); } catch (error) { this.#note.replaceChildren(failure(error)); }
    } }, "Cancel");
    const asks = run.approval ? el("p", { class: "note waiting" }, `▲ Waiting for you: ${run.approval.tool}. `,
      el("a", { href: `#/approvals/${run.run_id}` }, "See the whole call and answer")) : null;
    const parts = [
      el("div", { class: "tools" }, el("h1", {}, run.title || "Run"), status(run.status), el("span", { class: "grow" }), cancel),
      el("div", { class: "facts" }, el("span", {}, run.model),
        el("span", {}, run.attempt === 1 ? "1 attempt" : `${run.attempt} attempts`),
        el("span", {}, span(run.updated_at - run.created_at)), el("span", {}, `${number(run.usage.total_tokens)} tokens`),
        el("span", { title: when(run.created_at) }, when(run.created_at)), shortId(run.run_id)),
      asks,
      run.error ? el("p", { class: "note failed" }, run.error) : null,
    ];
    if (ended && run.output) parts.push(el("h2", {}, "Answer"), el("pre", { tabindex: 0 }, visible(run.output)));
    this.#head.replaceChildren(...parts.filter(Boolean));
  }

  #add(event) {
    if (event.event === "message.delta" && this.#growing) {
      this.#growing.append(...visible(event.delta));
      return;
    }
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
    const told = el("div", { class: "told mono" }, visible(wordsOf(event)));
    this.#growing = event.event === "message.delta" ? told : null;
    this.#list.append(el("li", {}, el("span", { class: "soft" }, String(event.seq ?? "")),
      el("span", { class: "soft", title: when(event.timestamp) }, when(event.timestamp).slice(11, 19)),
      el("code", {}, event.event), told));
    if (this.#list.childElementCount > MOST_ROWS) this.#list.firstElementChild.remove();
    if (atEnd && this.#list.childElementCount > 12) told.scrollIntoView({ block: "end" });
  }

  keys = { c: () => this.querySelector("button.stop")?.click() };
}
customElements.define("run-view", RunView);

const SAID = new Set(["event", "seq", "run_id", "timestamp"]);

// An event in words: what is known by name, and JSON for the rest.
function wordsOf(event) {
  switch (event.event) {
    case "message.delta": return event.delta;
    case "reasoning.available": return event.text;
    case "tool.started": return [event.tool, event.preview].filter(Boolean).join(": ");
    case "tool.completed": return `${event.tool}: ${event.error ? "error" : "done"} after ${event.duration} s`;
    case "approval.request": return `${event.tool} ${event.arguments}`;
    case "approval.responded": return event.choice;
    case "run.failed": return event.error;
    default: {
      const rest = Object.fromEntries(Object.entries(event).filter(([name]) => !SAID.has(name)));
      return Object.keys(rest).length ? JSON.stringify(rest) : "";
    }
  }
}
