"""The engine's thread: requests in, steps of the model, tokens out.

Owns the life of a request between `submit` and its last token: admission by memory, reading the prompt, drawing,
and handing what was computed to the prefix cache. The scheduler says what a step computes, the publisher makes text of
what was drawn while the next step runs. Refuses to let one request's error reach another, and to run a step for
nobody.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from finback.engine.choice import Choice, Drawn
from finback.engine.drafting import DraftBlock
from finback.engine.keeper import Keeper
from finback.engine.lanes import Lane, Reading, checkpoint_lengths
from finback.engine.publisher import Answer, Failed, Over, Publisher, Read, Said
from finback.engine.request import Request
from finback.engine.sampler import Drawer
from finback.engine.scheduler import Job, Kind, Scheduler
from finback.engine.speculate import Mode, Speculation
from finback.engine.stats import LoopStats, StepRecord
from finback.engine.writer import Writer
from finback.errors import EngineStateError, FinbackError, MemoryBudgetError, NumericError
from finback.ops.select import Model
from finback.ops.step import Part, spans
from finback.text.tokenizer import Tokenizer

IDLE_CHECK_S = 0.2
"""Seconds without work after which the pages are counted over."""


_running: weakref.WeakSet[Loop] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Threads that still hold a model when the interpreter goes would keep it for ever."""
    for loop in list(_running):
        loop.close()


