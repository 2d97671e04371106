// A run over time. Owns: the scale (long waits are folded), lanes, bars, the bands of attempts, the cut at each crash, and
// the same as a list for narrow screens. Refuses to know: where the data comes from, and what a step says.

import { el, lasted, many } from "./dom.js";

const MOST_BARS = 400; // more are in the list of events
const FOLDED = 0.08; // how much of the width a folded wait takes
const LATE = 0.88; // what stands further right is written to the left of its place
const NICE = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];

export const OUTCOME = {
  open: "running", completed: "completed", failed: "failed", unknown: "outcome unknown", dropped: "cut off, asked again",
  interrupted: "cut off, made again", denied: "denied", expired: "not answered in time",
};

export function stepName(step) {
  if (step.kind === "model") return "model";
  if (step.kind === "waiting") return "you";
  return step.kind === "queued" ? "queue" : step.name;
}

export function outcomeWord(step, ended = false) {
  if (step.kind === "waiting" && step.outcome === "open") return "waiting for you";
  if (step.kind === "waiting" && step.outcome === "completed") return "approved";
  if (ended && step.outcome === "interrupted") return "cut off";
  if (ended && step.outcome === "dropped") return "cut off";
  return OUTCOME[step.outcome] ?? step.outcome;
}

const endOf = (step, now) => step.ended_at ?? Math.max(now, step.started_at);

// Time in seconds to a place between 0 and 1. Waits that are much longer than all work are folded.
export function scaleOf(told, now) {
  const from = told.run.created_at;
  const to = Math.max(told.run.ended ? told.run.updated_at : now, from + 0.05);
  const busy = [];
  for (const step of told.steps) {
    if (step.kind === "model" || step.kind === "tool") busy.push([step.started_at, endOf(step, now)]);
  }
  for (let at = 1; at < told.attempts.length; at += 1) {
    if (told.attempts[at - 1].end === "crash") busy.push([told.attempts[at - 1].ended_at, told.attempts[at].started_at]);
  }
  busy.sort((a, b) => a[0] - b[0]);
  const idle = [];
  let seen = from;
  let worked = 0;
  for (const [start, end] of busy) {
    if (start > seen) idle.push([seen, start]);
    worked += Math.max(0, end - Math.max(start, seen));
    seen = Math.max(seen, end);
  }
  if (to > seen) idle.push([seen, to]);
  const folded = idle.filter(([start, end]) => end - start > Math.max(2, worked * 0.5));
  const real = to - from - folded.reduce((sum, [start, end]) => sum + end - start, 0);
  const share = Math.min(0.5, folded.length * FOLDED);
  const each = folded.length ? share / folded.length : 0;
  const place = (time) => {
    let plain = Math.min(Math.max(time, from), to) - from;
    let extra = 0;
    for (const [start, end] of folded) {
      if (time >= end) { plain -= end - start; extra += each; }
      else if (time > start) { plain -= time - start; extra += each * ((time - start) / (end - start)); }
    }
    return Math.min(1, (real > 0 ? (plain / real) * (1 - share) : 0) + extra);
  };
  return { from, to, place, folded, real: Math.max(real, 0.05) / (1 - share || 1) };
}

function ticksOf(scale, width) {
  const step = NICE.find((nice) => nice >= (scale.real / Math.max(2, width / 110))) ?? 86400;
  const ticks = [];
  for (let time = 0; time <= scale.to - scale.from && ticks.length < 60; time += step) {
    const at = scale.from + time;
    if (!scale.folded.some(([start, end]) => at > start && at < end)) ticks.push(time);
  }
  return ticks;
}

function at(node, left, width) {
  node.style.left = `${left * 100}%`;
  if (width !== undefined) node.style.width = `${width * 100}%`;
  return node;
}

const tickWord = (time) => (time < 1 && time > 0 ? `${time.toFixed(1)} s` : time < 120 ? `${Math.round(time * 10) / 10} s` : lasted(time));

