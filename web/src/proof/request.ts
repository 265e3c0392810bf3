// A request as it travels, and the digests of its stream (docs/protocol.md, sections 4 and 5).

import { blake2b } from "./blake2b";
import { Fields, type Value } from "./msgpack";

export type Shaping = {
  presence: number;
  frequency: number;
  biases: [number, number][];
  badWords: number[][];
  minTokens: number;
  heldBack: number[];
};
export type Constraint = { kind: number; text: string; ends: number[] };
export type Request = {
  targetDigest: Uint8Array;
  tokenizerDigest: Uint8Array;
  numerics: string;
  prompt: number[];
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  repetitionPenalty: number;
  seed: bigint;
  eos: number[];
  client: string;
  nonce: Uint8Array;
  maxNewTokens: number;
  shaping: Shaping | null;
  constraint: Constraint | null;
  logprobs: { top: number; ofPrompt: boolean } | null;
};

const NO_SHAPING: Shaping = { presence: 0, frequency: 0, biases: [], badWords: [], minTokens: 0, heldBack: [] };

const tokensOf = (value: Value): number[] => new Fields([value], "tokens").tokens();

function readShaping(fields: Fields): Shaping {
  const own = fields.struct("Shaping");
  return {
    presence: own.real(),
    frequency: own.real(),
    biases: own.list((item) => {
      const bias = Fields.of(item, "TokenBias");
      return [bias.whole(), bias.real()];
    }),
    badWords: own.list(tokensOf),
    minTokens: own.whole(),
    heldBack: own.tokens(),
  };
}

export function readRequest(fields: Fields): Request {
  return {
    targetDigest: fields.bytes(32),
    tokenizerDigest: fields.bytes(32),
    numerics: fields.text(),
    prompt: fields.tokens(),
    temperature: fields.real(),
    topK: fields.whole(),
    topP: fields.real(),
    minP: fields.real(),
    repetitionPenalty: fields.real(),
    seed: fields.word(),
    eos: fields.tokens(),
    client: fields.text(),
    nonce: fields.bytes(16),
    maxNewTokens: fields.whole(),
    shaping: fields.added(readShaping),
    constraint: fields.added((from) => {
      const own = from.struct("Constraint");
      return { kind: own.whole(), text: own.text(), ends: own.tokens() };
    }),
    logprobs: fields.added((from) => {
      const own = from.struct("AskedLogprobs");
      return { top: own.whole(), ofPrompt: own.flag() };
    }),
  };
}

/** Bytes that are written one after the other, big-endian. */
export class Writer {
  private readonly parts: Uint8Array[] = [];

  raw(part: Uint8Array): this {
    this.parts.push(part);
    return this;
  }

  private fixed(size: number, set: (view: DataView) => void): this {
    const view = new DataView(new ArrayBuffer(size));
    set(view);
    return this.raw(new Uint8Array(view.buffer));
  }

  u32(value: number): this {
    return this.fixed(4, (view) => view.setUint32(0, value));
  }

  f64(value: number): this {
    return this.fixed(8, (view) => view.setFloat64(0, value));
  }

  u64(value: bigint): this {
    return this.fixed(8, (view) => view.setBigUint64(0, value));
  }

  counted(part: Uint8Array): this {
    return this.u32(part.length).raw(part);
  }

  text(text: string): this {
    return this.counted(new TextEncoder().encode(text));
  }

  tokens(tokens: number[]): this {
    return this.fixed(4 + 4 * tokens.length, (view) => {
      view.setUint32(0, tokens.length);
      tokens.forEach((token, index) => view.setUint32(4 + 4 * index, token));
    });
  }

  bytes(): Uint8Array {
    const out = new Uint8Array(this.parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of this.parts) {
      out.set(part, at);
      at += part.length;
    }
    return out;
  }
}

/** `d_0`, the digest of a request: everything that fixes its stream and its owner. */
export function requestDigest(of: Request): Uint8Array {
  const out = new Writer()
    .raw(new TextEncoder().encode("cosine/request/1"))
    .counted(of.targetDigest)
    .text(of.numerics)
    .counted(of.tokenizerDigest)
    .tokens(of.prompt)
    .f64(of.temperature)
    .u32(of.topK)
    .f64(of.topP)
    .f64(of.minP)
    .f64(of.repetitionPenalty)
    .u64(of.seed)
    .tokens(of.eos)
    .text(of.client)
    .counted(of.nonce);
  if (of.shaping || of.constraint || of.logprobs) {
    const shaping = of.shaping ?? NO_SHAPING;
    out.f64(shaping.presence).f64(shaping.frequency).u32(shaping.minTokens).u32(shaping.biases.length);
    for (const [token, bias] of shaping.biases) out.u32(token).f64(bias);
    out.u32(shaping.badWords.length);
    for (const word of shaping.badWords) out.tokens(word);
    out.tokens(shaping.heldBack);
  }
  if (of.constraint || of.logprobs) {
    const constraint = of.constraint ?? { kind: 0, text: "", ends: [] };
    out.u32(constraint.kind).text(constraint.text).tokens(constraint.ends);
  }
  if (of.logprobs) out.u32(of.logprobs.top).u32(of.logprobs.ofPrompt ? 1 : 0);
  return blake2b(out.bytes());
}

/** The digest after several more tokens. */
export function rollDigest(digest: Uint8Array, tokens: number[]): Uint8Array {
  const link = new Uint8Array(20);
  const view = new DataView(link.buffer);
  let rolled = digest;
  for (const token of tokens) {
    link.set(rolled);
    view.setUint32(16, token);
    rolled = blake2b(link);
  }
  return rolled;
}
