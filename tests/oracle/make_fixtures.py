"""Writes tests/model/fixtures/*.npz: what transformers says about models that any test can rebuild.

    python -m tests.oracle.make_fixtures        (torch 2.13.0, transformers 5.24.0; from the repository's root)

Weights come from the hash rule of tests/golden.py, so a fixture holds transformers' logits (float32 [T, V])
and `noise`, the greatest difference between its own decode (its cache, prompt in ragged chunks, then single
tokens) and its own prefill: what equality can mean at best. """

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.golden import prompt, weights
from tests.model.fixtures import CASES, FOLDER, LENGTH
from tests.oracle.transformers_v4 import chunked, load, prefill


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, case in CASES.items():
        model = load(case.config, weights(case.config, case.seed))
        ids = prompt(LENGTH[name], case.config.vocab_size, case.seed)
        whole = prefill(model, ids)
        decoded = chunked(model, ids, [37] + [1] * (len(ids) - 37))
        noise = float(np.abs(decoded - whole).max())
        path = Path(FOLDER / f"{name}.npz")
        np.savez_compressed(path, logits=whole.astype(np.float32), noise=np.float64(noise))
        print(
            f"{name}: {len(ids)} tokens, std {whole.std():.3f}, noise {noise:.1e}, {path.stat().st_size} bytes"
        )


if __name__ == "__main__":
    main()
