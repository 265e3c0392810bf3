// The state of the swarm, as the gateway sends it.

import { useEffect, useState } from "preact/hooks";
import { events, Refused } from "../gateway";

export type Coordinate = { x_ms: number; y_ms: number; z_ms: number; height_ms: number; error: number };
export type SwarmNode = {
  peer_id: string;
  role: string;
  target: string;
  target_digest: string;
  model: string;
  numerics: string;
  join_options: string[];
  repeats: boolean;
  expertise: string[];
  software: string;
  emulated: string;
  capacity: number;
  load: number;
  pass_ms: number;
  context_tokens: number;
  addresses: string[];
  way: string;
  coordinate: Coordinate | null;
  layers: [first: number, end: number, of: number] | null;
  busy: number | null;
  rtt_ms: number | null;
  passes: number | null;
  accepted: number | null;
  text_tokens: number | null;
  drafts: string;
  reason: string;
  checks: number | null;
  is_convicted: boolean;
};
export type Coverage = { target_digest: string; numerics: string; holders: number[] };
/** The expected speed of the stages of one kind of model; without a chain, `problem` and no stages. */
export type Outlook = {
  target_digest: string;
  numerics: string;
  stages: { peer_id: string; layers: string; pass_s: number }[];
  way_s: number;
  pass_s: number;
  tokens_per_s: number | null;
  acceptance: number;
  drafted_tokens_per_s: number | null;
  problem: string;
};
export type Point = {
  tokens: number;
  tokens_per_s: number;
  tokens_per_pass: number;
  acceptance: number | null;
};
/** The link to this swarm, what it tells, and its QR code as rows of 0 and 1. */
export type Invitation = {
  link: string;
  addresses: number;
  network: string;
  is_private: boolean;
  reach: string;
  last_day: string;
  code: string[];
};
export type Swarm = {
  target: string;
  problem: string;
  nodes: SwarmNode[];
  coverage: Coverage[];
  outlook: Outlook[];
  entrance: string[];
  invitation: Invitation | null;
  trend: Point[];
};
export type Feed = { swarm: Swarm | null; isLive: boolean; problem: string; needsKey: boolean };

type Change = Partial<Omit<Swarm, "nodes">> & {
  nodes?: (Partial<SwarmNode> & { peer_id: string })[];
  gone?: string[];
};

/** The state after a change; unchanged nodes stay the same objects. */
export function changed(swarm: Swarm, change: Change): Swarm {
  const { nodes: told = [], gone = [], ...rest } = change;
  if (!told.length && !gone.length) return { ...swarm, ...rest };
  const left = new Set(gone);
  const news = new Map(told.map((each) => [each.peer_id, each]));
  const nodes = swarm.nodes
    .filter((node) => !left.has(node.peer_id))
    .map((node) => {
      const more = news.get(node.peer_id);
      news.delete(node.peer_id);
      return more ? { ...node, ...more } : node;
    });
  return { ...swarm, ...rest, nodes: [...nodes, ...([...news.values()] as SwarmNode[])] };
}

const RETRY_MS = 2000;

/** Follow the swarm while the page is open; a new `attempt` reconnects, for example with another key. */
export function useSwarm(attempt: number): Feed {
  const [feed, setFeed] = useState<Feed>({ swarm: null, isLive: false, problem: "", needsKey: false });
  useEffect(() => {
    const stop = new AbortController();
    let swarm: Swarm | null = null;
    async function follow() {
      while (!stop.signal.aborted) {
        let needsKey = false;
        let problem = "The gateway has ended the stream.";
        try {
          for await (const [name, data] of events("/v1/swarm/events", undefined, stop.signal)) {
            const body = JSON.parse(data) as Swarm | Change;
            swarm = name === "swarm" || !swarm ? (body as Swarm) : changed(swarm, body as Change);
            setFeed({ swarm, isLive: true, problem: "", needsKey: false });
          }
        } catch (error) {
          if (stop.signal.aborted) return;
          problem = error instanceof Refused ? error.message : "The gateway was lost.";
          needsKey = error instanceof Refused && error.status === 401;
        }
        if (stop.signal.aborted) return;
        setFeed({ swarm, isLive: false, problem, needsKey });
        if (needsKey) return;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
    void follow();
    return () => stop.abort();
  }, [attempt]);
  return feed;
}

export type Standing = "well" | "silent" | "convicted" | "full";

export function standingOf(node: SwarmNode): Standing {
  if (node.is_convicted) return "convicted";
  if (node.reason) return "silent";
  return node.layers === null && node.capacity > 0 && node.load >= node.capacity ? "full" : "well";
}

export const STANDINGS: Record<Standing, string> = {
  well: "answers",
  full: "all places taken",
  silent: "silent",
  convicted: "convicted",
};

/** The layers of a stage, or the domains of a drafter. */
export const gift = (node: SwarmNode): string =>
  node.layers ? `layers ${node.layers[0]} to ${node.layers[1] - 1}` : node.expertise.join(", ");

export const loadOf = (node: SwarmNode): string =>
  node.busy !== null ? `${Math.round(100 * node.busy)} %` : `${node.load}/${node.capacity}`;
