// A chat to try the server with. Owns: one conversation in a session, the answer as it streams, and what happened to it.
// The address names the session, and the server has the rest: so a reload goes on. Refuses to know: the inspector.

import { events, get, pagePath, post, runPath } from "./api.js";
import { cardOf } from "./approvals.js";
import { bones, el, empty, failure, lasted, many, visible } from "./dom.js";
import { said } from "./talk.js";

class ChatView extends HTMLElement {
  #talk = el("div", { class: "talk", role: "log", "aria-label": "Conversation" });
  #live = el("div");
  #note = el("div", { role: "status" });

  connectedCallback() {
    this.leaving = new AbortController();
    this.session = this.getAttribute("session") ?? `chat-${crypto.randomUUID().slice(0, 13)}`;
    this.model = el("select", { "aria-label": "Model" });
    this.words = el("textarea", { rows: 2, placeholder: "Say something. Enter sends, Shift+Enter is a new line.", "aria-label": "Message" });
    this.send = el("button", { type: "submit", class: "main" }, "Send");
    this.stop = el("button", { type: "button", class: "stop", hidden: true, onclick: () => post(runPath(this.run, "/stop"), {}).catch((error) => this.#note.replaceChildren(failure(error))) }, "Stop");
    const form = el("form", { class: "compose" }, this.words, el("div", { class: "tools" }, this.model, el("span", { class: "grow" }), this.stop, this.send));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.#say(); });
    this.words.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.#say(); } });
    this.replaceChildren(el("div", { class: "tools" }, el("h1", {}, "Chat"), el("span", { class: "grow" }), el("a", { href: "#/chat", onclick: () => { if (location.hash === "#/chat") this.#fresh(); } }, "New chat"),
      el("a", { href: `#/sessions/${encodeURIComponent(this.session)}` }, "As a session")),
    el("div", { class: "chat" }, this.#talk, this.#live, this.#note, form));
    this.#begin();
  }

  disconnectedCallback() { this.leaving.abort(); }
  moved({ session }) { return session !== undefined && session === this.session; }
  #fresh() { const next = el("chat-view"); this.replaceWith(next); }

  async #begin() {
    const { signal } = this.leaving;
    try {
      const models = await get("/v1/models", { signal });
      this.model.replaceChildren(...models.data.map((model) => el("option", { value: model.id }, model.id)));
      this.model.hidden = models.data.length < 2;
      if (this.hasAttribute("session")) {
        this.#talk.replaceChildren(...bones(3));
        const [talk, runs] = await Promise.all([this.#messages(signal), get(`/api/runs?limit=1&q=${encodeURIComponent(`session:${this.session} is:active`)}`, { signal })]);
        this.#draw(talk);
        this.#showEnd();
        if (runs.data[0]) { this.#note.replaceChildren(el("p", { class: "soft" }, "The answer goes on where it was.")); await this.#follow(runs.data[0].run_id, true); }
      } else this.#talk.replaceChildren(empty("A place to try things.", el("p", {}, "Kill the server in the middle of an answer: it goes on, and this page shows what happened.")));
      this.words.focus({ preventScroll: true });
    } catch (error) {
      if (!signal.aborted) { this.#talk.replaceChildren(); this.#note.replaceChildren(failure(error)); }
    }
  }

  async #messages(signal) {
    try { return (await get(`/api/sessions/${encodeURIComponent(this.session)}/messages`, { signal })).data; }
    catch (error) { if (error.status === 404) return []; throw error; }
  }

  #draw(messages) { this.#talk.replaceChildren(...messages.map((message) => said(message, this.leaving.signal))); }

  // A conversation opens at its end. Its Markdown arrives in pieces, so the page grows for a moment.
  #showEnd() {
    const follow = new ResizeObserver(() => scrollTo(0, document.documentElement.scrollHeight));
    const end = () => follow.disconnect();
    follow.observe(this.#talk);
    setTimeout(end, 2000);
    for (const kind of ["wheel", "touchstart", "keydown", "pointerdown"]) addEventListener(kind, end, { once: true, passive: true, signal: this.leaving.signal });
  }

  async #say() {
    const text = this.words.value.trim();
    if (!text || this.run) return;
    this.words.value = "";
    this.#note.replaceChildren();
    if (this.#talk.querySelector(".empty")) this.#talk.replaceChildren();
    const mine = said({ role: "user", content: text }, this.leaving.signal);
    this.#talk.append(mine);
    scrollTo(0, document.documentElement.scrollHeight);
    // A key makes the request safe to repeat: a server that died before it answered may have begun the run.
    const sent = { headers: { "idempotency-key": `page-${crypto.randomUUID()}` }, signal: this.leaving.signal };
    this.send.disabled = true;
    try {
      const begun = await this.#patiently(() => post("/v1/runs", { input: text, session_id: this.session, model: this.model.value || undefined }, sent));
      if (!this.hasAttribute("session")) { this.setAttribute("session", this.session); history.replaceState(null, "", `#/chat/${encodeURIComponent(this.session)}`); }
      await this.#follow(begun.run_id, false);
    } catch (error) {
      if (this.leaving.signal.aborted) return;
      this.#note.replaceChildren(failure(error));
      this.words.value = text;
      mine.remove();
    } finally { this.send.disabled = false; }
  }

  async #patiently(ask) {
    for (let tries = 0; ; tries += 1) {
      try { return await ask(); } catch (error) {
        if (!error.away || tries > 20 || this.leaving.signal.aborted) throw error;
        this.#note.replaceChildren(el("p", { class: "note away" }, "The server is away. Trying again; nothing is lost."));
        await new Promise((resolve) => { setTimeout(resolve, 1000); });
      }
    }
  }

  async #follow(run, again) {
    const { signal } = this.leaving;
    this.run = run;
    this.stop.hidden = false;
    const text = el("div", { class: "prose plain" });
    const steps = el("div", { class: "chat-steps" });
    this.#live.replaceChildren(el("div", { class: "said assistant" }, el("div", { class: "who" }, "assistant ", el("a", { href: `#/runs/${run}` }, "inspect")), steps, text));
    let gone = null;
    const line = (words, kind = "") => { const made = el("p", { class: `happened ${kind}` }, words); steps.append(made); return made; };
    const open = new Map();
    const away = (failures) => {
      if (failures === null) { if (gone) { gone.words.textContent = `⚡ The server was away for ${lasted((Date.now() - gone.at) / 1000)}. It came back and went on.`; gone = null; } return; }
      gone ??= { at: Date.now(), words: line("⚡ The server is away. Nothing is lost; waiting for it.", "crash") };
    };
    try {
      for await (const event of events(run, { signal, onAway: away })) {
        const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
        this.#heard(event, { text, line, open, steps });
        if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
      }
      if (signal.aborted) return;
      const told = (await get(pagePath(run, "/timeline"), { signal })).run;
      this.#draw(await this.#messages(signal));
      const facts = [told.crashes ? `⚡ ${many(told.crashes, "crash", "crashes")} survived` : "", many(told.calls, "tool call"), `${told.input_tokens + told.output_tokens} tokens`, lasted(told.updated_at - told.created_at)];
      this.#live.replaceChildren(...(told.crashes ? [...steps.querySelectorAll(".crash")] : []), el("p", { class: "facts after" }, told.status === "completed" ? null : el("strong", {}, told.status),
        facts.filter(Boolean).map((fact) => el("span", {}, fact)), el("a", { href: `#/runs/${run}` }, "see what happened")), told.error ? failure(new Error(told.error)) : "");
      this.#note.replaceChildren();
    } catch (error) {
      if (!signal.aborted) this.#note.replaceChildren(failure(error));
    } finally {
      this.run = null;
      this.stop.hidden = true;
      if (!again) this.words.focus({ preventScroll: true });
    }
  }

  #heard(event, { text, line, open, steps }) {
    switch (event.event) {
      case "message.delta": text.append(...visible(event.delta)); break;
      case "message.dropped": text.replaceChildren(); line("⚡ The server was killed while it wrote. The words that were not finished are gone, and the model was asked again.", "crash"); break;
      case "tool.started": steps.append(...[text.textContent ? el("div", { class: "prose plain" }, ...text.childNodes) : null].filter(Boolean)); text.replaceChildren();
        open.set(event.toolCallId, line(`${event.tool} ${event.preview ?? ""} …`, "tool")); break;
      case "tool.completed": {
        const words = event.outcome === "unknown" ? "outcome unknown: the server died while it ran, and it was not repeated" : event.error ? "failed" : `done in ${lasted(event.duration)}`;
        const row = open.get(event.toolCallId);
        if (row) { row.textContent = `${row.textContent.replace(/ …$/, "")}: ${words}`; row.classList.add(event.outcome === "unknown" ? "unknown" : event.error ? "failed" : "done"); }
        break;
      }
      case "approval.request": this.#ask(event.run_id, steps); break;
      case "run.steered": line(`✎ ${event.text}`); break;
      default:
    }
  }

  async #ask(run, steps) {
    const told = await get(pagePath(run, "/timeline"), { signal: this.leaving.signal }).catch(() => null);
    if (told?.run.approval) steps.append(cardOf(told.run));
  }

  keys = { "/": () => this.words.focus(), a: () => this.querySelector("article")?.press?.("once"), d: () => this.querySelector("article")?.press?.("deny"), c: () => { if (!this.stop.hidden) this.stop.click(); } };
}
customElements.define("chat-view", ChatView);
