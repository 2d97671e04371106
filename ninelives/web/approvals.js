// The calls that wait for a person. Owns: one card per call, with everything that will run, and the answers. A card that
// is being read does not move: new ones come below it. Refuses to know: how the list is fetched.

import { post, runPath } from "./api.js";
import { ago, block, bones, el, number, shortId, span, when } from "./dom.js";
import { waiting } from "./waiting.js";

const LONG = 500; // from here on the size of a text is told
const WORDS = {
  once: "Approve once", session: "Approve in this session", always: "Always approve this call", deny: "Deny",
};
const DONE = {
  once: "Approved once.", session: "Approved in this session.", always: "Always approved.", deny: "Denied.",
};

class ApprovalsView extends HTMLElement {
  #cards = new Map(); // run and call -> card
  #list = el("div", { id: "cards" });
  #head = el("div", { class: "tools" }, el("h1", {}, "Approvals"));
  #note = el("div");

  connectedCallback() {
    this.wanted = this.getAttribute("run");
    this.replaceChildren(this.#head, this.#note, this.#list);
    this.#list.replaceChildren(...bones(2));
    waiting.addEventListener("change", this);
    this.clock = setInterval(() => this.querySelectorAll("[data-until]").forEach(tick), 1000);
    this.handleEvent();
  }

  disconnectedCallback() {
    waiting.removeEventListener("change", this);
    clearInterval(this.clock);
  }

  handleEvent() {
    if (waiting.runs === null) return;
    const shown = new Map(waiting.runs.map((run) => [`${run.run_id} ${run.approval.toolCallId}`, run]));
    if (this.#cards.size === 0) this.#list.replaceChildren();
    for (const [name, card] of this.#cards) if (!shown.has(name)) this.#gone(name, card);
    for (const [name, run] of shown) {
      if (this.#cards.has(name)) continue;
      const card = cardOf(run);
      this.#cards.set(name, card);
      this.#list.append(card);
      if (run.run_id === this.wanted) { this.wanted = null; card.scrollIntoView({ block: "start" }); card.focus(); }
    }
    this.#list.querySelector(".empty")?.remove();
    if (this.#list.childElementCount === 0) {
      this.#list.append(el("p", { class: "empty" }, "Nothing waits for you. A call that needs a person appears here."));
    }
    const missing = this.wanted ? el("p", { class: "note" }, "The call of ", shortId(this.wanted),
      " does not wait any more. ", el("a", { href: `#/runs/${this.wanted}` }, "See its run")) : null;
    const more = waiting.more ? el("p", { class: "note" }, "There are more calls than are shown. Answer these first.") : null;
    this.#note.replaceChildren(...[missing, more].filter(Boolean));
  }

  // A call that is answered, here or elsewhere, or is too late.
  #gone(name, card) {
    this.#cards.delete(name);
    if (card.answered || card.contains(document.activeElement)) {
      card.finish("This call does not wait any more: it was answered, it expired, or the run was cancelled.");
    } else {
      card.remove();
    }
  }

  // Keys: see page.js.
  keys = {
    j: () => this.#move(1),
    k: () => this.#move(-1),
    a: () => this.#selected()?.press("once"),
    d: () => this.#selected()?.press("deny"),
  };

  #open() { return [...this.#list.querySelectorAll(".card")]; }
  #selected() { return this.#open().find((card) => card.contains(document.activeElement)) ?? null; }
  #move(by) {
    const cards = this.#open();
    const at = cards.indexOf(this.#selected());
    const next = cards[at < 0 ? 0 : Math.min(cards.length - 1, Math.max(0, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }
}
customElements.define("approvals-view", ApprovalsView);

function tick(place) {
  const left = Number(place.dataset.until) - Date.now() / 1000;
  place.textContent = left > 0 ? `expires in ${span(left)}` : "expired";
}

export function cardOf(run) {
  const asked = run.approval;
  const until = el("span", { "data-until": asked.expires_at, title: when(asked.expires_at) });
  tick(until);
  const buttons = asked.choices.map((choice) => el("button", {
    type: "button", "data-choice": choice, class: { once: "main", deny: "stop" }[choice], onclick: () => answer(choice),
  }, WORDS[choice] ?? choice));
  const said = el("span", { role: "status", "aria-live": "polite" });
  const choices = el("div", { class: "choices" }, buttons, said);
  const card = el("article", { class: "card waiting", tabindex: -1, "aria-label": `${asked.tool} waits for you` },
    el("header", {}, el("strong", {}, "▲ Waiting for you: ", el("code", {}, asked.tool)), el("span", {}, asked.why)),
    el("div", { class: "facts" },
      el("a", { href: `#/runs/${run.run_id}` }, run.title || "the run"), waiting.everybody && run.owner !== "default" ? el("span", {}, `of ${run.owner}`) : null, el("span", {}, run.model),
      el("span", { title: when(run.updated_at) }, `asked ${ago(run.updated_at)}`), until, shortId(run.run_id)),
    valuesOf(asked),
    el("details", {}, el("summary", {}, "As the model wrote it"), block(asked.arguments, "the arguments as the model wrote them"),
      el("p", { class: "soft" }, "digest ", el("code", {}, asked.digest))),
    choices);

  async function answer(choice) {
    for (const button of buttons) button.disabled = true;
    said.textContent = "Sending…";
    try {
      await post(runPath(run.run_id, "/approval"), { choice, toolCallId: asked.toolCallId, digest: asked.digest });
      card.answered = true;
      card.finish(DONE[choice] ?? "Answered.");
    } catch (refused) {
      said.textContent = refused.message;
      for (const button of buttons) button.disabled = refused.code === "approval_not_pending";
    }
  }
  card.press = (choice) => buttons.find((button) => button.dataset.choice === choice && !button.disabled)?.click();
  card.finish = (words) => {
    card.classList.remove("waiting");
    choices.replaceChildren(el("span", { role: "status" }, words), " ",
      el("a", { href: `#/runs/${run.run_id}` }, "See the run"));
    card.querySelector("[data-until]")?.remove();
  };
  return card;
}

// All that will run: each argument by its name, as text. Arguments that are no JSON object are shown as they are, and so
// are those with a number that a browser would round.
function valuesOf(asked) {
  let decoded = null;
  const numbers = (asked.arguments || "").replace(/"(?:[^"\\]|\\.)*"/g, "");
  try { decoded = /[0-9.]{16}|[0-9][eE]/.test(numbers) ? null : JSON.parse(asked.arguments || "{}"); } catch { /* as it is */ }
  if (decoded === null || typeof decoded !== "object" || Array.isArray(decoded)) return valueOf("call", asked.call);
  const entries = Object.entries(decoded);
  if (entries.length === 0) return el("p", { class: "soft" }, "This call has no arguments.");
  return entries.map(([name, value]) => valueOf(name, typeof value === "string" ? value : JSON.stringify(value, null, 2)));
}

function valueOf(name, text) {
  const lines = text.split("\n").length;
  const size = `${number(text.length)} characters${lines > 1 ? `, ${number(lines)} lines` : ""}, all shown`;
  const head = el("div", { class: "name" }, el("code", {}, name), text.length > LONG ? el("span", {}, size) : null);
  return el("div", { class: "value" }, head,
    block(text, `${name}, all of it`));
}
