// The list of runs. Owns: rows with status, first words, model, tokens and age, the filter by status, and cancelling.
// Refuses to know: what a run did.

import { get, pause, post, runPath } from "./api.js";
import { ago, bones, el, failure, isActive, number, shortId, status, statusWord, when } from "./dom.js";
import { waiting } from "./waiting.js";

const EVERY_MS = 4000;
const LIMIT = 30;
const STATUSES = ["queued", "running", "waiting_for_approval", "stopping", "completed", "failed", "cancelled", "incomplete"];

class RunsView extends HTMLElement {
  #rows = el("tbody");
  #note = el("div");
  #below = el("div");
  #older = []; // pages behind the first one
  #next = null;

  connectedCallback() {
    this.leaving = new AbortController();
    this.status = this.getAttribute("status") ?? "";
    const filter = el("select", { "aria-label": "Status", onchange: () => {
      location.hash = filter.value ? `#/runs?status=${filter.value}` : "#/runs";
    } }, el("option", { value: "" }, "all"), STATUSES.map((name) => el("option", { value: name }, statusWord(name))));
    filter.value = this.status;
    this.replaceChildren(
      el("div", { class: "tools" }, el("h1", {}, "Runs"), filter), this.#note,
      el("table", {}, el("thead", {}, el("tr", {}, ["status", "request", "model"].map((name) => el("th", {}, name)),
        ["tokens", "age"].map((name) => el("th", { class: "number" }, name)), el("th"), el("th"))), this.#rows),
      this.#below);
    this.#below.replaceChildren(...bones());
    waiting.addEventListener("change", this);
    this.#keepUp();
  }

  disconnectedCallback() {
    this.leaving.abort();
    waiting.removeEventListener("change", this);
  }

  handleEvent() { this.#tell(); }

  async #keepUp() {
    const { signal } = this.leaving;
    while (!signal.aborted) {
      if (!document.hidden) await this.#ask(signal);
      await pause(EVERY_MS, signal);
    }
  }

  async #page(after, signal) {
    const query = new URLSearchParams({ limit: LIMIT, order: "desc", output_chars: 0 });
    if (this.status) query.set("status", this.status);
    if (after) query.set("after", after);
    return get(`/v1/runs?${query}`, { signal });
  }

  async #ask(signal) {
    try {
      const page = await this.#page(null, signal);
      this.error = null;
      if (this.#older.length === 0) this.#next = page.has_more ? page.last_id : null;
      this.#show(page.data);
    } catch (error) {
      if (signal.aborted) return;
      this.error = error;
      if (!error.away) this.#below.replaceChildren();
    }
    this.#tell();
  }

  #show(first) {
    const seen = new Set();
    const runs = [...first, ...this.#older].filter((run) => !seen.has(run.run_id) && seen.add(run.run_id));
    const known = new Map([...this.#rows.children].map((row) => [row.run.run_id, row]));
    const rows = runs.map((run) => {
      const row = known.get(run.run_id);
      if (!row) return rowOf(run);
      row.renew(run);
      return row;
    });
    const held = document.activeElement;
    if (rows.some((row, at) => this.#rows.children[at] !== row) || rows.length !== this.#rows.children.length) {
      this.#rows.replaceChildren(...rows);
      if (this.#rows.contains(held)) held.focus({ preventScroll: true });
    }
    if (runs.length === 0) this.#below.replaceChildren(this.status ? el("p", { class: "empty" }, "No run has this status.") : empty());
    else this.#below.replaceChildren(...(this.#next ? [el("p", {}, el("button", { type: "button", onclick: () => this.#more() }, "Older runs"))] : []));
  }

  async #more() {
    try {
      const page = await this.#page(this.#next, this.leaving.signal);
      this.#older.push(...page.data);
      this.#next = page.has_more ? page.last_id : null;
      this.#show([...this.#rows.children].map((row) => row.run));
    } catch (error) {
      if (!this.leaving.signal.aborted) { this.error = error; this.#tell(); }
    }
  }

  #tell() {
    const asks = waiting.count > 0 && this.status !== "waiting_for_approval" ? el("p", { class: "note waiting" },
      waiting.count === 1 ? "▲ One call waits for you. " : `▲ ${waiting.count} calls wait for you. `,
      el("a", { href: "#/approvals" }, "Look at it")) : null;
    const wrong = this.error && !this.error.away ? failure(this.error) : null;
    this.#note.replaceChildren(...[asks, wrong].filter(Boolean));
  }

  keys = {
    j: () => this.#move(1),
    k: () => this.#move(-1),
    c: () => this.#selected()?.querySelector("button.stop")?.click(),
  };

  #selected() { return [...this.#rows.children].find((row) => row.contains(document.activeElement)) ?? null; }
  #move(by) {
    const rows = [...this.#rows.children];
    const at = rows.indexOf(this.#selected());
    rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))]?.querySelector("a").focus();
  }
}
customElements.define("runs-view", RunsView);

function rowOf(run) {
  const state = el("td");
  const tokens = el("td", { class: "number" });
  const age = el("td", { class: "number", title: when(run.created_at) });
  const act = el("td", { class: "number" });
  const row = el("tr", {}, state,
    el("td", { class: "words" }, el("a", { href: `#/runs/${run.run_id}`, title: run.title }, run.title || "(no words)")),
    el("td", { class: "soft model", title: run.model }, run.model), tokens, age, el("td", {}, shortId(run.run_id)), act);
  let shown = "";
  row.renew = (now) => {
    row.run = now;
    tokens.textContent = number(now.usage.total_tokens);
    age.textContent = ago(now.created_at);
    if (now.status === shown) return;
    shown = now.status;
    state.replaceChildren(status(now.status));
    act.replaceChildren(...actions(now));
  };
  row.renew(run);
  return row;
}

function actions(run) {
  if (!isActive(run.status)) return [];
  const cancel = el("button", { type: "button", class: "stop", onclick: async () => {
    cancel.disabled = true;
    try { await post(runPath(run.run_id, "/stop"), {}); cancel.textContent = "stopping"; }
    catch (error) { cancel.disabled = false; cancel.title = error.message; cancel.textContent = "try again"; }
  } }, "Cancel");
  const answer = run.status === "waiting_for_approval" ? [el("a", { href: `#/approvals/${run.run_id}` }, "Answer"), " "] : [];
  return [...answer, cancel];
}

function empty() {
  const words = `curl -N ${location.origin}/v1/chat/completions \\\n  -H "Authorization: Bearer $KEY" \\\n`
    + "  -H 'Content-Type: application/json' \\\n"
    + `  -d '{"model":"hermes-agent","stream":true,"messages":[{"role":"user","content":"hello"}]}'`;
  return el("div", { class: "empty" }, el("p", {}, "No runs yet. Paste this:"), el("pre", { tabindex: 0 }, words));
}
