"""`cosine audit endpoint`: judges which model an endpoint runs, with the weights of the claimed one."""

import json
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_cli.endpoint_report import open_report, sign_report, tell_report
from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.pool_size import AUTO
from cosine_node.cli.node_flags import model_option
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.storage.state_file import replace_text
from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import AsJson, IdentityFile, declared, takes_options
from cosine_terminal.waiting import Stage, waiting_for

MAX_QUESTIONS: Final = 400


# Options of a single command; only the key has an environment variable.
endpoint_option = partial(declared, panel="Is it the model?", envvar=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """An endpoint to audit, and the numerics that it claims."""

    model: Annotated[str | None, everyday(metavar="MODEL", help="The claimed model. As of `join`.")] = None
    key: str | None = endpoint_option(None, "KEY", "API key of the endpoint.", envvar="COSINE_ENDPOINT_KEY")
    questions: int = endpoint_option(100, "COUNT", "Questions to ask, 10 to 400.")
    seed: int | None = endpoint_option(None, "NUMBER", "Draws the questions. Default: a new one.")
    only_claimed: bool = endpoint_option(False, "", "Load the model once, without other numerics to compare with.")
    out: Path | None = endpoint_option(
        None, "FILE", "Write the signed report. `audit FILE` checks it.", everyday=True
    )
    engine: str = model_option(AUTO, "ENGINE", "As of `join`, like the following.")
    device: str = model_option(AUTO, "DEVICE", "Where the model runs.")
    dtype: str = model_option(AUTO, "DTYPE", "auto, float32, bfloat16 or float16.")
    quantize: str | None = model_option(None, "KIND", "float16, int8, int4 or stored.")

    def choice(self) -> LoadOptions:
        """Raises `UsageError`."""
        return LoadOptions(
            kind=EngineKind.parse(self.engine), device=self.device, dtype=self.dtype, quantize=self.quantize
        )


@takes_options
def audit_endpoint(
    endpoint: Annotated[
        str, typer.Argument(metavar="URL#NAME", help="OpenAI's API, and what it calls the model if not --model.")
    ],
    tried: EndpointOptions,
    identity: IdentityFile = None,
    as_json: AsJson = False,
) -> None:
    """Judge which model an endpoint runs, in a signed report."""
    signed = sign_report(run_interruptibly(_examined(endpoint, tried)), load_identity(identity))
    if tried.out is not None:
        replace_text(tried.out, json.dumps(signed))
    tell_report(open_report(signed), as_json=as_json)


async def _examined(address: str, tried: EndpointOptions) -> dict[str, Any]:
    """Ask an endpoint, and judge its answers with the weights of a model."""
    from cosine_node.endpoint_audit.asking import AskedEndpoint
    from cosine_node.endpoint_audit.examination import LEAST_ANSWERS, examine

    if tried.model is None:
        raise UsageError("Name the model that the endpoint claims to run with --model.")
    if not LEAST_ANSWERS <= tried.questions <= MAX_QUESTIONS:
        raise UsageError(f"--questions must lie between {LEAST_ANSWERS} and {MAX_QUESTIONS}.")
    if tried.out is not None and not tried.out.parent.is_dir():
        raise UsageError(f"There is no folder {tried.out.parent} to write {tried.out.name} into.")
    claimed = tried.choice()
    endpoint = AskedEndpoint.parse(address, model=tried.model, key=tried.key)
    stage = Stage(f"Asking {endpoint.url}")
    async with waiting_for(stage):
        return await examine(
            endpoint,
            tried.model,
            claimed,
            count=tried.questions,
            seed=secrets.randbelow(1 << 31) if tried.seed is None else tried.seed,
            only_claimed=tried.only_claimed,
            note=stage.change,
        )
