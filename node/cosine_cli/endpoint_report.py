"""The signed report about an endpoint: what was asked, answered and found, and never the key."""

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import typer

from cosine_protocol.errors import BadSignature, UsageError
from cosine_protocol.identity import Identity, verify
from cosine_terminal.printing import FAILURE_EXIT, show

KIND: Final = "endpoint-report"
NAME: Final = "endpoint_report"


def sign_report(report: Mapping[str, Any], author: Identity) -> dict[str, str]:
    """A report, as the text that is signed, with its author's signature."""
    text = json.dumps(report, sort_keys=True)
    signature = author.sign(kind=KIND, digest=b"", body=text.encode())
    return {NAME: text, "author": author.peer_id, "signature": base64.b64encode(signature).decode()}


def open_report(value: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a report, and its author. Raises `UsageError` unless the author signed it."""
    try:
        text, author = str(value[NAME]), str(value["author"])
        signature = base64.b64decode(str(value["signature"]), validate=True)
        verify(kind=KIND, signer=author, digest=b"", body=text.encode(), signature=signature)
        return {**json.loads(text), "author": author}
    except (BadSignature, KeyError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"This report proves nothing: {error}.") from None


def sentences(report: Mapping[str, Any]) -> str:
    """A report for people: the verdict, its evidence, and its error rates."""
    try:
        departed = ", ".join(
            f"{numerics} {100 * count / report['positions']:.1f} %"
            for numerics, count in report["departures"].items()
        )
        lines = [
            f"{report['endpoint']}: {report['verdict']}.",
            f"Of {report['positions']} tokens these would have chosen another: {departed}.",
            f"Sampled answers surprise by {report['surprise']:.1f} standard deviations; more than 5 accuse.",
        ]
        for name in ("text", "log_probabilities"):
            if (judged := report[name]) is not None:
                fits = ", ".join(judged["fits"])
                lines.append(f"By its {name.replace('_', '-')}: {judged['verdict']}. What fits: {fits}.")
                if judged["rates"]:
                    lines.append("How often such answers are judged so, by what the endpoint really is:")
                for truth, rates in judged["rates"].items():
                    said = ", ".join(f"{100 * share:.1f} % {verdict}" for verdict, share in rates.items() if share)
                    lines.append(f"  {truth}: {said}.")
        return "\n".join([*lines, f"Signed by {report['author']}.", ""])
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise UsageError(f"This report is of another version: {error!r}.") from None


def tell_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a report without its answers. Exits with 1 unless the endpoint runs the model."""
    found = {name: value for name, value in report.items() if name != "answers"}
    show(sys.stdout, json.dumps(found) + "\n" if as_json else sentences(report))
    if report.get("verdict") != "this model":
        raise typer.Exit(FAILURE_EXIT)
