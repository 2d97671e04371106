// Sessions. Owns: their list with a search that shows its hits, one session as a conversation, and copying, exporting,
// renaming and deleting it. Refuses to know: runs.

import { del, get, patch, pause, post, text } from "./api.js";
import { ago, bones, copier, el, empty, failure, many, number, shell, visible, when } from "./dom.js";
import { said } from "./talk.js";

const LIMIT = 50;
const path = (id, rest = "") => `/api/sessions/${encodeURIComponent(id)}${rest}`;
const nameOf = (session) => session.title || session.preview || session.id;

class SessionsView extends HTMLElement {
  #rows = el("div", { class: "sessions" });
  #note = el("div");

  connectedCallback() {
    this.leaving = new AbortController();
    this.q = this.getAttribute("q") ?? "";
    this.search = el("input", { type: "search", class: "search", value: this.q, placeholder: "Search what was said", "aria-label": "Search sessions" });
    const go = () => { const words = this.search.value.trim(); location.hash = words ? `#/sessions?q=${encodeURIComponent(words)}` : "#/sessions"; };
    this.search.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
    this.search.addEventListener("search", go);
    this.replaceChildren(el("div", { class: "tools" }, el("h1", {}, "Sessions"), this.search), this.#note, this.#rows);
    this.#rows.replaceChildren(...bones(6));
    this.#load(0);
  }

  disconnectedCallback() { this.leaving.abort(); }

  async #load(offset) {
    const query = new URLSearchParams({ limit: LIMIT, offset });
    if (this.q) query.set("search", this.q);
    try {
      const page = await get(`/api/sessions?${query}`, { signal: this.leaving.signal });
      if (offset === 0) this.#rows.replaceChildren();
      this.#rows.querySelector(".more")?.remove();
      this.#rows.append(...page.data.map((session) => el("a", { class: "session", href: `#/sessions/${encodeURIComponent(session.id)}${this.q ? `?q=${encodeURIComponent(this.q)}` : ""}` },
        el("span", { class: "name" }, visible(nameOf(session))), el("span", { class: "soft number", title: when(session.updated_at) }, ago(session.updated_at)),
        session.snippet ? el("span", { class: "snippet" }, marked(session.snippet)) : null,
        el("span", { class: "facts" }, el("span", {}, many(session.message_count, "message")), el("span", {}, `${number(session.input_tokens + session.output_tokens)} tokens`),
          session.source ? el("span", {}, session.source) : null, session.model ? el("span", {}, session.model) : null))));
      if (page.has_more) this.#rows.append(el("p", { class: "more" }, el("button", { type: "button", onclick: () => this.#load(offset + LIMIT) }, "Older sessions")));
      if (!this.#rows.childElementCount) this.#rows.append(this.q ? empty("Nothing was found.", el("p", {}, "A search finds words, or their beginnings, in what was said.")) : empty("No sessions yet.", el("p", {}, el("a", { href: "#/chat" }, "Begin a chat"))));
    } catch (error) {
      if (!this.leaving.signal.aborted) { this.#rows.replaceChildren(); this.#note.replaceChildren(failure(error)); }
    }
  }

  keys = { j: () => this.#move(1), k: () => this.#move(-1), "/": () => this.search.focus() };
  #move(by) {
    const rows = [...this.#rows.querySelectorAll("a.session")];
    const at = rows.indexOf(document.activeElement);
    rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
  }
}
customElements.define("sessions-view", SessionsView);

// A snippet has >>> and <<< around each hit.
const marked = (snippet) => snippet.split(/>>>(.*?)<<</).map((part, n) => (n % 2 ? el("mark", {}, visible(part)) : visible(part)));

