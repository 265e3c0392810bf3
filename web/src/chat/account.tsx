// The account of a reply: its speed, its authors and its proof.

import { Copy, count, Fact, fixed, Peer } from "../parts";
import { name } from "../harmless";
import type { Account, Message } from "./conversation";
import { percent } from "./origins";
import { Shares } from "./reply";

/** Tokens per second after the first token, or null with fewer than two. */
export function paceOf({ tokens, seconds, time_to_first_token_s }: Account): number | null {
  const took = seconds - time_to_first_token_s;
  return tokens > 1 && took > 0 ? (tokens - 1) / took : null;
}

/** The speedup over plain decoding, or null if no pass without drafts was timed in this reply. */
export function speedupOf(account: Account): number | null {
  const pace = paceOf(account);
  return pace !== null && account.plain_pass_s ? pace * account.plain_pass_s : null;
}

/** The account on one line. */
export function Line({ account }: { account: Account }) {
  const pace = paceOf(account);
  const speedup = speedupOf(account);
  return (
    <span class="line">
      {count(account.tokens, "token")}
      {pace !== null && ` · ${fixed(pace)} tokens/s`}
      {speedup !== null && ` · ${fixed(speedup)}× plain`}
      {account.rounds > 0 && ` · ${fixed(account.tokens / account.rounds)} a pass`}
    </span>
  );
}

/** The account as a panel. */
export function Made({ message, onProve }: { message: Message; onProve: () => void }) {
  const { account } = message;
  if (!account) {
    return (
      <section class="made" aria-label="How this reply was made">
        <h2>This reply</h2>
        <Shares message={message} />
        <p class="faint">{message.tokens?.length ? "It is still being written." : "Its account comes with the end of it."}</p>
      </section>
    );
  }
  const pace = paceOf(account);
  const speedup = speedupOf(account);
  return (
    <section class="made" aria-label="How this reply was made">
      <h2>This reply</h2>
      <dl class="facts">
        <Fact label="tokens/s" hint="After the first token, by this gateway's clock.">
          {fixed(pace)}
        </Fact>
        <Fact
          label="of plain"
          hint={
            speedup === null
              ? "No pass without drafts was timed in this reply."
              : "Against passes without drafts that were timed in this reply."
          }
        >
          {speedup === null ? "–" : `${fixed(speedup)}×`}
        </Fact>
        <Fact label="tokens a pass">{fixed(account.tokens / Math.max(1, account.rounds))}</Fact>
        <Fact label="first token" hint="From the request to the first token.">
          {fixed(1e3 * account.time_to_first_token_s, 0)}
          <small> ms</small>
        </Fact>
      </dl>
      {speedup === null && <p class="faint">Not compared with plain: no pass of this reply was without drafts.</p>}
      <Shares message={message} />
      <h3>Who wrote it</h3>
      <ul class="who">
        {account.verifiers.map((each) => (
          <li>
            <span>
              verifier <Peer id={each.peer_id} />
            </span>
            <span>{count(each.tokens, "token")}</span>
            <span>{each.rtt_ms ? `${fixed(each.rtt_ms)} ms` : ""}</span>
          </li>
        ))}
        {account.drafters.map((each) => (
          <li>
            <span>
              {name(each.domain, 40) || "drafter"} <Peer id={each.peer_id} />
            </span>
            <span title={`${each.drafted.toLocaleString("en")} drafted`}>{each.accepted.toLocaleString("en")} accepted</span>
            <span>{each.rtt_ms ? `${fixed(each.rtt_ms)} ms` : ""}</span>
          </li>
        ))}
      </ul>
      <p class="faint">
        Drafters coordinated by the {account.coordinator === "verifier" ? "verifier" : "client"}
        {account.offered > 0 && `; ${percent(account.accepted / account.offered)} of the positions they drafted for are theirs`}.
      </p>
      <button type="button" class="main" onClick={onProve}>
        Check its proof
      </button>
      {account.why.length > 0 && (
        <details>
          <summary>Why these drafters</summary>
          <ul class="why">
            {account.why.map((line) => (
              <li>{name(line, 240)}</li>
            ))}
          </ul>
          <Copy text={account.why.join("\n")} />
        </details>
      )}
    </section>
  );
}
