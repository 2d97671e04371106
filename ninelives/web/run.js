// One run. Owns: its head, what happened in words, the selected step, the tabs, and keeping all of it current.
// Refuses to know: how time is drawn (waterfall.js), what a step says (step.js), and other runs.

import { events, get, pagePath, post, runPath } from "./api.js";
import { cardOf } from "./approvals.js";
import { ago, bones, block, copier, shell, el, failure, isActive, lasted, many, money, number, shortId, status, visible, when } from "./dom.js";
import { divider } from "./divider.js";
import { StepPanel } from "./step.js";
import { said } from "./talk.js";
import { Waterfall, storyOf } from "./waterfall.js";

const EVERY_MS = 2000;
const SOON_MS = 250;
const TABS = [["conversation", "Conversation"], ["events", "Events"], ["receipt", "Receipt"], ["as", "As each API"]];
const APIS = [["chat", "Chat"], ["responses", "Responses"], ["messages", "Messages"], ["completions", "Completions"], ["runs", "Runs"]];

class RunView extends HTMLElement {
  #head = el("div", { class: "run-head" });
  #note = el("div");
  #story = el("div", { class: "story" });
  #fall = new Waterfall();
  #tabs = el("div", { role: "tablist", class: "tablist", "aria-label": "More of this run" });
  #tab = el("div", { role: "tabpanel", id: "tab", tabindex: -1 });
  #told = null;
  #chosen = "conversation";
  #draft = "";
  #list = null;

