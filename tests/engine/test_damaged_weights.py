"""A weight that is not a number is an error of the request that meets it, never a wrong answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import finback
from finback.errors import ModelFileError, NumericError
from finback.formats.gguf import open_gguf
from finback.tools.synth import synth

NAN_BYTE = {"MXFP4": b"\xff", "Q8_0": b"\x00\x7e", "F16": b"\x00\x7e"}  # E8M0 255; an f16 NaN, the scale of a block


@pytest.mark.parametrize(
    "tensor",
    [
        "token_embd.weight",
        "blk.0.attn_q_a.weight",
        "blk.1.attn_kv.weight",
        "blk.2.attn_compressor_kv.weight",
        "blk.2.indexer.attn_q_b.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.ffn_up_exps.weight",
        "blk.0.ffn_down_exps.weight",
        "blk.1.ffn_up_shexp.weight",
        "output.weight",
    ],
)
def test_a_damaged_weight_is_found(tensor: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth(path, "v4-tiny", layers=3, experts=2, vocab=320, seed=1)
    entry = open_gguf(path).tensors[tensor]
    row = entry.nbytes // int(np.prod(entry.shape[:-1]))
    with open(path, "r+b") as file:
        for start in range(entry.offset, entry.offset + entry.nbytes, row):  # the first value or block of every row
            file.seek(start)
            file.write(NAN_BYTE[entry.dtype])
    if tensor != "token_embd.weight":
        with pytest.raises(ModelFileError, match=r"tensor \S*(embed|head|layers\.\d).* is not a number"):
            finback.load(path, context=320, weights="resident")
    with finback.load(path, context=320, weights="mapped") as engine:
        ids = [5 + i for i in range(290)]  # far enough that the indexer has to choose
        with pytest.raises(NumericError, match="not finite"):
            engine.logits(ids)
        with pytest.raises(NumericError, match="not finite"):
            engine.generate(ids, finback.Sampling(temperature=0, max_tokens=2))
