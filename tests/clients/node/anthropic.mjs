// @anthropic-ai/sdk against /v1/messages.
import Anthropic from "@anthropic-ai/sdk";
import { ROUNDS, SCHEMA, WEATHER, serve } from "./line.mjs";

const retries = (job) => (job.retries === undefined ? {} : { maxRetries: job.retries });
const sdk = (job) =>
  new Anthropic({ baseURL: job.base, apiKey: job.key, defaultHeaders: job.headers, ...retries(job) });

async function turns(job, seen, one) {
  const client = sdk(job);
  const messages = [{ role: "user", content: job.prompt }];
  const tools = job.case === "own" ? { tools: [{ name: "get_weather", description: "Weather", input_schema: SCHEMA }] } : {};
  const thinking = job.case === "reason" ? { thinking: { type: "enabled", budget_tokens: 1024 } } : {};
  for (let n = 0; n < ROUNDS; n++) {
    seen.text = "";
    const made = await one(client, { model: job.model, max_tokens: 4096, messages, ...tools, ...thinking });
    const calls = made.content.filter((block) => block.type === "tool_use");
    if (!calls.length) return;
    if (made.stop_reason !== "tool_use") throw new Error(`calls, but stop_reason ${made.stop_reason}`);
    seen.ran.push(...calls.map((call) => call.name));
    messages.push({ role: "assistant", content: made.content });
    messages.push({ role: "user", content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: WEATHER })) });
  }
}

function whole(made, seen) {
  for (const block of made.content) {
    if (block.type === "text") seen.text += block.text;
    else if (block.type === "thinking") seen.reasoning += block.thinking;
  }
  return made;
}

const messages = (job, seen) =>
  turns(job, seen, async (client, given) => whole(await client.messages.create(given), seen));

const streamed = (job, seen) =>
  turns(job, seen, async (client, given) => {
    const made = { content: [], stop_reason: null };
    const json = [];
    for await (const event of await client.messages.create({ ...given, stream: true })) {
      if (event.type === "content_block_start") made.content[event.index] = { ...event.content_block };
      else if (event.type === "message_delta") made.stop_reason = event.delta.stop_reason ?? made.stop_reason;
      else if (event.type === "content_block_delta") {
        const block = made.content[event.index];
        if (event.delta.type === "text_delta") (seen.text += event.delta.text), (block.text += event.delta.text);
        else if (event.delta.type === "thinking_delta") seen.reasoning += event.delta.thinking;
        else if (event.delta.type === "input_json_delta") json[event.index] = (json[event.index] ?? "") + event.delta.partial_json;
      } else if (event.type === "content_block_stop" && json[event.index]) made.content[event.index].input = JSON.parse(json[event.index]);
    }
    return made;
  });

const helper = (job, seen) =>
  turns(job, seen, async (client, given) => {
    const stream = client.messages.stream(given).on("text", (text) => (seen.text += text));
    const made = await stream.finalMessage();
    seen.text = "";
    return whole(made, seen);
  });

await serve({ messages, "messages.stream": streamed, "messages.helper": helper });
