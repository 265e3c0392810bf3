// The origin of a token, as a colour and in words.

import { name, short } from "../harmless";
import type { Account, Token } from "./conversation";

export type Kind = "target" | "copied" | "home" | "forced" | "drafter";

export const kindOf = (token: Token): Kind =>
  token.is_copied
    ? "copied"
    : token.source === "target" || token.source === "home" || token.source === "forced"
      ? token.source
      : "drafter";

const NAMES: Record<Kind, string> = {
  target: "target alone",
  copied: "copied from the text",
  home: "verifier’s own drafter",
  forced: "forced by the schema",
  drafter: "drafter",
};
const COLOURS = 6;

/** The drafters of tokens in order of appearance, which determines their colours. */
export function draftersOf(tokens: Token[]): string[] {
  return [...new Set(tokens.filter((each) => kindOf(each) === "drafter").map((each) => each.source))];
}

/** The class of a token's colour, or "" for tokens of the target. */
export function colourOf(token: Token, drafters: string[]): string {
  const kind = kindOf(token);
  if (kind !== "drafter") return kind === "target" ? "" : `of-${kind}`;
  return `of-drafter-${drafters.indexOf(token.source) % COLOURS}`;
}

export function whose(token: Token, account?: Account): string {
  const kind = kindOf(token);
  if (kind !== "drafter") return NAMES[kind];
  const domain = account?.drafters.find((each) => each.peer_id === token.source)?.domain;
  return domain ? `${name(domain, 40)} ${short(token.source)}` : `drafter ${short(token.source)}`;
}

/** The facts about a token, in words. */
export function told(token: Token, account?: Account): string[] {
  const kind = kindOf(token);
  const lines = [kind === "drafter" ? `drafted by ${whose(token, account)}` : NAMES[kind]];
  if (token.confidence !== null) lines.push(`called ${percent(token.confidence)} likely`);
  lines.push(`pass ${token.round}`);
  return lines;
}

export const percent = (share: number): string => `${Math.round(100 * share)} %`;

export type Share = { label: string; colour: string; tokens: number };

/** The shares of a text by origin, largest first. */
export function sharesOf(tokens: Token[], account?: Account): Share[] {
  const drafters = draftersOf(tokens);
  const shares = new Map<string, Share>();
  for (const token of tokens) {
    const colour = colourOf(token, drafters);
    const key = kindOf(token) === "drafter" ? token.source : colour;
    const known = shares.get(key) ?? { label: whose(token, account), colour, tokens: 0 };
    known.tokens += 1;
    shares.set(key, known);
  }
  return [...shares.values()].sort((one, other) => other.tokens - one.tokens);
}
