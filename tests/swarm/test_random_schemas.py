"""A share of the random schemas that `python -m tests.swarm.random_schemas` looks at by the thousand."""

import pytest

from tests.swarm.random_schemas import invalid, look_at_many
from tests.thoroughness import quick_first


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", quick_first([0, 5, 10, 15], 0, checked=2))
def test_texts_by_random_schemas_are_valid_and_those_of_plain_decoding_with_any_swarm(first: int) -> None:
    findings = look_at_many(range(first, first + 5), seed=20)
    assert findings.wrong == []
    assert findings.texts["ended"] and findings.accepted
    assert findings.runs == 3 * findings.texts.total()


def test_what_is_no_json_of_the_schema_would_be_noticed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert invalid('{"a": 1}', schema) == ""
    assert "required" in invalid("{}", schema)
    assert invalid('{"a": 1', schema)
