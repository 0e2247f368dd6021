"""The thread that turns drawn tokens into events, while the next step runs.

Owns the text of answers, the events of requests and the counts in their usage. What it finds late, a stop string that
was completed by a token, it marks on the answer: the loop drops the answer before the step after next, and the token
drawn meanwhile is never seen. Refuses to touch caches and sequences.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from finback.engine.choice import Drawn
from finback.engine.request import Request
from finback.engine.result import Event, FinishReason, Timings, TokenLogprob, Usage
from finback.engine.writer import Writer


@dataclass(eq=False, slots=True)
class Answer:
    """One answer of a request, as the publisher sees it. `ended`: nothing more of it is wanted."""

    request: Request
    index: int
    writer: Writer
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """A token was drawn for an answer."""

    answer: Answer
    drawn: Drawn


@dataclass(frozen=True, slots=True)
class Over:
    """An answer ends without a further token."""

    answer: Answer
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ends with an error."""

    answers: Sequence[Answer]
    request: Request
    error: BaseException


@dataclass(frozen=True, slots=True)
class Read:
    """So much of a prompt has been read."""

    request: Request
    done: int


Note = Said | Over | Failed | Read


class Publisher:
    """The thread. Notes are taken in the order they were posted."""

    def __init__(self) -> None:
        self._notes: queue.SimpleQueue[Sequence[Note] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="finback-publisher", daemon=True)
        self._thread.start()

    def post(self, notes: Sequence[Note]) -> None:
        """Hand over what a step brought."""
        self._notes.put(notes)

    def close(self) -> None:
        """Publish what was posted, then end."""
        self._notes.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (notes := self._notes.get()) is not None:
            for note in notes:
                if isinstance(note, Said):
                    self._say(note.answer, note.drawn)
                elif isinstance(note, Read):
                    self._tell(note.request, Event(progress=(note.done, len(note.request.ids))))
                elif isinstance(note, Over):
                    self._end(note.answer, note.reason)
                else:
                    self._fail(note)

    def _say(self, answer: Answer, drawn: Drawn) -> None:
        if answer.ended:
            return
        if drawn.kept:
            text = answer.writer.write(drawn.token)
            logprobs = () if drawn.logprob is None else (drawn.logprob,)
            self._tell(answer.request, Event((drawn.token,), text, index=answer.index, logprobs=logprobs))
        if answer.writer.stopped:
            self._end(answer, "stop")
        elif drawn.finish is not None:
            self._end(answer, drawn.finish, None if drawn.kept else drawn.logprob)

    def _end(self, answer: Answer, reason: FinishReason, end: TokenLogprob | None = None) -> None:
        """The last event of an answer; that of the last answer carries what the whole request took."""
        if answer.ended:
            return
        answer.ended = True
        request = answer.request
        request.completion_tokens += answer.writer.count
        request.open_answers -= 1
        usage, timings = None, None
        if request.open_answers == 0:
            usage = Usage(len(request.ids), request.completion_tokens, request.cached_tokens, request.cache_note)
            now = time.perf_counter()
            first = request.first_token if answer.writer.count else now
            timings = Timings(first - request.submitted, now - first, request.started - request.submitted)
        text, stop = answer.writer.finish(), answer.writer.matched
        self._tell(request, Event((), text, reason, usage, timings, answer.index, stop=stop, end=end))

    def _fail(self, note: Failed) -> None:
        if note.request.open_answers == 0:
            return  # it was over before the error: a stop string was found, and a row too many was computed
        note.request.open_answers = 0
        for answer in note.answers:
            answer.ended = True
        self._tell(note.request, note.error)

    @staticmethod
    def _tell(request: Request, item: Event | BaseException) -> None:
        request.mailbox.put(item)
