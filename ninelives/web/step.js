// The details of one step. Owns: what a step said or did, the exact request that a model saw, forking from it.
// Refuses to know: how steps are drawn, and how a call is approved (approvals.js).

import { get, pagePath, post, runPath } from "./api.js";
import { block, bones, copier, shell, el, failure, lasted, many, money, number, visible, when } from "./dom.js";
import { markdown } from "./markdown.js";
import { pretty, textOf } from "./talk.js";
import { cutByCancel, outcomeWord, stepName } from "./waterfall.js";

const LONG = 20_000; // a longer text is shown in part at first
const WHY = {
  unknown: "The server died while this call ran. Nobody knows whether it took effect, so it was not repeated: the model was told.",
  interrupted: "The server died while this call ran. It only reads, or repeating it is safe: so it was made again.",
  dropped: "The server died while this answer was written. Nothing of it counted, and the model was asked again.",
};

export class StepPanel {
  constructor(run, signal) {
    this.node = el("section", { class: "panel", "aria-label": "The selected step", tabindex: -1 });
    this.run = run;
    this.signal = signal;
    this.growing = null; // where text that streams goes
  }

  wait() { this.node.replaceChildren(...bones(3)); }

  // Shows a step. `upto` of the result says up to which entry its text goes.
  async show(step, told, more = []) {
    this.growing = null;
    const turn = (this.turn = Symbol());
    let details;
    try {
      details = await get(pagePath(this.run, `/steps/${step.seq}`), { signal: this.signal });
    } catch (error) {
      if (!this.signal.aborted && turn === this.turn) this.node.replaceChildren(failure(error));
      return null;
    }
    if (turn !== this.turn) return null;
    const ended = told.run.ended;
    const life = (step.ended_at ?? told.now) - step.started_at;
    const facts = [outcomeWord(step, ended), lasted(Math.max(0, life)), step.effect && `effect ${step.effect}`, step.attempt ? `attempt ${step.attempt}` : "",
      step.first_at && `first word after ${lasted(step.first_at - step.started_at)}`,
      step.input_tokens + step.output_tokens ? `${number(step.input_tokens)} tokens in, ${number(step.output_tokens)} out` : "", step.cost ? `cost ${money(step.cost)}` : ""];
    const name = step.kind === "waiting" ? `Your answer to ${step.name}` : step.kind === "queued" ? "The request" : step.kind === "model" ? "Model" : stepName(step);
    this.node.replaceChildren(...[
      el("header", {}, el("h2", {}, step.emoji ? `${step.emoji} ` : "", name), step.label && step.label !== step.name ? el("code", { class: "label" }, visible(step.label)) : null),
      el("p", { class: "facts" }, facts.filter(Boolean).map((fact, n) => el("span", { class: n === 0 ? `outcome ${step.outcome} ${step.kind}` : "" }, fact))),
      this.#why(step, told),
      step.reused_in.length ? el("p", { class: "why" }, "Finished before the crash, so it was not run again: its result was taken from the journal.") : null,
      step.copied ? el("p", { class: "why" }, "Taken over from the run that this one was forked from.") : null,
      ...more, ...this.#content(details, step), this.#below(step, told)].filter(Boolean));
    return details;
  }

  #why(step, told) {
    if (step.kind === "model" && step.outcome === "failed") return el("p", { class: "why failed" }, told.run.error ?? "The model could not answer.");
    const words = cutByCancel(step, told) && step.outcome === "unknown" ? "The run was cancelled while this call ran. Whether it took effect is not known."
      : told.run.ended && told.attempts.length < 2 ? "" : WHY[step.outcome];
    return words ? el("p", { class: `why ${step.outcome}` }, words) : null;
  }

  #content(details, step) {
    if (step.kind === "model") return this.#message(details, step);
    if (step.kind === "queued") return [markdown(details.text, this.signal)];
    if (step.kind === "waiting") {
      return [details.why ? el("p", {}, details.why) : null, field("arguments", pretty(details.arguments)),
        step.choice ? el("p", { class: "soft" }, `${step.choice}${step.by ? `, by ${step.by}` : ""}`) : null];
    }
    return [details.arguments ? field("input", pretty(details.arguments)) : null,
      details.progress.length ? field("progress", details.progress.join("\n")) : null,
      step.outcome === "open" ? el("p", { class: "soft" }, "It runs.") : field(step.outcome === "failed" ? "error" : "output", details.output),
      details.cut ? el("p", { class: "soft" }, "Only the beginning is shown. The whole is in Events.") : null];
  }

