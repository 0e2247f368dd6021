"""The log-likelihoods of the task `words`, of which the working folder has words.yaml, with lm-eval: ADDRESS. The
tokenizer is the server's. Prints a line of JSON: for each document, what each choice got."""

from __future__ import annotations

import json
import sys

import lm_eval
from lm_eval.tasks import TaskManager

arguments = {
    "model": "scripted",
    "base_url": f"{sys.argv[1]}/v1/completions",
    "tokenizer_backend": "remote",
    "tokenized_requests": True,
    "num_concurrent": 1,
    "batch_size": 4,
}
manager = TaskManager(include_path=".", include_defaults=False)
results = lm_eval.simple_evaluate("local-completions", model_args=arguments, tasks=["words"], task_manager=manager)
samples = sorted(results["samples"]["words"], key=lambda sample: sample["doc_id"])
print(json.dumps([[[float(score), bool(best)] for score, best in sample["filtered_resps"]] for sample in samples]))
