// The line between the driver and a client in JavaScript: one job per line of JSON on stdin, one line of what was seen
// on stdout. What libraries print goes to stderr.
import { createInterface } from "node:readline";

export const WEATHER = "sunny in Oslo";
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const ROUNDS = 5;

const out = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr);
for (const name of ["log", "info", "debug", "warn"]) console[name] = console.error;

export const failed = (seen, error) => {
  const status = error?.status ?? error?.statusCode ?? error?.lastError?.statusCode ?? null;
  const kind = error?.constructor?.name ?? typeof error;
  seen.error = { kind, message: String(error?.message ?? error), status };
};

export async function serve(ways) {
  for await (const line of createInterface({ input: process.stdin })) {
    const job = JSON.parse(line);
    const seen = { text: "", reasoning: "", ran: [], error: null, more: {} };
    try {
      await ways[job.way](job, seen);
    } catch (error) {
      failed(seen, error);
    }
    out(JSON.stringify(seen) + "\n");
  }
}
