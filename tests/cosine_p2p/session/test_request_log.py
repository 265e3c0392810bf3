"""Log lines of one request carry its name, in the text and as fields."""

import logging

import pytest

from cosine_p2p.session.request_log import request_log, request_name

D_0 = bytes(range(16))


def test_a_line_names_its_request_and_the_end_of_its_clients_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    request_log(logging.getLogger("test"), D_0, client="12D3KooWabcdefgh").info("%d tokens", 7)
    (record,) = caplog.records
    assert record.getMessage() == "request=00010203 client=abcdefgh: 7 tokens"
    assert (record.__dict__["request"], record.__dict__["client"]) == (request_name(D_0), "abcdefgh")


def test_without_a_client_only_the_request_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    request_log(logging.getLogger("test"), D_0).info("finished")
    assert [record.getMessage() for record in caplog.records] == ["request=00010203: finished"]
