"""The page is open to all, and loads nothing from elsewhere."""

from typing import Any

import pytest

from cosine_node.page.files import POLICY, read_assets
from tests.node.gateway.gateways import Gateway, asked, with_gateway

LOCKED: dict[str, Any] = {"api_keys": ("k1",)}


def test_the_page_is_served_without_a_key_and_loads_nothing_from_elsewhere() -> None:
    page = asked("GET", "/", **LOCKED)
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "http" not in POLICY and "*" not in POLICY


def test_each_file_is_served_compressed_where_the_browser_takes_that() -> None:
    async def use(gateway: Gateway) -> None:
        for name, asset in read_assets().items():
            path = "/" if name == "index.html" else f"/page/{name}"
            plain = await gateway.get(path)
            small = await gateway.get(path, headers={"accept-encoding": "gzip, br"})
            assert (plain.body, small.body) == (asset.body, asset.compressed)
            assert small.headers["content-encoding"] == "gzip"
            again = await gateway.get(path, headers={"if-none-match": plain.headers["etag"]})
            assert (again.status, again.body) == (304, b"")

    with_gateway(use)


def test_no_other_file_is_served() -> None:
    assert asked("GET", "/page/routes.py").status == asked("GET", "/page/../assets.py").status == 404


@pytest.mark.parametrize("path", ["/", "/page/page.js"])
def test_names_and_pages_of_strangers_are_refused_as_elsewhere(path: str) -> None:
    assert asked("GET", path, headers={"host": "evil.example"}).status == 421
    assert asked("GET", path, headers={"origin": "https://evil.example"}).status == 403
