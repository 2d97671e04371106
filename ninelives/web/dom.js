// Elements and words. Owns: how text comes onto the page (always as text, never as markup), times, ids and status words.
// Refuses to know: the server.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// Signs that a reader cannot see, or that change the order of what is seen.
const ODD = /[^\P{C}\n\t]|[^\P{Z} ]|[\u115f\u1160\u2800\u3164\ufe00-\ufe0f\uffa0]|[\u{e0100}-\u{e01ef}]/gu;

// A text with such signs spelled out.
export function visible(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(ODD)) {
    parts.push(text.slice(from, found.index));
    parts.push(el("span", { class: "odd", title: "a sign that cannot be seen" },
      `\\u{${found[0].codePointAt(0).toString(16)}}`));
    from = found.index + found[0].length;
  }
  parts.push(text.slice(from));
  return parts;
}

// A text with the words that were searched marked.
export function hits(text, words) {
  const wanted = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!wanted.length) return visible(text);
  return text.split(new RegExp(`(${wanted.join("|")})`, "giu")).flatMap((part, n) => (n % 2 ? [el("mark", {}, visible(part))] : visible(part)));
}

export const block = (text, label) => el("pre", { tabindex: 0, role: "region", "aria-label": label }, visible(text));

const SIGNS = {
  queued: "○", running: "●", waiting_for_approval: "▲", stopping: "◌", completed: "✓", failed: "✕", cancelled: "–",
  incomplete: "◐",
};
export const status = (name) => el("span", { class: `status ${name}` },
  el("span", { "aria-hidden": "true", class: "sign" }, SIGNS[name] ?? "·"), el("span", {}, statusWord(name)));
export const statusWord = (name) => (name === "waiting_for_approval" ? "waiting for you" : name);
export const isActive = (name) => ["queued", "running", "waiting_for_approval", "stopping"].includes(name);

export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86_400)} d`;
}

// A duration, more exactly.
export function lasted(seconds) {
  if (seconds < 0.0995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}
export const ago = (at) => `${span(Date.now() / 1000 - at)} ago`;
export const number = (value) => Number(value).toLocaleString("en");
// A cost, in the currency of the prices.
export const money = (value) => (value >= 1 ? value.toFixed(2) : Number(value.toPrecision(2)).toLocaleString("en", { maximumFractionDigits: 9 }));
export const many = (count, one, more = `${one}s`) => `${number(count)} ${count === 1 ? one : more}`;
export const when = (at) => new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
export const clock = (at) => {
  const time = new Date(at * 1000);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
};

// Copies a text, and says so on the button.
export function copier(words, textOf, attributes = {}) {
  const made = el("button", { type: "button", class: "small", ...attributes }, words);
  made.addEventListener("click", async (event) => {
    event.stopPropagation();
    const text = textOf();
    try { await navigator.clipboard.writeText(text); made.textContent = "copied"; } catch { made.textContent = text; }
    setTimeout(() => { made.textContent = words; }, 1500);
  });
  return made;
}

// An id: its last signs, whole on hover, copied with one click.
export const shortId = (id) => copier(`…${id.slice(-6)}`, () => id,
  { class: "id", title: `${id} (click to copy)`, "aria-label": `…${id.slice(-6)}: copy ${id}` });

// The same request for a shell. The key is named, never shown.
export function shell(path, body) {
  const quoted = body === undefined ? "" : ` \\\n  -H 'Content-Type: application/json' -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  return `curl -N ${location.origin}${path} -H "Authorization: Bearer $KEY"${quoted}`;
}

export const bones = (count = 4) => Array.from({ length: count }, () => el("div", { class: "bones", "aria-hidden": "true" }));
export const failure = (error) => el("p", { class: "note failed", role: "alert" }, error.message);
export const empty = (title, ...more) => el("div", { class: "empty" }, el("p", { class: "title" }, title), ...more);
