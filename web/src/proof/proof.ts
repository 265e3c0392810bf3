// A proof: the signed statements of verifiers and auditors about a text, and the gateway's check of them.

import { json } from "../gateway";

export const MAX_FILE_BYTES = 64 * 2 ** 20;

type Statement = { auditor: string };
export type Evidence = { claim: string; statements: Statement[] };
export type Proof = { format: string; evidence: Evidence[] };

export type State = "unanswered" | "passed" | "suspected" | "disputed" | "convicted";
type Judgement = { auditor: string; accuses: boolean; equal: number; near_ties: number; different: number };
export type CheckedPart = {
  author: string;
  digest: string;
  prompt_tokens: number;
  seed: string;
  temperature: number;
  numerics: string;
  first: number;
  tokens: number[];
  judgements: Judgement[];
};
export type CheckedProof = { state: State; signatures: number; parts: CheckedPart[] };

/** Read the proof in a file of the page, of `generate --json` or of `cosine audit --json`. */
export function readProof(text: string): Proof {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON.");
  }
  const outer = object(value);
  const inner = outer["audit"] ? object(outer["audit"]) : outer;
  const { evidence } = inner;
  if (!Array.isArray(evidence) || !evidence.length) throw new Error("This file holds nothing that a verifier signed.");
  for (const piece of evidence) {
    const { claim, statements } = object(piece);
    if (typeof claim !== "string" || !Array.isArray(statements)) throw new Error("A piece of evidence has another form.");
    statements.forEach(object);
  }
  return { format: "cosine-proof/1", evidence };
}

function object(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("This file has another form.");
  return value as Record<string, unknown>;
}

/** Let the gateway check a proof; `problem` is the reason if it is invalid. */
export const checkProof = ({ evidence }: Proof): Promise<CheckedProof | { problem: string }> =>
  json("/v1/proofs", { evidence });

/** Add later statements to a proof. */
export function withStatements(proof: Proof, later: Evidence[]): Proof {
  return {
    ...proof,
    evidence: proof.evidence.map((piece, index) => {
      const known = new Set(piece.statements.map((each) => each.auditor));
      const more = later[index]?.claim === piece.claim ? later[index]!.statements : [];
      return { ...piece, statements: [...piece.statements, ...more.filter((each) => !known.has(each.auditor))] };
    }),
  };
}
