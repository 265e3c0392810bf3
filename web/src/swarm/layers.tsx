// The layers that stages hold, and the commands to fill gaps.

import { stageCommand } from "../connect/command";
import { fixed, Peer, Snippet } from "../parts";
import { name } from "../harmless";
import type { Coverage, Outlook, Swarm } from "./state";

const MAX_KINDS = 4;

/** The ranges of layers that nobody holds, each as its first layer and the one after its last. */
export function gapsOf(holders: number[]): [number, number][] {
  const gaps: [number, number][] = [];
  holders.forEach((held, layer) => {
    if (held) return;
    const last = gaps.at(-1);
    if (last && last[1] === layer) last[1] = layer + 1;
    else gaps.push([layer, layer + 1]);
  });
  return gaps;
}

function Bars({ holders }: { holders: number[] }) {
  const most = Math.max(1, ...holders);
  return (
    <svg class="bars" viewBox={`0 0 ${holders.length} 10`} preserveAspectRatio="none" aria-hidden="true">
      {holders.map((held, layer) => {
        const height = held ? Math.max(1.5, (10 * held) / most) : 10;
        return <rect class={held ? "held" : "gap"} x={layer + 0.08} y={10 - height} width={0.84} height={height} />;
      })}
    </svg>
  );
}

/** The chain that a head would choose, and its expected speed. */
function Expected({ outlook }: { outlook: Outlook }) {
  if (!outlook.stages.length) return <p class="faint">{name(outlook.problem, 300)}</p>;
  return (
    <>
      <ol class="chain" aria-label="The soonest chain">
        {outlook.stages.map((stage) => (
          <li>
            <span>{name(stage.layers, 16)}</span> <Peer id={stage.peer_id} /> <small>{fixed(1e3 * stage.pass_s)} ms</small>
          </li>
        ))}
      </ol>
      <p class="faint">
        A pass takes {fixed(1e3 * outlook.pass_s, 0)} ms over this chain, {fixed(1e3 * outlook.way_s, 0)} of them on its way:{" "}
        <b>{fixed(outlook.tokens_per_s)} tokens/s</b>, {fixed(outlook.drafted_tokens_per_s)} where{" "}
        {Math.round(100 * outlook.acceptance)} % of the drafts come true. By what they announce.
      </p>
    </>
  );
}

function Kind({ kind, swarm }: { kind: Coverage; swarm: Swarm }) {
  const gaps = gapsOf(kind.holders);
  const least = Math.min(...kind.holders);
  const outlook = swarm.outlook.find(
    (each) => each.target_digest === kind.target_digest && each.numerics === kind.numerics && !gaps.length,
  );
  return (
    <div class="kind">
      <div class="row">
        <b>{name(kind.numerics, 60)}</b>
        <span class="faint">
          {kind.holders.length} layers of {kind.target_digest.slice(0, 8)}
        </span>
        <span class="grow" />
        <span class={gaps.length ? "bad" : "good"}>
          {gaps.length
            ? `Nobody holds ${gaps.map(([first, end]) => (end - first > 1 ? `${first} to ${end - 1}` : first)).join(", ")}`
            : `each held by ${least} or more`}
        </span>
      </div>
      <Bars holders={kind.holders} />
      <div class="row ends" aria-hidden="true">
        <span>0</span>
        <span class="grow" />
        <span>{kind.holders.length - 1}</span>
      </div>
      {outlook && <Expected outlook={outlook} />}
      {gaps.map(([first, end]) => (
        <Snippet text={stageCommand(swarm, first, end)} label={`Command that holds layers ${first} to ${end - 1}`} />
      ))}
    </div>
  );
}

export function Layers({ swarm }: { swarm: Swarm }) {
  if (!swarm.coverage.length) return null;
  return (
    <section class="card layers" aria-labelledby="layers-title">
      <h2 id="layers-title">Layers held by stages</h2>
      {swarm.coverage.slice(0, MAX_KINDS).map((kind) => (
        <Kind kind={kind} swarm={swarm} />
      ))}
    </section>
  );
}
