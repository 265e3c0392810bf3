"""The learner of a starting drafter: refused if it cannot learn, in a separate folder if it can."""

import json
from pathlib import Path

import pytest

from cosine_engine.models.engine_kind import EngineChoice
from cosine_engine.models.model import ModelSource, ServedModel, load_served
from cosine_node.serving.node_options import NodeOptions
from cosine_protocol.records import Role
from cosine_train.learning.home import ABOUT, all_homes
from cosine_train.learning.starting import learner_maker
from cosine_train.learning.stream_store import MIN_BYTES

make = learner_maker(MIN_BYTES)


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def loaded(model: str) -> tuple[ServedModel, NodeOptions]:
    source = ModelSource(model=model, target="zoo:target", engine=EngineChoice(device="cpu", threads=1))
    options = NodeOptions(
        role=Role.DRAFTER,
        source=source,
        expertise=("code",),
        max_requests=1,
        max_coordinated=0,
        shares_prefixes=False,
        emulation=None,
    )
    return load_served(source, Role.DRAFTER, lambda event, fields: None, measure_s=0.01), options


def test_a_drafter_that_can_learn_has_a_folder_of_its_own() -> None:
    served, options = loaded("zoo:draft-code")
    learner = make(served, options, "12D3mine")
    learner.close()
    (folder,) = all_homes().iterdir()
    about = json.loads((folder / ABOUT).read_text())
    assert about == {"peer_id": "12D3mine", "model": "zoo:draft-code", "target": "zoo:target"}
    assert (learner.model_name, learner.expertise) == ("zoo:draft-code", ("code",))
    # The same drafter finds it again, another does not.
    for peer_id, homes in (("12D3mine", 1), ("12D3other", 2)):
        make(served, options, peer_id).close()
        assert len(list(all_homes().iterdir())) == homes
