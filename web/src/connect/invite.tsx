// The link by which others join this swarm, with its QR code and what it tells them.

import { name } from "../harmless";
import { Snippet } from "../parts";
import type { Invitation } from "../swarm/state";

/** The width of the light border around a code that readers need, in modules. */
const BORDER = 4;
const NOT_FAR: Record<string, string> = {
  loopback: " Only this machine reaches it.",
  private: " Only machines of this local network reach it.",
};

/** A QR code, always dark on light, as many readers take no other. */
function Code({ rows }: { rows: string[] }) {
  const size = rows.length + 2 * BORDER;
  const runs = rows.flatMap((row, y) =>
    [...row.matchAll(/1+/g)].map((run) => `M${run.index + BORDER} ${y + BORDER}h${run[0].length}v1h-${run[0].length}z`),
  );
  return (
    <svg class="qr" viewBox={`0 0 ${size} ${size}`} role="img" aria-label="The link as a QR code">
      <rect width={size} height={size} fill="#fff" />
      <path d={runs.join("")} fill="#000" shape-rendering="crispEdges" />
    </svg>
  );
}

export function Invite({ invitation }: { invitation: Invitation }) {
  const { link, code, addresses, network, is_private, reach, last_day } = invitation;
  return (
    <section class="card" aria-labelledby="invite-title">
      <h2 id="invite-title">Invite others</h2>
      <p>They give this link to any command, or paste it into their page.</p>
      <Code rows={code} />
      <Snippet text={link} label="Link that invites others" />
      <p class="faint">
        It tells whoever has it {addresses === 1 ? "the address of one node" : `the addresses of ${addresses} nodes`} and
        the {is_private ? "id of this private swarm" : `name of the network, ${name(network, 80)}`}, and is valid until {last_day}.
        {NOT_FAR[reach]}
        {is_private && " Each machine also needs a certificate of the founder."}
      </p>
    </section>
  );
}
