// The events of a run. Owns: a list that draws only what is seen, however long the journal is; its filter and its place.
// Refuses to know: what an event means.

import { get, pagePath } from "./api.js";
import { clock, copier, shell, el, failure, many, number, when } from "./dom.js";

const ROW = 28; // pixels, as in page.css
const PAGE = 200;
const SPARE = 8; // rows above and below what is seen
const GROUPS = [
  ["all", null], ["facts", (kind) => !kind.endsWith(".delta") && kind !== "call.begun"],
  ["text", (kind) => kind.endsWith(".delta")], ["tools", (kind) => kind.startsWith("tool.") || kind.startsWith("approval.")],
];

export class EntryList {
  #pages = new Map(); // number of a page -> entries, or null while it is on its way
  #rows = el("div", { class: "rows", role: "presentation" });
  #seen = el("div", { class: "scroller", tabindex: 0, role: "list", "aria-label": "Events of the run" }, this.#rows);
  #count = el("span", { class: "soft", role: "status" });
  #whole = el("div");
  #group = 0;
  total = 0;

  constructor(run, kinds, signal) {
    this.run = run;
    this.kinds = kinds;
    this.signal = signal;
    const buttons = GROUPS.map(([name], n) => el("button", { type: "button", class: "small", "aria-pressed": String(n === 0), onclick: () => this.#choose(n, buttons) }, name));
    const jump = el("input", { type: "text", inputmode: "numeric", size: 7, placeholder: "event", "aria-label": "Go to event number" });
    jump.addEventListener("change", () => { this.#seen.scrollTop = Number(jump.value || 0) * ROW; });
    this.node = el("div", { class: "entries" },
      el("div", { class: "tools" }, el("div", { class: "group", role: "group", "aria-label": "Which events" }, buttons), jump, this.#count, el("span", { class: "grow" }),
        copier("Copy as curl", () => shell(`/v1/runs/${this.run}/events`))), this.#seen, this.#whole);
    this.#seen.addEventListener("scroll", () => this.#plan(), { passive: true });
    this.#load(0);
  }

  // The run has more events now.
  grow(kinds) {
    this.kinds = kinds;
    const last = Math.floor(Math.max(0, this.total - 1) / PAGE);
    const atEnd = this.#seen.scrollTop + this.#seen.clientHeight >= this.total * ROW - ROW;
    this.#pages.delete(last);
    this.#load(last).then(() => { if (atEnd && this.total * ROW > this.#seen.clientHeight) this.#seen.scrollTop = this.total * ROW; });
  }

  #wanted() {
    const test = GROUPS[this.#group][1];
    return test ? Object.keys(this.kinds).filter(test) : [];
  }

  #choose(n, buttons) {
    this.#group = n;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === n)));
    this.#pages.clear();
    this.total = 0;
    this.#seen.scrollTop = 0;
    this.#load(0);
  }

  async #load(page) {
    if (this.#pages.has(page)) return;
    this.#pages.set(page, null);
    const kinds = this.#wanted();
    const group = this.#group;
    if (GROUPS[group][1] && kinds.length === 0) { this.#pages.set(page, []); return this.#draw(); }
    const query = new URLSearchParams({ offset: page * PAGE, limit: PAGE });
    if (kinds.length) query.set("kinds", kinds.join(","));
    try {
      const found = await get(pagePath(this.run, `/entries?${query}`), { signal: this.signal });
      if (group !== this.#group) return;
      this.#pages.set(page, found.data);
      this.total = found.total;
      if (this.#pages.size > 40) this.#pages.delete(this.#pages.keys().next().value);
      this.#draw();
    } catch (error) {
      this.#pages.delete(page);
      if (!this.signal.aborted) this.#count.replaceChildren(failure(error));
    }
  }

  #plan() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => { this.planned = false; this.#draw(); });
  }

  #draw() {
    const height = `${this.total * ROW}px`;
    if (this.#rows.style.height !== height) {
      this.#rows.style.height = height;
      this.#count.textContent = this.total ? many(this.total, "event") : "no events";
    }
    const first = Math.max(0, Math.floor(this.#seen.scrollTop / ROW) - SPARE);
    const last = Math.min(this.total, first + Math.ceil((this.#seen.clientHeight || 400) / ROW) + 2 * SPARE);
    const missing = new Set();
    while (this.#rows.childElementCount > last - first) this.#rows.lastElementChild.remove();
    for (let place = first; place < last; place += 1) {
      const page = Math.floor(place / PAGE);
      const entry = this.#pages.get(page)?.[place % PAGE];
      if (!entry) missing.add(page);
      // A row is used again for the next place that has its number: most rows stay as they are while one scrolls.
      const slot = place - first;
      const row = this.#rows.children[slot] ?? this.#rows.appendChild(this.#row());
      row.fill(place, entry);
    }
    // What only flies by is not loaded.
    clearTimeout(this.resting);
    if (missing.size) this.resting = setTimeout(() => missing.forEach((page) => this.#load(page)), 60);
  }

  #row() {
    const [seq, time, attempt] = ["soft number", "soft", "soft"].map((kind) => el("span", { class: kind }));
    const kind = el("code");
    const body = el("button", { type: "button", class: "body" });
    const row = el("div", { class: "entry", role: "listitem" }, seq, time, attempt, kind, body);
    let shown = null;
    let at = -1;
    body.addEventListener("click", () => { if (shown) this.#open(shown.seq); });
    row.fill = (place, entry) => {
      if (place !== at) {
        row.style.transform = `translateY(${place * ROW}px)`;
        row.setAttribute("aria-posinset", place + 1);
        row.setAttribute("aria-setsize", this.total);
      }
      if (place === at && entry === shown) return;
      [at, shown] = [place, entry];
      const rest = entry ? entry.text.replace(/^\{"type":"[^"]*",?/, "{").slice(0, 200) : "";
      seq.textContent = number(entry?.seq ?? place);
      time.textContent = entry ? clock(entry.at) : "";
      time.title = entry ? when(entry.at) : "";
      attempt.textContent = entry ? `#${entry.attempt}` : "";
      kind.textContent = entry?.type ?? "…";
      body.textContent = rest === "{}" || rest === "" ? "show" : rest;
    };
    return row;
  }

  async #open(seq) {
    try {
      const entry = await get(pagePath(this.run, `/entries/${seq}`), { signal: this.signal });
      const text = JSON.stringify(entry, null, 2);
      this.#whole.replaceChildren(el("div", { class: "value" }, el("div", { class: "name" }, `event ${seq}`, copier("copy", () => text),
        copier("Copy as curl", () => shell(pagePath(this.run, `/entries/${seq}`))),
        el("button", { type: "button", class: "small", onclick: () => this.#whole.replaceChildren() }, "close")),
      el("pre", { tabindex: 0 }, text.length > 200_000 ? `${text.slice(0, 200_000)}…` : text)));
      this.#whole.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (!this.signal.aborted) this.#whole.replaceChildren(failure(error));
    }
  }
}
