// Requests to the server. Owns: the key (kept in the tabs of this page only, never in a URL), errors as values with words,
// and server-sent events over fetch, which can send the key. Refuses to know: views.

const KEY = "ninelives.key";
const tabs = new BroadcastChannel("ninelives"); // tabs of one browser hand the key to each other: none is kept beyond them
tabs.onmessage = ({ data }) => {
  if (data === "key?" && key.get()) tabs.postMessage({ key: key.get() });
  else if (data?.key && asking) asking(data.key);
};
let asking = null;

// The key of another tab that is signed in. Empty: there is none.
export const borrowed = () => new Promise((resolve) => {
  asking = resolve;
  tabs.postMessage("key?");
  setTimeout(() => resolve(""), 150);
}).finally(() => { asking = null; });

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  drop: () => sessionStorage.removeItem(KEY),
};

export class Refused extends Error {
  // `status` is 0 where the server did not answer.
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
  get away() { return this.status === 0 || this.status === 503; }
}

export const signedOut = new EventTarget(); // "change": the server refused the key

async function call(method, path, { body, signal, secret, headers: more = {} } = {}) {
  const headers = { ...more, authorization: `Bearer ${secret ?? key.get()}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "away", "The server does not answer.");
  }
  if (answer.ok) return answer;
  let told = {};
  try { told = (await answer.json()).error ?? {}; } catch { /* no JSON: a proxy answered */ }
  if (answer.status === 401 && secret === undefined) signedOut.dispatchEvent(new Event("change"));
  throw new Refused(answer.status, told.code ?? "", told.message ?? `The server answered ${answer.status}.`);
}

export const get = async (path, options) => (await call("GET", path, options)).json();
export const text = async (path, options) => (await call("GET", path, options)).text();
export const del = async (path, options) => (await call("DELETE", path, options)).json();
export const patch = async (path, body, options) => (await call("PATCH", path, { ...options, body })).json();
export const post = async (path, body, options) => (await call("POST", path, { ...options, body })).json();
export const runPath = (run, rest = "") => `/v1/runs/${encodeURIComponent(run)}${rest}`;
export const pagePath = (run, rest = "") => `/api/runs/${encodeURIComponent(run)}${rest}`;

const ENDS = new Set(["run.completed", "run.failed", "run.cancelled", "run.incomplete"]);

// All events of a run after a place, to its end. A broken stream is taken up again where it broke.
export async function* events(run, { signal, after = -1, onAway = () => {} }) {
  for (let failures = 0; ; ) {
    try {
      const answer = await call("GET", runPath(run, `/events${after < 0 ? "" : `?after=${after}`}`), { signal });
      onAway(null);
      for await (const event of framesOf(answer.body)) {
        failures = 0;
        if (typeof event.seq === "number") after = event.seq;
        yield event;
        if (ENDS.has(event.event)) return;
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (error instanceof Refused && !error.away) throw error;
    }
    failures += 1;
    onAway(failures);
    await pause(Math.min(10_000, 250 * 2 ** failures), signal);
    if (signal?.aborted) return;
  }
}

async function* framesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (kept + value).split("\n\n");
      kept = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});
