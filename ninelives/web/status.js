// The state of the server. Owns: its parts in words, what the last bad exit did, what was spent, and for admins keys, the
// audit log and servers elsewhere. Refuses to know: runs.

import { del, get, pause, post } from "./api.js";
import { ago, bones, copier, el, empty, failure, lasted, many, money, number, shortId, when } from "./dom.js";

const EVERY_MS = 3000;

class StatusView extends HTMLElement {
  #note = el("div");
  #parts = el("div", { class: "parts" });

  connectedCallback() {
    this.leaving = new AbortController();
    this.replaceChildren(el("div", { class: "tools" }, el("h1", {}, "Status")), this.#note, this.#parts, el("section", { class: "more-status" }));
    this.#parts.replaceChildren(...bones(4));
    this.#keepUp();
    this.#more();
  }

  disconnectedCallback() { this.leaving.abort(); }

  async #keepUp() {
    const { signal } = this.leaving;
    while (!signal.aborted) {
      try {
        const [health, exit] = await Promise.all([get("/health/detailed", { signal }), get("/api/exit", { signal }).catch(() => null)]);
        this.#show(health, exit);
      } catch (error) {
        if (!signal.aborted && !error.away) this.#note.replaceChildren(failure(error));
      }
      await pause(EVERY_MS, signal);
    }
  }

  #show(health, exit) {
    this.#note.replaceChildren(...(exit?.killed_at ? [banner(exit)] : []));
    const good = (ok, yes, no) => el("span", { class: `lamp ${ok ? "good" : "bad"}` }, ok ? `✓ ${yes}` : `✕ ${no}`);
    const card = (name, state, rows) => el("div", { class: "card part" }, el("h2", {}, name), el("p", {}, state),
      el("dl", {}, rows.filter((row) => row[1] !== undefined && row[1] !== null && row[1] !== "").map(([key, value]) => [el("dt", {}, key), el("dd", {}, String(value))])));
    const { store, upstream, runs, recovery, tools, mcp, admin } = health;
    const off = (admin?.mcp ?? []).filter((each) => !each.connected);
    this.#parts.replaceChildren(
      card("Server", good(health.status === "ok", "ok", health.status), [["version", health.version], ["up for", lasted(health.uptime_s)], ["readers", number(health.readers)], ["process", health.pid]]),
      card("Store", good(store.reachable && store.writable, "writable", store.trouble ?? "not writable"), [["kind", store.kind], ["durability", store.durability], ["trouble", store.trouble], ["place", admin?.data_dir]]),
      card("Model", good(upstream.reachable, "answers", "does not answer"), [["name", upstream.model], ["what to do", upstream.reachable ? "" : "see `ninelives doctor`"]]),
      card("Runs", good(true, many(runs.active, "active run")), [["waiting for a slot", number(runs.queued)], ["slots", health.limits.concurrent_runs], ["queue", health.limits.queue]]),
      card("Recovery", good(recovery.sealed === 0, "nothing given up", `${many(recovery.sealed, "run")} given up`), [["went on after a crash", number(recovery.taken_over)], ["went on after a restart", number(recovery.restarted)], ["fenced writes", number(recovery.fenced)]]),
      card("Tools", good(tools.shell === "on" && tools.sandbox !== "off", `sandbox ${tools.sandbox}`, tools.sandbox === "off" ? "no sandbox" : "shell tools are off"), [["what to do", tools.remedy ?? (tools.sandbox === "off" ? "set tools.sandbox = \"auto\" and install bubblewrap: see `ninelives doctor`" : "")]]),
      card("MCP servers", mcp.configured === 0 ? el("span", { class: "soft" }, "none configured") : good(mcp.connected === mcp.configured, `${mcp.connected} connected`, `${mcp.connected} of ${mcp.configured} connected`), off.map((each) => [each.name, each.fault])),
      ...(health.replicas ? [card("Replicas", good(health.replicas.working > 0, many(health.replicas.alive, "process", "processes"), "none works"), (admin?.replicas ?? []).map((each) => [each.name, `${many(each.runs, "run")}, seen ${each.seen_ms} ms ago`]))] : []));
  }

  async #more() {
    const { signal } = this.leaving;
    const place = this.querySelector(".more-status");
    const named = await get("/api/elsewhere", { signal }).catch(() => null); // only an admin key may
    if (named && !signal.aborted) place.append(elsewhereOf(named.data, signal));
    const usage = await get("/api/usage?days=30", { signal }).catch((error) => error);
    if (signal.aborted) return;
    place.append(el("h2", { id: "usage" }, "Usage, 30 days"), usage instanceof Error ? failure(usage) : usageTable(usage.data));
    const keys = await get("/api/keys?limit=100", { signal }).catch(() => null);
    if (keys && !signal.aborted) place.append(keysOf(keys.data, signal));
    const audit = keys ? await get("/api/audit?limit=50", { signal }).catch(() => null) : null;
    if (audit && !signal.aborted) place.append(auditOf(audit.data));
  }
}
customElements.define("status-view", StatusView);

