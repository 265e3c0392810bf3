"""The commands of nodes by heading of the help, each with an example (`cosine_cli.program`)."""

from collections.abc import Callable, Mapping
from typing import Final

import typer

from cosine_cli.swarm import ban, swarm
from cosine_node.cli.demo import demo
from cosine_node.cli.invite import identity, invite
from cosine_node.cli.join import bootstrap, doctor, draft, head, join, stage, verify
from cosine_node.cli.models import convert, zoo
from cosine_node.cli.plan import plan
from cosine_node.cli.suggest import suggest
from cosine_node.cli.systemd_unit import service
from cosine_terminal.companions import COMMANDS as ENTRY_POINTS
from cosine_terminal.companions import LABORATORY, installed_part
from cosine_terminal.help_screen import Everyday

COMMANDS: Final[Mapping[str, Mapping[Callable[..., None] | typer.Typer, str]]] = {
    Everyday("Give a machine to a swarm"): {
        suggest: "suggest LINK",
        draft: "draft LINK --model zoo:draft-code",
        verify: "verify LINK --model zoo:target",
        stage: "stage LINK --model someone/model --layers auto",
        head: "head LINK --model someone/model",
        bootstrap: "bootstrap --host-maddr /ip4/0.0.0.0/tcp/4001",
        invite: "invite --initial-peers ADDRESS",
        doctor: "doctor --role drafter --initial-peers ADDRESS",
    },
    Everyday("Try it"): {
        demo: "demo",
        # The distribution for training has `zoo train`.
        installed_part(ENTRY_POINTS, "zoo") or zoo: "zoo list draft-code",
    },
    "Keep a node and a swarm": {
        join: "join --role drafter --initial-peers ADDRESS",
        plan: "plan --model someone/model --machine desk=12GiB --machine attic=24GiB",
        service: "service draft LINK --model zoo:draft-code",
        identity: "identity",
        swarm: "swarm create friends --out friends",
        ban: "ban PEER_ID --days 7",
        convert: "convert zoo:draft-code draft-code.gguf --weights Q8_0",
    },
    "Measure": {
        LABORATORY.command(
            "simulate", "Run a swarm in virtual time and compare it with plain decoding."
        ): "simulate --scenario strangers",
        LABORATORY.command(
            "bench", "Measure a swarm by the clock, strategies in virtual time, or the engine."
        ): "bench rtt --quick --out /tmp/bench",
    },
}
"""ADDRESS is an address that a node prints, LINK one or an invitation."""