// The lanes: the model first, then you, then the tools as they came. Bars of one lane that overlap get rows of their own.
function lanesOf(steps, now) {
  const lanes = new Map();
  for (const step of steps) {
    const name = stepName(step);
    if (name === "queue" && endOf(step, now) - step.started_at < 0.3) continue;
    const lane = lanes.get(name) ?? { name, kind: step.kind, rows: [] };
    lanes.set(name, lane);
    let row = lane.rows.find((each) => each.at(-1).step.started_at >= 0 && endOf(each.at(-1).step, now) <= step.started_at);
    if (!row && lane.rows.length < 4) lane.rows.push((row = []));
    (row ?? lane.rows[0]).push({ step });
  }
  const order = { queued: 0, model: 1, waiting: 2, tool: 3 };
  return [...lanes.values()].sort((a, b) => order[a.kind] - order[b.kind]);
}

export function describe(step, now, ended) {
  const parts = [stepName(step), step.label && step.label !== step.name ? step.label : "", outcomeWord(step, ended),
    lasted(endOf(step, now) - step.started_at), `attempt ${step.attempt || 1}`];
  if (step.reused_in.length) parts.push("reused after the crash");
  if (step.again) parts.push("made again");
  return parts.filter(Boolean).join(", ");
}

export class Waterfall extends EventTarget {
  constructor() {
    super();
    this.node = el("div", { class: "waterfall" });
    this.narrow = matchMedia("(max-width: 720px)");
  }

