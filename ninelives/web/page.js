// The page. Owns: which view an address shows, loading its module when it is first needed, signing in and out, the badge
// of waiting calls, and the keyboard. Refuses to know: what a view does. A view is a custom element; `keys` on it are its
// own keys, and `moved(attributes)` is asked first when the address changes within it.

import { borrowed, key, signedOut } from "./api.js";
import { el, failure } from "./dom.js";
import { waiting } from "./waiting.js";

const PLACES = [["Runs", "#/runs"], ["Sessions", "#/sessions"], ["Chat", "#/chat"], ["Status", "#/status"]];
const ROUTES = [
  [/^\/runs\/([\w-]+)(?:\/(\d+))?$/, "run-view", () => Promise.all([import("./run.js"), sheet("run.css")]), (found) => ({ run: found[1], step: found[2] })],
  [/^\/runs$/, "runs-view", () => import("./runs.js"), (found, query) => ({ q: query.get("q") })],
  [/^\/approvals(?:\/(run_[\w-]+))?$/, "approvals-view", () => import("./approvals.js"), (found) => ({ run: found[1] })],
  [/^\/sessions$/, "sessions-view", () => import("./sessions.js"), (found, query) => ({ q: query.get("q") })],
  [/^\/sessions\/(.+)$/, "session-view", () => import("./sessions.js"), (found, query) => ({ session: decodeURIComponent(found[1]), q: query.get("q") })],
  [/^\/chat(?:\/(.+))?$/, "chat-view", () => import("./chat.js"), (found) => ({ session: found[1] && decodeURIComponent(found[1]) })],
  [/^\/status$/, "status-view", () => import("./status.js"), () => ({})],
];
const HELP = [["j  k", "next and previous"], ["enter", "open"], ["a", "approve the selected call once"],
  ["d", "deny it"], ["c", "cancel the run, or the selected runs"], ["x", "select a run"], ["/", "search"],
  ["g", "go to the approvals"], ["?", "this list"]];

const view = document.getElementById("view");
const places = document.getElementById("places");
const away = document.getElementById("away");
const asks = document.getElementById("asks");
const dialog = document.getElementById("keys");
const leave = document.getElementById("leave");
let turn = 0;

// Loads a style sheet of a view, once.
const sheet = (name) => new Promise((resolve, reject) => {
  const path = `/static/${name}`;
  if (document.querySelector(`link[href="${path}"]`)) return resolve();
  document.head.append(el("link", { rel: "stylesheet", href: path, onload: resolve, onerror: reject }));
});

async function route() {
  const now = (turn += 1);
  leave.hidden = places.hidden = !key.get();
  asks.hidden = !key.get();
  if (!key.get()) {
    await import("./sign-in.js");
    return view.replaceChildren(el("sign-in"));
  }
  const [path, query = ""] = location.hash.slice(1).split("?");
  if (path === "" || path === "/") return location.replace("#/runs");
  for (const [pattern, name, load, attributes] of ROUTES) {
    const found = pattern.exec(path);
    if (!found) continue;
    const wanted = attributes(found, new URLSearchParams(query));
    mark(path);
    const shown = view.firstElementChild;
    if (shown?.localName === name && shown.moved?.(wanted)) return;
    try { await load(); } catch { return view.replaceChildren(failure(new Error("A part of this page could not be loaded. Reload it."))); }
    if (now === turn) { view.replaceChildren(el(name, wanted)); scrollTo(0, 0); }
    return;
  }
  view.replaceChildren(el("div", { class: "empty" }, el("p", { class: "title" }, "There is no such page."),
    el("a", { href: "#/runs" }, "All runs")));
}

function mark(path) {
  for (const link of [...places.children, asks]) {
    if (`#${path}`.startsWith(link.getAttribute("href"))) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function renewHead() {
  const count = waiting.more ? `${waiting.count}+` : String(waiting.count);
  asks.replaceChildren(el("span", {}, waiting.count ? "waiting for you" : "nothing waits"), el("span", { class: "badge" }, count));
  asks.classList.toggle("some", waiting.count > 0);
  asks.title = "Approvals";
  document.title = waiting.count ? `(${waiting.count}) Ninelives` : "Ninelives";
  away.textContent = waiting.failedSince
    ? `The server is away (${Math.round((Date.now() - waiting.failedSince) / 1000)} s). Reconnecting; nothing is lost.` : "";
}

function signOut() {
  key.drop();
  waiting.stop();
  route();
}

for (const [name, href] of PLACES) places.append(el("a", { href, "data-name": name }, name));
dialog.append(el("h1", { id: "keys-title" }, "Keys"),
  el("dl", { class: "keys" }, HELP.map(([name, words]) => [el("dt", {}, el("kbd", {}, name)), el("dd", {}, words)])),
  el("button", { type: "button", class: "main", onclick: () => dialog.close() }, "Close"));
document.getElementById("help").addEventListener("click", () => dialog.showModal());
leave.addEventListener("click", signOut);
signedOut.addEventListener("change", signOut);
waiting.addEventListener("change", renewHead);
view.addEventListener("signed-in", () => { waiting.start(); route(); });
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (typing && event.key === "Escape") return typing.blur();
  if (typing || dialog.open || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const own = view.firstElementChild?.keys?.[event.key];
  if (event.key === "?") dialog.showModal();
  else if (event.key === "g" && key.get()) location.hash = "#/approvals";
  else if (own) own(event);
  else return;
  event.preventDefault();
});

renewHead();
if (!key.get()) {
  const given = await borrowed();
  if (given) key.set(given);
}
if (key.get()) waiting.start();
route();
