"""`finback.load`: from a path to a ready engine, in the order memory is promised: weights, arena, pages.

Owns the defaults of an engine and the ranges of its settings. Refuses, before anything is allocated, what the budget
cannot hold, with the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from finback import native
from finback.config import ARITHMETIC_VERSION
from finback.engine.engine import Engine, Serving
from finback.engine.speculate import MODES, Mode
from finback.errors import FinbackError, MemoryBudgetError, ModelFileError, RequestError, shown
from finback.kv.snapshot import VERSION as SNAPSHOT_VERSION
from finback.kv.snapshot import identity_of
from finback.kv.store import Store
from finback.models.registry import architecture_of
from finback.ops.resident import SHARE, resident_size
from finback.ops.select import MAX_LOGIT_ROWS, Model, open_model
from finback.settings import default_threads, eager, forced_isa, usable_cpus
from finback.text.tokenizer import Tokenizer
from finback.weights.checkpoint import GgufVocabulary, OpenedCheckpoint, open_checkpoint
from finback.weights.fingerprint import weights_hash
from finback.weights.ledger import Ledger, budget_from, size_from

DEFAULT_CONTEXT = 32768
"""Tokens a sequence may hold unless asked otherwise. Pages are taken as a sequence grows, so a large context costs
little until it is used: only the attention scratch is planned for it."""

DEFAULT_PREFILL_CHUNK = 256
"""Rows of a prefill step: enough to read each expert of V4-Flash once for six rows on average, few enough to answer
Ctrl-C."""

MAX_PREFILL_CHUNK = 4096
MAX_THREADS = 1024

DEFAULT_PREFILL_SHARE = 0.4
"""Running answers keep at least half their speed while a prompt is read."""

DEFAULT_MAX_STALL = 1.0

DEFAULT_MAX_BATCH = MAX_LOGIT_ROWS

DEFAULT_PREFIX_CACHE = 8 << 30

DEFAULT_KV_SPACE = "8GiB"

WEIGHTS = ("auto", "mapped", "resident", "direct")
"""How matrices are held, see `load`."""


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    memory: str | int | None = None,
    context: int | None = None,
    threads: int | None = None,
    isa: str | None = None,
    prefill_chunk: int | None = None,
    weights: str = "auto",
    pin: bool = False,
    cache_rounding: bool | None = None,
    prefix_cache: str | int | None = None,
    prefill_share: float = DEFAULT_PREFILL_SHARE,
    max_stall: float = DEFAULT_MAX_STALL,
    max_batch: int | None = None,
    speculation: Mode | None = None,
    kv_dir: str | os.PathLike[str] | None = None,
    kv_space: str | int = DEFAULT_KV_SPACE,
) -> Engine:
    """Open a model and plan everything it needs.

    Args:
        path: a GGUF file (any part of a split one), a Hugging Face folder, the name of a model that `finback pull` has
            downloaded (org/name, org/name:TAG, org/name/FILE), or None for the embedded model.
        memory: budget such as "16GiB" or a number of bytes; weights, arena, pages and checkpoints are charged to it.
            None: 90 % of the memory this process may use.
        context: most tokens of one sequence; None: 32768 or the model's limit, whichever is less.
        threads: None: by CPU quota, affinity mask and physical cores (`finback doctor` tells).
        isa: force an instruction-set level ("scalar", "avx2", "avx512", "neon"); None: FINBACK_ISA, else the best
            this CPU has.
        prefill_chunk: most rows of one step. It changes speed and memory, never a bit of an answer.
        weights: "mapped" multiplies with the file as it lies: opens at once, pages are shared between processes.
            "resident" copies matrices into memory laid out for the kernels: faster, takes the time of reading them.
            "direct" does the same and reads past the page cache: for a model that fills most of the memory.
            "auto": resident where the copies take at most three quarters of the budget and the rest fits beside
            them. Never changes a bit.
        pin: keep the weights in memory, whatever else the machine does. Where the system does not allow it,
            `Engine.notes` says so and they are not.
        cache_rounding: round cache rows as DeepSeek's models were trained; None: on for DeepSeek checkpoints.
        prefix_cache: most memory for what earlier requests left, to start later ones from: a size such as "2GiB", 0
            for none; None: half of what is free in the budget, at most 8 GiB.
        prefill_share: share of the time that goes to prompts while answers are running, 0.05 to 0.95.
        max_stall: seconds that running answers may stand still for a step over prompts; such steps get fewer rows.
        max_batch: most answers drawn together; None: 64, or prefill_chunk if that is less.
        speculation: compute several tokens of an answer in a step, guessed from what was said before ("lookup"), by
            the model's draft block ("mtp"), or both ("auto"); None: one by one. Never changes a bit.
        kv_dir: a folder that keeps what conversations left across restarts (docs/kv.md); None: nothing is written.
        kv_space: most bytes of it.

    Raises:
        ModelFileError, UnsupportedModelError: the file is broken, or holds something finback does not run. A broken
            tokenizer is raised by the first call that needs it: the engine takes token ids without.
        MemoryBudgetError: it does not fit, with the numbers.
        RequestError, PlatformError: a setting is out of range, or this machine lacks it.
    """
    count = default_threads().count if threads is None else _within("threads", threads, 1, MAX_THREADS)
    chunk = (
        DEFAULT_PREFILL_CHUNK
        if prefill_chunk is None
        else _within("prefill_chunk", prefill_chunk, 1, MAX_PREFILL_CHUNK)
    )
    level = native.select_level(isa if isa is not None else forced_isa())
    native.set_spin_limit(usable_cpus())
    ledger = Ledger(budget_from(memory))
    share = _between("prefill_share", prefill_share, 0.05, 0.95)
    stall = _between("max_stall", max_stall, 0.001, 3600.0)
    batch = (
        min(DEFAULT_MAX_BATCH, chunk) if max_batch is None else _within("max_batch", max_batch, 1, MAX_PREFILL_CHUNK)
    )
    if batch > chunk:
        raise RequestError(f"max_batch is {batch}, but a step has prefill_chunk={chunk} rows; raise prefill_chunk=")
    if kv_dir is not None and (eager() or prefix_cache in (0, "0")):
        raise RequestError("kv_dir keeps the prefix cache on disk, which is off here; leave prefix_cache= out")
    if speculation is not None and speculation not in MODES:
        raise RequestError(f"speculation is {shown(speculation)}; it must be None or one of {', '.join(MODES)}")
    if speculation is not None and eager():
        raise RequestError("speculation takes rows back, which FINBACK_EAGER=1 cannot; unset one of them")
    cache = None if prefix_cache is None or prefix_cache in (0, "0") else size_from(prefix_cache, "prefix_cache")
    if cache_rounding is not None and not isinstance(cache_rounding, bool):
        raise RequestError(f"cache_rounding is {shown(cache_rounding)}; it must be True, False or None")
    if weights not in WEIGHTS:
        raise RequestError(f"weights is {shown(weights)}; it must be one of {', '.join(WEIGHTS)}")
    if not isinstance(pin, bool):
        raise RequestError(f"pin is {shown(pin)}; it must be True or False")
    checkpoint = open_checkpoint(path, cache_rounding=cache_rounding is not False)
    limit = checkpoint.config.max_position_embeddings
    tokens = min(DEFAULT_CONTEXT, limit) if context is None else _within("context", context, 1, limit)
    batch = min(batch, tokens)
    if speculation == "mtp" and not checkpoint.config.mtp_layers:
        raise RequestError(
            f"{checkpoint.paths[0].name} has no draft block; load with speculation=\"lookup\" or without"
        )
    drafts = 2 if speculation in ("mtp", "auto") and checkpoint.config.mtp_layers else 1  # logits of the draft block
    opened = partial(
        _open_with_logits,
        4 * batch * drafts * checkpoint.config.vocab_size,
        checkpoint,
        ledger,
        architecture_of(checkpoint.config),
        isa=level,
        threads=count,
        context=tokens,
        max_rows=min(chunk, tokens),
        max_logit_rows=min(MAX_LOGIT_ROWS, tokens),
        cache_rounding=checkpoint.config.cache_rounding,
        pin=pin,
    )
    model = _open_auto(opened, checkpoint, ledger) if weights == "auto" else opened(weights=weights)
    if prefix_cache is None:
        cache = min(DEFAULT_PREFIX_CACHE, ledger.available // 2)
    try:
        tokenizer: Tokenizer | ModelFileError | None = open_tokenizer(checkpoint)
    except ModelFileError as error:
        tokenizer = error  # token ids can be had without it; text raises it
    return Engine(
        checkpoint,
        model,
        ledger,
        context=tokens,
        prefill_chunk=min(chunk, tokens),
        serving=Serving(share, stall, batch, cache or 0, speculation),
        store=None if kv_dir is None else _open_store(Path(kv_dir), size_from(kv_space, "kv_space"), checkpoint, model),
        tokenizer=tokenizer,
        identity=partial(state_identity, checkpoint, model),
    )


def state_identity(checkpoint: OpenedCheckpoint, model: Model) -> str:
    """A hash of all that the state of a sequence depends on. Reads every byte of the weights the first time."""
    if model.pool is None:
        raise RequestError("FINBACK_EAGER=1 keeps states in arrays of its own, which are not saved; unset it")
    layout = model.pool.layout
    return identity_of(
        {
            "snapshot": SNAPSHOT_VERSION,
            "arithmetic": ARITHMETIC_VERSION,
            "weights": weights_hash(checkpoint.paths),
            "cache_rounding": model.cache_rounding,
            "layout": [layout.frontier_bytes, layout.page_bytes, layout.page_span, layout.window, layout.max_draft],
        }
    )


def _open_store(folder: Path, space: int, checkpoint: OpenedCheckpoint, model: Model) -> Store:
    """The store of this model's states: whatever they depend on is in its identity."""
    assert model.pool is not None
    try:
        return Store(folder, state_identity(checkpoint, model), model.pool, space)
    except FinbackError:
        model.close()
        raise