function banner(exit) {
  const time = new Date(exit.killed_at * 1000);
  const at = `${String(time.getHours()).padStart(2, "0")}:${String(time.getMinutes()).padStart(2, "0")}`;
  return el("p", { class: "note killed", role: "status" }, el("strong", { title: when(exit.killed_at) }, `⚡ Killed at ${at}: `),
    `${many(exit.went_on, "run")} went on, ${number(exit.lost)} lost, ${many(exit.unknown, "outcome")} unknown. `,
    exit.runs.length ? el("a", { href: "#/runs?q=is:crashed" }, "See them") : null);
}

const table = (names, rows, label) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, el("table", {}, el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col", class: name.startsWith("#") ? "number" : "" }, name.replace("#", ""))))),
  el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, n) => el("td", { class: names[n].startsWith("#") ? "number" : "" }, cell)))))));

function usageTable(days) {
  if (!days.length) return empty("Nothing was spent yet.");
  const sum = (name) => days.reduce((total, day) => total + Number(day[name] ?? 0), 0);
  const byDay = new Map();
  for (const day of days) byDay.set(day.day, (byDay.get(day.day) ?? 0) + day.input_tokens + day.output_tokens);
  const most = Math.max(1, ...byDay.values());
  const bars = el("div", { class: "days", role: "img", "aria-label": `Tokens by day: ${[...byDay].map(([day, tokens]) => `${day} ${tokens}`).join(", ")}` },
    [...byDay].reverse().map(([day, tokens]) => { const bar = el("span", { title: `${day}: ${number(tokens)} tokens` }); bar.style.height = `${Math.max(2, (tokens / most) * 100)}%`; return bar; }));
  return el("div", {}, el("dl", { class: "numbers" }, [["runs", number(sum("runs"))], ["failed", number(sum("errors"))], ["tokens in", number(sum("input_tokens"))], ["tokens out", number(sum("output_tokens"))], ["cost", sum("cost") ? money(sum("cost")) : "no price is set"]]
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))), byDay.size > 1 ? bars : null,
  table(["day", "owner", "model", "#runs", "#failed", "#tokens in", "#tokens out", "#cost"], days.slice(0, 100).map((day) => [day.day, day.owner, day.model, number(day.runs), day.errors ? el("a", { class: "bad", href: `#/runs?q=${encodeURIComponent(`status:failed model:${day.model}`)}` }, number(day.errors)) : "0", number(day.input_tokens), number(day.output_tokens), day.cost ? money(day.cost) : "–"]), "Usage"));
}

