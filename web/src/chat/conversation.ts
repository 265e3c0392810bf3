// The conversation, which is stored only in this browser.

import type { Proof } from "../proof/proof";

export type Token = {
  token: number;
  source: string;
  is_copied: boolean;
  round: number;
  confidence: number | null;
  content: string;
  reasoning: string;
};
export type Account = {
  seconds: number;
  time_to_first_token_s: number;
  tokens: number;
  rounds: number;
  accepted: number;
  offered: number;
  plain_pass_s: number | null;
  coordinator: string;
  verifiers: { peer_id: string; rtt_ms: number; tokens: number }[];
  drafters: { peer_id: string; domain: string; drafted: number; accepted: number; rtt_ms: number }[];
  why: string[];
  proof: Proof;
};
export type Message = {
  role: "user" | "assistant";
  content: string;
  reasoning?: string;
  tokens?: Token[];
  account?: Account;
  error?: string;
  isStopped?: boolean;
};
export const NO_OPTIONS = {
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  repetition_penalty: "",
  max_tokens: "",
  seed: "",
  stop: "",
};
export type Options = typeof NO_OPTIONS;
export type Conversation = { messages: Message[]; options: Options };
const KEPT = "cosine.conversation";

/** The stored conversation, or an empty one if it cannot be read. */
export function keptConversation(): Conversation {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT) ?? "") as Conversation;
    if (Array.isArray(kept.messages)) return { messages: kept.messages, options: { ...NO_OPTIONS, ...kept.options } };
  } catch {
    // Nothing is stored, or another version stored it.
  }
  return { messages: [], options: NO_OPTIONS };
}

/** Store a conversation; if it is too large for the browser, only its words. */
export function keep(conversation: Conversation): void {
  const words = {
    ...conversation,
    messages: conversation.messages.map(({ role, content }) => ({ role, content })),
  };
  for (const each of [conversation, words]) {
    try {
      localStorage.setItem(KEPT, JSON.stringify(each));
      return;
    } catch {
      // It exceeds the browser's quota.
    }
  }
}

/** The body of a request that continues a conversation. Numbers are sent as typed; the gateway validates them. */
export function requestOf({ messages, options }: Conversation): Record<string, unknown> {
  const { system, stop, ...numbers } = options;
  const said = messages
    .filter((each) => each.role === "user" || each.content)
    .map(({ role, content }) => ({ role, content }));
  const given = Object.entries(numbers).filter(([, value]) => value.trim());
  return {
    messages: system.trim() ? [{ role: "system", content: system }, ...said] : said,
    stream: true,
    provenance: true,
    ...Object.fromEntries(given.map(([name, value]) => [name, value.trim()])),
    ...(stop ? { stop: stop.split("\n").filter(Boolean) } : {}),
  };
}
