// A conversation. Owns: how a message, a call and a result look. Refuses to know: where they come from.

import { block, el, visible } from "./dom.js";
import { markdown } from "./markdown.js";

export const pretty = (text) => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } };

export function textOf(message) {
  const content = typeof message.content === "string" ? message.content
    : Array.isArray(message.content) ? message.content.map((part) => part.text ?? `[${part.type}]`).join("\n") : "";
  const calls = (message.tool_calls ?? []).map((call) => `→ ${call.function.name} ${call.function.arguments}`);
  return [content, ...calls].filter(Boolean).join("\n");
}

// A message of a conversation.
export function said(message, signal) {
  const calls = (message.tool_calls ?? []).map((call) => el("details", { class: "call" },
    el("summary", {}, el("code", {}, call.function.name), " ", el("span", { class: "soft" }, visible(call.function.arguments.replace(/\s+/g, " ").slice(0, 100)))),
    block(pretty(call.function.arguments), "arguments")));
  if (message.role === "tool") {
    const text = textOf(message);
    return el("details", { class: "call result" }, el("summary", {}, el("span", { class: "soft" }, "result "), visible(text.replace(/\s+/g, " ").slice(0, 120))), block(text, "result"));
  }
  const text = textOf({ ...message, tool_calls: [] });
  return el("div", { class: `said ${message.role}` }, text ? el("div", { class: "who" }, message.role) : null, text ? markdown(text, signal) : null, calls);
}
