// Markdown. Owns: building elements from the tree that the server made, and asking for it. Refuses to know: Markdown.

import { post } from "./api.js";
import { el, visible } from "./dom.js";

const ALLOWED = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "em", "strong", "s", "a", "ul", "ol", "li", "blockquote", "pre",
  "code", "hr", "br", "table", "thead", "tbody", "tr", "th", "td"]);
const LOWER = { h1: "h3", h2: "h4", h3: "h5", h4: "h6", h5: "h6" }; // the page has its own first headings
const MOST = 200_000;

function build(node) {
  if (typeof node === "string") return visible(node);
  const [name, attributes, children] = node;
  if (!ALLOWED.has(name)) return children.map(build);
  const made = el(LOWER[name] ?? name, name === "pre" ? { tabindex: 0 } : {}, children.map(build));
  if (name === "a" && /^(https?:\/\/|mailto:)/i.test(attributes.href ?? "")) {
    for (const [key, value] of [["href", attributes.href], ["target", "_blank"], ["rel", "noopener noreferrer nofollow"]]) made.setAttribute(key, value);
  }
  if (name === "ol" && /^\d{1,9}$/.test(attributes.start ?? "")) made.setAttribute("start", attributes.start);
  return made;
}

// Text on the page at once, as Markdown when the server has answered.
export function markdown(text, signal) {
  const made = el("div", { class: "prose" }, el("div", { class: "plain" }, visible(text)));
  if (text.length <= MOST && /[*_`#>|~[\]\-\d\n]/.test(text)) {
    post("/api/markdown", { texts: [text] }, { signal })
      .then(({ trees }) => made.replaceChildren(...trees[0].flatMap((node) => build(node))))
      .catch(() => { /* it stays plain */ });
  }
  return made;
}