def _open_with_logits(
    size: int, checkpoint: OpenedCheckpoint, ledger: Ledger, architecture: Any, **options: Any
) -> Model:
    """`open_model`, and `size` bytes of the budget for the logits of answers that are drawn together."""
    model = open_model(checkpoint, ledger, architecture, **options)
    try:
        ledger.reserve("logits", size, "raise memory= or load with a smaller max_batch=")
    except MemoryBudgetError:
        model.close()
        raise
    return model


def _open_auto(opened: Callable[..., Model], checkpoint: OpenedCheckpoint, ledger: Ledger) -> Model:
    """With resident copies where they leave a quarter of the budget, and that is enough for the rest; else mapped."""
    stored = {(t.file, t.offset): (t.dtype, t.shape) for t in checkpoint.stored()}  # shared bytes count once
    if not eager() and resident_size(stored.values()) <= SHARE * ledger.available:
        with suppress(MemoryBudgetError):
            return opened(weights="resident")
    return opened(weights="mapped")


def open_tokenizer(checkpoint: OpenedCheckpoint) -> Tokenizer | None:
    """The tokenizer that lies with a model, or None: such a model takes token ids only. ModelFileError if it is
    broken or has more tokens than the model."""
    source = checkpoint.tokenizer
    if source is None:
        return None
    if isinstance(source, GgufVocabulary):
        tokenizer = Tokenizer.from_gguf(
            source.path,
            model=source.model,
            pre=source.pre,
            tokens=source.tokens,
            token_types=source.token_types,
            merges=source.merges,
            bos_id=source.bos_id,
            eos_id=source.eos_id,
            pad_id=source.pad_id,
        )
    else:
        tokenizer = Tokenizer.from_file(source)
    if tokenizer.vocab_size > checkpoint.config.vocab_size:
        where = source.path if isinstance(source, GgufVocabulary) else source
        raise ModelFileError(
            where,
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model's vocab_size is "
            f"{checkpoint.config.vocab_size}; they do not belong together",
        )
    return tokenizer


def _between(name: str, value: float, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} is {shown(value)}; it must be a number from {low:g} to {high:g}")
    return float(value)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} is {shown(value)}; it must be a whole number from {low} to {high}")
    return value
