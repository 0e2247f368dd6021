"""Which model file runs which checkpoint. One file, one architecture; readers of checkpoints refuse all others by
name."""

from __future__ import annotations

from finback.config import ModelConfig
from finback.models import deepseek_v4
from finback.models.deepseek_v4 import Weights
from finback.ops.native import Architecture
from finback.ops.native_weights import NativeExperts, NativeMatrix, NativeVector


def architecture_of(config: ModelConfig) -> Architecture[Weights[NativeMatrix, NativeVector, NativeExperts]]:
    """The model file for `config`. V4 is the one architecture that `ModelConfig` can describe today."""
    return deepseek_v4
