// Commands to paste into a shell: every word of a peer is quoted.

import { shellWord } from "../harmless";
import { type Fits, layersIn, sizeOf } from "./machine";
import type { Swarm, SwarmNode } from "../swarm/state";

const ADDRESS = /^\/(ip4|ip6|dns|dns4|dns6)\/[\w.:-]{1,253}\/(tcp|udp)\/\d{1,5}(\/[\w.-]{1,128})*\/p2p\/[1-9A-HJ-NP-Za-km-z]{20,64}$/;
const LOOPBACK = /^\/(ip4\/127\.|ip6\/::1\/)/;

/** An address to join by: that of a reachable node, preferably not a loopback address. */
export function entranceOf(swarm: Swarm): string | null {
  const known = swarm.nodes
    .filter((node) => !node.reason && !node.is_convicted)
    .flatMap((node) => node.addresses)
    .filter((address) => ADDRESS.test(address) && !address.includes("p2p-circuit"));
  return known.find((address) => !LOOPBACK.test(address)) ?? known[0] ?? null;
}

/** `link` is an invitation to another swarm than this one, or "". */
export type Wish = {
  role: "drafter" | "verifier" | "stage";
  model: string;
  expertise: string;
  layers: string;
  memory: string;
  link: string;
};

export const NOTHING_WISHED: Wish = { role: "drafter", model: "", expertise: "", layers: "auto", memory: "", link: "" };

const LINK = /^cosine:(?:[a-z]+=[^\s,]+,)*\/[^\s,]+(?:,\/[^\s,]+)*$/;

/** Why a pasted text is no invitation that can be used, or "". */
export function faultOf(link: string, today: string): string {
  if (!link) return "";
  if (!LINK.test(link)) return "This is no whole link: it begins with cosine: and ends in an address.";
  const day = /[:,]until=([\d-]+)/.exec(link)?.[1];
  return day && day < today ? `This invitation was valid until ${day}: ask for a new one.` : "";
}

/** The options that lead to the swarm of an invitation, or to this one. */
function wayTo(swarm: Swarm, link: string): string[] {
  if (link) return ["--initial-peers", link, ...(/[:,]swarm=/.test(link) ? ["--swarm", "FILE"] : [])];
  return ["--initial-peers", entranceOf(swarm) ?? "ADDRESS", ...swarm.entrance];
}

const words = (...parts: string[]): string => ["cosine-node", ...parts.map(shellWord)].join(" ");

/** The command that measures a machine and says what it should run. */
export const suggestCommand = (swarm: Swarm, link: string): string => words("suggest", ...wayTo(swarm, link));

/** The options for the numerics of most nodes of this role: only equal numerics can continue their texts. */
function sameNumerics(swarm: Swarm, role: Wish["role"]): string[] {
  const counts = new Map<string, number>();
  for (const node of swarm.nodes) {
    if (node.role !== role || node.reason || node.is_convicted) continue;
    const options = node.join_options.join(" ");
    counts.set(options, (counts.get(options) ?? 0) + 1);
  }
  const [most] = [...counts].sort((one, other) => other[1] - one[1]);
  return most?.[0] ? most[0].split(" ") : [];
}

const option = (name: string, value: string): string[] => (value.trim() ? [name, value.trim()] : []);

/** The options that `doctor` and `join` share. */
function optionsOf(swarm: Swarm, wish: Wish): string[] {
  return [
    "--role",
    wish.role,
    ...option("--model", wish.model),
    ...(wish.model.trim() === swarm.target ? sameNumerics(swarm, wish.role) : []),
    ...(wish.role === "drafter" && !wish.model.startsWith("zoo:") ? option("--target", swarm.target) : []),
    ...wayTo(swarm, wish.link),
  ];
}