  // Draws `told`, at the server's time `now`. "pick" is told when a step is chosen.
  draw(told, now, picked) {
    const held = this.node.contains(document.activeElement) ? document.activeElement.dataset.seq : null;
    this.node.replaceChildren(...(this.narrow.matches ? this.#list(told, now, picked) : this.#chart(told, now, picked)));
    if (held) this.node.querySelector(`[data-seq="${held}"]`)?.focus({ preventScroll: true });
  }

  #button(step, told, now, picked, extra = "") {
    const classes = ["bar", step.kind, step.outcome, extra, step.again ? "again" : "", step.copied ? "copied" : ""];
    return el("button", {
      type: "button", class: classes.filter(Boolean).join(" "), "data-seq": step.seq, title: describe(step, now, told.run.ended),
      "aria-label": describe(step, now, told.run.ended), "aria-pressed": String(step.seq === picked),
      onclick: () => this.dispatchEvent(new CustomEvent("pick", { detail: step.seq })),
    });
  }

  #chart(told, now, picked) {
    const scale = scaleOf(told, now);
    const width = Math.max(300, this.node.clientWidth - 150);
    const shown = told.steps.slice(0, MOST_BARS);
    const axis = el("div", { class: "axis", "aria-hidden": "true" }, ticksOf(scale, width).map((time) =>
      at(el("span", { class: scale.place(scale.from + time) > 0.94 ? "tick last" : "tick" }, tickWord(time)), scale.place(scale.from + time))));
    const back = el("div", { class: "back", "aria-hidden": "true" });
    const bands = el("div", { class: "bands" });
    told.attempts.forEach((attempt, n) => {
      const left = scale.place(attempt.started_at);
      const right = scale.place(attempt.ended_at ?? scale.to);
      back.append(at(el("div", { class: `band ${n % 2 ? "second" : ""}` }), left, right - left));
      const name = right - left > 0.09 ? `attempt ${attempt.attempt}` : `${attempt.attempt}`;
      bands.append(at(el("div", { class: "attempt", title: `attempt ${attempt.attempt}` }, told.attempts.length > 1 || right - left > 0.09 ? name : ""), left, right - left));
      const gap = n + 1 < told.attempts.length ? told.attempts[n + 1].started_at - attempt.ended_at : 0;
      if (handedOver(told, n)) {
        bands.append(at(el("div", { class: "cut calm", title: "The server stopped in order here and handed the run over." }, el("span", {}, `↻ ${lasted(gap)}`)), right));
        back.append(at(el("div", { class: "moment" }), right));
      }
      if (attempt.end !== "crash") return;
      const next = scale.place(told.attempts[n + 1].started_at);
      back.append(at(el("div", { class: "gap" }), right, Math.max(0.002, next - right)));
      const cut = at(el("div", { class: next > 0.85 ? "cut left" : "cut", title: "The server was killed here." }, el("span", {}, `⚡ ${lasted(gap)}`)), (right + next) / 2);
      bands.append(cut);
    });
    for (const [start, end] of scale.folded) {
      const left = scale.place(start);
      back.append(at(el("div", { class: "fold" }, el("span", {}, `⋯ ${lasted(end - start)}`)), left, scale.place(end) - left));
    }
    for (const mark of told.marks) {
      back.append(at(el("div", { class: `moment ${mark.kind}` }), scale.place(mark.at)));
    }
    const rows = [el("div", { class: "row head" }, el("span", { class: "lane" }), el("div", { class: "time" }, axis, bands, this.#moments(told, scale)))];
    for (const lane of lanesOf(shown, now)) {
      lane.rows.forEach((row, n) => {
        const time = el("div", { class: "time" });
        for (const { step } of row) this.#bars(time, step, told, now, scale, picked);
        rows.push(el("div", { class: "row" }, el("span", { class: "lane", title: lane.name }, n === 0 ? lane.name : ""), time));
      });
    }
    const left = told.steps.length - shown.length + told.left_out;
    return [el("div", { class: "chart", role: "group", "aria-label": "Steps over time" }, el("div", { class: "row behind" }, el("span", { class: "lane" }), el("div", { class: "time" }, back)), rows),
      legend(shown), left > 0 ? el("p", { class: "soft" }, `${many(left, "more step")}: see Events.`) : null].filter(Boolean);
  }

  #moments(told, scale) {
    return told.marks.map((mark) => {
      const words = { steer: "✎ steered", steer_unused: "✎ not used", cancel: "✕ cancelled" }[mark.kind];
      const late = scale.place(mark.at) > LATE;
      return at(el("button", { type: "button", class: late ? "note-mark before" : "note-mark", title: mark.text, "data-seq": mark.seq, "aria-label": `${words}: ${mark.text}`,
        onclick: () => this.dispatchEvent(new CustomEvent("pick", { detail: mark.seq })) }, words), scale.place(mark.at));
    });
  }

  #bars(time, step, told, now, scale, picked) {
    const left = scale.place(step.started_at);
    const right = scale.place(endOf(step, now));
    const bar = at(this.#button(step, told, now, picked), left, right - left);
    if (step.kind === "model" && step.first_at && right > left) {
      const first = el("span", { class: "first" });
      first.style.width = `${Math.min(100, Math.max(0, ((scale.place(step.first_at) - left) / (right - left)) * 100))}%`;
      bar.append(first);
    } else if (step.kind === "model" && !step.first_at) bar.classList.add("asked");
    time.append(bar);
    const beside = (words, kind = "") => time.append(right > LATE ? at(el("span", { class: `word before ${kind}` }, words), left) : at(el("span", { class: `word ${kind}` }, words), right));
    if (step.outcome === "unknown") beside("unknown", "unknown");
    if (step.again) beside("again");
    for (const attempt of step.reused_in) {
      const begun = told.attempts.find((each) => each.attempt === attempt);
      if (!begun) continue;
      time.append(at(el("span", { class: "hollow", title: "Finished before the crash, so it was not run again." }, "reused"), scale.place(begun.started_at)));
    }
  }

  // Narrow screens: attempts as headings, steps below each other, a crash as a line across.
  #list(told, now, picked) {
    const nodes = [];
    const longest = Math.max(0.1, ...told.steps.map((step) => (step.kind === "queued" ? 0 : endOf(step, now) - step.started_at)));
    const shown = told.steps.slice(0, MOST_BARS).filter((step) => step.kind !== "queued");
    told.attempts.forEach((attempt, n) => {
      nodes.push(el("h3", {}, `Attempt ${attempt.attempt}`, attempt.reused ? el("span", { class: "soft" }, ` · ${many(attempt.reused, "finished call")} reused`) : null));
      const list = el("ol", { class: "steps" });
      for (const step of shown.filter((each) => each.attempt === attempt.attempt)) {
        const length = el("span", { class: `length ${step.kind} ${step.outcome}` });
        length.style.width = `${Math.max(2, ((endOf(step, now) - step.started_at) / longest) * 100)}%`;
        const row = this.#button(step, told, now, picked, "line");
        row.append(el("span", { class: "name" }, stepName(step)), el("span", { class: "soft" }, outcomeWord(step, told.run.ended)),
          el("span", { class: "number soft" }, lasted(endOf(step, now) - step.started_at)), el("span", { class: "track" }, length));
        list.append(el("li", {}, row));
      }
      nodes.push(list);
      if (handedOver(told, n)) nodes.push(el("p", { class: "crash-line calm" }, el("span", {}, "↻ stopped in order, went on later")));
      if (attempt.end === "crash") {
        nodes.push(el("p", { class: "crash-line" }, el("span", {}, `⚡ killed here, back after ${lasted(told.attempts[n + 1].started_at - attempt.ended_at)}`)));
      }
    });
    return nodes;
  }
}

function legend(steps) {
  const has = (test) => steps.some(test);
  const items = [
    [has((s) => s.kind === "model"), "model", "model"], [has((s) => s.kind === "tool"), "tool completed", "tool"],
    [has((s) => s.kind === "waiting"), "waiting", "waiting for a person"],
    [has((s) => s.reused_in.length), "hollow-key", "reused, not run again"],
    [has((s) => s.outcome === "interrupted"), "tool interrupted", "cut off, then run again"],
    [has((s) => s.outcome === "dropped"), "model dropped", "answer cut off, asked again"],
    [has((s) => s.outcome === "unknown"), "tool unknown", "outcome unknown, not run again"],
    [has((s) => s.outcome === "failed"), "tool failed", "failed"], [has((s) => s.copied), "tool copied", "from the run that was forked"],
  ].filter(([shown]) => shown);
  return el("ul", { class: "legend", "aria-label": "What the bars mean" },
    items.map(([, kind, words]) => el("li", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), words)));
}

