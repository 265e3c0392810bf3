"""The tests mirror the sources: a module that decides something has a test file of its own name, or stands here."""

import ast
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
MIRRORS: Final = {
    "protocol/cosine_protocol": "tests/protocol",
    "cosine_p2p": "tests/cosine_p2p",
    "node/cosine_node": "tests/node",
    "tui/cosine_tui": "tests/tui",
    "training": "tests/training",
}
DECISIONS: Final = (ast.If, ast.IfExp, ast.While, ast.Match, ast.BoolOp)
"""A module without any of these, loops aside, decides nothing."""

TESTED_BY: Final = {
    "node/cosine_node/simulation/stages.py": "swarm/test_ring.py",
    "cosine_p2p/auditing.py": "swarm/test_audits.py",
    "cosine_p2p/failover_check.py": "swarm/test_audits.py",
    "cosine_p2p/postings.py": "cosine_p2p/test_dht.py",
    "cosine_p2p/strategies/base.py": "cosine_p2p/test_session.py",
    "cosine_p2p/template_worker.py": "cosine_p2p/test_chat_template.py",
    "cosine_p2p/transport/light_connection.py": "cosine_p2p/transport/test_light.py",
    "cosine_p2p/transport/light_stream.py": "cosine_p2p/transport/test_light.py",
    "cosine_p2p/trial_run.py": "cosine_p2p/test_speed_trial.py",
    "cosine_p2p/warm_spare.py": "swarm/test_warm_spare.py",
    "node/cosine_node/bench/capacity_findings.py": "node/bench/test_capacity.py",
    "node/cosine_node/bench/cooperation_replay.py": "node/bench/test_cooperation.py",
    "node/cosine_node/bench/engine.py": "node/bench/test_engine_bench.py",
    "node/cosine_node/bench/engine_parts.py": "node/bench/test_engine_bench.py",
    "node/cosine_node/bench/engine_rivals.py": "node/bench/test_engine_bench.py",
    "node/cosine_node/bench/engine_transformers.py": "node/bench/test_engine_bench.py",
    "node/cosine_node/bench/learn_findings.py": "node/bench/test_learn.py",
    "node/cosine_node/bench/load_swarm.py": "node/bench/test_load.py",
    "node/cosine_node/bench/report_parts.py": "node/bench/test_report.py",
    "node/cosine_node/bench/ring_findings.py": "node/bench/test_ring.py",
    "node/cosine_node/bench/routing_replay.py": "node/bench/test_routing.py",
    "node/cosine_node/bench/rtt_findings.py": "node/bench/test_rtt.py",
    "node/cosine_node/bench/scale_decisions.py": "node/bench/test_scale.py",
    "node/cosine_node/distillation/card.py": "node/distillation/test_drafter_training.py",
    "node/cosine_node/distillation/small_model.py": "node/distillation/test_target_source.py",
    "node/cosine_node/doctor/finding.py": "node/doctor/test_planted_faults.py",
    "node/cosine_node/engine/attention_kernel.py": "node/engine/test_attention.py",
    "node/cosine_node/engine/chain_engine.py": "node/engine/test_operations.py",
    "node/cosine_node/engine/gathered_cache.py": "node/engine/test_cached_model.py",
    "node/cosine_node/engine/packed_model.py": "node/engine/test_architectures.py",
    "node/cosine_node/engine/pass_way.py": "node/engine/test_cached_model.py",
    "node/cosine_node/engine/partial_model.py": "node/engine/test_stage_loading.py",
    "node/cosine_node/engine/recipe.py": "node/engine/test_sampling.py",
    "node/cosine_node/engine/support.py": "node/engine/test_architectures.py",
    "node/cosine_node/engine/text_drafting.py": "node/engine/test_retokenized.py",
    "node/cosine_node/engine/trial_rows.py": "node/engine/test_load_trial.py",
    "node/cosine_node/engine/trial_texts.py": "node/engine/test_load_trial.py",
    "node/cosine_node/gateway/choices.py": "node/gateway/test_reply_writers.py",
    "node/cosine_node/simulation/running.py": "node/simulation/test_scenario.py",
    "node/cosine_node/verifier/step_loop.py": "node/verifier/test_service.py",
    "tui/cosine_tui/panes/events.py": "tui/test_panes.py",
    "tui/cosine_tui/panes/headline.py": "tui/test_panes.py",
    "tui/cosine_tui/panes/node_details.py": "tui/test_panes.py",
    "tui/cosine_tui/panes/request.py": "tui/test_panes.py",
    "tui/cosine_tui/panes/request_details.py": "tui/test_panes.py",
    "tui/cosine_tui/panes/requests.py": "tui/test_panes.py",
    "tui/cosine_tui/panes/speed_plot.py": "tui/test_panes.py",
    "tui/cosine_tui/panes/swarm.py": "tui/test_panes.py",
    "tui/cosine_tui/widgets/line_pane.py": "tui/test_app.py",
    "tui/cosine_tui/widgets/list_pane.py": "tui/test_app.py",
    "tui/cosine_tui/widgets/pane.py": "tui/test_app.py",
    "tui/cosine_tui/widgets/pane_grid.py": "tui/test_app.py",
    "tui/cosine_tui/widgets/prompt_box.py": "tui/test_app.py",
    "training/corpus.py": "training/test_training.py",
    "training/evaluate.py": "training/test_training.py",
    "training/generate_text.py": "training/test_training.py",
    "training/pack.py": "training/test_training.py",
    "training/train.py": "training/test_training.py",
    "training/write_cards.py": "training/test_training.py",
}
"""Modules of one part that are tested together, and the file below tests/ that imports and tests them."""