function keysOf(keys, signal) {
  const told = el("p", { role: "status" });
  const made = el("section", {}, el("h2", {}, "Keys"));
  const name = el("input", { type: "text", placeholder: "name", "aria-label": "Name of the new key", maxlength: 100 });
  const owner = el("input", { type: "text", placeholder: "owner", "aria-label": "Owner of the new key", maxlength: 100 });
  const form = el("form", { class: "tools" }, name, owner, el("button", { type: "submit" }, "Make a key"));
  const rows = el("div");
  const draw = () => rows.replaceChildren(keys.length ? table(["name", "owner", "scopes", "limits", "status", "last used", "id", ""], keys.map((key) => {
    const revoke = key.status === "active" ? el("button", { type: "button", class: "small stop", onclick: async () => {
      try { await del(`/api/keys/${encodeURIComponent(key.id)}`, { signal }); keys = keys.map((each) => (each.id === key.id ? { ...each, status: "revoked" } : each)); draw(); } catch (error) { told.textContent = error.message; }
    } }, "Revoke") : "";
    return [key.name || "–", key.owner, key.scopes.join(", "), Object.entries(key.limits ?? {}).map(([name, most]) => `${name.replaceAll("_", " ")} ${number(most)}`).join(", ") || "–", key.status, key.last_used_at ? ago(key.last_used_at) : "never", shortId(key.id), revoke];
  }), "Keys") : el("p", { class: "soft" }, "There is no key beside those of the configuration."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const fresh = await post("/api/keys", { name: name.value.trim(), ...(owner.value.trim() ? { owner: owner.value.trim() } : {}) }, { signal });
      told.replaceChildren("Copy it now, it is shown this once: ", el("code", {}, fresh.key), " ", copier("copy", () => fresh.key));
      keys = [fresh, ...keys];
      draw();
    } catch (error) { told.textContent = error.message; }
  });
  draw();
  made.append(form, told, rows);
  return made;
}

const auditOf = (entries) => el("section", {}, el("h2", {}, "Audit"), entries.length ? table(["when", "who", "did", "to", "result", "detail"], entries.map((each) => [el("span", { title: when(each.at) }, ago(each.at)), `${each.owner || "server"}${each.key ? ` (key ${each.key})` : ""}`, each.action, targetOf(each.target), each.result, each.detail]), "Audit log") : el("p", { class: "soft" }, "Nothing yet."));

// What an entry is about: a run is shown by its last signs, and opened with a click.
const targetOf = (target) => (/^run_[0-9a-z]{16,}$/.test(target) ? el("a", { href: `#/runs/${target}`, title: target }, `run …${target.slice(-6)}`) : target);

// Servers elsewhere, for admins. The policy of this page lets it talk to its own server only, so that one asks them.
function elsewhereOf(named, signal) {
  const where = el("input", { type: "url", placeholder: "Address of another server", "aria-label": "Address of another server", required: true });
  const form = el("form", { class: "tools" }, where, el("button", { type: "submit" }, "Look"));
  const cards = el("div", { class: "parts", role: "status" });
  const look = async (url) => {
    const card = el("div", { class: "card part" }, el("h3", {}, url), ...bones(1));
    cards.prepend(card);
    try {
      const found = await get(`/api/elsewhere/health?url=${encodeURIComponent(url)}`, { signal });
      card.replaceChildren(el("h3", {}, url), ...healthOf(found));
    } catch (error) {
      if (!signal.aborted) card.replaceChildren(el("h3", {}, url), el("p", {}, el("span", { class: "lamp bad" }, "✕ not reached")), el("p", { class: "soft" }, error.message));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); look(where.value.trim()); where.value = ""; });
  [...named].reverse().forEach(look);
  return el("section", {}, el("h2", {}, "Servers elsewhere"), form, cards);
}

function healthOf({ url, health }) {
  const well = ["ok", "healthy"].includes(health.status);
  const rows = [["version", [health.server, health.version].filter(Boolean).join(" ")], ["up for", health.uptime_s === null ? "" : lasted(health.uptime_s)],
    ["store", health.store ? `${health.store.kind}${health.store.writable === false ? `, not writable ${health.store.trouble ?? ""}` : ""}` : ""],
    ["model", health.upstream ? `${health.upstream.model} ${health.upstream.reachable === false ? "does not answer" : "answers"}` : ""],
    ["runs", health.runs ? `${number(health.runs.active)} active, ${number(health.runs.queued)} queued` : ""],
    ["went on after a crash", health.recovery ? number(health.recovery.taken_over) : ""]];
  return [el("p", {}, el("span", { class: `lamp ${well ? "good" : "bad"}` }, `${well ? "✓" : "✕"} ${health.status}`)),
    el("dl", {}, rows.filter((row) => row[1]).map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)])),
    el("p", {}, el("a", { href: `${url}/#/status`, target: "_blank", rel: "noopener noreferrer" }, "Open its page"))];
}
