"""Types of the native extension (native/bind/). Kept by hand; tests/core/test_stub.py compares it with the
module."""

from collections.abc import Sequence as List
from enum import Enum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

class Format(Enum):
    F32 = 0
    F16 = 1
    BF16 = 2
    FP8_E4M3 = 3
    MXFP4 = 4
    MXFP4_PAIRS = 5
    Q8_0 = 6
    Q4_0 = 7
    Q4_K = 8
    Q6_K = 9
    Q2_K = 10
    Q3_K = 11
    Q5_K = 12
    IQ1_S = 13
    IQ1_M = 14
    IQ2_XXS = 15
    IQ2_XS = 16
    IQ2_S = 17
    IQ3_XXS = 18
    IQ3_S = 19
    IQ4_NL = 20
    IQ4_XS = 21

class ScaleKind(Enum):
    NONE = 0
    E8M0 = 1
    F32 = 2

class Encoding(Enum):
    F32 = 0
    BF16 = 1
    A8x32 = 2
    A8x256 = 3

class RunResult(Enum):
    OK = 0
    BAD_ROW = 1
    INTERRUPTED = 2
    FORKED = 3

def levels() -> list[tuple[str, bool, str]]: ...
def kernel_table() -> list[tuple[str, str, str, int]]: ...
def pool_owner() -> int: ...
def pool_workers() -> int: ...
def spin_limit() -> int: ...
def set_spin_limit(threads: int) -> None: ...
def close_runs() -> None: ...
def buffer_bytes() -> int: ...
def packed_bytes(encoding: Encoding, k: int) -> int: ...
def encoding_of(format: Format) -> Encoding: ...
def counter_random(seed: int, choice: int, position: int) -> int: ...

# ---- memory

class DirectFile:
    def __init__(self, map: FileMap) -> None: ...
    @property
    def buffered(self) -> int: ...

class FileMap:
    def __init__(self, path: str) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    def changed(self) -> str | None: ...
    def read(self, offset: int, size: int) -> bytes: ...

class Buffer:
    def __init__(self, size: int) -> None: ...
    @property
    def size(self) -> int: ...
    def view(self) -> npt.NDArray[np.uint8]: ...

class Value:
    def __init__(self, offset: int, row_bytes: int, parts: int, width: int) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def parts(self) -> int: ...
    @property
    def width(self) -> int: ...

class Matrix:
    def __init__(
        self,
        format: Format,
        rows: int,
        cols: int,
        data: FileMap | Buffer,
        offset: int,
        scales: FileMap | Buffer | None = None,
        scale_offset: int = 0,
        scale_kind: ScaleKind = ...,
        block_rows: int = 0,
        block_cols: int = 0,
        row_stride: int = 0,
    ) -> None: ...
    @property
    def format(self) -> Format: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...

