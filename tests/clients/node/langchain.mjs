// LangChain in JavaScript: ChatOpenAI over chat completions and over responses.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { ROUNDS, WEATHER, serve } from "./line.mjs";

const weather = tool(async () => WEATHER, { name: "get_weather", description: "Weather", schema: z.object({ city: z.string() }) });

function chat(job) {
  const made = new ChatOpenAI({
    model: job.model,
    apiKey: job.key,
    configuration: { baseURL: `${job.base}/v1`, defaultHeaders: job.headers },
    ...(job.case === "fail" || job.case === "late" ? { maxRetries: 1 } : {}), // six by default: a minute of waiting
    useResponsesApi: job.way.startsWith("responses"),
  });
  return job.case === "own" ? made.bindTools([weather]) : made;
}

function thought(message) {
  const shown = message.additional_kwargs?.reasoning;
  return message.additional_kwargs?.reasoning_content ?? (shown?.summary ?? []).map((part) => part.text ?? "").join("");
}

async function turns(job, seen, one) {
  const messages = [new HumanMessage(job.prompt)];
  for (let n = 0; n < ROUNDS; n++) {
    seen.text = "";
    const message = await one(messages);
    if (!message.tool_calls?.length) return;
    messages.push(message);
    for (const call of message.tool_calls) {
      seen.ran.push(call.name);
      messages.push(new ToolMessage({ content: WEATHER, tool_call_id: call.id }));
    }
  }
}

async function whole(job, seen) {
  const model = chat(job);
  await turns(job, seen, async (messages) => {
    const made = await model.invoke(messages);
    seen.text = made.text;
    seen.reasoning += thought(made) ?? "";
    return made;
  });
}

async function streamed(job, seen) {
  const model = chat(job);
  await turns(job, seen, async (messages) => {
    let whole;
    for await (const chunk of await model.stream(messages)) {
      whole = whole ? whole.concat(chunk) : chunk;
      seen.text += chunk.text;
      seen.reasoning += thought(chunk) ?? "";
    }
    return whole;
  });
}

await serve({ chat: whole, "chat.stream": streamed, responses: whole, "responses.stream": streamed });