// Was the run handed over between two attempts? A run that waits for a person lets go too, and its bar says so.
function handedOver(told, n) {
  const attempt = told.attempts[n];
  if (attempt.end !== "parked" || n + 1 >= told.attempts.length) return false;
  return !told.steps.some((step) => step.kind === "waiting" && step.started_at <= attempt.ended_at && (step.ended_at ?? Infinity) >= attempt.ended_at);
}

// Was a call cut off by a cancel, and not by a crash?
export const cutByCancel = (step, told) => told.attempts.find((each) => each.attempt === step.attempt)?.end !== "crash"
  && told.marks.some((mark) => mark.kind === "cancel" && mark.seq <= (step.end_seq ?? Infinity));

// What happened, in sentences for a person.
export function storyOf(told) {
  const lines = [];
  told.attempts.forEach((attempt, n) => {
    const next = told.attempts[n + 1];
    if (handedOver(told, n)) {
      lines.push({ kind: "calm", sign: "↻", text: `The server was stopped in order ${lasted(attempt.ended_at - told.run.created_at)} into this run. It went on ${lasted(next.started_at - attempt.ended_at)} later, at the same place.` });
    }
    if (attempt.end !== "crash") return;
    const back = lasted(next.started_at - attempt.ended_at);
    const words = [`The server was killed ${lasted(attempt.ended_at - told.run.created_at)} into this run. It came back ${back} later and went on.`];
    if (next.reused) words.push(`${many(next.reused, "finished tool call was", "finished tool calls were")} not run again.`);
    const cut = told.steps.filter((step) => step.attempt === attempt.attempt && step.kind === "model" && step.outcome === "dropped");
    if (cut.length && !told.run.ended) words.push("The answer that was being written is asked for again.");
    else if (cut.length) words.push("The answer that was being written was asked for again.");
    lines.push({ kind: "crash", sign: "⚡", text: words.join(" ") });
  });
  for (const step of told.steps) {
    if (step.outcome === "unknown") {
      const why = cutByCancel(step, told) ? "the run was cancelled while it ran." : "the server died while it ran. It was not repeated.";
      if (step.effect !== "read") lines.push({ kind: "unknown", sign: "?", seq: step.seq, text: `We do not know whether ${step.name} took effect: ${why}` });
    } else if (step.again && step.attempt) {
      lines.push({ kind: "again", sign: "↻", seq: step.seq, text: `${step.name} was cut off and run again: it only reads, or repeating it is safe.` });
    }
  }
  return lines.slice(0, 8);
}
