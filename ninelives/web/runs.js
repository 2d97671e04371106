// The list of runs. Owns: rows, the search with its words in the address and its hits, new rows without a jump, and
// cancelling several. Refuses to know: what a run did.

import { get, pause, post, runPath } from "./api.js";
import { ago, bones, copier, el, empty, failure, hits, isActive, lasted, many, money, number, status, when } from "./dom.js";

const EVERY_MS = 2000;
const LIMIT = 50;
const GLYPHS = 4; // so many calls of a run are shown
const FILTERS = [["all", ""], ["active", "is:active"], ["waiting", "status:waiting"], ["failed", "status:failed"], ["crashed", "is:crashed"]];

const COLUMNS = [["c-box", ""], ["c-status", "status"], ["c-words", "request"], ["c-owner", "owner"], ["c-model", "model"], ["c-tools", "tools"],
  ["c-session", "session"], ["c-tokens number", "tokens"], ["c-cost number", "cost"], ["c-life number", "time"], ["c-age number", "age"]];
const WORDS = "Words: status:failed, tool:terminal, model:NAME, session:ID, api:chat, since:2h, is:crashed, is:unknown, is:active.";
const NAMED = /^(status|tool|model|session|owner|api|since|is):./;

class RunsView extends HTMLElement {
  #rows = el("div", { role: "rowgroup" });
  #table = el("div", { class: "list", role: "table", "aria-label": "Runs", hidden: true }, el("div", { role: "rowgroup" },
    el("div", { class: "heads", role: "row" }, COLUMNS.map(([name, word]) => el("span", { class: name, role: "columnheader", "aria-label": word || "selected" }, word)))), this.#rows);
  #note = el("div");
  #news = el("button", { type: "button", class: "news", hidden: true, onclick: () => this.#take() });
  #below = el("div");
  #bar = el("div", { class: "bulk", hidden: true, role: "region", "aria-label": "Selected runs" });
  #chosen = new Set();
  #runs = []; // as shown
  #fresh = null; // a newer first page that waits for a click
  #next = null;

  connectedCallback() {
    this.leaving = new AbortController();
    this.q = (this.getAttribute("q") ?? "").trim();
    this.words = this.q.split(/\s+/).filter((word) => word && !NAMED.test(word));
    this.search = el("input", { type: "search", class: "search", value: this.q, placeholder: "Search: words, status:failed, tool:terminal, since:1h, is:crashed", "aria-label": "Search runs", spellcheck: "false" });
    this.search.addEventListener("keydown", (event) => { if (event.key === "Enter") this.#go(this.search.value); });
    this.search.addEventListener("search", () => this.#go(this.search.value));
    const chips = FILTERS.map(([name, words]) => el("button", { type: "button", class: "small", "aria-pressed": String(words === this.q), onclick: () => this.#go(words) }, name));
    this.replaceChildren(el("div", { class: "tools" }, el("h1", {}, "Runs"), this.search, el("div", { class: "group", role: "group", "aria-label": "Filters" }, chips)),
      this.#note, this.#bar, this.#news, this.#table, this.#below);
    this.#below.replaceChildren(...bones(6));
    this.#keepUp();
  }

  disconnectedCallback() { this.leaving.abort(); }

  #go(words) { location.hash = words.trim() ? `#/runs?q=${encodeURIComponent(words.trim())}` : "#/runs"; }

  async #keepUp() {
    const { signal } = this.leaving;
    while (!signal.aborted) {
      if (!document.hidden) await this.#ask(signal);
      await pause(EVERY_MS, signal);
    }
  }

  #page(after, signal) {
    const query = new URLSearchParams({ limit: LIMIT });
    if (this.q) query.set("q", this.q);
    if (after) query.set("after", after);
    return get(`/api/runs?${query}`, { signal });
  }

  async #ask(signal) {
    try {
      const page = await this.#page(null, signal);
      this.everybody = page.everybody;
      this.#note.replaceChildren();
      const known = new Set(this.#runs.map((run) => run.run_id));
      const added = page.data.filter((run) => !known.has(run.run_id));
      if (this.#runs.length === 0 || added.length === 0 || (scrollY < 80 && !this.contains(document.activeElement))) {
        const now = new Set(page.data.map((run) => run.run_id));
        const last = page.data.at(-1)?.created_at ?? 0;
        // What was on this page and is no more does not fit the search now. Older pages stay.
        const older = this.#runs.filter((run) => !now.has(run.run_id) && run.created_at < last);
        if (older.length === 0) this.#next = page.next;
        this.#runs = [...page.data, ...older];
        this.#fresh = null;
      } else {
        this.#fresh = page.data;
        const news = new Map(page.data.map((run) => [run.run_id, run]));
        this.#runs = this.#runs.map((run) => news.get(run.run_id) ?? run);
        this.#news.textContent = `${many(added.length, "new run")} · show`;
      }
      this.#news.hidden = this.#fresh === null;
      this.#draw();
    } catch (error) {
      if (signal.aborted || error.away) return;
      this.#below.replaceChildren();
      this.#note.replaceChildren(failure(error));
    }
  }

  #take() {
    const known = new Set(this.#fresh.map((run) => run.run_id));
    this.#runs = [...this.#fresh, ...this.#runs.filter((run) => !known.has(run.run_id))];
    this.#fresh = null;
    this.#news.hidden = true;
    this.#draw();
    scrollTo(0, 0);
  }

  #draw() {
    const known = new Map([...this.#rows.children].map((row) => [row.id, row]));
    const longest = Math.max(1, ...this.#runs.map((run) => run.updated_at - run.created_at).sort((a, b) => a - b).slice(0, Math.ceil(this.#runs.length * 0.95)));
    this.#table.hidden = this.#runs.length === 0;
    this.#table.classList.toggle("owners", new Set(this.#runs.map((run) => run.owner)).size > 1 || this.q.includes("owner:"));
    this.#table.classList.toggle("costs", this.#runs.some((run) => run.cost > 0));
    const rows = this.#runs.map((run) => {
      const row = known.get(run.run_id) ?? this.#row(run);
      row.renew(run, longest);
      return row;
    });
    const held = document.activeElement;
    if (rows.some((row, at) => this.#rows.children[at] !== row) || rows.length !== this.#rows.children.length) {
      this.#rows.replaceChildren(...rows);
      if (this.#rows.contains(held)) held.focus({ preventScroll: true });
    }
    if (this.#runs.length === 0 && !this.#next) this.#below.replaceChildren(this.q ? empty("No run fits.", el("p", {}, WORDS, this.everybody ? " For all owners: owner:NAME." : "")) : firstRun());
    else this.#below.replaceChildren(...(this.#next ? [el("p", { class: "more" }, el("button", { type: "button", onclick: () => this.#more() }, this.#runs.length ? "Older runs" : "Look further back"))] : []));
  }

  async #more() {
    try {
      const page = await this.#page(this.#next, this.leaving.signal);
      this.#next = page.next;
      this.#runs.push(...page.data);
      this.#draw();
    } catch (error) {
      if (!this.leaving.signal.aborted) this.#note.replaceChildren(failure(error));
    }
  }

  #row(run) {
    const box = el("input", { type: "checkbox", "aria-label": `Select ${run.title || run.run_id}` });
    box.addEventListener("change", () => this.#choose(run.run_id, box.checked));
    const state = el("span", { class: "c-status", role: "cell" });
    const tools = el("span", { class: "c-tools", role: "cell" });
    const tokens = el("span", { class: "c-tokens number", role: "cell" });
    const cost = el("span", { class: "c-cost number", role: "cell" });
    const narrowed = (name, value, shown) => el("a", { href: `#/runs?q=${encodeURIComponent(`${name}:${value}`)}`, title: `only ${name} ${value}` }, shown);
    const life = el("span", { class: "c-life number", role: "cell" });
    const bar = el("span", { class: "bar-fill", "aria-hidden": "true" });
    const length = el("span", { class: "length-word" });
    life.append(el("span", { class: "track", "aria-hidden": "true" }, bar), length);
    const age = el("span", { class: "c-age number soft", role: "cell", title: when(run.created_at) });
    const flags = el("span", { class: "flags" });
    const row = el("div", { class: "item", role: "row", id: run.run_id }, el("span", { class: "c-box", role: "cell" }, box), state,
      el("span", { class: "c-words", role: "cell" }, el("a", { href: `#/runs/${run.run_id}`, title: `${run.title}\n${run.run_id}` }, hits(run.title || "(no words)", this.words)), flags),
      el("span", { class: "c-owner", role: "cell" }, narrowed("owner", run.owner, run.owner)),
      el("span", { class: "c-model soft", role: "cell", title: `${run.model}, by ${run.api}` }, run.model), tools,
      el("span", { class: "c-session", role: "cell" }, run.session_id ? narrowed("session", run.session_id, run.session_id.length > 8 ? `…${run.session_id.slice(-6)}` : run.session_id) : el("span", { class: "soft" }, "–")),
      tokens, cost, life, age);
    let shown = "";
    row.renew = (now, longest) => {
      box.checked = this.#chosen.has(now.run_id);
      tokens.textContent = number(now.input_tokens + now.output_tokens);
      cost.textContent = now.cost ? money(now.cost) : "–";
      const seconds = (isActive(now.status) ? Date.now() / 1000 : now.updated_at) - now.created_at;
      length.textContent = lasted(Math.max(0, seconds));
      bar.style.width = `${Math.min(100, Math.max(3, (seconds / longest) * 100))}%`;
      age.textContent = ago(now.created_at);
      const state_now = `${now.status} ${now.calls} ${now.crashes} ${now.unknown}`;
      if (state_now === shown) return;
      shown = state_now;
      row.className = `item ${now.status}`;
      state.replaceChildren(status(now.status));
      const glyphs = now.calls > GLYPHS ? GLYPHS - 1 : GLYPHS;
      tools.replaceChildren(...now.tools.slice(0, glyphs).map((tool) => el("span", { class: `glyph ${tool.outcome}`, title: `${tool.name}: ${tool.outcome}` }, tool.emoji || tool.name.slice(0, 1))),
        ...(now.calls > glyphs ? [el("span", { class: "soft" }, `+${now.calls - glyphs}`)] : []));
      tools.setAttribute("aria-label", now.tools.map((tool) => tool.name).join(", ") || "no tools");
      flags.replaceChildren(...[now.crashes ? el("span", { class: "flag crash", title: `${many(now.crashes, "crash", "crashes")} survived` }, `⚡${now.crashes}`) : null,
        now.unknown ? el("span", { class: "flag unknown", title: "an outcome is unknown" }, `? ${now.unknown}`) : null,
        now.approval ? el("a", { class: "flag waiting", href: `#/approvals/${now.run_id}` }, `answer ${now.approval.tool}`) : null].filter(Boolean));
    };
    return row;
  }

  #choose(run, on) {
    if (on) this.#chosen.add(run); else this.#chosen.delete(run);
    const active = this.#runs.filter((each) => this.#chosen.has(each.run_id) && isActive(each.status));
    const told = el("span", { role: "status" });
    const cancel = el("button", { type: "button", class: "stop", disabled: active.length === 0, onclick: async () => {
      cancel.disabled = true;
      const done = await Promise.allSettled(active.map((each) => post(runPath(each.run_id, "/stop"), {})));
      const failed = done.filter((each) => each.status === "rejected").length;
      this.#chosen.clear();
      await this.#ask(this.leaving.signal);
      this.#choose("", false);
      if (failed) this.#note.replaceChildren(failure(new Error(`${many(failed, "run")} could not be cancelled. Try again.`)));
    } }, `Cancel ${many(active.length, "active run")}`);
    this.#bar.hidden = this.#chosen.size === 0;
    this.#bar.replaceChildren(el("span", {}, `${many(this.#chosen.size, "run")} selected`), cancel,
      copier("Copy ids", () => [...this.#chosen].join("\n")), el("button", { type: "button", class: "small", onclick: () => { this.#chosen.clear(); this.#choose("", false); this.#draw(); } }, "Clear"), told);
  }

  keys = {
    j: () => this.#move(1), k: () => this.#move(-1),
    x: () => this.#selected()?.querySelector("input")?.click(),
    c: () => {
      if (this.#chosen.size === 0) this.#selected()?.querySelector("input")?.click();
      this.#bar.querySelector("button.stop")?.focus();
    },
    a: () => { const link = this.#selected()?.querySelector("a.flag.waiting"); if (link) location.hash = link.hash; },
    "/": () => this.search.focus(),
  };

  #selected() { return [...this.#rows.children].find((row) => row.contains(document.activeElement)) ?? null; }
  #move(by) {
    const rows = [...this.#rows.children];
    const at = rows.indexOf(this.#selected());
    rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))]?.querySelector(".c-words a").focus();
  }
}
customElements.define("runs-view", RunsView);

function firstRun() {
  const words = `curl -N ${location.origin}/v1/chat/completions \\\n  -H "Authorization: Bearer $KEY" \\\n`
    + "  -H 'Content-Type: application/json' \\\n"
    + `  -d '{"model":"hermes-agent","stream":true,"messages":[{"role":"user","content":"hello"}]}'`;
  return empty("No runs yet.", el("p", {}, "Paste this into a shell, or ", el("a", { href: "#/chat" }, "open a chat"), "."), el("div", { class: "value" }, copier("copy", () => words), el("pre", { tabindex: 0 }, words)));
}