export const joinCommand = (swarm: Swarm, wish: Wish): string =>
  words(
    "join",
    ...optionsOf(swarm, wish),
    ...(wish.role === "drafter" ? option("--expertise", wish.expertise) : []),
    ...(wish.role === "stage" ? [...option("--layers", wish.layers), ...option("--memory", wish.memory)] : []),
  );

/** For a stage, the doctor does not check the model, as only a part of it is local. */
export const doctorCommand = (swarm: Swarm, wish: Wish): string =>
  wish.role === "stage"
    ? words("doctor", "--target", swarm.target, ...wayTo(swarm, wish.link))
    : words("doctor", ...optionsOf(swarm, wish));

/** The command of a stage that holds these layers. */
export const stageCommand = (swarm: Swarm, first: number, end: number): string =>
  joinCommand(swarm, { ...NOTHING_WISHED, role: "stage", model: swarm.target, layers: `${first}:${end}` });

/** `limit` is the reason why this machine cannot help, or only partly; else "". */
export type Need = { sentence: string; wish: Wish; limit: string; isPossible: boolean };

/** The needs of this swarm with the nodes that would help, most urgent first; `fits` is what this machine can hold. */
export function needsOf(swarm: Swarm, gaps: [number, number][], fits: Fits | null = null): Need[] {
  const wish = (role: Wish["role"], more: Partial<Wish> = {}): Wish =>
    ({ ...NOTHING_WISHED, role, model: role === "drafter" ? "" : swarm.target, layers: "", ...more });
  const there = swarm.nodes.filter((node) => !node.reason && !node.is_convicted);
  const of = (role: string) => there.filter((node) => node.role === role);
  const needs: Need[] = [];
  const need = (sentence: string, of: Wish, limit = "", isPossible = true) =>
    needs.push({ sentence, wish: of, limit, isPossible });
  const verify = (sentence: string) =>
    fits && !fits.is_whole
      ? need(sentence, wish("verifier"), `The target takes ${sizeOf(fits.whole_bytes)}: too much for this machine.`, false)
      : need(sentence, wish("verifier"));
  const most = fits ? layersIn(fits) : Infinity;
  for (const [first, end] of gaps) {
    const sentence = `Nobody holds ${end - first > 1 ? `layers ${first} to ${end - 1}` : `layer ${first}`}.`;
    const held = Math.min(end, first + most);
    if (held === first) need(sentence, wish("stage"), "Not one layer fits into what this machine has free.", false);
    else {
      const limit = held < end ? `This machine holds ${held - first} of them.` : "";
      need(sentence, wish("stage", { layers: `${first}:${held}` }), limit);
    }
  }
  if (!of("verifier").length) verify("No verifier answers, so nothing is generated.");
  if (of("verifier").length === 1) verify("There is only one verifier: no other can replace or judge it.");
  if (!of("drafter").length) need("No drafter answers; where drafts pay, they make texts arrive sooner.", wish("drafter"));
  for (const domain of lackingDomains(swarm.nodes)) {
    need(`Nobody who answers drafts for ${domain}.`, wish("drafter", { expertise: domain }));
  }
  const verifiers = of("verifier");
  if (verifiers.length && verifiers.every((node) => node.load >= node.capacity)) {
    verify("All verifiers have all their places taken.");
  }
  return needs;
}

/** The domains whose drafters are all silent. */
function lackingDomains(nodes: SwarmNode[]): string[] {
  const drafters = nodes.filter((node) => node.role === "drafter");
  const drafted = new Set(drafters.filter((node) => !node.reason).flatMap((node) => node.expertise));
  return [...new Set(drafters.flatMap((node) => node.expertise))].filter((domain) => !drafted.has(domain));
}

/** The number of answering drafters for each domain, fewest first. */
export function domainsOf(nodes: SwarmNode[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const node of nodes) {
    if (node.role !== "drafter") continue;
    for (const domain of node.expertise) counts.set(domain, (counts.get(domain) ?? 0) + (node.reason ? 0 : 1));
  }
  return [...counts].sort((one, other) => one[1] - other[1]);
}
