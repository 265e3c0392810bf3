// Commands that people paste into a shell: every word of a peer stands in quotes.

import { shellWord } from "../harmless";
import type { Swarm, SwarmNode } from "../swarm/state";

const ADDRESS = /^\/(ip4|ip6|dns|dns4|dns6)\/[\w.:-]{1,253}\/(tcp|udp)\/\d{1,5}(\/[\w.-]{1,128})*\/p2p\/[1-9A-HJ-NP-Za-km-z]{20,64}$/;
const LOOPBACK = /^\/(ip4\/127\.|ip6\/::1\/)/;

/** An address by which others join: a reachable node's own, and one that other machines know where there is one. */
export function entranceOf(swarm: Swarm): string | null {
  const known = swarm.nodes
    .filter((node) => !node.reason && !node.is_convicted)
    .flatMap((node) => node.addresses)
    .filter((address) => ADDRESS.test(address) && !address.includes("p2p-circuit"));
  return known.find((address) => !LOOPBACK.test(address)) ?? known[0] ?? null;
}

export type Wish = { role: "drafter" | "verifier" | "stage"; model: string; expertise: string; layers: string; memory: string };

const words = (...parts: (string | null)[]): string =>
  ["cosine-node", ...parts.filter((part): part is string => part !== null).map(shellWord)].join(" ");

/** The options of a node: what `doctor` and `join` have in common. */
function optionsOf(swarm: Swarm, wish: Wish): (string | null)[] {
  const option = (name: string, value: string) => (value.trim() ? [name, value.trim()] : []);
  return [
    "--role",
    wish.role,
    ...option("--model", wish.model),
    ...(wish.role === "drafter" && !wish.model.startsWith("zoo:") ? option("--target", swarm.target) : []),
    "--initial-peers",
    entranceOf(swarm) ?? "ADDRESS",
  ];
}

export function joinCommand(swarm: Swarm, wish: Wish): string {
  const option = (name: string, value: string) => (value.trim() ? [name, value.trim()] : []);
  return words(
    "join",
    ...optionsOf(swarm, wish),
    ...(wish.role === "drafter" ? option("--expertise", wish.expertise) : []),
    ...(wish.role === "stage" ? [...option("--layers", wish.layers), ...option("--memory", wish.memory)] : []),
  );
}

export const doctorCommand = (swarm: Swarm, wish: Wish): string => words("doctor", ...optionsOf(swarm, wish));

/** The command of a stage that holds these layers. */
export function stageCommand(swarm: Swarm, first: number, end: number): string {
  return joinCommand(swarm, { role: "stage", model: swarm.target, expertise: "", layers: `${first}:${end}`, memory: "" });
}

export type Need = { sentence: string; wish: Wish };

/** What this swarm lacks most, with what would help, the most urgent first. */
export function needsOf(swarm: Swarm, gaps: [number, number][]): Need[] {
  const wish = (role: Wish["role"], more: Partial<Wish> = {}): Wish => ({
    role,
    model: role === "drafter" ? "" : swarm.target,
    expertise: "",
    layers: "",
    memory: "",
    ...more,
  });
  const there = swarm.nodes.filter((node) => !node.reason && !node.is_convicted);
  const of = (role: string) => there.filter((node) => node.role === role);
  const needs: Need[] = [];
  for (const [first, end] of gaps) {
    const what = end - first > 1 ? `layers ${first} to ${end - 1}` : `layer ${first}`;
    needs.push({ sentence: `Nobody holds ${what}.`, wish: wish("stage", { layers: `${first}:${end}` }) });
  }
  if (!of("verifier").length) needs.push({ sentence: "No verifier answers, so nothing is generated.", wish: wish("verifier") });
  if (of("verifier").length === 1) {
    needs.push({ sentence: "There is one verifier alone: nobody goes on if it fails, or judges it.", wish: wish("verifier") });
  }
  if (!of("drafter").length) needs.push({ sentence: "No drafter answers, so nothing is sooner.", wish: wish("drafter") });
  for (const domain of lackingDomains(swarm.nodes)) {
    needs.push({ sentence: `Nobody who answers drafts for ${domain}.`, wish: wish("drafter", { expertise: domain }) });
  }
  const full = of("verifier");
  if (full.length && full.every((node) => node.load >= node.capacity)) {
    needs.push({ sentence: "All verifiers have all their places taken.", wish: wish("verifier") });
  }
  return needs;
}

/** Domains of which every drafter that announced them is silent. */
function lackingDomains(nodes: SwarmNode[]): string[] {
  const drafters = nodes.filter((node) => node.role === "drafter");
  const drafted = new Set(drafters.filter((node) => !node.reason).flatMap((node) => node.expertise));
  return [...new Set(drafters.flatMap((node) => node.expertise))].filter((domain) => !drafted.has(domain));
}

/** How many drafters that answer there are for each domain, the fewest first. */
export function domainsOf(nodes: SwarmNode[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const node of nodes) {
    if (node.role !== "drafter") continue;
    for (const domain of node.expertise) counts.set(domain, (counts.get(domain) ?? 0) + (node.reason ? 0 : 1));
  }
  return [...counts].sort((one, other) => one[1] - other[1]);
}
