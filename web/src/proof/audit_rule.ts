// The rule by which verdicts convict: that of `cosine_p2p.trust.audit_rule` and `voices`, where the reasons stand.

import type { Request } from "./request";

export type Finding = { position: number; token: number; gap: number };
export type Verdict = {
  author: string;
  first: number;
  tokens: number;
  digest: Uint8Array;
  equal: number;
  nearTies: number;
  different: number;
  findings: Finding[];
  widestGap: number | null;
  meanGap: number | null;
  stages: string[];
};
export type Opinion = { judge: string; accuses: boolean; stages: string[]; place: string };
export type State = "unanswered" | "passed" | "suspected" | "disputed" | "convicted";

type Rounding = readonly [nearTie: number, flipRate: number, filterFlipRate: number];
const ROUNDING: Record<string, Rounding> = {
  float32: [1e-4, 1e-4, 1e-6],
  bfloat16: [0.25, 0.015, 0.004],
  float16: [0.04, 0.003, 0.001],
};
const LLAMA_ROUNDING: Record<string, Rounding> = {
  F32: [1e-4, 1e-4, 1e-6],
  F16: [0.02, 0.003, 0.001],
  BF16: [0.02, 0.015, 0.004],
  Q8_0: [0.3, 0.005, 0.002],
};
const LLAMA_FEW_BITS: Rounding = [1.0, 0.02, 0.004];
const WIDE = 2;
const FALSE_ALARM = 1e-6;
const IMPOSSIBLE = 12;
const DRIFT_TOKENS = 4096;

function roundingOf(numerics: string): Rounding {
  const bare = numerics.replace(/^gguf:/, "");
  const plus = bare.lastIndexOf("+");
  const computed = bare.slice(plus + 1);
  if (computed === "llama.cpp") {
    const weights = bare.slice(0, Math.max(0, plus));
    return Object.hasOwn(LLAMA_ROUNDING, weights) ? LLAMA_ROUNDING[weights]! : LLAMA_FEW_BITS;
  }
  const type = computed.split("/")[0]!;
  return Object.hasOwn(ROUNDING, type) ? ROUNDING[type]! : ROUNDING["float32"]!;
}

function logGamma(x: number): number {
  // Lanczos, g = 7, 9 terms: 15 digits.
  const terms = [
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
  ];
  const base = x + 6.5;
  const sum = terms.slice(1).reduce((total, term, index) => total + term / (x + index), terms[0]!);
  return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(base) - base + Math.log(sum);
}

/** The most events of a Poisson distribution that are not exceeded but with the chance `FALSE_ALARM`. */
export function mostByChance(mean: number): number {
  if (mean <= 0) return 0;
  let count = Math.max(0, Math.floor(mean - IMPOSSIBLE * Math.sqrt(mean)));
  let chance = Math.exp(count * Math.log(mean) - mean - logGamma(count + 1));
  let tail = count ? 1 - chance : -Math.expm1(-mean);
  while (tail > FALSE_ALARM) {
    count += 1;
    chance *= mean / count;
    tail -= chance;
  }
  return count;
}

/** True if a verdict has more differences than rounding explains, of an auditor with the request's numerics. */
export function accuses(verdict: Verdict, request: Request): boolean {
  const positions = verdict.tokens - verdict.first;
  const [nearTie, flipRate, filterFlipRate] = roundingOf(request.numerics);
  const spread = Math.min(1, request.temperature || 1);
  const wide = verdict.findings.filter((one) => !(one.gap * spread < WIDE * nearTie)).length;
  const hasFilter = request.temperature !== 0 && (request.topK > 0 || request.topP < 1 || request.minP > 0);
  const filtered = hasFilter ? filterFlipRate * positions : 0;
  if (misstates(verdict, request, nearTie)) return true;
  return (
    wide > mostByChance(filtered) ||
    verdict.nearTies + verdict.different > mostByChance(filtered + flipRate * positions)
  );
}

function misstates(verdict: Verdict, request: Request, nearTie: number): boolean {
  if (verdict.widestGap !== null && verdict.widestGap > WIDE * nearTie) return true;
  const ofPrompt = request.logprobs?.ofPrompt && !verdict.first ? request.prompt.length - 1 : 0;
  const told = ofPrompt + verdict.tokens - verdict.first;
  return verdict.meanGap !== null && Math.abs(verdict.meanGap) > nearTie / Math.sqrt(Math.min(told, DRIFT_TOKENS));
}

/** The voices that words have together: as many as share nothing of what they rest on. */
function voices(words: Set<string>[]): number {
  let sharing = new Map(
    words.map((one, index) => [
      index,
      new Set(words.flatMap((other, at) => (at !== index && [...one].some((each) => other.has(each)) ? [at] : []))),
    ]),
  );
  let count = 0;
  while (sharing.size) {
    const [taken, others] = [...sharing].reduce((least, each) => (each[1].size < least[1].size ? each : least));
    const gone = new Set([...others, taken]);
    sharing = new Map(
      [...sharing]
        .filter(([one]) => !gone.has(one))
        .map(([one, rest]) => [one, new Set([...rest].filter((each) => !gone.has(each)))]),
    );
    count += 1;
  }
  return count;
}

/** What judges have found together of a text by this author. */
export function stateOf(opinions: Opinion[], author: string): State {
  const computers = (one: Opinion) => [...one.stages, one.judge];
  const grounds = (one: Opinion) => new Set([...computers(one), ...(one.place ? [one.place] : [])]);
  const accusing = voices(opinions.filter((one) => one.accuses).map(grounds));
  const clearing = voices(opinions.filter((one) => !one.accuses && !computers(one).includes(author)).map(grounds));
  if (!accusing && !clearing) return "unanswered";
  if (accusing < clearing) return "passed";
  if (accusing >= 2 && accusing > clearing) return "convicted";
  return clearing ? "disputed" : "suspected";
}
