// A streamed reply.

import { events, Refused } from "../gateway";
import type { Account, Message, Token } from "./conversation";

type Piece = {
  error?: { message: string };
  choices?: {
    delta: { content?: string; reasoning_content?: string };
    provenance?: Token[];
    account?: Account;
  }[];
};

/** Follow a reply and call `show` for each update. Never throws: the message has the error. */
export async function follow(
  body: Record<string, unknown>,
  signal: AbortSignal,
  show: (message: Message) => void,
): Promise<Message> {
  const tokens: Token[] = [];
  let message: Message = { role: "assistant", content: "", tokens };
  const add = (more: Partial<Message>) => show((message = { ...message, ...more }));
  try {
    for await (const [, data] of events("/v1/chat/completions", body, signal)) {
      if (data === "[DONE]") break;
      const piece = JSON.parse(data) as Piece;
      if (piece.error) add({ error: piece.error.message });
      for (const choice of piece.choices ?? []) {
        tokens.push(...(choice.provenance ?? []));
        const { content, reasoning_content: reasoning } = choice.delta;
        if (content) message = { ...message, content: message.content + content };
        if (reasoning) message = { ...message, reasoning: (message.reasoning ?? "") + reasoning };
        if (choice.account) message = { ...message, account: choice.account };
        show(message);
      }
    }
  } catch (error) {
    if (signal.aborted) add({ isStopped: true });
    else add({ error: error instanceof Refused ? error.message : "The reply broke off." });
  }
  return message;
}

/** Limit `show` to the latest state of each frame. */
export function framed<T>(show: (state: T) => void): (state: T) => void {
  let latest: { state: T } | null = null;
  return (state) => {
    if (latest === null) {
      requestAnimationFrame(() => {
        const { state: seen } = latest!;
        latest = null;
        show(seen);
      });
    }
    latest = { state };
  };
}
