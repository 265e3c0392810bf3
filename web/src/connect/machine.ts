// Facts about the machine that serves the page, which only a browser on it can read.

import { useEffect, useState } from "preact/hooks";
import { json, Refused } from "../gateway";

/** The part of the target that fits into a machine's free memory; `layers` are those that the swarm needs most. */
export type Fits = {
  layers: string | null;
  bytes: number;
  is_whole: boolean;
  whole_bytes: number;
  of: number;
};
export type Machine = {
  cores: number;
  memory_bytes: number;
  devices: { name: string; memory_bytes: number }[];
  disk_bytes: number;
  lacks: string[];
  reach: { result: string; found: string; fix: string };
  fits: Fits | null;
};
/** `isElsewhere` is true if the browser runs on another machine. */
export type Asked = { machine: Machine | null; isElsewhere: boolean; problem: string };

export const sizeOf = (bytes: number): string =>
  bytes >= 2 ** 29 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/** Commands for this machine with what to expect, and the reasons against others. */
export type Advice = { suggestions: { command: string; why: string; expect: string }[]; reasons: string[] };

/** The number of layers that fit. */
export function layersIn({ layers, is_whole, of }: Fits): number {
  if (is_whole) return of;
  const [first, end] = (layers ?? "0:0").split(":").map(Number);
  return end! - first!;
}

/** Ask the gateway once. */
export function useMachine(): Asked {
  const [asked, setAsked] = useState<Asked>({ machine: null, isElsewhere: false, problem: "" });
  useEffect(() => {
    let isGone = false;
    json<Machine>("/v1/machine").then(
      (machine) => isGone || setAsked({ machine, isElsewhere: false, problem: "" }),
      (error: unknown) => {
        if (isGone) return;
        const isElsewhere = error instanceof Refused && error.status === 403;
        setAsked({ machine: null, isElsewhere, problem: error instanceof Refused ? error.message : "It does not say." });
      },
    );
    return () => {
      isGone = true;
    };
  }, []);
  return asked;
}
