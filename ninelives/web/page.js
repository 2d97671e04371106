// The page. Owns: which view an address shows, signing in and out, the badge of waiting calls, and the keyboard.
// Refuses to know: what a view does. A view is a custom element; `keys` on it are its own keys.

import { key, signedOut } from "./api.js";
import { el } from "./dom.js";
import { waiting } from "./waiting.js";
import "./approvals.js";
import "./run.js";
import "./runs.js";
import "./sign-in.js";

const PLACES = [["Runs", "#/runs"], ["Approvals", "#/approvals"]];
const ROUTES = [
  [/^\/approvals(?:\/(run_[\w-]+))?$/, "approvals-view", (found) => ({ run: found[1] })],
  [/^\/runs\/([\w-]+)$/, "run-view", (found) => ({ run: found[1] })],
  [/^\/runs$/, "runs-view", (found, query) => ({ status: query.get("status") })],
];
const HELP = [["j, k", "next and previous row"], ["enter", "open"], ["a", "approve the selected call once"],
  ["d", "deny the selected call"], ["c", "cancel the selected run"], ["g", "go to the approvals"], ["?", "this list"]];

const view = document.getElementById("view");
const places = document.getElementById("places");
const away = document.getElementById("away");
const dialog = document.getElementById("keys");
const leave = document.getElementById("leave");

function route() {
  leave.hidden = places.hidden = !key.get();
  if (!key.get()) return view.replaceChildren(el("sign-in"));
  const [path, query = ""] = location.hash.slice(1).split("?");
  for (const [pattern, name, attributes] of ROUTES) {
    const found = pattern.exec(path);
    if (found) {
      view.replaceChildren(el(name, attributes(found, new URLSearchParams(query))));
      return mark(path);
    }
  }
  if (path === "" || path === "/") location.replace("#/runs");
  else view.replaceChildren(el("p", { class: "empty" }, "There is no such page. ", el("a", { href: "#/runs" }, "All runs")));
}

function mark(path) {
  for (const link of places.children) {
    if (`#${path}`.startsWith(link.getAttribute("href"))) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function renewHead() {
  const badge = places.querySelector(".badge");
  badge.textContent = waiting.more ? `${waiting.count}+` : String(waiting.count);
  badge.classList.toggle("some", waiting.count > 0);
  badge.setAttribute("aria-label", `${waiting.count} waiting`);
  document.title = waiting.count ? `(${waiting.count}) Ninelives` : "Ninelives";
  away.textContent = waiting.failedSince
    ? `The server is away (${Math.round((Date.now() - waiting.failedSince) / 1000)} s). Reconnecting; nothing is lost.` : "";
}

function signOut() {
  key.drop();
  waiting.stop();
  route();
}

for (const [name, href] of PLACES) places.append(el("a", { href }, name));
places.lastElementChild.append(el("span", { class: "badge" }, "0"));
dialog.append(el("h1", { id: "keys-title" }, "Keys"),
  el("dl", { class: "keys" }, HELP.flatMap(([name, words]) => [el("dt", {}, el("kbd", {}, name)), el("dd", {}, words)])),
  el("button", { type: "button", class: "main", onclick: () => dialog.close() }, "Close"));
document.getElementById("help").addEventListener("click", () => dialog.showModal());
leave.addEventListener("click", signOut);
signedOut.addEventListener("change", signOut);
waiting.addEventListener("change", renewHead);
view.addEventListener("signed-in", () => { waiting.start(); route(); });
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (typing || dialog.open || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const own = view.firstElementChild?.keys?.[event.key];
  if (event.key === "?") dialog.showModal();
  else if (event.key === "g" && key.get()) location.hash = "#/approvals";
  else if (own) own();
  else return;
  event.preventDefault();
});

if (key.get()) waiting.start();
route();
