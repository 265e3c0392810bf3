"""EleutherAI's lm-eval: the likelihood of choices, and texts, of tasks whose answers the model itself wrote."""

import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.clients.programs.job import Gateway, do, said_by

PROMPTS = ("The capital of France is", "Water boils at", "Two plus two is", "The opposite of cold is")
TASK = """
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
{more}
"""


def greedy(gateway: Gateway, prompt: str) -> str:
    """Return the model's first tokens after a prompt, without lm-eval."""
    body = {"model": gateway.model, "prompt": prompt, "max_tokens": 5, "temperature": 0}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {gateway.key}"}
    with urlopen(Request(f"{gateway.base}/completions", json.dumps(body).encode(), headers)) as reply:
        text: str = json.load(reply)["choices"][0]["text"]
    return text


def score(gateway: Gateway, kind: str, documents: list[dict[str, Any]], more: str, metric: str) -> float:
    """Return lm-eval's score of a task with these documents."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
        task = TASK.format(task="swarm", kind=kind, data=folder / "data.jsonl", more=more)
        (folder / "swarm.yaml").write_text(task)
        said_by(
            "lm_eval", "--model", "local-completions", "--tasks", "swarm", "--include_path", name, "--output_path",
            f"{name}/results", "--model_args",
            f"model={gateway.model},base_url={gateway.base}/completions,auth_token={gateway.key},num_concurrent=2,"
            "max_retries=1",
            folder=folder, OPENAI_API_KEY=gateway.key, HF_HUB_OFFLINE="1",
        )  # fmt: skip
        (report,) = folder.glob("results/**/results_*.json")
        result: float = json.loads(report.read_text())["results"]["swarm"][f"{metric},none"]
        return result


def likelihood(gateway: Gateway) -> str:
    own = [greedy(gateway, prompt) for prompt in PROMPTS]
    documents = [
        {"question": prompt, "choices": [" seven of these", text, " never again"], "label": 1}
        for prompt, text in zip(PROMPTS, own, strict=True)
    ]
    more = 'doc_to_choice: "{{choices}}"\ndoc_to_target: label\ntarget_delimiter: ""\nmetric_list: [{metric: acc}]'
    assert score(gateway, "multiple_choice", documents, more, "acc") == 1.0
    return "of prompts told again: the model's own words are always the likeliest choice"


def generation(gateway: Gateway) -> str:
    documents = [{"question": prompt, "answer": greedy(gateway, prompt)} for prompt in PROMPTS]
    more = (
        'doc_to_target: answer\ntarget_delimiter: ""\ngeneration_kwargs: {until: ["\\0"], max_gen_toks: 5}\n'
        "metric_list: [{metric: exact_match}]"
    )
    assert score(gateway, "generate_until", documents, more, "exact_match") == 1.0
    return "the same texts as without lm-eval"


if __name__ == "__main__":
    do(likelihood, generation)
