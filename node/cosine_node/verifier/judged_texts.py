"""Judges texts that verifiers signed with the target's weights on this machine."""

from collections.abc import Sequence
from dataclasses import replace

from cosine_cli.judged_texts import CheckedPiece, check, counted
from cosine_node.verifier.admission import VerifierConfig
from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.evidence import Evidence
from cosine_protocol.errors import CosineError, UsageError


def judged_here(pieces: Sequence[Evidence], model: str, written: object) -> list[CheckedPiece]:
    """Judge each piece with the target's weights on this machine, as verifiers do. Blocks.

    Raises `UsageError` if the model is not available, or is not the target of the texts.
    """
    from cosine_engine.constraints.grammars import Grammars
    from cosine_engine.load_options import LoadOptions
    from cosine_engine.models.loading import load, open_model
    from cosine_engine.models.served import ModelNames
    from cosine_node.verifier.audited_stream import verdict_on

    checked = [check(piece, written) for piece in pieces]
    claims = {index: piece.open().claim for index, piece in enumerate(pieces) if not checked[index].problem}
    if not claims:
        return checked
    files = open_model(model)
    facts = ModelNames.read(model, model, files.folder).facts
    config = VerifierConfig(target_digest=facts.digest(), tokenizer_digest=facts.tokenizer_digest)
    wanted = {claim.request.target_digest for claim in claims.values()}
    if config.target_digest not in wanted:
        raise UsageError(
            f"{model} is not the target of this text, {wanted.pop().hex()}: name the target's weights with --model."
        )
    engine = load(files, LoadOptions(is_served=True, grammars=Grammars.of(files.folder, waits=True)))
    for index, claim in claims.items():
        try:
            verdict = verdict_on(claim, engine, config)
        except CosineError as error:
            checked[index] = replace(checked[index], problem=f"this machine cannot judge it, {error}")
            continue
        is_wrong = accuses(verdict, claim.request, numerics=engine.numerics)
        state = AuditState.CONVICTED if is_wrong else AuditState.PASSED
        said = (f"{counted(verdict)}, in {engine.numerics}",)
        checked[index] = replace(checked[index], state=state, said=said, is_own_word=True)
    return checked