class MatrixStack:
    def __init__(
        self,
        format: Format,
        rows: int,
        cols: int,
        sources: List[FileMap | Buffer],
        files: Ints,
        offsets: Longs,
        scale_files: Ints | None = None,
        scale_offsets: Longs | None = None,
        scale_kind: ScaleKind = ...,
        block_rows: int = 0,
        block_cols: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...

def resident_bytes(format: Format, rows: int, cols: int) -> int: ...
def make_resident(
    level: str,
    threads: int,
    source: Matrix | MatrixStack,
    numbers: Ints,
    to: Buffer,
    offsets: Longs,
    readers: List[DirectFile],
    windows: List[Buffer],
) -> int | None: ...
def window_bytes(source: Matrix | MatrixStack) -> int: ...
def lock_memory(owner: FileMap | Buffer, on: bool) -> int: ...
def resident_matrix(source: Matrix, buffer: Buffer, offset: int) -> Matrix: ...
def resident_stack(source: MatrixStack, buffers: List[Buffer], which: Ints, offsets: Longs) -> MatrixStack: ...

# ---- sequences

class RowShape:
    def __init__(self, width: int, rotary: int, rounded: bool) -> None: ...

def cache_row_bytes(shape: RowShape) -> int: ...

class StreamLayout:
    def __init__(
        self, open: int, slot_offset: int, slot_bytes: int, page_offset: int, row_bytes: int, shape: RowShape
    ) -> None: ...

class LayerLayout:
    def __init__(
        self,
        ratio: int,
        overlapped: bool,
        ring_offset: int,
        ring_row_bytes: int,
        ring_shape: RowShape,
        rows_per_page: int,
        main: StreamLayout | None = None,
        index: StreamLayout | None = None,
    ) -> None: ...

class KvLayout:
    def __init__(
        self,
        layers: List[LayerLayout],
        window: int,
        ring_depth: int,
        slots: int,
        page_span: int,
        frontier_bytes: int,
        page_bytes: int,
    ) -> None: ...
    @property
    def frontier_bytes(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def page_span(self) -> int: ...

class Sequence:
    def __init__(self, layout: KvLayout, frontier: Buffer, offset: int) -> None: ...
    def add_page(self, buffer: Buffer, offset: int) -> None: ...
    def keep_pages(self, n: int) -> None: ...
    def fill(self, isa: str, length: int, seed: int) -> None: ...
    @property
    def pages(self) -> int: ...

class Batch:
    def __init__(self, max_rows: int, max_logit_rows: int, vocab: int) -> None: ...
    def clear(self) -> None: ...
    def add(self, sequence: Sequence, position: int, ids: Ints) -> int: ...
    def want_logits(self, rows: Ints) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def logit_rows(self) -> list[int]: ...
    def position_of(self, row: int) -> int: ...

# ---- programs

def compress_scratch_bytes(
    layout: KvLayout,
    layer: int,
    index: bool,
    frequencies: List[float],
    eps: float,
    max_rows: int,
    threads: int,
) -> int: ...
def index_scratch_bytes(
    layout: KvLayout,
    layer: int,
    heads: int,
    topk: int,
    d: int,
    pairs: int,
    weight_scale: float,
    max_rows: int,
    threads: int,
) -> int: ...
def attend_scratch_bytes(
    layout: KvLayout,
    layer: int,
    heads: int,
    d: int,
    pairs: int,
    eps: float,
    topk: int,
    max_context: int,
    max_rows: int,
    threads: int,
) -> int: ...
def experts_scratch_bytes(
    experts: int,
    chosen: int,
    hidden: int,
    inner: int,
    shared_inner: int,
    limit: float,
    inner_encoding: Encoding,
    shared_encoding: Encoding,
    max_rows: int,
    threads: int,
) -> int: ...

class Program:
    def __init__(
        self,
        isa: str,
        threads: int,
        max_rows: int,
        max_logit_rows: int,
        max_context: int,
        vocab: int,
        arena: Buffer,
        layout: KvLayout,
    ) -> None: ...
    def add_embed(self, out: Value, table: Matrix) -> None: ...
    def add_rotary(self, out: Value, frequencies: List[float]) -> None: ...
    def add_norm(self, x: Value, out: Value, w: Floats, eps: float) -> None: ...
    def add_pack(self, x: Value, out: Value, encoding: Encoding, groups: int, of_logits: bool) -> None: ...
    def add_linear(
        self, packed: Value, encoding: Encoding, matrices: List[Matrix], outs: List[Value], of_logits: bool
    ) -> None: ...
    def add_grouped_linear(
        self, packed: Value, encoding: Encoding, matrix: Matrix, groups: int, out: Value
    ) -> None: ...
    def add_take_rows(self, x: Value, out: Value) -> None: ...
    def add_mtp_in(self, embedded: Value, streams: Value, out: Value) -> None: ...
    def add_hyper_in(
        self,
        streams: Value,
        x: Value,
        mix: Value,
        scratch: Value,
        fn: Matrix,
        scale: Floats,
        base: Floats,
        norm: Floats,
        sinkhorn_iters: int,
        hc_eps: float,
        norm_eps: float,
    ) -> None: ...
    def add_hyper_out(self, streams: Value, y: Value, mix: Value, out: Value) -> None: ...
    def add_hyper_head(
        self,
        streams: Value,
        out: Value,
        scratch: Value,
        fn: Matrix,
        scale: Floats,
        base: Floats,
        norm: Floats,
        hc_eps: float,
        norm_eps: float,
    ) -> None: ...
    def add_qkv_finish(
        self,
        q: Value,
        kv: Value,
        q_out: Value,
        kv_out: Value,
        rotary: Value,
        kv_norm: Floats,
        layer: int,
        heads: int,
        d: int,
        pairs: int,
        eps: float,
    ) -> None: ...
    def add_compress(
        self,
        kv: Value,
        gate: Value,
        scratch: Value,
        ape: Floats,
        norm: Floats,
        layer: int,
        index: bool,
        frequencies: List[float],
        eps: float,
    ) -> None: ...
    def add_index_select(
        self,
        q: Value,
        weights: Value,
        rotary: Value,
        selection: Value,
        scratch: Value,
        layer: int,
        heads: int,
        topk: int,
        d: int,
        pairs: int,
        weight_scale: float,
    ) -> None: ...
    def add_attend(
        self,
        q: Value,
        kv: Value,
        rotary: Value,
        selection: Value | None,
        out: Value,
        scratch: Value,
        sink: Floats,
        topk: int,
        layer: int,
        heads: int,
        d: int,
        pairs: int,
        eps: float,
    ) -> None: ...
    def add_route(
        self,
        logits: Value,
        routing: Value,
        bias: Floats | None,
        table: Ints | None,
        experts: int,
        chosen: int,
        scale: float,
        normalise: bool,
    ) -> None: ...
    def add_experts(
        self,
        packed: Value,
        packed_shared: Value,
        routing: Value,
        out: Value,
        scratch: Value,
        routed: List[MatrixStack],
        shared: List[Matrix],
        chosen: int,
        limit: float,
    ) -> None: ...
    def op_names(self) -> list[str]: ...
    def changed_file(self) -> tuple[str, str] | None: ...
    def run(self, batch: Batch, on_main_thread: bool) -> tuple[RunResult, list[int]]: ...

class Sampler:
    def __init__(self, isa: str, vocab: int) -> None: ...
    def draw(
        self,
        logits: Floats,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        choice: int,
        position: int,
    ) -> int: ...
    def log_probs(self, logits: Floats, ids: Ints, out: Floats) -> bool: ...

# ---- timing

_Windows = list[tuple[float, float, bool]]  # seconds, amount of work, whether the system disturbed it
_Timed = tuple[
    _Windows, _Windows, int
]  # of the work, in matrices or layers; of reading, in bytes; digest of the results

def why_no_kernel(isa: str, format: Format, resident: bool) -> str: ...

class BenchProducts:
    def __init__(self, isa: str, pattern: Matrix, bytes: int, resident: bool) -> None: ...
    @property
    def unit_bytes(self) -> int: ...
    def time(self, rows: int, threads: int, seconds: float, memory: Buffer) -> _Timed: ...

class BenchExperts:
    def __init__(
        self, isa: str, up: Matrix, down: Matrix, experts: int, bytes: int, resident: bool
    ) -> None: ...
    @property
    def unit_bytes(self) -> int: ...
    def time(self, chosen: int, rows: int, threads: int, seconds: float, memory: Buffer) -> _Timed: ...
