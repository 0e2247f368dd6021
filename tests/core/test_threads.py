"""The pool: several callers, more threads than CPUs, forks, Ctrl-C, and the end of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from finback import native
from finback.errors import EngineStateError, PlatformError
from tests.ops.small import Small, chain

ROOT = Path(__file__).parents[2]


def script(code: str, **kwargs: float) -> subprocess.CompletedProcess[str]:
    """Run a program of its own; it dies with the test if it hangs."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **kwargs
    )


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16])
def test_more_threads_than_cpus_give_the_same_bits_in_good_time(threads: int) -> None:
    small, single = Small(threads), Small(1)
    out, expected = chain(small, 300), chain(single, 300)
    start = time.perf_counter()
    native.run(small.program, small.batch([5, 6, 7]))
    # 601 meetings. A barrier that spins while its partners wait for a CPU needs a time slice (milliseconds)
    # for each.
    assert time.perf_counter() - start < 10
    native.run(single.program, single.batch([5, 6, 7]))
    assert np.array_equal(small.read(out, 3), single.read(expected, 3))
    assert native.pool_workers() >= threads - 1


def test_a_team_larger_than_the_affinity_mask_or_a_quota_does_not_spin() -> None:
    code = """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import finback
        from finback import machine, native, settings
        assert native.spin_limit() == 1  # of the mask, before anything is loaded
        machine.allowed_cpus = lambda: range(8)
        with finback.load(threads=3):
            assert native.spin_limit() == settings.usable_cpus()
        """
    result = script(code)
    assert result.returncode == 0, result.stderr
    with pytest.raises(ValueError, match="at least 1"):
        native.set_spin_limit(0)


def test_callers_from_several_threads_take_turns() -> None:
    engines = [Small(threads) for threads in (1, 2, 3, 2)]
    outs = [chain(small, 40, seed=i) for i, small in enumerate(engines)]
    expected = []
    for i, small in enumerate(engines):
        native.run(small.program, small.batch([9, i]))
        expected.append(small.read(outs[i], 2))
    failures: list[str] = []

    def work(i: int) -> None:
        small = engines[i]
        batch = small.batch([9, i])
        for _ in range(50):
            native.run(small.program, batch)
            if not np.array_equal(small.read(outs[i], 2), expected[i]):
                failures.append(f"engine {i} computed something else")

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failures
    assert not any(worker.is_alive() for worker in workers)


def test_one_program_called_from_two_threads_stays_in_one_piece() -> None:
    small = Small(2)
    chain(small, 50)
    batches = [small.batch([1]), small.batch([2, 3])]

    def work(batch: native.Batch) -> None:
        for _ in range(100):
            native.run(small.program, batch)

    workers = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)


def test_a_run_leaves_the_floating_point_mode_of_its_caller() -> None:
    """NumPy subnormals before and after: a run that set flush-to-zero, or restored it wrongly, would show."""
    tiny = np.float32(1e-40)
    small = Small(2)
    chain(small, 5)
    native.run(small.program, small.batch([1]))
    assert tiny * np.float32(1) == tiny != 0


def test_a_forked_child_is_told_to_load_after_the_fork() -> None:
    small = Small(2)
    chain(small, 3)
    batch = small.batch([1])
    native.run(small.program, batch)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            native.run(small.program, batch)
            os.write(write, b"ran")
        except EngineStateError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "load after fork" in said
    native.run(small.program, batch)  # the parent goes on


def test_a_fork_in_the_middle_of_a_run_is_told_too() -> None:
    run = script("""
        import os, threading, time
        from finback import native
        from finback.errors import EngineStateError
        from tests.ops.small import Small, chain
        small = Small(2); chain(small, 2000); batch = small.batch([1])
        stop = threading.Event()
        def work():
            while not stop.is_set(): native.run(small.program, batch)
        worker = threading.Thread(target=work); worker.start(); time.sleep(0.2)
        for _ in range(5):
            child = os.fork()
            if child == 0:
                try: native.run(small.program, small.batch([1])); os._exit(1)
                except EngineStateError: os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set(); worker.join()
        print("lives")
    """)
    assert (run.returncode, run.stdout) == (0, "lives\n"), run.stderr


LONG = """
    import time
    from finback import native
    from tests.ops.small import Small, chain
    small = Small({threads}); out = chain(small, 4000); batch = small.batch([1, 2, 3])
    native.run(small.program, batch)
    def forever():
        while True: native.run(small.program, batch)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_stops_a_run_and_the_process_lives(threads: int) -> None:
    small = Small(threads)
    out = chain(small, 3000)
    batch = small.batch([1, 2, 3, 4, 5, 6, 7, 8])
    native.run(small.program, batch)
    whole = small.read(out, 8)
    stopped = 0
    for _ in range(20):
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.perf_counter()
        try:
            while time.perf_counter() - start < 5:
                native.run(small.program, batch)
        except KeyboardInterrupt:
            stopped += 1
        assert time.perf_counter() - start < 4
        timer.join()
        if stopped == 3:
            break
    assert stopped == 3
    native.run(small.program, batch)
    assert np.array_equal(small.read(out, 8), whole)


def test_a_process_may_end_while_a_daemon_thread_runs_a_program() -> None:
    code = textwrap.dedent(LONG.format(threads=2)) + textwrap.dedent("""
        import threading
        for _ in range(2): threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.3)
    """)
    for _ in range(3):
        run = script(code)
        assert run.returncode == 0, run.stderr
        assert "Fatal" not in run.stderr


def test_a_process_may_end_with_an_idle_pool_or_by_exit_in_a_thread() -> None:
    run = script(textwrap.dedent(LONG.format(threads=3)) + "raise SystemExit(7)\n")
    assert (run.returncode, run.stderr) == (7, "")


def test_a_system_that_refuses_threads_is_an_error_at_load() -> None:
    run = script("""
        import resource
        from finback import native
        from finback.errors import PlatformError
        from tests.ops.small import Small
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
        try: Small(1024)
        except PlatformError as error: print(error)
    """)
    assert run.returncode == 0, run.stderr
    assert "the system refuses 1024 threads" in run.stdout
    assert "threads=" in run.stdout


def test_a_system_that_refuses_threads_is_an_error_while_copies_are_made() -> None:
    run = script("""
        import resource
        import finback
        from finback.errors import PlatformError
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        try: finback.load(threads=1024, weights="resident", context=64)
        except PlatformError as error: print(error)
    """)
    assert run.returncode == 0, run.stderr
    assert "the system refuses 1024 threads" in run.stdout


def test_an_absurd_number_of_threads_is_refused() -> None:
    with pytest.raises((ValueError, PlatformError), match="1 to 1024"):
        Small(100_000)
