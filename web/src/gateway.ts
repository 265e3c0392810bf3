// Requests to the gateway that serves the page.

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const KEY = "cosine.key";

/** The API key of this tab; it is never part of an address, and is deleted with the tab. */
export function apiKey(): string {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepApiKey(key: string): void {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function ask(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = {};
  const key = apiKey();
  if (key) headers["authorization"] = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let reply: Response;
  try {
    reply = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      credentials: "omit",
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused(0, "The gateway does not answer.");
  }
  if (!reply.ok) throw new Refused(reply.status, await sentence(reply));
  return reply;
}

async function sentence(reply: Response): Promise<string> {
  try {
    const { error } = (await reply.json()) as { error?: { message?: unknown } };
    if (typeof error?.message === "string") return error.message;
  } catch {
    // A proxy answered.
  }
  return `The gateway answered with status ${reply.status}.`;
}

/** The JSON of a GET request, or of a POST request with a body. */
export async function json<T>(path: string, body?: unknown): Promise<T> {
  return (await ask(path, body)).json() as Promise<T>;
}

/** Yield the name, or "", and the data of each server-sent event. */
export async function* events(path: string, body?: unknown, signal?: AbortSignal): AsyncGenerator<[string, string]> {
  const reply = await ask(path, body, signal);
  const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      waiting += value;
      let end: number;
      while ((end = waiting.indexOf("\n\n")) >= 0) {
        const block = waiting.slice(0, end);
        waiting = waiting.slice(end + 2);
        let name = "";
        const data: string[] = [];
        for (const line of block.split("\n")) {
          if (line.startsWith("event: ")) name = line.slice(7);
          else if (line.startsWith("data: ")) data.push(line.slice(6));
        }
        // A comment is not an event.
        if (data.length > 0) yield [name, data.join("\n")];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
