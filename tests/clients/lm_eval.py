"""lm-eval: log-likelihoods of the embedded model, by the server's tokenizer. They must be what completions says when it
is asked directly."""

from __future__ import annotations

import json
from typing import Any, cast

import finback
from finback.tools.scripted import ScriptedEngine
from tests.clients.bench import Bench, ClientError
from tests.server.running import Running, running

PINS = ("lm_eval[api]==0.4.13",)

DOCUMENTS = [
    {"text": "Once upon a time there was a little", "choices": [" fox", " bell", " theorem"], "answer": 0},
    {"text": "The fox was very", "choices": [" happy", " happily", " 2026"], "answer": 0},
    {"text": 'She said: "Hello,', "choices": [' little fox!"', " } else {"], "answer": 0},
]

TASK = """\
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: words.json}}
test_split: test
output_type: multiple_choice
doc_to_text: text
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{metric: acc}]
"""


def check(bench: Bench) -> str:
    """Each number equals the sum that is asked for here, to the last bit of its text."""
    python = bench.pip("lm-eval", *PINS)
    (bench.work / "words.json").write_text("\n".join(map(json.dumps, DOCUMENTS)), encoding="utf-8")
    (bench.work / "words.yaml").write_text(TASK, encoding="utf-8")
    with running(cast(ScriptedEngine, finback.load(context=512)), around=bench.watched) as server:
        told = json.loads(bench.program(python, "over_lm_eval", server.url).strip().splitlines()[-1])
        wanted = [[_scored(server, doc["text"], choice) for choice in doc["choices"]] for doc in DOCUMENTS]
        bench.log.append(f"wanted {wanted}\ntold {told}")
    if told != wanted:
        raise ClientError("its numbers are not those of completions asked directly")
    if len({score for choices in wanted for score, _ in choices}) < 6:
        raise ClientError("the numbers do not tell the choices apart")
    bench.check_requests("POST /v1/completions", "POST /tokenize", "GET /tokenizer_info")
    return f"{sum(map(len, wanted))} log-likelihoods of {len(wanted)} documents"


def _scored(server: Running, text: Any, choice: str) -> list[Any]:
    """The log-likelihood of a choice after a text, and whether the model would have said it."""
    ids = server.post("/tokenize", {"prompt": text + choice}).json()["tokens"]
    known = len(server.post("/tokenize", {"prompt": text}).json()["tokens"])
    body = {"prompt": ids, "max_tokens": 0, "logprobs": 1, "echo": True, "temperature": 0}
    logprobs = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    scores, tops = logprobs["token_logprobs"][known:], logprobs["top_logprobs"][known:]
    return [sum(scores), all(score == max(top.values()) for score, top in zip(scores, tops, strict=True))]
