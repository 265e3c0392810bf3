import { useState } from "preact/hooks";
import { name } from "../harmless";
import { Copy, count, Fact, fixed, Peer } from "../parts";
import { Layers } from "./layers";
import { NodeMap } from "./map";
import { gift, loadOf, standingOf, STANDINGS, type Feed, type SwarmNode } from "./state";
import { NodeTable } from "./table";
import { Trends } from "./trend";

function About({ node, onClose }: { node: SwarmNode; onClose: () => void }) {
  const standing = standingOf(node);
  const rows: [string, string][] = [
    ["Model", name(node.model, 200)],
    ["Target", `${name(node.target, 200)} (${node.target_digest.slice(0, 12)})`],
    ["Numerics", `${name(node.numerics, 80)}${node.repeats ? "" : ": texts may differ at near ties"}`],
    ["Good at", name(gift(node) || "nothing named", 300)],
    ["Load", loadOf(node)],
    ["A pass", `${fixed(node.pass_ms)} ms, by its own word`],
    ["Round trip", node.rtt_ms === null ? "not measured" : `${fixed(node.rtt_ms)} ms`],
    ["Reached", node.way ? `${node.way}, by its addresses` : "no address told"],
    ["Context", count(node.context_tokens, "token")],
    ["Software", name(node.software, 120)],
    ...(node.emulated ? ([["Emulates", name(node.emulated, 120)]] as [string, string][]) : []),
    ...(node.checks !== null ? ([["Audits", `${count(node.checks, "text")} of it checked here and found right`]] as [string, string][]) : []),
    ...(node.drafts ? ([["Drafts", name(node.drafts, 200)]] as [string, string][]) : []),
    ...(node.text_tokens
      ? ([["Accepted", `${(node.accepted ?? 0).toLocaleString("en")} of ${count(node.text_tokens, "token")} it drafted for, by its own word`]] as [string, string][])
      : []),
  ];
  return (
    <section class="card about" aria-label="The chosen node">
      <div class="row">
        <h2>
          {name(node.role, 16)} <Peer id={node.peer_id} />
        </h2>
        <span class="grow" />
        <Copy text={node.peer_id} label="Copy id" />
        <button type="button" class="quiet" onClick={onClose}>
          Close
        </button>
      </div>
      <p class={`standing is-${standing}`}>
        {STANDINGS[standing]}
        {node.reason && `: ${name(node.reason, 300)}`}
        {standing === "convicted" && ": auditors found that it signed what its target does not write. It is asked last."}
      </p>
      <dl class="pairs">
        {rows.map(([label, value]) => (
          <div>
            <dt>{label}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        <div>
          <dt>Addresses</dt>
          <dd>
            {node.addresses.length ? node.addresses.map((each) => <code class="address">{name(each, 260)}</code>) : "none"}
          </dd>
        </div>
      </dl>
    </section>
  );
}

export function SwarmView({ feed }: { feed: Feed }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const { swarm } = feed;
  if (!swarm) {
    return (
      <div class="swarm">
        <header class="title">
          <h1>The swarm</h1>
          <p role="status">{feed.problem ? name(feed.problem, 400) : "Looking at every node…"}</p>
        </header>
      </div>
    );
  }
  const silent = swarm.nodes.filter((node) => node.reason).length;
  const convicted = swarm.nodes.filter((node) => node.is_convicted).length;
  const node = swarm.nodes.find((each) => each.peer_id === chosen);
  return (
    <div class="swarm">
      <header class="title">
        <h1>The swarm</h1>
        <p>
          Who serves <b>{name(swarm.target, 80)}</b>, as this gateway sees it now.
        </p>
      </header>
      {swarm.problem && <p class="problem">{name(swarm.problem, 400)}</p>}
      <dl class="facts strip">
        {["verifier", "drafter", "stage"].map((role) => (
          <Fact label={`${role}s`}>{swarm.nodes.filter((node) => node.role === role).length.toLocaleString("en")}</Fact>
        ))}
        <Fact label="silent">
          <span class={silent ? "bad" : ""}>{silent.toLocaleString("en")}</span>
        </Fact>
        <Fact label="convicted" hint="Verifiers that auditors found wrong, by what this gateway knows.">
          <span class={convicted ? "bad" : ""}>{convicted.toLocaleString("en")}</span>
        </Fact>
      </dl>
      <div class="pair">
        <NodeMap nodes={swarm.nodes} chosen={chosen} onChoose={setChosen} />
        <Trends points={swarm.trend} />
      </div>
      <Layers swarm={swarm} />
      {node && <About node={node} onClose={() => setChosen(null)} />}
      <NodeTable nodes={swarm.nodes} chosen={chosen} onChoose={setChosen} />
    </div>
  );
}
