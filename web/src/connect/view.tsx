// The view with commands to join this swarm, and settings to use it from other programs.

import { useState } from "preact/hooks";
import { json, Refused } from "../gateway";
import { name } from "../harmless";
import { Fact, Snippet } from "../parts";
import { gapsOf } from "../swarm/layers";
import type { Swarm } from "../swarm/state";
import {
  doctorCommand,
  domainsOf,
  entranceOf,
  faultOf,
  joinCommand,
  needsOf,
  NOTHING_WISHED,
  suggestCommand,
  type Wish,
} from "./command";
import { Invite } from "./invite";
import { type Advice, type Asked, sizeOf, useMachine } from "./machine";
import { clientsOf } from "./settings";

const ROLES: [Wish["role"], string, string][] = [
  ["drafter", "Drafter", "A small model that guesses. Any machine can be one."],
  ["verifier", "Verifier", "Holds the whole target, and decides every token."],
  ["stage", "Stage", "Holds some layers of a target that is too large for one machine."],
];

/** The machine that serves this page, in the doctor's words. */
function OwnMachine({ asked }: { asked: Asked }) {
  const { machine } = asked;
  if (asked.isElsewhere) {
    return <p class="faint">This page is of another machine than yours: the doctor, below, says what yours has.</p>;
  }
  if (!machine) return <p class="faint" role="status">{name(asked.problem, 200) || "Looking at this machine…"}</p>;
  const { reach } = machine;
  return (
    <div class="machine">
      <h3>This machine</h3>
      <dl class="facts">
        <Fact label="cores">{machine.cores}</Fact>
        <Fact label="memory free">{sizeOf(machine.memory_bytes)}</Fact>
        {machine.devices.slice(0, 4).map((device) => (
          <Fact label={`free of ${name(device.name, 40)}`}>{sizeOf(device.memory_bytes)}</Fact>
        ))}
        {!machine.devices.length && <Fact label="GPU">none</Fact>}
        <Fact label="disk free">{sizeOf(machine.disk_bytes)}</Fact>
      </dl>
      <p class={reach.result === "warning" ? "faint fair" : "faint"}>
        {sentence(reach.found)} {withCommands(name(reach.fix, 300))}
      </p>
      {machine.lacks.length > 0 && (
        <p class="faint fair">
          No node can start here yet: {machine.lacks.map((each) => name(each, 40)).join(", ")} are not installed (
          <code>pip install . './node[torch]'</code>).
        </p>
      )}
    </div>
  );
}

/** What the machine that serves this page should run, once it is asked to measure itself. */
function Suggestions() {
  const [advice, setAdvice] = useState<Advice | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  async function measure() {
    setBusy(true);
    setProblem("");
    try {
      setAdvice(await json<Advice>("/v1/suggestions", {}));
    } catch (error) {
      setProblem(error instanceof Refused ? error.message : "The gateway does not say.");
    }
    setBusy(false);
  }
  return (
    <div class="suggestions">
      <button type="button" onClick={() => void measure()} disabled={isBusy}>
        Measure it, and suggest what to run
      </button>
      <p class="faint" role="status">{isBusy ? "Measuring this machine, for about 20 s…" : name(problem, 300)}</p>
      {advice?.suggestions.map(({ command, why, expect }, index) => (
        <div>
          <p>{withCommands(name(why, 300))}</p>
          <Snippet text={command} label={`Suggestion ${index + 1}`} />
          <p class="faint">{name(expect, 400)}</p>
        </div>
      ))}
      {advice?.suggestions.length === 0 && <p>Nothing to suggest now.</p>}
      {advice?.reasons.map((reason) => <p class="faint">Not suggested: {name(reason, 400)}</p>)}
    </div>
  );
}

/** Text between backticks is a command or a part of one. */
const withCommands = (words: string) => words.split("`").map((part, index) => (index % 2 ? <code>{part}</code> : part));

const sentence = (words: string): string => {
  const shown = name(words, 300);
  return `${shown.charAt(0).toUpperCase()}${shown.slice(1)}.`;
};

