// The view of a proof and its check.

import { useEffect, useRef, useState } from "preact/hooks";
import { json, Refused } from "../gateway";
import { name, prose } from "../harmless";
import { count, Peer } from "../parts";
import {
  type CheckedPart, type CheckedProof, checkProof, type Evidence, MAX_FILE_BYTES, type Proof, readProof, type State, withStatements,
} from "./proof";

export type Given = { proof: Proof; from: string; text?: string };

const VERDICTS: Record<State, [mood: string, title: string, sentence: string]> = {
  passed: ["good", "The target’s text, by its judges’ word", "What the verifier signed was replayed by others, and most of them agree."],
  unanswered: ["fair", "Signed, and judged by nobody yet", "The verifier stands by exactly these tokens. Whether they are the target’s, other verifiers can tell."],
  suspected: ["fair", "Accused by its one judge", "One judge would have written something else. A second one decides who is wrong."],
  disputed: ["fair", "Its judges disagree", "Some would have written something else: either side may be wrong."],
  convicted: ["bad", "Not the target’s text", "Most of its judges would have written something else: the verifier signed a lie."],
};

type Checked = { result: CheckedProof } | { refusal: string };

/** The result of a check. Throws if the gateway cannot check the proof. */
async function checked(proof: Proof): Promise<Checked> {
  try {
    const found = await checkProof(proof);
    return "problem" in found ? { refusal: `It does not hold: ${found.problem}.` } : { result: found };
  } catch (error) {
    if (error instanceof Refused && error.status === 400) return { refusal: error.message };
    throw error;
  }
}

const sentenceOf = (error: unknown): string => (error instanceof Refused ? error.message : "The question broke off.");