  connectedCallback() {
    this.run = this.getAttribute("run");
    this.picked = this.getAttribute("step") === null ? null : Number(this.getAttribute("step"));
    this.leaving = new AbortController();
    const { signal } = this.leaving;
    this.panel = new StepPanel(this.run, signal);
    this.panel.wait();
    this.#head.replaceChildren(...bones(2));
    this.replaceChildren(this.#head, this.#note, this.#story,
      el("div", { class: "split" }, el("div", { class: "left" }, this.#fall.node), divider(() => this.#draw()), this.panel.node,
        el("div", { class: "below" }, this.#tabs, this.#tab)));
    TABS.forEach(([name, words]) => this.#tabs.append(el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "tab",
      "aria-selected": String(name === this.#chosen), onclick: () => this.#open(name) }, words)));
    this.#tabs.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const at = TABS.findIndex(([name]) => name === this.#chosen);
      const [next] = TABS[(at + by + TABS.length) % TABS.length];
      this.#open(next);
      this.#tabs.querySelector(`#tab-${next}`).focus();
    });
    this.#fall.addEventListener("pick", (event) => { location.hash = `#/runs/${this.run}/${event.detail}`; });
    addEventListener("resize", () => this.#draw(), { signal });
    this.#follow(signal);
  }

  disconnectedCallback() { this.leaving.abort(); }

  moved({ run, step }) {
    if (run !== this.run) return false;
    this.picked = step === undefined ? null : Number(step);
    if (this.#told) { this.#draw(); this.#show(); }
    return true;
  }

  get ended() { return this.#told?.run.ended ?? false; }

  async #follow(signal) {
    try {
      await this.#renew(signal);
    } catch (error) {
      if (!signal.aborted) { this.#head.replaceChildren(); this.panel.node.remove(); this.#tabs.remove(); this.#note.replaceChildren(failure(error), el("a", { href: "#/runs" }, "‹ All runs")); }
      return;
    }
    const details = await this.#show();
    this.#open(this.#chosen);
    if (this.ended) return;
    this.#clock(signal);
    const away = (failures) => {
      this.#note.replaceChildren(...(failures === null ? [] : [el("p", { class: "note away", role: "status" }, "The server is away. Reconnecting; nothing is lost.")]));
      this.away = failures === null ? null : (this.away ?? Date.now());
      if (failures === null) this.#soon(signal);
    };
    try {
      for await (const event of events(this.run, { signal, after: details?.upto ?? this.#told.last_seq, onAway: away })) this.#heard(event, signal);
    } catch (error) {
      if (!signal.aborted) this.#note.replaceChildren(failure(error));
    }
    if (!signal.aborted) await this.#renew(signal).then(() => this.#show()).then(() => this.#open(this.#chosen)).catch(() => {});
  }

  #heard(event, signal) {
    if (event.event === "message.delta") {
      this.#draft += event.delta;
      const step = this.#selected();
      if (this.panel.growing && step?.kind === "model") this.panel.growing.append(...visible(event.delta));
      if (this.live) {
        const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
        this.live.append(...visible(event.delta));
        if (atEnd && document.documentElement.scrollHeight > innerHeight + 200 && scrollY > 200) scrollTo(0, document.documentElement.scrollHeight);
      }
      if (!this.panel.growing) this.#soon(signal);
      return;
    }
    if (event.event === "message.dropped") { this.#draft = ""; this.live?.replaceChildren(); this.panel.growing?.replaceChildren(); }
    this.#soon(signal, true);
  }

  // News: look soon, and not more often than that.
  #soon(signal, said = false) {
    this.stale ||= said;
    this.timer ??= setTimeout(async () => {
      this.timer = null;
      const opens = this.stale;
      this.stale = false;
      try {
        const before = this.#selected()?.seq;
        await this.#renew(signal);
        if (opens || before !== this.#selected()?.seq) await this.#show();
        if (opens && this.#chosen !== "as") this.#open(this.#chosen);
      } catch { /* the clock asks again */ }
    }, SOON_MS);
  }

  async #clock(signal) {
    while (!signal.aborted && !this.ended) {
      await new Promise((resolve) => { setTimeout(resolve, 250); });
      if (document.hidden || signal.aborted) continue;
      this.#draw();
      this.#words();
      if (Date.now() - this.asked > EVERY_MS && !this.away) await this.#renew(signal).catch(() => {});
    }
  }

  async #renew(signal) {
    this.asked = Date.now();
    const told = await get(pagePath(this.run, "/timeline"), { signal });
    this.#told = told;
    this.shift = told.now - Date.now() / 1000; // the server's clock counts
    this.#headline();
    this.#tell();
    this.#draw();
    if (this.#chosen === "events") this.#list?.grow(told.kinds);
  }

  get now() { return Date.now() / 1000 + (this.shift ?? 0); }

  #headline() {
    const { run } = this.#told;
    const crashed = run.crashes ? el("span", { class: "crashes" }, `⚡ ${many(run.crashes, "crash", "crashes")} survived`) : null;
    const cancel = run.ended || run.status === "stopping" ? null : el("button", { type: "button", class: "stop", "data-cancel": true, onclick: async () => {
      cancel.disabled = true;
      try { await post(runPath(this.run, "/stop"), {}); } catch (error) { this.#note.replaceChildren(failure(error)); cancel.disabled = false; }
    } }, "Cancel");
    this.life = el("span", {});
    const forked = this.#told.forked_from;
    const kept = this.#head.querySelector("form.steer");
    this.#head.replaceChildren(...[
      el("nav", { class: "crumbs", "aria-label": "Where you are" }, el("a", { href: "#/runs" }, "‹ Runs")),
      el("div", { class: "title" }, el("h1", { title: run.title }, visible(run.title || "Run")), cancel),
      el("p", { class: "facts" }, status(run.status), crashed, el("span", {}, many(run.attempts || 1, "attempt")), this.life,
        el("span", {}, `${number(run.input_tokens + run.output_tokens)} tokens`), run.cost ? el("span", {}, `cost ${money(run.cost)}`) : null, el("span", {}, run.model),
        el("span", { title: when(run.created_at) }, ago(run.created_at)),
        this.#told.own ? null : el("a", { href: `#/runs?q=${encodeURIComponent(`owner:${run.owner}`)}` }, `of ${run.owner}`),
        run.session_id && this.#told.own ? el("a", { href: `#/sessions/${encodeURIComponent(run.session_id)}` }, "session") : null,
        forked ? el("a", { href: `#/runs/${forked.run_id}` }, "forked from another run") : null,
        shortId(run.run_id), copier("Copy as curl", () => shell(runPath(this.run)))),
      isActive(run.status) ? kept ?? this.#steer() : null].filter(Boolean));
    this.#words();
  }

  #words() {
    if (!this.life || !this.#told) return;
    const { run } = this.#told;
    this.life.textContent = lasted(Math.max(0, (run.ended ? run.updated_at : this.now) - run.created_at));
  }

  #steer() {
    const said = el("input", { type: "text", placeholder: "Write to this run: it reads this before its next message", "aria-label": "Write to this run", maxlength: 4000 });
    const told = el("span", { role: "status", class: "soft" });
    const form = el("form", { class: "steer" }, said, el("button", { type: "submit" }, "Steer"), told);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const words = said.value.trim();
      if (!words) return;
      try {
        await post(runPath(this.run, "/steer"), { input: words });
        said.value = "";
        told.textContent = "Stored. The model reads it before its next message.";
      } catch (error) { told.textContent = error.message; }
    });
    return form;
  }

  #tell() {
    const { run } = this.#told;
    const lines = storyOf(this.#told).map((line) => el("p", { class: line.kind }, el("span", { class: "sign", "aria-hidden": "true" }, line.sign),
      el("span", {}, line.text), line.seq !== undefined ? el("a", { href: `#/runs/${this.run}/${line.seq}` }, "see it") : null));
    if (run.error) lines.push(el("p", { class: "failed" }, el("span", { class: "sign", "aria-hidden": "true" }, "✕"), el("span", {}, run.error)));
    const asked = run.approval;
    const old = this.#story.querySelector("article");
    const card = asked ? (old?.call === asked.toolCallId ? old : cardOf(run)) : null;
    if (card) card.call = asked?.toolCallId;
    this.#story.replaceChildren(...lines, ...(card ? [card] : []));
  }

  // The step that is shown: the chosen one, else the one that runs, else the last message.
  #selected() {
    const told = this.#told;
    if (!told) return null;
    if (this.picked !== null) {
      const began = told.steps.filter((step) => step.seq <= this.picked);
      return began.sort((a, b) => b.seq - a.seq)[0] ?? told.steps[0];
    }
    const open = told.steps.findLast((step) => step.outcome === "open" && step.kind !== "queued");
    return open ?? told.steps.findLast((step) => step.kind === "model") ?? told.steps.at(-1);
  }

  #draw() { if (this.#told) this.#fall.draw(this.#told, this.ended ? this.#told.run.updated_at : this.now, this.#selected()?.seq); }

  async #show() {
    const step = this.#selected();
    if (!step) return null;
    const unseen = step.seq > this.#told.last_seq;
    if (unseen) {
      this.panel.growing = el("div", { class: "prose plain" });
      this.panel.node.replaceChildren(el("header", {}, el("h2", {}, "Model")), el("p", { class: "facts" }, el("span", { class: "outcome open" }, "asked, no word yet")), this.panel.growing);
      return null;
    }
    const mark = this.picked === null ? null : this.#told.marks.find((each) => each.seq === this.picked);
    const said = mark ? [el("p", { class: "why" }, { steer: "Written while it worked, and read before the next message: ", steer_unused: "Written too late to be used: ", cancel: "Cancelled: " }[mark.kind], el("q", {}, mark.text), mark.by ? ` (${mark.by})` : "")] : [];
    return this.panel.show(step, this.#told, said);
  }

  // tabs

  #open(name) {
    this.#chosen = name;
    for (const tab of this.#tabs.children) {
      const on = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    this.#tab.setAttribute("aria-labelledby", `tab-${name}`);
    if (name !== "conversation") this.live = null;
    if (!this.#told) return; // it is opened when the run is known
    if (name === "events") {
      return void this.#events();
    }
    ({ conversation: () => this.#conversation(), receipt: () => this.#receipt(), as: () => this.#as(this.api ?? "chat") })[name]();
  }

  // The list of events is loaded when it is first opened.
  async #events() {
    try {
      const { EntryList } = await import("./entries.js");
      this.#list ??= new EntryList(this.run, this.#told.kinds, this.leaving.signal);
    } catch { return this.#tab.replaceChildren(failure(new Error("A part of this page could not be loaded. Reload it."))); }
    if (this.#chosen === "events" && this.#list.node.parentNode !== this.#tab) this.#tab.replaceChildren(this.#list.node);
  }

  async #fill(path, show) {
    const tab = this.#chosen;
    if (!this.#tab.childElementCount) this.#tab.replaceChildren(...bones(3));
    try {
      const found = await get(path, { signal: this.leaving.signal });
      if (tab === this.#chosen) show(found);
    } catch (error) {
      if (!this.leaving.signal.aborted) this.#tab.replaceChildren(failure(error));
    }
  }

  #conversation() {
    return this.#fill(pagePath(this.run, "/conversation"), (found) => {
      this.live = this.ended ? null : el("div", { class: "prose plain" });
      const draft = this.panel.growing?.textContent ?? "";
      if (this.live) this.live.append(...visible(draft));
      this.#tab.replaceChildren(el("div", { class: "talk" }, found.messages.map((message) => said(message, this.leaving.signal)),
        this.live ? el("div", { class: "said assistant" }, el("div", { class: "who" }, "assistant"), this.live) : null,
        found.cut ? el("p", { class: "soft" }, "The rest is left out here: it is in Events.") : null));
    });
  }

  #receipt() {
    return this.#fill(runPath(this.run, "/receipt"), (found) => {
      const rows = [
        ["attempts", number(found.attempts.length)], ["tool calls", number(found.steps.length)],
        ["run twice", found.repeated.length ? many(found.repeated.length, "call") : "none"],
        ["outcome unknown", found.unknown_outcomes.length ? many(found.unknown_outcomes.length, "call") : "none"],
        ["answers cut off", number(found.drafts_dropped)], ["approvals", number(found.approvals.length)],
        ["tokens", `${number(found.usage.total_tokens)}${found.usage_estimated ? " (estimated)" : ""}`],
        ...(this.#told.run.cost ? [["cost", money(this.#told.run.cost)]] : []),
      ];
      this.#tab.replaceChildren(el("dl", { class: "numbers" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
        el("details", { open: true }, el("summary", {}, "The receipt as JSON"), el("div", { class: "value" }, copier("copy", () => JSON.stringify(found, null, 2)), block(JSON.stringify(found, null, 2), "receipt"))));
    });
  }

  #as(api) {
    this.api = api;
    const buttons = APIS.map(([name, words]) => el("button", { type: "button", class: "small", "aria-pressed": String(name === api), onclick: () => this.#as(name) }, words));
    return this.#fill(pagePath(this.run, `/as/${api}`), (found) => {
      this.#tab.replaceChildren(el("div", { class: "tools" }, el("div", { class: "group", role: "group", "aria-label": "API" }, buttons), el("span", { class: "soft" }, "The same journal, as a client of each API reads it."), el("span", { class: "grow" }), copier("copy", () => found.text)),
        block(found.text || "This run has nothing to say in this API.", `the run as ${api}`), found.cut ? el("p", { class: "soft" }, "The beginning only.") : "");
    });
  }

  keys = {
    j: () => this.#step(1), k: () => this.#step(-1), ArrowRight: () => this.#step(1), ArrowLeft: () => this.#step(-1),
    a: () => this.#story.querySelector("article")?.press?.("once"), d: () => this.#story.querySelector("article")?.press?.("deny"),
    c: () => this.#head.querySelector("[data-cancel]")?.click(), f: () => this.panel.node.querySelector("[data-fork]")?.click(),
    "/": () => this.#head.querySelector("form.steer input")?.focus(),
  };

  #step(by) {
    const steps = this.#told?.steps.filter((step) => step.seq <= this.#told.last_seq) ?? [];
    const at = steps.indexOf(this.#selected());
    const next = steps[Math.min(steps.length - 1, Math.max(0, at + by))];
    if (next) location.hash = `#/runs/${this.run}/${next.seq}`;
  }
}
customElements.define("run-view", RunView);
