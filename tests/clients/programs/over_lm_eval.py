"""A multiple-choice task of two files with lm-eval: ADDRESS TOKENIZER OUTPUT. Reads task.yaml from the working folder."""

from __future__ import annotations

import json
import sys

import lm_eval
from lm_eval.tasks import TaskManager

address, tokenizer, output = sys.argv[1:]
arguments = {
    "model": "scripted",
    "base_url": f"{address}/v1/completions",
    "tokenizer_backend": "huggingface",
    "tokenizer": tokenizer,
    "tokenized_requests": True,
    "num_concurrent": 1,
}
manager = TaskManager(include_path=".", include_defaults=False)
results = lm_eval.simple_evaluate(
    "local-completions", model_args=arguments, tasks=["words"], task_manager=manager, log_samples=True
)
samples = [sample["filtered_resps"] for sample in results["samples"]["words"]]
with open(output, "w", encoding="utf-8") as file:
    json.dump([[[float(score), bool(greedy)] for score, greedy in sample] for sample in samples], file)
print("evaluated")
