// A proof: what verifiers, auditors and clients signed of a text, checked here by nothing but its own bytes.

import { accuses, type Opinion, type State, stateOf, type Verdict } from "./audit_rule";
import { blake2b } from "./blake2b";
import { decode, Fields, Malformed, type Value } from "./msgpack";
import { BadSignature, verify } from "./peer";
import { readRequest, type Request, requestDigest, rollDigest, Writer } from "./request";

export const FORMAT = "cosine-proof/1";
export const MAX_FILE_BYTES = 64 * 2 ** 20;
const TAGS = { askAudit: 80, audited: 81, receipted: 39 };
const MAX_TOKENS = 131_072;

export type Statement = { auditor: string; answer: string; place: string };
export type Evidence = { claim: string; statements: Statement[] };
export type Proof = { format: string; evidence: Evidence[]; receipts: string[] };

type Likelihood = [surprisal: number, top: [token: number, surprisal: number][]];
type Transcript = { first: number; tokens: number; digest: Uint8Array; told: Uint8Array | null };
type Claim = {
  request: Request;
  tokens: number[];
  author: string;
  body: Uint8Array<ArrayBuffer>;
  signature: Uint8Array<ArrayBuffer>;
  likelihoods: Likelihood[] | null;
};

export type Judgement = { auditor: string; accuses: boolean; verdict: Verdict; place: string };
export type CheckedPart = {
  author: string;
  request: Request;
  tokens: number[];
  first: number;
  digest: string;
  judgements: Judgement[];
  state: State;
};
export type CheckedReceipt = { verifier: string; client: string; drafter: string; tokens: number; textTokens: number };
export type CheckedProof = { parts: CheckedPart[]; receipts: CheckedReceipt[]; state: State; signatures: number };

export const hex = (bytes: Uint8Array): string =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const isEqual = (one: Uint8Array, other: Uint8Array) => hex(one) === hex(other);

/** The proof in a file: what the page saves, or what `generate --json` and `cosine-node audit --json` write. */
export function readProof(text: string): Proof {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Malformed("This file is no JSON.");
  }
  const outer = object(value);
  const inner = outer["audit"] === undefined || outer["audit"] === null ? outer : object(outer["audit"]);
  const evidence = inner["evidence"];
  const receipts = outer["receipts"] instanceof Array ? outer["receipts"] : (outer["signed_receipts"] ?? []);
  if (!Array.isArray(evidence) || !evidence.length) throw new Malformed("This file holds nothing that a verifier signed.");
  if (!Array.isArray(receipts) || !receipts.every((each) => typeof each === "string")) {
    throw new Malformed("The receipts of this file are no texts.");
  }
  return {
    format: FORMAT,
    evidence: evidence.map((each) => {
      const { claim, statements } = object(each);
      if (typeof claim !== "string" || !Array.isArray(statements)) throw new Malformed("A piece of evidence has another form.");
      return {
        claim,
        statements: statements.map((one) => {
          const { auditor, answer, place = "" } = object(one);
          if (typeof auditor !== "string" || typeof answer !== "string") throw new Malformed("A statement has another form.");
          return { auditor, answer, place: String(place) };
        }),
      };
    }),
    receipts,
  };
}

function object(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Malformed("This file has another form.");
  return value as Record<string, unknown>;
}

function message(base64: string, tag: number, what: string): Fields {
  let raw: string;
  try {
    raw = atob(base64);
  } catch {
    throw new Malformed(`${what} is not base64`);
  }
  const fields = Fields.of(decode(Uint8Array.from(raw, (letter) => letter.charCodeAt(0))), what);
  if (fields.whole() !== tag) throw new Malformed(`${what} is another message`);
  return fields;
}

function readLikelihood(value: Value): Likelihood {
  const fields = Fields.of(value, "Likelihood");
  return [
    fields.whole(),
    fields.list((item) => {
      const likely = Fields.of(item, "LikelyToken");
      return [likely.whole(), likely.whole()];
    }),
  ];
}

