"""The tokens that each drafter earned in a request, as its verifier signs them."""

from cosine_node.verifier.request import VerifierRequest
from cosine_protocol.identity import Identity
from cosine_protocol.limits import MAX_EARNINGS
from cosine_protocol.receipt_messages import Earning, SignedEarning
from cosine_protocol.receipts import sign_earning


def signed_earnings(
    request: VerifierRequest, verifier: Identity, *, now_s: float
) -> tuple[SignedEarning, ...] | None:
    """One for each drafter whose tokens were committed, of too many for those with the most; None if there is none.

    The client named the drafters: whose drafts those are is its word, how many tokens were right is the verifier's.
    """
    tokens = {
        drafter: request.accepted[author]
        for author, drafter in enumerate(request.drafters, start=1)
        if request.accepted[author]
    }
    most = sorted(tokens, key=lambda drafter: -tokens[drafter])[:MAX_EARNINGS]
    text_tokens = len(request.output) - request.first
    signed = tuple(
        sign_earning(
            verifier,
            Earning(
                target_digest=request.request.target_digest,
                client=request.request.client,
                drafter=drafter,
                tokens=tokens[drafter],
                text_tokens=text_tokens,
                ended_at_s=now_s,
            ),
            d_0=request.d_0,
        )
        for drafter in most
    )
    return signed or None
