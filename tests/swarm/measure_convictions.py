"""Honest verifiers whose real engines round, among auditors and clients that lie: how many are convicted.

`python -m tests.swarm.measure_convictions NUMERICS...` lets clients that know nobody yet ask for texts of the
embedded target, two at once and all audited, of four honest verifiers and two that accuse everybody; another client
has all of them audit texts that it made up. It counts the positions that honest ones wrote, and what was found.
"""

import argparse
import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node import zoo
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from cosine_p2p.session.auditing import Auditing
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_p2p.trust.standing import Standings
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.messages import AskAudit, Transcript
from cosine_protocol.statements import sign_transcript
from tests.node.verifier.audited_texts import engine_of

HONEST: Final = 4
LIARS: Final = 2
TOKENS: Final = 100


class Accuser(ScriptedEngine):
    """Another model under the numerics and with the tokens of the embedded target."""

    def __init__(self, numerics: str, vocab_tokens: int, context_tokens: int) -> None:
        super().__init__(vocab_tokens=vocab_tokens, context_tokens=context_tokens)
        self._numerics = numerics


async def ask_in_vain(swarm: SimulatedSwarm, text: Generation, judges: list[str]) -> None:
    """Have verifiers audit what a client made up and signed itself."""
    assert text.audit is not None
    identity = numbered_identity(90_001)
    claim = text.audit.evidence[0].open().claim
    tokens = tuple((token + 1) % 500 for token in claim.tokens)
    d_0 = request_digest(claim.request)
    part = Transcript(0, len(tokens), roll_digest(d_0, tokens))
    made_up = AskAudit(0, claim.request, tokens, identity.peer_id, sign_transcript(identity, part, d_0=d_0))
    auditing = Auditing(PeerFailures(), Standings())
    auditing.join(swarm.client_swarm(identity).transport)
    await asyncio.gather(*(auditing.judge(judge, made_up) for judge in judges))
    await auditing.close()


@dataclass(slots=True)
class Found:
    """Positions that honest verifiers wrote, the texts by what audits found of them, and convictions."""

    positions: int = 0
    convicted: int = 0
    accused: int = 0
    states: Counter[AuditState] = field(default_factory=Counter)

    def note(self, text: Generation, honest: Collection[str]) -> None:
        """Count the parts of a text that honest verifiers wrote."""
        assert text.audit is not None
        for opened in (piece.open() for piece in text.audit.evidence):
            if opened.claim.author in honest:
                self.positions += len(opened.claim.tokens)
                self.states[opened.state] += 1
                self.accused += any(accuses(verdict, opened.claim.request) for verdict in opened.verdicts)


async def text_of(client: AsyncClient, prompt: str, *, temperature: float, seed: int) -> Generation | None:
    """A text that was audited; None where it was refused."""
    running = await client.start(prompt, max_new_tokens=TOKENS, temperature=temperature, seed=seed)
    try:
        async for _ in running.chunks():
            pass
        await running.audited()
    except GenerationFailed:
        return None
    return running.result()


async def found_with(numerics: str, positions: int) -> Found:
    """What is found in a swarm until honest verifiers have written so many positions."""
    files = TokenizerFiles.read(zoo.location("target"))
    assert files is not None
    prompts = [prompt.render() for domain in zoo.DOMAINS for prompt in zoo.prompts(domain)]
    found, rng = Found(), random.Random(numerics)
    async with SimulatedSwarm(codec=TextTokenizer(files.files)) as swarm:
        engines = [engine_of(numerics) for _ in range(HONEST)]
        honest = [(await swarm.verifier(engine)).identity.peer_id for engine in engines]
        for _ in range(LIARS):
            sizes = engines[0].vocab_tokens, engines[0].context_tokens
            await swarm.verifier(Accuser(engines[0].numerics, *sizes))
        for number in count():
            client = await swarm.client(identity=numbered_identity(80_000 + number), audit=1.0)
            asking = [
                text_of(client, rng.choice(prompts), temperature=temperature, seed=number)
                for temperature in (0.0, 1.0)
            ]
            texts = [text for text in await asyncio.gather(*asking) if text is not None]
            for text in texts:
                found.note(text, honest)
            found.convicted += len(client.convicted & set(honest))
            if found.positions >= positions:
                break
            if texts and number % 20 == 0:
                await ask_in_vain(swarm, texts[0], honest)
    return found


def main() -> None:
    """Print a line for each numerics."""
    parser = argparse.ArgumentParser(description="Convictions of honest verifiers among liars.")
    parser.add_argument("numerics", nargs="+")
    parser.add_argument("--positions", type=int, default=10_000)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    for numerics in given.numerics:
        found = run_virtual(found_with(numerics, given.positions))
        states = ", ".join(f"{state} {count}" for state, count in sorted(found.states.items()))
        sys.stdout.write(f"{numerics}: {found.positions} positions, {found.convicted} honest verifiers convicted; ")
        sys.stdout.write(f"texts {states}, of which {found.accused} were accused by somebody\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