function readClaim(base64: string): Claim {
  const fields = message(base64, TAGS.askAudit, "the claim");
  fields.whole();
  const request = readRequest(fields.struct("Request"));
  const tokens = fields.tokens();
  const author = fields.text();
  const signed = fields.struct("SignedTranscript");
  return {
    request,
    tokens,
    author,
    body: signed.bytes(),
    signature: signed.bytes(64),
    likelihoods: fields.added((from) => from.list(readLikelihood)),
  };
}

function readTranscript(body: Uint8Array<ArrayBuffer>): Transcript {
  const fields = Fields.of(decode(body), "Transcript");
  return {
    first: fields.whole(MAX_TOKENS),
    tokens: fields.whole(MAX_TOKENS),
    digest: fields.bytes(16),
    told: fields.added((from) => from.bytes(16)),
  };
}

function readVerdict(body: Uint8Array<ArrayBuffer>): Verdict {
  const fields = Fields.of(decode(body), "AuditVerdict");
  return {
    author: fields.text(),
    first: fields.whole(MAX_TOKENS),
    tokens: fields.whole(MAX_TOKENS),
    digest: fields.bytes(16),
    equal: fields.whole(MAX_TOKENS),
    nearTies: fields.whole(MAX_TOKENS),
    different: fields.whole(MAX_TOKENS),
    findings: fields.list((item) => {
      const finding = Fields.of(item, "a finding");
      return { position: finding.whole(), token: finding.whole(), gap: finding.real() };
    }),
    widestGap: fields.added((from) => from.real()),
    meanGap: fields.added((from) => from.real()),
    stages: fields.added((from) => from.list((item) => new Fields([item], "stages").text())) ?? [],
  };
}

function checkTold(claim: Claim, transcript: Transcript): void {
  if ((claim.likelihoods === null) !== (transcript.told === null)) {
    throw new Malformed("The transcript and its likelihoods do not belong together.");
  }
  if (claim.likelihoods === null || transcript.told === null) return;
  const out = new Writer();
  for (const [surprisal, top] of claim.likelihoods) {
    out.u32(surprisal).u32(top.length);
    for (const [token, likely] of top) out.u32(token).u32(likely);
  }
  const asked = claim.request.logprobs;
  const ofPrompt = asked?.ofPrompt && !transcript.first ? claim.request.prompt.length - 1 : 0;
  const expected = ofPrompt + transcript.tokens - transcript.first;
  if (!asked || claim.likelihoods.length !== expected || !isEqual(blake2b(out.bytes()), transcript.told)) {
    throw new Malformed("The verifier signed other likelihoods than these.");
  }
}

function checkVerdict(verdict: Verdict, claim: Claim, transcript: Transcript): void {
  const { author, first, tokens, equal, nearTies, different, findings } = verdict;
  const isOfThis =
    author === claim.author && first === transcript.first && tokens === transcript.tokens && isEqual(verdict.digest, transcript.digest);
  if (!isOfThis) throw new Malformed("A verdict is about another text.");
  const positions = findings.map((one) => one.position);
  const isOrdered = positions.every((one, index) => one >= first && one < tokens && (!index || positions[index - 1]! < one));
  if (equal + nearTies + different !== tokens - first || !isOrdered || findings.length > nearTies + different) {
    throw new Malformed("The counts of a verdict do not fit.");
  }
  const tells = claim.likelihoods !== null;
  if ((verdict.widestGap !== null) !== tells || (verdict.meanGap !== null) !== tells) {
    throw new Malformed("A verdict says nothing of the likelihoods.");
  }
}

