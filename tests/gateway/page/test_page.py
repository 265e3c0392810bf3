"""The page in a browser: chat, provenance, the swarm, proofs, and hostile texts."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cosine_gateway.page.routes import Watched
from cosine_node.advice import own_machine
from cosine_node.advice.own_machine import OwnMachine
from cosine_node.advice.suggestions import Advice, Suggestion
from cosine_p2p.access import Access
from cosine_p2p.invitation import Invitation
from tests.gateway.gateways import served
from tests.gateway.page.browsers import DONE, QUESTION, chromium, visited, visiting
from tests.gateway.page.crowd import HOSTILE, TURNING, crowd, hostile_reply, hostile_swarm, told_machine
from tests.gateway.page.scene import LIE, REPLY, SLOW, join_honest, scene

pytestmark = [pytest.mark.thorough, pytest.mark.network]

PASSED = "The target’s text, by its judges’ word"
UNJUDGED = "Signed, and judged by nobody yet"
REFUSED = "This proves nothing"
CONVICTED = "Not the target’s text"
VIEWS = ("Chat", "Swarm", "Proof", "Join")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def saved_proof(visitor: Any) -> dict[str, Any]:
    """The saved proof of the latest reply."""
    visitor.prove()
    visitor.verdict(UNJUDGED)
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("button", name="Save the proof").click()
    proof: dict[str, Any] = json.loads(download.value.path().read_text())
    return proof


def drop(visitor: Any, proof: object) -> None:
    """Drop a proof on the page."""
    visitor.show("Proof")
    body = json.dumps(proof).encode()
    file = {"name": "proof.json", "mimeType": "application/json", "buffer": body}
    visitor.page.locator("input[type=file]").set_input_files(file)


def test_a_reply_comes_as_markdown_and_stays_when_the_page_is_opened_again(browser: Any) -> None:
    with visited(browser) as (visitor, _):
        visitor.ask()
        text = visitor.await_reply()
        assert text.startswith("A text is written by one model, the target.")
        assert visitor.page.locator(".text li").count() == 3
        assert "path.append(token)" in visitor.page.locator(".text pre").inner_text()
        visitor.page.reload()
        assert visitor.await_reply() == text


def test_a_reply_can_be_stopped_asked_again_and_asked_otherwise(browser: Any) -> None:
    with visited(browser, place=scene(curve=SLOW)) as (visitor, _):
        page = visitor.page
        visitor.ask()
        page.locator(".text").get_by_text("A text").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("stopped", exact=True).wait_for()
        words = page.locator(".text").inner_text()
        assert REPLY.replace("**", "").startswith(words.strip()[:12]) and len(words) < len(REPLY) / 2
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Your message").fill("Something else?")
        page.get_by_role("button", name="Send again").click()
        page.get_by_role("article", name="You").get_by_text("Something else?").wait_for()
        page.get_by_role("button", name="Stop").click()
        assert page.get_by_text(QUESTION).count() == 0


def test_the_options_of_a_reply_reach_the_gateway_and_its_refusals_the_reader(browser: Any) -> None:
    with visited(browser) as (visitor, _):
        page = visitor.page
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Most tokens").fill("12")
        visitor.ask()
        visitor.await_reply()
        page.get_by_text("12 tokens ·").wait_for()
        page.get_by_label("Top p").fill("7")
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("alert").get_by_text("top_p").wait_for()
        # The browser logs a refused request as an error.
        assert all("400" in problem for problem in visitor.problems)
        visitor.problems.clear()


def test_each_word_tells_whose_it_is_and_beside_it_stands_what_the_reply_was_made_of(browser: Any) -> None:
    with visited(browser) as (visitor, _):
        page = visitor.page
        visitor.ask()
        visitor.await_reply()
        drafted = page.locator(".token[class*=of-drafter]")
        assert drafted.count() > 5
        drafted.last.hover()
        told = page.locator(".told").inner_text()
        assert "drafted by" in told and "% likely" in told and "pass " in told
        page.locator(".text").focus()
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")
        assert "pass 1" in page.locator(".told").inner_text()
        page.get_by_role("switch", name="Whose words").click()
        assert page.locator(".token").count() == 0
        made = page.get_by_label("How this reply was made").inner_text()
        for words in ("tokens a pass", "of plain", "first token", "target alone", "verifier", "accepted", " ms"):
            assert words in made


def test_a_node_that_dies_is_seen_to_be_silent(browser: Any) -> None:
    with visited(browser) as (visitor, gateway):
        visitor.show("Swarm")
        rows = visitor.page.locator(".tbody .tr")
        rows.nth(5).wait_for()
        assert visitor.page.locator(".tbody .is-silent").count() == 0
        dead = gateway.swarm.members[3]
        gateway.ask(dead.kill())
        silent = visitor.page.locator(".tbody .is-silent")
        silent.wait_for()
        assert dead.identity.peer_id[-8:] in silent.inner_text()
        silent.click()
        about = visitor.page.get_by_label("The chosen node").inner_text()
        assert "silent: " in about and "zoo:target" in about


def test_a_lie_is_convicted_and_shown(browser: Any) -> None:
    with visited(browser, place=scene(liars=1, verifiers=0)) as (visitor, gateway):
        visitor.ask()
        assert visitor.await_reply().startswith(LIE[:30].replace("**", ""))
        gateway.ask(join_honest(gateway.swarm, count=2))
        visitor.prove()
        visitor.verdict(UNJUDGED)
        visitor.page.get_by_role("button", name="Ask other verifiers").click()
        visitor.verdict(CONVICTED)
        assert visitor.page.get_by_text("accuses").count() >= 2
        visitor.show("Swarm")
        visitor.page.locator(".tbody .is-convicted").wait_for()


def test_the_targets_text_is_confirmed_and_its_proof_holds_at_another_swarm(browser: Any) -> None:
    with visited(browser) as (visitor, _):
        visitor.ask()
        visitor.await_reply()
        proof = saved_proof(visitor)
    with served(swarm_of=scene()) as other, visiting(browser, other) as visitor:
        drop(visitor, proof)
        visitor.verdict(UNJUDGED)
        visitor.page.get_by_text("A text is written by").wait_for()
        visitor.page.get_by_role("button", name="Ask other verifiers").click()
        visitor.verdict(PASSED)
        visitor.page.get_by_text("agrees").first.wait_for()


def test_a_proof_that_was_changed_anywhere_or_is_of_another_text_is_none_of_this_one(browser: Any) -> None:
    with visited(browser) as (visitor, _):
        visitor.ask()
        visitor.await_reply()
        proof = saved_proof(visitor)
        (piece,) = proof["evidence"]
        claim = base64.b64decode(piece["claim"])
        for at in (10, len(claim) // 3, len(claim) // 2, len(claim) - 90, len(claim) - 1):
            forged = bytearray(claim)
            forged[at] ^= 1
            evidence = [{**piece, "claim": base64.b64encode(forged).decode()}]
            drop(visitor, {**proof, "evidence": evidence})
            visitor.verdict(REFUSED)
        drop(visitor, {"evidence": [{"claim": "?", "statements": []}]})
        visitor.verdict(REFUSED)
        drop(visitor, [1, 2])
        visitor.page.get_by_role("alert").get_by_text("This file has another form.").wait_for()
        visitor.show("Chat")
        kept = "JSON.parse(localStorage.getItem('cosine.conversation'))"
        visitor.page.evaluate(
            f"() => {{ const c = {kept}; c.messages[1].content = 'Something else.';"
            "localStorage.setItem('cosine.conversation', JSON.stringify(c)) }"
        )
        visitor.page.reload()
        visitor.prove()
        visitor.verdict("A proof of another text")


def test_a_thousand_nodes_are_a_few_rows_at_a_time(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(1_000_000))

    async def look(_: Watched) -> dict[str, Any]:
        return crowd(1000, turn=next(turns))

    monkeypatch.setattr(Watched, "_look", look)
    with visited(browser) as (visitor, _):
        page = visitor.page
        visitor.show("Swarm")
        page.get_by_text("1,000", exact=True).wait_for()
        assert page.locator(".tbody .tr").count() < 60
        page.locator(".tbody").evaluate("place => { place.scrollTop = place.scrollHeight }")
        page.locator('.tbody .tr[aria-rowindex="1001"]').wait_for()
        page.get_by_label("Find nodes by any of their words").fill("verifier direct")
        page.get_by_role("columnheader", name="RTT ms").get_by_role("button").click()
        times = [float(text) for text in page.locator(".tbody .c-rtt").all_inner_texts()]
        assert times == sorted(times) and 0 < len(times) < 60


def test_hostile_texts_of_nodes_and_of_the_machine_are_shown_as_text(
    browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(_: Watched) -> dict[str, Any]:
        return hostile_swarm()

    async def facts(*_: object) -> dict[str, Any]:
        return told_machine(text=HOSTILE["a script"] + HOSTILE["turned around"])

    monkeypatch.setattr(Watched, "_look", look)
    with visited(browser) as (visitor, _), pytest.MonkeyPatch.context() as patch:
        # Undone before the visit's own.
        patch.setattr(OwnMachine, "facts", facts)
        page = visitor.page
        for view in ("Swarm", "Join"):
            visitor.show(view)
            page.get_by_role("heading", level=1).wait_for()
            if view == "Join":
                page.locator(".machine .fact").nth(3).wait_for()
                # The commands below contain quoted texts.
                told = page.locator(".machine").inner_text()
                assert "<script>" in told and not re.search(TURNING, told)
                assert page.evaluate("window.hit") is None
            for index in range(len(HOSTILE) if view == "Swarm" else 0):
                page.locator(".tbody .tr").nth(index).click()
                assert page.evaluate("window.hit") is None
                assert not page.evaluate(f"new RegExp('{TURNING}').test(document.body.innerText)")
            assert page.locator("main script, main img, main [onmouseover]").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        visitor.show("Swarm")
        assert "<script>" in page.locator(".tbody").inner_text()
        assert "<script>" in page.locator(".layers .chain").first.inner_text()


def test_hostile_texts_of_a_reply_and_of_whoever_wrote_it_are_shown_as_text(browser: Any) -> None:
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in hostile_reply()) + "data: [DONE]\n\n"
    with visited(browser) as (visitor, _):
        page = visitor.page
        stream = {"status": 200, "content_type": "text/event-stream", "body": body}
        page.route("**/v1/chat/completions", lambda route: route.fulfill(**stream))
        visitor.ask(HOSTILE["a script"])
        page.get_by_text(DONE).wait_for()
        for details in ("Reasoning", "Why these drafters"):
            page.locator("summary").get_by_text(details).click()
        for token in range(0, page.locator(".token").count(), 3):
            page.locator(".token").nth(token).hover()
        assert "<script>" in page.get_by_label("How this reply was made").inner_text()
        assert "<script>" in page.get_by_role("alert").inner_text()
        for view in ("Chat", "Proof"):
            if view == "Proof":
                visitor.prove()
                visitor.verdict(REFUSED)
            assert page.evaluate("window.hit") is None
            assert not page.evaluate(f"new RegExp('{TURNING}').test(document.body.innerText)")
            assert page.locator("main script, main iframe, main [onmouseover], main [onerror]").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # The browser logs the gateway's refusal of an invalid proof.
        assert all("400" in problem for problem in visitor.problems)
        visitor.problems.clear()


def test_a_gateway_with_a_key_asks_for_it_and_keeps_it_out_of_addresses(browser: Any) -> None:
    with visited(browser, api_keys=("secret-key",)) as (visitor, _):
        page = visitor.page
        page.get_by_label("This gateway asks for a key.").fill("secret-key")
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("6 nodes").wait_for()
        visitor.ask()
        visitor.await_reply()
        assert not any("secret-key" in url for url in visitor.asked) and "secret-key" not in page.url
        assert page.evaluate("JSON.stringify(localStorage)").count("secret-key") == 0
        visitor.show("Join")
        assert "secret-key" not in page.content() and "YOUR_KEY" in page.content()
        # The browser logs the first, refused request.
        assert all("401" in problem for problem in visitor.problems)
        visitor.problems.clear()


def test_the_machine_and_what_the_swarm_lacks_come_with_the_commands_that_help(browser: Any) -> None:
    place = scene(stages=((0, 10), (8, 18), (22, 28)))
    with visited(browser, place=place, access=Access(network="lab")) as (visitor, gateway):
        page = visitor.page
        visitor.show("Swarm")
        page.get_by_text("Nobody holds 18 to 21").wait_for()
        assert "--role stage --model zoo:target" in page.locator(".layers code").inner_text()
        assert page.locator(".layers code").inner_text().endswith("--layers 18:22")
        visitor.show("Join")
        page.get_by_text("NVIDIA GeForce RTX 3060").wait_for()
        assert "behind NAT" in page.locator(".machine").inner_text()
        page.get_by_text("This machine holds 2 of them.").wait_for()
        # The layers that fit into the machine, in the numerics of the other stages, are chosen already.
        command = page.get_by_label("Command that joins").inner_text()
        assert "--role stage --model zoo:target --engine torch --dtype bfloat16 " in command
        assert "--network lab" in command and command.endswith("--layers 18:20")
        page.get_by_role("listitem").filter(has_text="Nobody holds layers 18 to 21.").get_by_role("button").click()
        assert page.get_by_label("Command that joins").inner_text() == command
        look = page.get_by_label("Command that looks for problems").inner_text()
        assert look.startswith("cosine-node doctor --target zoo:target --initial-peers /ip4/203.0.113")
        page.get_by_role("button", name="Codex").click()
        assert f'base_url = "{gateway.url}/v1"' in page.get_by_label("Settings of Codex").inner_text()


def test_the_link_invites_others_and_the_wizard_takes_one(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def advise(*_: object, way: tuple[str, ...], **__: object) -> tuple[None, Advice]:
        return None, Advice([Suggestion(f"cosine-node draft {way[0]}", "why", "expect")], ["too small"])

    monkeypatch.setattr(own_machine, "find_advice", advise)
    with visited(browser, access=Access(network="lab")) as (visitor, _):
        page = visitor.page
        visitor.show("Join")
        page.get_by_role("img", name="The link as a QR code").wait_for()
        page.get_by_text("the addresses of 2 nodes and the name of the network, lab,").wait_for()
        link = page.get_by_label("Link that invites others").inner_text()
        assert Invitation.read(link).network == "lab"
        page.get_by_role("button", name="Measure it").click()
        assert page.get_by_label("Suggestion 1").inner_text() == f"cosine-node draft {link}"
        page.get_by_text("Not suggested: too small").wait_for()
        paste, command = page.get_by_label("Swarm: this one"), page.get_by_label("Command that joins")
        paste.fill(link.replace("network=lab", "network=home"))
        assert "network=home" in command.inner_text() and "--network" not in command.inner_text()
        paste.fill("cosine:until=2020-01-01,/ip4/8.8.8.8/tcp/1")
        page.get_by_text("This invitation was valid until 2020-01-01").wait_for()
        paste.fill("cosine:$(id),/ip4/8.8.8.8/tcp/1")
        page.get_by_text("This is no whole link").wait_for()
        assert "'cosine:$(id)" in command.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_head_of_the_page_is_drawn_before_its_script_has_run_and_stays_where_it_is(
    browser: Any, theme: str
) -> None:
    place = "each => [each.innerText, each.getBoundingClientRect().left, each.getBoundingClientRect().top]"
    look = f"() => [...document.querySelectorAll('.top a')].map({place})"
    ground = "() => getComputedStyle(document.body).backgroundColor"
    with visited(browser, view={"color_scheme": theme}) as (visitor, gateway):
        visitor.page.get_by_text("6 nodes").wait_for()
        with visiting(browser, gateway, color_scheme=theme, java_script_enabled=False) as early:
            assert early.page.evaluate(look) == visitor.page.evaluate(look)
            assert early.page.evaluate(ground) == visitor.page.evaluate(ground)


@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_nothing_stands_beyond_the_edge(browser: Any, width: int) -> None:
    place = scene(stages=((0, 10), (22, 28)))
    with visited(browser, place=place, view={"viewport": {"width": width, "height": 800}}) as (visitor, _):
        visitor.ask()
        visitor.await_reply()
        for view in VIEWS:
            visitor.show(view)
            visitor.page.get_by_role("main").wait_for()
            assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_open_to_all_who_read_otherwise(browser: Any, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed.").Axe()
    place = scene(stages=((0, 10), (22, 28)))
    with visited(browser, place=place, view={"color_scheme": theme, "reduced_motion": "reduce"}) as (visitor, _):
        page = visitor.page
        for view in VIEWS:
            visitor.show(view)
            if view == "Chat":
                page.get_by_role("button", name="Settings").click()
                visitor.ask()
                visitor.await_reply()
            if view == "Swarm":
                page.locator(".tbody .tr").first.click()
            if view == "Proof":
                visitor.show("Chat")
                visitor.prove()
                visitor.verdict(UNJUDGED)
            found = axe.run(page).response["violations"]
            assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