function Wizard({ swarm }: { swarm: Swarm }) {
  const asked = useMachine();
  const [chosen, setWish] = useState<Wish | null>(null);
  const gaps = swarm.coverage.flatMap((kind) => gapsOf(kind.holders));
  const needs = needsOf(swarm, gaps, asked.machine?.fits ?? null);
  // Default: the most urgent need that this machine can meet.
  const wish = chosen ?? needs.find((need) => need.isPossible)?.wish ?? NOTHING_WISHED;
  const set = (more: Partial<Wish>) => setWish({ ...wish, ...more });
  const domains = domainsOf(swarm.nodes);
  const entrance = entranceOf(swarm);
  const fault = faultOf(wish.link, new Date().toISOString().slice(0, 10));
  const models = [...new Set(swarm.nodes.filter((node) => node.role === wish.role).map((node) => node.model))];
  const field = (key: "model" | "expertise" | "layers" | "memory") => ({
    value: wish[key],
    onInput: (event: Event) => set({ [key]: (event.target as HTMLInputElement).value }),
  });
  return (
    <section class="card" aria-labelledby="give-title">
      <h2 id="give-title">Give a machine</h2>
      <OwnMachine asked={asked} />
      {asked.machine && <Suggestions />}
      {needs.length > 0 && (
        <ul class="needs" aria-label="What this swarm lacks">
          {needs.slice(0, 6).map((need) => (
            <li>
              <span>
                {name(need.sentence, 160)}
                {need.limit && <small> {need.limit}</small>}
              </span>
              {need.isPossible && (
                <button type="button" class="quiet" onClick={() => setWish({ ...need.wish, link: wish.link })}>
                  Help with that
                </button>
              )}
            </li>
          ))}
        </ul>
      )}
      <fieldset class="roles">
        <legend>As a</legend>
        {ROLES.map(([role, title, what]) => (
          <label>
            <input
              type="radio"
              name="role"
              checked={wish.role === role}
              onChange={() => set({ role, model: role === "drafter" ? "" : swarm.target })}
            />
            <b>{title}</b>
            <span>{what}</span>
          </label>
        ))}
      </fieldset>
      <div class="settings">
        <label class="whole">
          <span>Swarm: this one, or that of a link</span>
          <input
            value={wish.link}
            onInput={(event) => set({ link: event.currentTarget.value.trim() })}
            placeholder="cosine:…"
            autocomplete="off"
            spellcheck={false}
            aria-invalid={fault !== ""}
            aria-describedby="link-fault"
          />
        </label>
        <p class="whole problem" id="link-fault" role="status">{fault}</p>
        <label class="whole">
          <span>Model: an embedded one, a folder, a Hugging Face id, or a GGUF file</span>
          <input {...field("model")} placeholder={wish.role === "drafter" ? "zoo:draft-code" : ""} list="models" autocomplete="off" />
          <datalist id="models">
            {models.slice(0, 40).map((each) => (
              <option value={name(each, 200)} />
            ))}
          </datalist>
        </label>
        {wish.role === "drafter" && (
          <label class="whole">
            <span>
              Good at
              {domains.length > 0 && `; here are ${domains.slice(0, 8).map(([domain, drafters]) => `${name(domain, 40)} ${drafters}`).join(", ")}`}
            </span>
            <input {...field("expertise")} placeholder="embedded drafters know theirs" autocomplete="off" />
          </label>
        )}
        {wish.role === "stage" && (
          <>
            <label>
              <span>Layers</span>
              <input {...field("layers")} placeholder="auto: those that the swarm lacks" autocomplete="off" />
            </label>
            <label>
              <span>Memory</span>
              <input {...field("memory")} placeholder="6GiB" autocomplete="off" />
            </label>
          </>
        )}
      </div>
      <p class="faint">On the machine that you give, first what suits it, and what keeps it from working:</p>
      <Snippet text={suggestCommand(swarm, wish.link)} label="Command that suggests what to run" />
      <Snippet text={doctorCommand(swarm, wish)} label="Command that looks for problems" />
      <p class="faint">Then:</p>
      <Snippet text={joinCommand(swarm, wish)} label="Command that joins" />
      {swarm.entrance[0] === "--swarm" && !wish.link && (
        <p class="faint">
          This swarm is private: its founder first admits the machine, by what <code>cosine-node identity</code> prints there.
        </p>
      )}
      {!entrance && !wish.link && <p class="problem">No node tells an address here: put that of any node in the place of ADDRESS.</p>}
      {entrance && !wish.link && /\/ip4\/127\.|\/ip6\/::1\//.test(entrance) && (
        <p class="faint">This swarm listens on its own machine alone: others cannot join it.</p>
      )}
    </section>
  );
}

function Clients({ hasKey }: { hasKey: boolean }) {
  const clients = clientsOf(location.origin, hasKey);
  const [chosen, setChosen] = useState(clients[0]!.name);
  const client = clients.find((each) => each.name === chosen)!;
  return (
    <section class="card" aria-labelledby="use-title">
      <h2 id="use-title">Use it from other programs</h2>
      <p>They ask this gateway as they ask OpenAI.</p>
      <div class="chips" role="group" aria-label="Programs">
        {clients.map((each) => (
          <button type="button" aria-pressed={each.name === chosen} onClick={() => setChosen(each.name)}>
            {each.name}
          </button>
        ))}
      </div>
      <p class="faint">{client.where}</p>
      <Snippet text={client.text} label={`Settings of ${client.name}`} />
    </section>
  );
}

export function Connect({ swarm, hasKey }: { swarm: Swarm | null; hasKey: boolean }) {
  return (
    <div class="connect">
      <header class="title">
        <h1>Join and connect</h1>
        <p>Give a machine to this swarm, or let your programs use it.</p>
      </header>
      <div class="pair even">
        {swarm ? <Wizard swarm={swarm} /> : <p role="status">Looking at every node…</p>}
        <div class="column">
          {swarm?.invitation && <Invite invitation={swarm.invitation} />}
          <Clients hasKey={hasKey} />
        </div>
      </div>
    </div>
  );
}
