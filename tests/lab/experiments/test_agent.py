"""A scripted agent: its turns, and a measured loop."""

from pathlib import Path

import pytest

from cosine_lab.experiments.agent import FILES, FOLDER, REPLIES, WITHOUT, turns
from tests.lab.experiments.quick import quick_result


def test_what_is_renamed_is_in_each_file_of_twenty_turns(tmp_path: Path) -> None:
    for file, name in FILES.items():
        (tmp_path / file).write_text(f"class {name}: ...")
    script = list(turns(tmp_path, "new"))
    assert [kind for kind, _ in script] == ["call", "edit", "patch", "more"] * 5
    assert all(f"new_{list(FILES.values())[turn // 4]}" in words for turn, (_, words) in enumerate(script))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_every_way_writes_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "")
    result = quick_result("agent")
    assert [row["kind"] for row in result["rows"]] == ["call", "edit", "patch", "more"]
    assert all(row["is_identical"] and set(row["ms"]) == {WITHOUT, FOLDER, REPLIES} for row in result["rows"])
    assert result["findings"]["mismatches"] == 0 and result["findings"]["tokens"] == 64