// Marks the words in what is shown, and returns the first hit.
function highlight(root, words) {
  const wanted = words.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  if (!wanted.length) return null;
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walk.nextNode()) texts.push(walk.currentNode);
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(${wanted.join("|")})[\\p{L}\\p{N}]*`, "giu");
  let first = null;
  for (const node of texts.slice(0, 5000)) {
    const hits = [...node.data.matchAll(pattern)];
    if (!hits.length || node.parentElement.closest("mark")) continue;
    const parts = [];
    let from = 0;
    for (const hit of hits) {
      const mark = el("mark", {}, hit[0]);
      first ??= mark;
      parts.push(node.data.slice(from, hit.index), mark);
      from = hit.index + hit[0].length;
    }
    node.replaceWith(...parts, node.data.slice(from));
  }
  return first;
}

class SessionView extends HTMLElement {
  connectedCallback() {
    this.leaving = new AbortController();
    this.id_ = this.getAttribute("session");
    this.replaceChildren(...bones(5));
    this.#show();
  }

  disconnectedCallback() { this.leaving.abort(); }

  async #show() {
    const { signal } = this.leaving;
    try {
      const [session, messages] = await Promise.all([get(path(this.id_), { signal }), get(path(this.id_, "/messages"), { signal })]);
      const talk = el("div", { class: "talk" }, messages.data.map((message) => said(message, signal)));
      const note = el("span", { role: "status", class: "soft" });
      const act = (words, work, kind = "") => el("button", { type: "button", class: kind, onclick: async () => { try { await work(); } catch (error) { note.textContent = error.message; } } }, words);
      const title = el("input", { type: "text", value: session.title ?? "", placeholder: nameOf(session), "aria-label": "Title", maxlength: 200 });
      title.addEventListener("change", async () => { try { await patch(path(this.id_), { title: title.value }); note.textContent = "Renamed."; } catch (error) { note.textContent = error.message; } });
      this.replaceChildren(el("nav", { class: "crumbs", "aria-label": "Where you are" }, el("a", { href: "#/sessions" }, "‹ Sessions")),
        el("div", { class: "tools" }, el("h1", {}, visible(nameOf(session)))),
        el("p", { class: "facts" }, el("span", {}, many(messages.data.length, "message")), el("span", {}, `${number(session.input_tokens + session.output_tokens)} tokens`), el("span", {}, `last used ${ago(session.updated_at)}`),
          el("a", { href: `#/runs?q=${encodeURIComponent(`session:${this.id_}`)}` }, "its runs"), el("code", {}, this.id_), copier("Copy as curl", () => shell(path(this.id_, "/messages")))),
        el("div", { class: "tools" }, el("a", { class: "button main", href: `#/chat/${encodeURIComponent(this.id_)}` }, "Go on with it"), title,
          act("Fork", async () => { const made = await post(path(this.id_, "/fork"), {}); location.hash = `#/sessions/${encodeURIComponent(made.id)}`; }),
          act("Export Markdown", () => this.#save("markdown", "md", note)), act("Export JSON", () => this.#save("json", "json", note)),
          act("Delete", () => this.#remove(note), "stop"), note),
        messages.data.length ? talk : empty("Nothing was said here yet."));
      const words = this.getAttribute("q");
      if (words) {
        await pause(300, signal); // Markdown arrives a moment after its text
        highlight(talk, words)?.scrollIntoView({ block: "center" });
      }
    } catch (error) {
      if (!signal.aborted) this.replaceChildren(failure(error), el("a", { href: "#/sessions" }, "‹ All sessions"));
    }
  }

  async #save(format, ending, note) {
    const found = await text(path(this.id_, `/export?format=${format}`));
    const link = el("a", { href: URL.createObjectURL(new Blob([found])), download: `session-${this.id_.replace(/[^\w-]/g, "_").slice(0, 60)}.${ending}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    note.textContent = "Exported.";
  }

  // Asks once more, in place.
  async #remove(note) {
    if (!this.sure) {
      this.sure = true;
      note.textContent = "This deletes the session with its runs. Press Delete again to do it.";
      setTimeout(() => { this.sure = false; }, 6000);
      return;
    }
    await del(path(this.id_));
    location.hash = "#/sessions";
  }
}
customElements.define("session-view", SessionView);