class Loop:
    """The thread of one engine. `submit`, `wake` and `stats` may be called from any thread."""

    def __init__(
        self,
        model: Model,
        keeper: Keeper,
        scheduler: Scheduler,
        *,
        end_ids: frozenset[int],
        max_batch: int,
        tokenizer: Tokenizer | None,
        check: Callable[[], None],
        speculate: Mode | None,
    ) -> None:
        """check: called when there is nothing to do; raises if the pages do not add up."""
        self._model, self._keeper, self._scheduler = model, keeper, scheduler
        self._end_ids, self._max_batch, self._tokenizer = end_ids, max_batch, tokenizer
        self._check, self._speculate = check, speculate
        self._drawer = Drawer(model.isa, model.config.vocab_size)
        self._logits = np.empty((max_batch, model.config.vocab_size), np.float32)
        uses_mtp = speculate in ("mtp", "auto") and model.has_draft
        self._draft_block = DraftBlock(model, max_batch) if uses_mtp else None
        self._publisher = Publisher()
        self._changed = threading.Condition()
        self._inbox: deque[tuple[Request, list[Answer]]] = deque()
        self._stir = self._closing = False
        keeper.on_memory = self.wake
        self._waiting: dict[Job, tuple[Request, list[Answer]]] = {}
        self._reading: dict[Job, Reading] = {}
        self._lanes: list[Lane] = []
        self._broken: BaseException | None = None
        self._step_ended: float | None = None
        self.stats = LoopStats()
        _running.add(self)
        self._thread = threading.Thread(target=self._work, name="finback-engine", daemon=True)
        self._thread.start()

    # ---- any thread

    def submit(self, request: Request) -> None:
        """Take a request in. EngineStateError after close(), or when the loop has failed."""
        p = request.sampling
        answers = [
            Answer(request, index, Writer(self._tokenizer, p.stops, p.min_tokens, None if t is None else t.end))
            for index, t in enumerate(request.thinking)
        ]
        with self._changed:
            if self._broken is not None:
                raise EngineStateError(f"this engine has failed ({self._broken}); load the model again")
            if self._closing:
                raise EngineStateError("this engine is closed; load the model again")
            self._inbox.append((request, answers))
            self._changed.notify()

    def wake(self) -> None:
        """Look at the requests: one was cancelled."""
        with self._changed:
            self._stir = True
            self._changed.notify()

    def close(self) -> None:
        """End all requests with an error, and the thread. Closing twice is fine."""
        self.begin_close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def begin_close(self) -> None:
        """The same without waiting for it."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    # ---- the thread

    def _work(self) -> None:
        error: BaseException = EngineStateError("the engine was closed before this request was answered")
        try:
            while not self._closing:
                if not self._turn():
                    self._sleep()
        except BaseException as failure:
            error = self._broken = failure
        self._end_all(error)
        self._publisher.close()

    def _sleep(self) -> None:
        """Wait for something to do; count the pages over when nothing comes."""
        self._step_ended = None
        with self._changed:
            if self._changed.wait_for(self._has_news, IDLE_CHECK_S):
                return
        self._check()
        self._keeper.idle()
        with self._changed:
            self._changed.wait_for(self._has_news)

    def _has_news(self) -> bool:
        return bool(self._inbox) or self._stir or self._closing

    def _turn(self) -> bool:
        """One step, or nothing to do."""
        self._take_in()
        self._drop_ended()
        self._admit()
        self.stats.waiting, self.stats.reading = len(self._waiting), len(self._reading)
        self.stats.running = len(self._lanes)
        kind = self._scheduler.next(prompts=bool(self._reading), answers=bool(self._lanes))
        if kind == "prefill":
            self._read()
        elif kind == "decode":
            self._decode()
        self._keeper.busy()
        return kind is not None

    def _take_in(self) -> None:
        with self._changed:
            self._stir = False
            arrived = list(self._inbox)
            self._inbox.clear()
        for request, answers in arrived:
            known = self._keeper.known(request)
            if self._keeper.fetch(request, known, partial(self._come_again, request, answers)):
                continue
            job = self._scheduler.add(len(request.ids) - known, request.priority)
            self._waiting[job] = (request, answers)

    def _come_again(self, request: Request, answers: list[Answer]) -> None:
        """From any thread: look at a request as if it had just arrived."""
        with self._changed:
            self._inbox.append((request, answers))
            self._changed.notify()

    def _drop_ended(self) -> None:
        """Let go of what nobody wants any more: cancelled requests, and answers that the publisher ended."""
        for job, (request, answers) in list(self._waiting.items()):
            if request.cancelled:
                del self._waiting[job]
                self._scheduler.remove(job)
                self._publisher.post([Over(answer, "cancelled") for answer in answers])
        for reading in [r for r in self._reading.values() if r.request.cancelled]:
            self._publisher.post([Over(answer, "cancelled") for answer in reading.answers])
            self._close_reading(reading, keep=True)
        for lane in [lane for lane in self._lanes if lane.answer.ended or lane.request.cancelled]:
            self._publisher.post([Over(lane.answer, "cancelled")])  # nothing, if the answer has ended
            self._close_lane(lane)

    # ---- admission

    def _admit(self) -> None:
        """Let waiting requests in, most urgent first, as long as the memory they can reach is free. The first that
        has to wait holds back those behind it, so a large one is not passed for ever."""
        if not self._waiting:
            return
        for job in self._scheduler.order():
            if job not in self._waiting:
                continue
            request, answers = self._waiting[job]
            taken = len(self._lanes) + sum(len(reading.answers) for reading in self._reading.values())
            if taken + len(answers) > self._max_batch:
                break
            wait = bool(self._lanes or self._reading) or self._keeper.holds_memory  # before it may be given back
            try:
                promises = self._promise(request)
            except MemoryBudgetError as error:
                if wait:
                    break
                del self._waiting[job]
                self._scheduler.remove(job)
                self._publisher.post([Failed(answers, request, error)])
                continue
            del self._waiting[job]
            self._reading[job] = Reading(request, job, answers, promises)

    def _promise(self, request: Request) -> list[Any]:
        """The memory that the request's sequences can reach: one holds the prompt, those of further answers what
        they do not share with it. All or nothing."""
        length = len(request.ids) + request.limit
        shared = len(request.ids) - len(request.ids) % self._model.page_span
        promises = [self._model.promise(length)]
        try:
            while len(promises) < request.sampling.n:
                promises.append(self._model.promise(length - shared))
        except MemoryBudgetError:
            for promise in promises:
                promise.release()
            raise
        return promises

    # ---- reading prompts

    def _begin(self, reading: Reading) -> None:
        """Make the sequence, from the longest prefix that was kept."""
        request = reading.request
        request.started = time.perf_counter()
        reading.state = self._model.new_sequence(reading.promises[0])
        self._keeper.begin(request, reading.state)
        reading.stops = checkpoint_lengths(request.ids, request.marks, reading.state.length)
        reading.job.left = reading.left

    def _read(self) -> None:
        """A step over prompts: the most urgent ones, each up to its next checkpoint, until the step is full."""
        budget = self._scheduler.rows(answers=bool(self._lanes))
        logit_rows = len(self._logits)
        shares: list[tuple[Reading, Part[Any]]] = []
        for job in self._scheduler.order():
            reading = self._reading.get(job)
            if reading is None or budget == 0 or logit_rows == 0:
                continue
            try:
                if reading.state is None:
                    self._begin(reading)
                part = self._share(reading, budget, logit_rows)
            except FinbackError as error:
                self._fail_reading(reading, error)
                continue
            budget -= len(part.ids)
            logit_rows -= len(part.wanted)
            shares.append((reading, part))
        if not shares:
            return
        parts = [part for _, part in shares]
        logits, errors = self._run("prefill", parts, shares[0][0].job)
        row = 0
        good: list[tuple[Reading, Part[Any]]] = []
        said: list[tuple[Lane, list[Drawn]]] = []
        for (reading, part), wrong in zip(shares, errors, strict=True):
            rows = logits[row : row + len(part.wanted)]
            row += len(part.wanted)
            try:
                if wrong is not None:
                    raise wrong
                said += self._hear(reading, part, rows)
                good.append((reading, part))
            except FinbackError as error:
                self._fail_reading(reading, error)
        if self._draft_block is not None and len(good) == len(shares):
            self._draft_block.follow_prompts(shares, said)
        for reading, _ in good:
            self._keep_if_due(reading)
        for lane, drawn in said:
            if lane in self._lanes:  # or another answer of its request has failed
                self._settle_lane(lane, drawn)

    def _share(self, reading: Reading, budget: int, logit_rows: int) -> Part[Any]:
        """The part of a prompt in this step, its pages reserved."""
        state, ids = reading.state, reading.request.ids
        n = min(budget, reading.until_stop())
        every = reading.request.prompt_logprobs is not None
        if every:
            n = min(n, logit_rows)
        start = state.length
        state.reserve(start + n)
        last = [n - 1] if start + n == len(ids) else []
        return Part(state, ids[start : start + n], range(n) if every else last)

    def _hear(
        self, reading: Reading, part: Part[Any], logits: npt.NDArray[np.float32]
    ) -> list[tuple[Lane, list[Drawn]]]:
        """After a prompt's share of a step: log-probabilities if asked for and, at its end, the first tokens."""
        request, length = reading.request, reading.state.length
        reading.job.left = reading.left
        if request.prompt_logprobs is not None:
            self._note_prompt(request, length - len(part.ids), logits)
        self._publisher.post([Read(request, length)])
        return self._start_answers(reading, logits[-1]) if length == len(request.ids) else []

    def _keep_if_due(self, reading: Reading) -> None:
        """A checkpoint at a mark, and at the end of the prompt."""
        ids, state = reading.request.ids, reading.state
        if state.length == len(ids) or (reading.stops and reading.stops[0] == state.length):
            self._keeper.keep(ids[: state.length], state)
        if state.length == len(ids) and reading.request.limit == 0:
            self._publisher.post([Over(answer, "length") for answer in reading.answers])
            self._close_reading(reading, keep=False)

    def _note_prompt(self, request: Request, start: int, logits: npt.NDArray[np.float32]) -> None:
        """Row i of `logits` tells how likely the prompt's token start + i + 1 was."""
        assert request.prompt_logprobs is not None
        assert request.sampling.prompt_logprobs is not None
        for i, row in enumerate(logits):
            if start + i + 1 < len(request.ids):
                token = request.ids[start + i + 1]
                request.prompt_logprobs.append(self._drawer.logprob(row, token, request.sampling.prompt_logprobs))

    def _start_answers(
        self, reading: Reading, logits: npt.NDArray[np.float32]
    ) -> list[tuple[Lane, list[Drawn]]]:
        """The prompt is read: a sequence for each answer, and its first token."""
        request = reading.request
        if request.limit == 0:
            return []  # it was only to be read
        self._scheduler.remove(reading.job)
        del self._reading[reading.job]
        states = [reading.state]
        states += [reading.state.fork(promise) for promise in reading.promises[1:]]
        said: list[tuple[Lane, list[Drawn]]] = []
        lanes: list[Lane] = []
        for answer, state, promise in zip(reading.answers, states, reading.promises, strict=True):
            choice = Choice(
                request.sampling,
                answer.index,
                request.ids,
                self._end_ids,
                self._drawer.vocab,
                thinking=request.thinking[answer.index],
                constraint=request.constraints[answer.index],
            )
            speculation = None if self._speculate is None else Speculation(self._speculate, request.ids)
            lane = Lane(answer, choice, state, promise, list(request.ids), speculation)
            lanes.append(lane)
        self._lanes += lanes
        for lane in lanes:
            row = logits if request.sampling.n == 1 else logits.copy()
            said.append((lane, [lane.choice.draw(self._drawer, row, lane.state.length)]))
        request.first_token = time.perf_counter()
        self._publisher.post([Said(lane.answer, drawn[0]) for lane, drawn in said])
        return said

    def _fail_reading(self, reading: Reading, error: BaseException) -> None:
        """Its cache rows may be half written: nothing of it is kept but the checkpoints made before. If it began from a
        state on disk, that state goes, and the prompt is computed once more from nothing."""
        request = reading.request
        still = reading.job in self._reading
        if still and isinstance(error, NumericError) and self._keeper.forget(request):
            self._close_reading(reading, keep=False)
            self._come_again(request, reading.answers)
            return
        self._publisher.post([Failed(reading.answers, reading.request, error)])
        if still:
            self._close_reading(reading, keep=False)
        for lane in [lane for lane in self._lanes if lane.request is reading.request]:
            self._close_lane(lane, keep=False)

    def _close_reading(self, reading: Reading, *, keep: bool) -> None:
        """Its state goes to the prefix cache if it is to be kept, and its memory back."""
        self._scheduler.remove(reading.job)
        del self._reading[reading.job]
        if reading.state is not None:
            self._keeper.give_back(reading.state, reading.request.ids[: reading.state.length], keep)
        for promise in reading.promises:
            promise.release()

    # ---- answers

    def _decode(self) -> None:
        """A step over all answers: the last token of each, and drafts of what may follow."""
        ready: list[tuple[Lane, Part[Any]]] = []
        room = min(len(self._logits), self._model.max_rows) - len(self._lanes)
        for lane in list(self._lanes):
            try:
                if lane in self._lanes:  # or its request failed with an answer before it
                    drafts = lane.drafts(room)
                    room -= len(drafts)
                    lane.state.reserve(lane.state.length + 1 + len(drafts))
                    ready.append((lane, Part(lane.state, (lane.pending, *drafts), range(1 + len(drafts)))))
            except FinbackError as error:
                self._fail_lane(lane, error)
                ready = [(other, part) for other, part in ready if other in self._lanes]
        if ready:
            parts = [part for _, part in ready]
            logits, errors = self._run("decode", parts, None)
            said = self._say(ready, logits, errors)
            if self._draft_block is not None:
                self._draft_block.follow_answers(ready, said)
            for lane, drawn in said:
                self._settle_lane(lane, drawn)

    def _say(
        self,
        ready: list[tuple[Lane, Part[Any]]],
        logits: npt.NDArray[np.float32],
        errors: list[FinbackError | None],
    ) -> list[tuple[Lane, list[Drawn]]]:
        """Draw what each answer says in this step: from the row of its last token, and from each further row as long as
        the draft in it was what had been drawn."""
        said: list[tuple[Lane, list[Drawn]]] = []
        row = 0
        for (lane, part), wrong in zip(ready, errors, strict=True):
            rows = logits[row : row + len(part.ids)]
            row += len(part.ids)
            if lane not in self._lanes:
                continue  # another answer of its request has failed
            drawn: list[Drawn] = []
            try:
                if wrong is not None:
                    rows = self._good_rows(lane, part, rows, wrong, row - len(part.ids))
                first = lane.state.length - len(rows) + 1  # the position that row 0 tells of
                for i, values in enumerate(rows):
                    drawn.append(lane.choice.draw(self._drawer, values, first + i))
                    if drawn[-1].finish is not None or i + 1 == len(rows) or drawn[-1].token != part.ids[i + 1]:
                        break
                lane.rows = len(rows)
                said.append((lane, drawn))
            except FinbackError as error:
                self._fail_lane(lane, error)
        self._publisher.post([Said(lane.answer, token) for lane, drawn in said for token in drawn])
        return [(lane, drawn) for lane, drawn in said if lane in self._lanes]

    @staticmethod
    def _good_rows(
        lane: Lane, part: Part[Any], rows: npt.NDArray[np.float32], error: FinbackError, first: int
    ) -> npt.NDArray[np.float32]:
        """The rows before the first broken one: a draft that nobody may ever say must not end an answer."""
        broken = [row - first for row in getattr(error, "rows", ()) if first <= row < first + len(part.ids)]
        good = min(broken, default=0)
        if good == 0:
            raise error
        lane.state.advance(good)
        return rows[:good]

    def _settle_lane(self, lane: Lane, drawn: list[Drawn]) -> None:
        """After a step: rows of drafts that were wrong are taken back, and the answer goes on or ends."""
        self.stats.drawn += len(drawn)
        lane.state.rewind(lane.state.length - lane.rows + len(drawn))
        if lane.speculation is not None:
            self._judge(lane, len(drawn))
        for token in drawn:
            if token.finish is not None:
                self._close_lane(lane)
                return
            lane.tokens.append(token.token)
            lane.pending = token.token
        if lane.speculation is not None:
            lane.speculation.extend([token.token for token in drawn])

    def _judge(self, lane: Lane, said: int) -> None:
        """Whether drafts paid in this step."""
        assert lane.speculation is not None
        gate = lane.speculation.gate
        if lane.sure:
            return
        if lane.rows > 1:
            cost, others = self._scheduler.costs["decode"], len(self._lanes) - 1
            seconds = cost.typical(others + lane.rows)
            if self._draft_block is not None:
                seconds += self._draft_block.cost.typical(others + lane.rows)
            gate.judge(said, seconds, cost.typical(others + 1))
            lane.speculation.learn(lane.rows - 1, said - 1)
            self.stats.drafted += lane.rows - 1
            self.stats.accepted += said - 1
        else:
            gate.plain()

    def _fail_lane(self, lane: Lane, error: BaseException) -> None:
        """One answer's error is its request's: the others of the request end with it."""
        together = [other for other in self._lanes if other.request is lane.request]
        self._publisher.post([Failed([other.answer for other in together], lane.request, error)])
        for other in together:
            self._close_lane(other, keep=False)

    def _close_lane(self, lane: Lane, *, keep: bool = True) -> None:
        self._lanes.remove(lane)
        self._keeper.give_back(lane.state, lane.tokens[: lane.state.length], keep)
        lane.promise.release()

    # ---- steps

    def _run(
        self, kind: Kind, parts: list[Part[Any]], first: Job | None
    ) -> tuple[npt.NDArray[np.float32], list[FinbackError | None]]:
        """Run a step and measure it. Logits of the rows wanted, and for each part what went wrong with it."""
        begun = time.perf_counter()
        gap = begun - self._step_ended if self._step_ended is not None else None
        errors: list[FinbackError | None] = [None] * len(parts)
        try:
            self._model.run(parts, self._logits)
        except NumericError as error:
            for i, (start, end) in enumerate(spans(parts)):
                if not error.rows or any(start <= row < end for row in error.rows):
                    errors[i] = error
        except FinbackError as error:
            errors = [error] * len(parts)
        ended = self._step_ended = time.perf_counter()
        rows = sum(len(part.ids) for part in parts)
        self._scheduler.ran(kind, rows, ended - begun, answers=bool(self._lanes), first=first)
        self.stats.add(StepRecord(kind, begun, ended - begun, rows, len(parts), gap))
        return self._logits[: sum(len(part.wanted) for part in parts)], errors

    def _end_all(self, error: BaseException) -> None:
        """Every request that is still there ends with an error; all memory goes back."""
        with self._changed:
            self._closing = True
            arrived = list(self._inbox)
            self._inbox.clear()
        for request, answers in [*arrived, *self._waiting.values()]:
            self._publisher.post([Failed(answers, request, error)])
        self._waiting.clear()
        for reading in list(self._reading.values()):
            self._publisher.post([Failed(reading.answers, reading.request, error)])
            self._close_reading(reading, keep=False)
        while self._lanes:
            self._fail_lane(self._lanes[0], error)
        self._keeper.close()
        self._keeper.on_memory = None
        with self._changed:  # what the disk's thread still brought
            for request, answers in self._inbox:
                self._publisher.post([Failed(answers, request, error)])
            self._inbox.clear()
