// openai-node, the version named by the argument: every way of asking that its documentation shows.
import { ROUNDS, SCHEMA, WEATHER, failed, serve } from "./line.mjs";

const { default: OpenAI } = await import(process.argv[2]);
const CHAT_TOOLS = [{ type: "function", function: { name: "get_weather", parameters: SCHEMA, strict: true } }];
const TOOLS = [{ type: "function", name: "get_weather", parameters: SCHEMA, strict: true }];

const retries = (job) => (job.retries === undefined ? {} : { maxRetries: job.retries });
const sdk = (job) =>
  new OpenAI({ baseURL: `${job.base}/v1`, apiKey: job.key, defaultHeaders: job.headers, ...retries(job) });
const asked = (job, more) => ({
  model: job.model,
  ...(job.case === "own" ? { tools: job.way.startsWith("chat") ? CHAT_TOOLS : TOOLS } : {}),
  ...more,
});

function message(said, seen) {
  seen.text = said.content ?? "";
  seen.reasoning += said.reasoning_content ?? "";
  return said.tool_calls ?? [];
}

async function chatTurns(job, seen, one) {
  const messages = [{ role: "user", content: job.prompt }];
  for (let n = 0; n < ROUNDS; n++) {
    seen.text = "";
    const calls = await one(asked(job, { messages }));
    if (!calls.length) return;
    messages.push({ role: "assistant", content: seen.text, tool_calls: calls });
    for (const call of calls) {
      seen.ran.push(call.function.name);
      messages.push({ role: "tool", tool_call_id: call.id, content: WEATHER });
    }
  }
}

async function chat(job, seen) {
  const client = sdk(job);
  await chatTurns(job, seen, async (given) => {
    const made = await client.chat.completions.create(given);
    return message(made.choices[0].message, seen);
  });
}

async function chatStream(job, seen) {
  const client = sdk(job);
  await chatTurns(job, seen, async (given) => {
    const calls = [];
    for await (const chunk of await client.chat.completions.create({ ...given, stream: true })) {
      const delta = chunk.choices[0].delta; // the loop of every tutorial
      seen.text += delta.content ?? "";
      seen.reasoning += delta.reasoning_content ?? "";
      for (const call of delta.tool_calls ?? []) {
        if (call.id) calls[call.index] = { id: call.id, type: "function", function: { name: call.function.name, arguments: "" } };
        calls[call.index].function.arguments += call.function.arguments ?? "";
      }
    }
    return calls;
  });
}

async function chatHelper(job, seen) {
  const client = sdk(job);
  const completions = client.chat.completions.stream ? client.chat.completions : client.beta.chat.completions;
  await chatTurns(job, seen, async (given) => {
    const stream = completions.stream(given);
    for await (const chunk of stream) {
      seen.text += chunk.choices[0].delta.content ?? "";
      seen.reasoning += chunk.choices[0].delta.reasoning_content ?? "";
    }
    const made = await stream.finalChatCompletion();
    const told = seen.text;
    seen.text = made.choices[0].message.content ?? "";
    if (told !== seen.text) throw new Error(`deltas said ${told}, the final completion ${seen.text}`);
    return made.choices[0].message.tool_calls ?? [];
  });
}

async function responseTurns(job, seen, one) {
  let given = { input: job.prompt };
  const items = [{ role: "user", content: job.prompt }];
  for (let n = 0; n < ROUNDS; n++) {
    seen.text = "";
    const made = await one(asked(job, given));
    const calls = (made?.output ?? []).filter((item) => item.type === "function_call");
    if (!calls.length) return;
    seen.ran.push(...calls.map((call) => call.name));
    const results = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: WEATHER }));
    items.push(...made.output.map(({ parsed_arguments, ...item }) => item), ...results);
    given = job.way.includes(".") ? { input: [...items] } : { input: results, previous_response_id: made.id };
  }
}

async function responses(job, seen) {
  const client = sdk(job);
  await responseTurns(job, seen, async (given) => {
    const made = await client.responses.create(given);
    seen.text = made.output_text;
    for (const item of made.output) if (item.type === "reasoning") seen.reasoning += item.summary.map((part) => part.text).join("");
    if (made.error) failed(seen, made.error);
    return made;
  });
}

const said = (made) =>
  made.output.flatMap((item) => (item.type === "message" ? item.content : [])).map((part) => part.text ?? "").join("");

function event(got, seen) {
  if (got.type === "response.output_text.delta") seen.text += got.delta;
  else if (got.type === "response.reasoning_summary_text.delta") seen.reasoning += got.delta;
  else if (got.type === "response.failed") failed(seen, got.response.error);
  else if (got.type === "response.completed") seen.more.final = said(got.response);
  return got.response;
}

async function responsesStream(job, seen) {
  const client = sdk(job);
  await responseTurns(job, seen, async (given) => {
    let last;
    for await (const got of await client.responses.create({ ...given, stream: true })) last = event(got, seen) ?? last;
    return last;
  });
}

async function responsesHelper(job, seen) {
  const client = sdk(job);
  await responseTurns(job, seen, async (given) => {
    const stream = client.responses.stream(given);
    for await (const got of stream) event(got, seen);
    return await stream.finalResponse();
  });
}

await serve({
  chat,
  "chat.stream": chatStream,
  "chat.helper": chatHelper,
  responses,
  "responses.stream": responsesStream,
  "responses.helper": responsesHelper,
});
