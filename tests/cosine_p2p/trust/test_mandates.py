"""A client signs mandates by its own clock, and remembers which verifiers made no use of them."""

from cosine_p2p.trust.mandates import USELESS_TOKENS, Mandates
from cosine_protocol.statements import open_mandate
from tests.cosine_p2p.samples import identity_of

CLIENT, DELEGATE = identity_of(1), identity_of(2).peer_id
NOW_S = 1000.0
D_0 = bytes(16)


def test_a_mandate_holds_from_now_on() -> None:
    mandates = Mandates(CLIENT, lambda: NOW_S)
    signed = mandates.sign(d_0=D_0, delegate=DELEGATE, drafters=("a",), most_tokens=5, lifetime_s=60.0)
    opened = open_mandate(signed, client=CLIENT.peer_id, d_0=D_0, delegate=DELEGATE, now_s=NOW_S)
    assert (opened.drafters, opened.most_tokens, opened.issued_at_s) == (("a",), 5, NOW_S)


def test_one_whose_drafters_bring_nothing_for_long_is_avoided_for_a_while() -> None:
    mandates = Mandates(CLIENT, lambda: NOW_S)
    for drafted in (0, 1, 0, 0):
        assert DELEGATE not in mandates.failures.avoided(NOW_S)
        mandates.note_use(DELEGATE, tokens=USELESS_TOKENS // 2, drafted=drafted, now_s=NOW_S)
    assert DELEGATE in mandates.failures.avoided(NOW_S)
