// The Vercel AI SDK, the version named by the argument, with its own provider (chat and responses) and the one for
// compatible servers. Every error part counts as an error, also where text follows.
import { z } from "zod";
import { WEATHER, failed, serve } from "./line.mjs";

const which = process.argv[2];
const ai = await import(which);
const { createOpenAI } = await import(`${which}-openai`);
const { createOpenAICompatible } = await import(`${which}-compatible`);

function model(job) {
  const options = { baseURL: `${job.base}/v1`, apiKey: job.key, headers: job.headers };
  if (job.way.startsWith("compatible")) return createOpenAICompatible({ name: "ninelives", ...options })(job.model);
  const provider = createOpenAI(options);
  return job.way.startsWith("chat") ? provider.chat(job.model) : provider.responses(job.model);
}

function asked(job, seen) {
  const get_weather = ai.tool({
    description: "Weather",
    inputSchema: z.object({ city: z.string() }),
    execute: async () => (seen.ran.push("get_weather"), WEATHER),
  });
  const own = job.case === "own" ? { tools: { get_weather }, stopWhen: (ai.stepCountIs ?? ai.isStepCount)(5) } : {};
  return { model: model(job), prompt: job.prompt, ...own };
}

async function whole(job, seen) {
  const made = await ai.generateText(asked(job, seen));
  seen.text = made.text;
  seen.reasoning = made.reasoningText ?? "";
  for (const part of made.content) if (part.type === "tool-error") failed(seen, part.error);
  seen.more.provider_tools = made.content.filter((part) => part.type === "tool-call" && part.providerExecuted).length;
}

async function streamed(job, seen) {
  const result = ai.streamText({ ...asked(job, seen), onError: () => {} });
  for await (const part of result.fullStream ?? result.stream) {
    if (part.type === "start-step") seen.text = "";
    else if (part.type === "text-delta") seen.text += part.text;
    else if (part.type === "reasoning-delta") seen.reasoning += part.text;
    else if (part.type === "error" || part.type === "tool-error") failed(seen, part.error);
    else if (part.type === "tool-call" && !part.providerExecuted && job.case !== "own") seen.ran.push(part.toolName);
    else if (part.type === "tool-result" && part.providerExecuted) seen.more.provider_tools = (seen.more.provider_tools ?? 0) + 1;
  }
}

await serve({
  chat: whole,
  "chat.stream": streamed,
  responses: whole,
  "responses.stream": streamed,
  "compatible chat": whole,
  "compatible chat.stream": streamed,
});
