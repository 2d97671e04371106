// openai-node, without retries: one job per line of JSON on stdin, all at the same time, and one line of what was seen on
// stdout. The argument is the folder of the package.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { default: OpenAI } = await import(pathToFileURL(`${process.argv[2]}/index.mjs`).href);
const sdks = new Map();
const copies = new Map(); // of the bytes of the answer of each job
const tapped = async (url, options) => {
  const answer = await fetch(url, options);
  const [own, other] = answer.body.tee();
  const read = async () => {
    const pieces = [];
    try {
      for await (const piece of other) pieces.push(piece);
    } catch {
      pieces.push(Buffer.from("cut")); // the SDK sees the same error
    }
    return Buffer.concat(pieces).toString();
  };
  copies.set(new Headers(options.headers).get("x-job"), read());
  return new Response(own, { status: answer.status, headers: answer.headers });
};
const sdk = (job) => {
  const options = { baseURL: `${job.base}/v1`, apiKey: job.key, maxRetries: 0, fetch: tapped };
  if (!sdks.has(job.base)) sdks.set(job.base, new OpenAI(options));
  return sdks.get(job.base);
};
const named = (job) => ({ headers: { "x-job": job.id } });

async function* chat(job) {
  const messages = [{ role: "user", content: job.asked }];
  const made = await sdk(job).chat.completions.create({ model: "m", messages, stream: true, store: true }, named(job));
  yield "";
  for await (const chunk of made) {
    yield chunk.choices[0]?.delta?.content ?? "";
    if (chunk.choices[0]?.finish_reason === "stop") yield null;
  }
}

async function* responses(job) {
  const made = await sdk(job).responses.create({ model: "m", input: job.asked, stream: true }, named(job));
  yield "";
  let number = 0;
  for await (const event of made) {
    if (event.sequence_number !== number++) throw new Error(`event ${event.sequence_number} in place of ${number - 1}`);
    yield event.type === "response.output_text.delta" ? event.delta : "";
    if (event.type === "response.completed") yield null;
  }
}

const WAYS = { chat, responses };

async function work(job) {
  const seen = { id: job.id, text: "", error: "", begun: false, whole: false, pause: 0 };
  let last = 0;
  try {
    for await (const piece of WAYS[job.way](job)) {
      const now = performance.now() / 1000;
      if (seen.begun) seen.pause = Math.max(seen.pause, now - last);
      seen.begun = true;
      last = now;
      seen.whole ||= piece === null;
      seen.text += piece ?? "";
    }
  } catch (error) {
    seen.error = String(error?.stack ?? error);
  }
  seen.raw = (await copies.get(job.id)) ?? "";
  copies.delete(job.id);
  process.stdout.write(JSON.stringify(seen) + "\n");
}

for await (const line of createInterface({ input: process.stdin })) work(JSON.parse(line));