SHELLS: Final = {
    "cosine_p2p/transport/dht_node.py": "a node of hivemind's DHT: test_hivemind stores and reads with real ones",
    "cosine_p2p/transport/light_host.py": "py-libp2p behind a transport: test_light dials real peers with it",
    "node/cosine_node/announced_node.py": "a node from start to stop: tests/e2e starts every kind of them",
    "node/cosine_node/bench/scale_swarm.py": "the swarm of the scale experiment: test_scale runs it",
    "node/cosine_node/cli/options.py": "declares options: tests/docs reads every documented command with them",
    "node/cosine_node/demo/processes.py": "starts processes; `make demo` is it",
    "node/cosine_node/demo/swarm.py": "starts processes; `make demo` is it",
    "node/cosine_node/doctor/probe_machine.py": "collects facts: test_planted_faults finds faults by them",
    "node/cosine_node/doctor/probe_swarm.py": "collects facts; tests/e2e asks a real swarm for them",
    "node/cosine_node/engine/threads.py": "sets torch's threads",
    "node/cosine_node/stage/head.py": "a head from start to stop: tests/e2e/test_stages starts one",
    "node/cosine_node/stage/served_chain.py": "the streams of a chain at a stage: test_service plays their ends",
    "node/cosine_node/stage/stage_node.py": "a stage from start to stop: tests/e2e/test_stages starts some",
    "node/cosine_node/verifier/served.py": "the requests of one verifier: test_service looks at them",
    "node/cosine_node/zoo/prompt_set.py": "reads the prompts of the project: test_family asks for them",
    "tui/cosine_tui/screenshots.py": "draws the pictures of the documentation; test_snapshots draws the same",
    "training/cards.py": "fills in the model cards that are committed",
    "training/decode.py": "generates the texts of a model card",
    "training/measure_domains.py": "prints what test_domain_texts compares",
    "training/measure_rounds.py": "prints what a round takes; test_finetuning and test_worker run rounds",
    "training/model.py": "the model that test_training trains",
}
"""Modules that have no test of their own, and why."""


def decides(path: Path) -> bool:
    return any(isinstance(node, DECISIONS) for node in ast.walk(ast.parse(path.read_text("utf-8"))))


def mirror_of(path: Path) -> Path:
    """The test file of a module's own name."""
    source = next(folder for folder in MIRRORS if path.is_relative_to(ROOT / folder))
    inside = path.relative_to(ROOT / source)
    return ROOT / MIRRORS[source] / inside.parent / f"test_{inside.name}"


def module_name(path: str) -> str:
    """How a module is imported."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] in ("node", "protocol", "tui") else parts)


def imported_by(test: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(test.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def without_mirror() -> set[str]:
    """Every module that decides something and has no test file of its own name."""
    modules = (path for folder in MIRRORS for path in (ROOT / folder).rglob("*.py"))
    return {
        path.relative_to(ROOT).as_posix()
        for path in modules
        if not path.name.startswith("__") and decides(path) and not mirror_of(path).exists()
    }


def test_every_module_that_decides_has_a_test_file_of_its_name() -> None:
    assert without_mirror() == TESTED_BY.keys() | SHELLS.keys()


@pytest.mark.parametrize("module", TESTED_BY)
def test_a_module_is_imported_where_it_is_said_to_be_tested(module: str) -> None:
    assert module_name(module) in imported_by(ROOT / "tests" / TESTED_BY[module])