  #message(details, step) {
    const parts = [];
    if (details.reasoning) parts.push(el("details", {}, el("summary", {}, `Reasoning, ${many(details.reasoning.length, "character")}`), block(details.reasoning, "reasoning")));
    if (step.outcome === "open") {
      this.growing = el("div", { class: "prose plain", "aria-live": "off" }, visible(details.text));
      parts.push(this.growing);
    } else if (details.text.length > LONG) {
      const short = el("div", { class: "prose plain" }, visible(details.text.slice(0, LONG)));
      parts.push(short, el("p", {}, el("button", { type: "button", class: "small", onclick: (event) => { short.replaceChildren(...visible(details.text)); event.target.remove(); } },
        `Show all ${many(details.text.length, "character")}`)));
    } else if (details.text) parts.push(markdown(details.text, this.signal));
    if (details.calls.length) {
      parts.push(el("h3", {}, "Asked for"), el("ul", { class: "asked-for" }, details.calls.map((call) =>
        el("li", {}, el("code", {}, call.name), " ", el("code", { class: "soft" }, visible(call.arguments.slice(0, 160)))))));
    }
    parts.push(this.#request(step));
    return parts;
  }

  // What the model saw: asked for when it is opened.
  #request(step) {
    const inside = el("div");
    const made = el("details", { class: "request" }, el("summary", {}, "What did it see? The exact request"), inside);
    made.addEventListener("toggle", async () => {
      if (!made.open || inside.childElementCount) return;
      inside.replaceChildren(...bones(3));
      try {
        const asked = await get(pagePath(this.run, `/request/${step.seq}`), { signal: this.signal });
        const tools = asked.tools.map((tool) => tool.function?.name ?? tool.name ?? "?");
        inside.replaceChildren(
          el("p", { class: "soft" }, "Made again from the journal, with the prompt and the tools that the server has now."),
          tools.length ? el("p", {}, `${many(tools.length, "tool")} offered: `, tools.map((tool, n) => [n ? ", " : "", el("code", {}, tool)])) : el("p", {}, "No tools offered."),
          el("ol", { class: "messages" }, asked.messages.map((message) => el("li", {}, el("strong", {}, message.role), block(textOf(message), `what ${message.role} said`)))),
          copier("Copy as JSON", () => JSON.stringify(asked, null, 2)));
      } catch (error) {
        if (!this.signal.aborted) inside.replaceChildren(failure(error));
      }
    });
    return made;
  }

  #below(step, told) {
    const said = el("input", { type: "text", placeholder: "Say something else first (optional)", "aria-label": "What the fork is told" });
    const wrong = el("span", { role: "status", class: "error" });
    const form = el("form", { class: "fork", hidden: true }, said, el("button", { class: "main", type: "submit" }, "Fork"), wrong);
    const place = step.end_seq ?? step.seq;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = { from_seq: place, ...(said.value.trim() ? { input: said.value.trim() } : {}) };
      try {
        const made = await post(runPath(this.run, "/fork"), body);
        location.hash = `#/runs/${made.run_id}`;
      } catch (error) { wrong.textContent = error.message; }
    });
    const open = el("button", { type: "button", class: "small", "data-fork": true, onclick: () => { form.hidden = !form.hidden; if (!form.hidden) said.focus(); } }, "Fork from here");
    return el("footer", {}, el("span", { class: "soft", title: when(step.started_at) }, `event ${step.seq}`),
      copier("Copy link", () => `${location.origin}/#/runs/${told.run.run_id}/${step.seq}`),
      copier("Copy as curl", () => shell(pagePath(this.run, `/steps/${step.seq}`))), open, form);
  }
}

function field(name, text) {
  return el("div", { class: "value" }, el("div", { class: "name" }, name, text ? copier("copy", () => text) : null),
    text ? block(text, name) : el("p", { class: "soft" }, "nothing"));
}