async function checkPart(piece: Evidence): Promise<CheckedPart> {
  const claim = readClaim(piece.claim);
  const d0 = requestDigest(claim.request);
  await verify("transcript", claim.author, d0, claim.body, claim.signature);
  const transcript = readTranscript(claim.body);
  if (!(transcript.first < transcript.tokens && transcript.tokens === claim.tokens.length)) {
    throw new Malformed("The verifier signed another number of tokens.");
  }
  if (!isEqual(rollDigest(d0, claim.tokens), transcript.digest)) {
    throw new Malformed("The verifier signed other tokens than these.");
  }
  checkTold(claim, transcript);
  const speakers = [claim.author, ...piece.statements.map((each) => each.auditor)];
  if (new Set(speakers).size < speakers.length) throw new Malformed("A verifier speaks twice, or about itself.");
  const judgements: Judgement[] = [];
  for (const { auditor, answer, place } of piece.statements) {
    const fields = message(answer, TAGS.audited, "a statement");
    fields.whole();
    const body = fields.bytes();
    await verify("audit", auditor, d0, body, fields.bytes(64));
    const verdict = readVerdict(body);
    checkVerdict(verdict, claim, transcript);
    judgements.push({ auditor, verdict, accuses: accuses(verdict, claim.request), place });
  }
  const opinions: Opinion[] = judgements.map((each) => ({
    judge: each.auditor,
    accuses: each.accuses,
    stages: each.verdict.stages,
    place: each.place,
  }));
  return {
    author: claim.author,
    request: claim.request,
    tokens: claim.tokens,
    first: transcript.first,
    digest: hex(d0),
    judgements,
    state: stateOf(opinions, claim.author),
  };
}

async function checkReceipt(base64: string, parts: CheckedPart[]): Promise<CheckedReceipt> {
  const fields = message(base64, TAGS.receipted, "a receipt");
  fields.whole();
  const signed = fields.struct("SignedReceipt");
  const d0 = signed.bytes(16);
  const body = signed.bytes();
  const signature = signed.bytes(64);
  const receipt = Fields.of(decode(body), "Receipt");
  const verifier = receipt.text();
  receipt.list((item) => new Fields([item], "expertise").text());
  const signedEarning = receipt.struct("SignedEarning");
  const earningBody = signedEarning.bytes();
  const earningSignature = signedEarning.bytes(64);
  const earning = Fields.of(decode(earningBody), "Earning");
  const target = earning.bytes(32);
  const client = earning.text();
  const drafter = earning.text();
  const tokens = earning.whole(MAX_TOKENS);
  const textTokens = earning.whole(MAX_TOKENS);
  await verify("earning", verifier, d0, earningBody, earningSignature);
  await verify("receipt", client, d0, body, signature);
  const part = parts.find((each) => each.digest === hex(d0) && each.author === verifier);
  const isOfThis = part && part.request.client === client && isEqual(part.request.targetDigest, target);
  if (!isOfThis) throw new Malformed("A receipt is for another text.");
  if (new Set([verifier, client, drafter]).size < 3 || tokens > textTokens) {
    throw new Malformed("A receipt is for more than there was, or not of three peers.");
  }
  return { verifier, client, drafter, tokens, textTokens };
}

const WORST: State[] = ["passed", "unanswered", "suspected", "disputed", "convicted"];

/** Check all of a proof. Raises `Malformed` or `BadSignature` for one that proves nothing, with a sentence. */
export async function checkProof(proof: Proof): Promise<CheckedProof> {
  const parts: CheckedPart[] = [];
  for (const piece of proof.evidence) parts.push(await checkPart(piece));
  const receipts: CheckedReceipt[] = [];
  for (const each of proof.receipts) receipts.push(await checkReceipt(each, parts));
  if (new Set(parts.map((each) => each.digest)).size > 1) throw new Malformed("Its parts are of different requests.");
  const state = WORST[Math.max(...parts.map((each) => WORST.indexOf(each.state)))]!;
  const judged = parts.reduce((sum, each) => sum + each.judgements.length, 0);
  return { parts, receipts, state, signatures: parts.length + judged + 2 * receipts.length };
}

export const isRefusal = (error: unknown): error is Error => error instanceof Malformed || error instanceof BadSignature;

/** The proof with what others have said of it since. */
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
