"""benchmarks/versus.py: rounds and ratios with runners whose speed is known, and peers that are missing or fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from finback.tools.record import key_of

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TINY = ROOT / "src" / "finback" / "assets" / "tiny.gguf"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers.ours
    import peers.process
    import peers.rounds

    return peers


class Steady:
    """Takes the same time for each token, and keeps what it was asked."""

    def __init__(self, name: str, log: list[tuple[str, str, int]], seconds: float) -> None:
        self.name, self.log, self.seconds = name, log, seconds

    def read(self, ids: Sequence[int]) -> float:
        self.log.append((self.name, "read", len(ids)))
        return len(ids) * self.seconds / 10

    def decode(self, warm: Sequence[int], ids: Sequence[int]) -> float:
        self.log.append((self.name, "decode", len(warm) + len(ids)))
        return len(ids) * self.seconds


def test_rounds_take_turns_and_ratios_are_against_the_best(peers: ModuleType) -> None:
    log: list[tuple[str, str, int]] = []
    runners = {name: Steady(name, log, s) for name, s in (("finback", 0.01), ("slow", 0.04), ("best", 0.02))}
    plan = peers.rounds.Plan(sizes=(4, 8), tokens=3, rounds=2)
    assert plan.context == 9
    reads = iter([1.0, 10.0, 20.0])
    rates = peers.rounds.run_rounds(runners, list(range(9)), plan, lambda: next(reads), lambda i: None)
    forth, back = list(runners), list(reversed(runners))
    assert [name for name, _, _ in log] == back * 3 + forth * 3 + back * 3
    assert [(do, n) for _, do, n in log[::3]] == [("read", 8), ("read", 4), ("decode", 5)] * 3
    assert rates.read_gbps == [10.0, 20.0]  # the first round is not counted

    rows = peers.rounds.rows_of(rates, {"threads": 2})
    assert len({key_of("versus", row) for row in rows}) == len(rows) == 9
    decode = {row["runner"]: row["tokens_per_s"] for row in rows if row["what"] == "decode"}
    assert decode == pytest.approx({"finback": 100, "slow": 25, "best": 50})
    ratios = peers.rounds.ratios_of(rates, {"threads": 2})
    assert [(r["what"], r["size"], r["against"], r["ratio"]) for r in ratios] == [
        ("prefill", 8, "best", 2.0),
        ("prefill", 4, "best", 2.0),
        ("decode", 4, "best", 2.0),
    ]
    # 15 GB/s and 30 MB a token allow 500 tokens/s
    assert peers.rounds.share_of_roof(rates, 4, 30_000_000) == {"finback": 0.2, "slow": 0.05, "best": 0.1}


def test_bytes_of_a_token_leave_out_what_a_token_does_not_read(peers: ModuleType) -> None:
    from finback.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(None)
    config = checkpoint.config
    inactive = (config.n_routed_experts - config.num_experts_per_tok) * sum(
        checkpoint.experts(f"layers.{layer.index}.ffn.experts", matrix).nbytes
        for layer in config.layers
        for matrix in ("w1", "w2", "w3")
    )
    hashed = [layer.index for layer in config.layers if layer.hashed]
    tables = sum(checkpoint.weight(f"layers.{index}.ffn.gate.tid2eid").data.nbytes for index in hashed)
    unused = {t.name: t.nbytes for t in checkpoint.stored() if t.name in checkpoint.unused}
    rest = inactive + tables + checkpoint.weight("embed.weight").data.nbytes + sum(unused.values())
    draft = sum(t.nbytes for t in checkpoint.stored() if t.name.startswith(f"blk.{len(config.layers)}."))
    assert peers.ours.bytes_per_token(None) == checkpoint.nbytes - rest - draft


def versus(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "versus.py", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.strip()


REMEDY = "as docs/bench.md says, and name that Python with --peer-python"


def test_missing_peers_are_named() -> None:
    assert versus("llama.cpp", "-m", str(TINY), "--peer-python", sys.executable) == (
        1,
        f"the peer llama.cpp mapped is missing: {sys.executable} has no module llama_cpp; "
        f"install llama-cpp-python {REMEDY}",
    )
    assert versus("transformers", "--peer-python", "/nowhere/python") == (
        1,
        "the peer transformers is missing: /nowhere/python: No such file or directory; "
        f"install torch and transformers {REMEDY}",
    )


def test_a_peer_that_fails_is_named(peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.process, "HERE", tmp_path)
    (tmp_path / "worker.py").write_text(
        f"import sys\nsys.path.insert(0, {str(BENCHMARKS / 'peers')!r})\n"
        "from wire import serve\n"
        "class Broken:\n"
        "    def read(self, ids): print('chatter', flush=True)\n"
        "    def step(self, token): raise ValueError(f'no token {token}')\n"
        "serve(lambda asked: (Broken(), {'threads': asked['threads']}))\n"
    )
    with peers.process.Peer("broken", sys.executable, "worker.py", "mend it") as peer:
        assert peer.ask("load", threads=3) == {"threads": 3}
        assert peer.read([1, 2]) >= 0
        with pytest.raises(peers.process.PeerError, match="the peer broken fails to decode: ValueError: no token 7"):
            peer.decode([7], [8])
        with pytest.raises(peers.process.PeerError, match="the peer broken ended: chatter"):
            peer.read([1])