function Part({ part, text }: { part: CheckedPart; text: string | null }) {
  const own = part.tokens.length - part.first;
  return (
    <section class="card">
      <h3>
        Verifier <Peer id={part.author} /> signed {count(own, "token")}
        {part.first > 0 && `, after ${count(part.first, "token")} of another`}
      </h3>
      <dl class="pairs">
        <div>
          <dt>Request</dt>
          <dd>
            <code class="digest">{part.digest}</code> digest of {count(part.prompt_tokens, "prompt token")}, seed {part.seed},
            temperature {part.temperature}
          </dd>
        </div>
        <div>
          <dt>Numerics</dt>
          <dd>{name(part.numerics)}</dd>
        </div>
        {text !== null && (
          <div>
            <dt>Reads</dt>
            <dd>
              <div class="reads" tabIndex={0} role="group" aria-label="The signed text">
                {prose(text.slice(0, 4000))}
              </div>
            </dd>
          </div>
        )}
      </dl>
      {part.judgements.length > 0 && (
        <table class="plain">
          <caption>What its judges found</caption>
          <thead>
            <tr>{["judge", "says", "equal", "near ties", "different"].map((title) => <th scope="col">{title}</th>)}</tr>
          </thead>
          <tbody>
            {part.judgements.map(({ auditor, accuses, equal, near_ties, different }) => (
              <tr>
                <th scope="row">
                  <Peer id={auditor} />
                </th>
                <td class={accuses ? "bad" : "good"}>{accuses ? "accuses" : "agrees"}</td>
                <td>{equal}</td>
                <td>{near_ties}</td>
                <td>{different}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

/** Decode tokens by this gateway's target; null if they are of another one. */
async function read(tokens: number[]): Promise<string | null> {
  try {
    return (await json<{ prompt: string }>("/detokenize", { tokens })).prompt;
  } catch {
    return null;
  }
}

function save(proof: Proof, digest: string): void {
  const file = new Blob([JSON.stringify(proof)], { type: "application/json" });
  const link = Object.assign(document.createElement("a"), {
    href: URL.createObjectURL(file),
    download: `proof-${digest.slice(0, 12)}.json`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The given proof, and a place to drop another. */
export function ProofView({ given, onGiven }: { given: Given | null; onGiven: (given: Given | null) => void }) {
  const [state, setState] = useState<Checked | null>(null);
  const [texts, setTexts] = useState<(string | null)[]>([]);
  const [problem, setProblem] = useState("");
  const [isAsking, setAsking] = useState(false);
  const [isOver, setOver] = useState(false);
  const heading = useRef<HTMLHeadingElement>(null);

  useEffect(() => {
    setState(null);
    setTexts([]);
    if (!given) return;
    let isCurrent = true;
    void checked(given.proof).then(async (found) => {
      if (!isCurrent) return;
      setState(found);
      heading.current?.focus();
      if ("result" in found) {
        const words = await Promise.all(found.result.parts.map((part) => read(part.tokens)));
        if (isCurrent) setTexts(words);
      }
    }).catch((error) => isCurrent && setProblem(sentenceOf(error)));
    return () => {
      isCurrent = false;
    };
  }, [given]);

  async function take(file: File | undefined) {
    setOver(false);
    if (!file) return;
    setProblem("");
    try {
      if (file.size > MAX_FILE_BYTES) throw new Error("This file is too large for a proof.");
      onGiven({ proof: readProof(await file.text()), from: name(file.name, 80) });
    } catch (error) {
      onGiven(null);
      setProblem(error instanceof Error ? error.message : "This file cannot be read.");
    }
  }

  async function askOthers() {
    if (!given) return;
    setAsking(true);
    setProblem("");
    try {
      const { evidence } = await json<{ evidence: Evidence[] }>("/v1/audits", { evidence: given.proof.evidence });
      const later = withStatements(given.proof, evidence);
      const before = given.proof.evidence.reduce((sum, each) => sum + each.statements.length, 0);
      const after = later.evidence.reduce((sum, each) => sum + each.statements.length, 0);
      if (after === before) setProblem("No other verifier of this target and these numerics gave an answer here.");
      onGiven({ ...given, proof: later });
    } catch (error) {
      setProblem(sentenceOf(error));
    }
    setAsking(false);
  }

  const result = state && "result" in state ? state.result : null;
  const refusal = state && "refusal" in state ? state.refusal : "";
  const [mood, title, sentence] = result ? VERDICTS[result.state] : ["bad", "This proves nothing", refusal];
  const isOther = given?.text !== undefined && texts.length > 0 && texts.at(-1) !== null && !agrees(texts.at(-1)!, given.text);
  return (
    <div class="proof">
      <header class="title">
        <h1>Is this text the target’s?</h1>
        <p>
          A proof is what the verifier, its judges and the client signed. The gateway recomputes every digest and checks
          every signature. A saved proof can be checked anywhere, by any gateway or by <code>cosine audit</code>.
        </p>
      </header>
      {state && (
        <section class={`banner ${isOther ? "bad" : mood}`} role="status">
          <h2 tabIndex={-1} ref={heading}>
            {isOther ? "A proof of another text" : title}
          </h2>
          <p>{isOther ? "What was signed is not what stands in the chat." : prose(sentence)}</p>
          {result && (
            <p class="faint">
              {count(result.signatures, "signature")} checked, {count(result.parts.reduce((sum, each) => sum + each.tokens.length, 0), "digest")}{" "}
              recomputed, from {given?.from}.
            </p>
          )}
        </section>
      )}
      {problem && (
        <p class="problem" role="alert">
          {prose(problem)}
        </p>
      )}
      {given && result && (
        <div class="row">
          <button type="button" class="main" disabled={isAsking} onClick={() => void askOthers()}>
            {isAsking ? "Asking other verifiers…" : "Ask other verifiers"}
          </button>
          <button type="button" onClick={() => save(given.proof, result.parts[0]!.digest)}>
            Save the proof
          </button>
          <button type="button" class="quiet" onClick={() => onGiven(null)}>
            Put away
          </button>
        </div>
      )}
      {result?.parts.map((part, index) => <Part part={part} text={texts[index] ?? null} />)}
      <label
        class={`drop${isOver ? " over" : ""}`}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          void take(event.dataTransfer?.files[0]);
        }}
      >
        <input
          type="file"
          accept=".json,application/json"
          onChange={(event) => {
            void take(event.currentTarget.files?.[0]);
            event.currentTarget.value = "";
          }}
        />
        <span>
          <b>Drop a proof here</b>, or choose its file: one that was saved here or at another swarm, or what{" "}
          <code>cosine generate --json</code> wrote.
        </span>
      </label>
    </div>
  );
}

/** True if the signed text contains the shown one; end tokens and text after a stop text may follow. */
function agrees(signed: string, shown: string): boolean {
  const bare = shown.trim();
  return !bare || signed.includes(bare);
}
