"""From a request to the engine's answers, told as events.

Owns rendering and encoding, what tool choice and replay make of them, the limits of an answer, and how errors of the
library become refusals. Refuses to know HTTP and dialects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from finback.engine.engine import Encoded, Engine
from finback.engine.request import Request
from finback.engine.result import Event
from finback.engine.sampling import MAX_BIAS, Sampling
from finback.errors import (
    ContextLengthError,
    EngineStateError,
    FinbackError,
    MemoryBudgetError,
    RequestError,
)
from finback.server import answer as told
from finback.server.answer import AnswerEvent, Done, Failed, Timings, Usage
from finback.server.ask import Ask, Chat, Raw, RefusedError
from finback.server.dialects.openai import refusal_of
from finback.server.replay import Replay
from finback.server.teller import Teller, Telling, token_of
from finback.text.messages import AssistantMessage, Message
from finback.text.prompt import Control, Prompt, Text
from finback.text.render import BOS, DSML, END_THINK, render
from finback.text.token_cache import TokenCache
from finback.text.tool_grammar import tool_grammar

FIM_BEGIN, FIM_HOLE, FIM_END = "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready for the engine."""

    encoded: Encoded
    sampling: Sampling
    how: Telling


class Runner:
    """Answers requests with one engine. replay: turns that may come back. cache: texts that were encoded before."""

    def __init__(self, engine: Engine, replay: Replay, cache: TokenCache) -> None:
        self.engine, self.replay, self.cache = engine, replay, cache
        tokenizer = engine.tokenizer
        self._think_end = tokenizer.control_id(END_THINK) if _has(engine, END_THINK) else None

    # ---- before the engine

    async def prepare(self, ask: Ask) -> Prepared:
        """Render and encode, in a thread of its own: a long prompt takes a while. RefusedError if it cannot be done."""
        return await asyncio.to_thread(self._prepare, ask)

    def _prepare(self, ask: Ask) -> Prepared:
        try:
            if isinstance(ask.prompt, Chat):
                return self._chat(ask.prompt, ask.sampling)
            return Prepared(self._raw(ask.prompt), ask.sampling, Telling(raw=True))
        except FinbackError as error:
            raise refused(error) from None

    def _raw(self, raw: Raw) -> Encoded:
        tokenizer = self.engine.tokenizer
        if not isinstance(raw.prompt, str):
            return Encoded(list(raw.prompt))
        if raw.suffix is None:
            return Encoded(self.engine.encode(raw.prompt))
        for control in (FIM_BEGIN, FIM_HOLE, FIM_END):
            if not _has(self.engine, control):
                raise RefusedError("suffix: this model was not trained to fill in; leave it out", field="suffix")
        texts = [Text(text) if text else None for text in (raw.prompt, raw.suffix)]
        parts = (Control(BOS), Control(FIM_BEGIN), texts[0], Control(FIM_HOLE), texts[1], Control(FIM_END))
        return Encoded(tokenizer.encode_segments([part for part in parts if part is not None]))

    def _chat(self, chat: Chat, sampling: Sampling) -> Prepared:
        tokenizer, last = self.engine.tokenizer, chat.messages[-1] if chat.messages else None
        thinks = chat.thinking and self.engine.dialect.effort_text(chat.effort) is not None
        must_call = chat.choice.kind == "required"
        opened = must_call and not thinks and not chat.continue_last
        prompt = render(
            self._spliced(chat.messages),
            tools=chat.tools,
            thinking=thinks,
            effort=chat.effort,
            reply=chat.reply,
            require_call=opened,
            continue_last=chat.continue_last,
            dialect=self.engine.dialect,
        )
        encoded = tokenizer.encode_prompt(prompt, self.cache)
        in_thinking = thinks and not (chat.continue_last and isinstance(last, AssistantMessage) and last.content)
        names = frozenset(tool.name for tool in chat.tools)
        how = Telling(
            thinking=in_thinking,
            tools=names if chat.tools and chat.choice.kind != "none" else None,
            many=chat.parallel_calls,
            opened=_after_thinking(prompt) if opened else "",
            opened_ids=_ids_after(encoded.ids, self._think_end) if opened else (),
        )
        if must_call:
            sampling = self._calling(chat, sampling, opened)
        elif chat.choice.kind == "none" and chat.tools:
            banned = tokenizer.control_id(DSML)
            sampling = replace(sampling, logit_bias={**sampling.logit_bias, banned: -MAX_BIAS})
        return Prepared(Encoded(encoded.ids, encoded.marks, in_thinking), sampling, how)

    def _spliced(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, turns that were made here with the tokens they were drawn as."""
        return [self.replay.splice(m) if isinstance(m, AssistantMessage) else m for m in messages]

    def _calling(self, chat: Chat, sampling: Sampling, opened: bool) -> Sampling:
        """The parameters of an answer that has to call a tool."""
        if chat.reply is not None or sampling.json_schema is not None or sampling.json_object or sampling.regex:
            raise RefusedError(
                "tool_choice wants a call and the answer is to have a form, too; leave one of them out",
                field="tool_choice",
            )
        tools = [tool for tool in chat.tools if not chat.choice.names or tool.name in chat.choice.names]
        dsml = self.engine.tokenizer.control_id(DSML)
        grammar = tool_grammar(tools, dsml=dsml, opened=opened, many=chat.parallel_calls)
        return replace(sampling, calls=grammar)

    # ---- the engine

    async def answer(
        self, prepared: Prepared, ask: Ask, on_begun: Callable[[Request], None] | None = None
    ) -> AsyncGenerator[AnswerEvent, None]:
        """The events of an answer. Ends with Done or Failed; leaving the iteration cancels the request. on_begun:
        called when its prompt is begun. RefusedError, before anything is told, if the engine does not take it."""
        request = await self._submitted(prepared, ask)
        only_read = isinstance(ask.prompt, Raw) and ask.prompt.only_read
        tellers = [
            Teller(i, prepared.how, self.engine.tokenizer, self._think_end) for i in range(prepared.sampling.n)
        ]
        async with request:
            yield told.Begun(len(prepared.encoded.ids))
            try:
                async for event in request:
                    if on_begun is not None:
                        on_begun(request)
                        on_begun = None
                    teller = tellers[event.index]
                    if event.progress is None and not only_read:
                        for item in teller.take(event):
                            yield item
                    if teller.enough and not teller.ended:
                        request.cancel()
                        for item in teller.end("tool_calls"):
                            yield item
                    if event.usage is not None:
                        self._remember(tellers)
                        yield self._done(request, event, tellers, only_read)
            except FinbackError as error:
                yield Failed(refused(error))

    async def _submitted(self, prepared: Prepared, ask: Ask) -> Request:
        """The request, taken by the engine. Whoever stops waiting for that cancels it."""
        work = asyncio.ensure_future(asyncio.to_thread(self._submit, prepared, ask))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_cancel_taken)
            raise

    def _submit(self, prepared: Prepared, ask: Ask) -> Request:
        try:
            try:
                return self.engine.submit(prepared.encoded, prepared.sampling, priority=ask.priority)
            except MemoryBudgetError:
                if prepared.sampling.max_tokens is None:
                    raise
                # More than the memory can hold was asked for; clients ask for much more than they need.
                most = replace(prepared.sampling, max_tokens=None)
                return self.engine.submit(prepared.encoded, most, priority=ask.priority)
        except FinbackError as error:
            raise refused(error) from None

    def _remember(self, tellers: Sequence[Teller]) -> None:
        for teller in tellers:
            if (turn := teller.turn()) is not None:
                self.replay.keep(turn)

    def _done(self, request: Request, last: Event, tellers: Sequence[Teller], only_read: bool) -> Done:
        """What the last event of the engine says of the whole request."""
        usage, times = last.usage, last.timings
        assert usage is not None
        assert times is not None
        reasoning = sum(teller.reasoning_tokens for teller in tellers)
        completion = 0 if only_read else usage.completion_tokens
        prompt = request.prompt_logprobs
        id_to_bytes = self.engine.tokenizer.id_to_bytes
        return Done(
            Usage(usage.prompt_tokens, completion, reasoning, usage.cached_tokens),
            Timings(times.queue_s, times.prefill_s - times.queue_s, times.decode_s),
            None if prompt is None else tuple(None if t is None else token_of(t, id_to_bytes) for t in prompt),
        )


def refused(error: FinbackError) -> RefusedError:
    """An error of the library as a refusal, with its status and code."""
    match error:
        case RefusedError():
            return error
        case ContextLengthError(tokens=tokens, context=context):
            # Agents look for these words, above all where a dialect has no codes, and then shorten the conversation.
            most = min(context, tokens - 1)
            text = f"prompt is too long: {tokens} tokens > {most} maximum; shorten it, or serve a longer context"
            return RefusedError(text, code="context_length_exceeded", field="messages")
        case MemoryBudgetError():
            return RefusedError(str(error), code="memory_budget_exceeded")
        case RequestError():
            return refusal_of(error)
        case EngineStateError():
            return RefusedError(str(error), status=503, retry_after=1)
        case _:
            return RefusedError(str(error), status=500)


def _cancel_taken(work: asyncio.Future[Request]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().cancel()


def _has(engine: Engine, control: str) -> bool:
    try:
        engine.tokenizer.control_id(control)
    except RequestError:
        return False
    return True


def _after_thinking(prompt: Prompt) -> str:
    """The text of a prompt after the token that closes thinking."""
    last = max(i for i, segment in enumerate(prompt.segments) if segment == Control(END_THINK))
    return Prompt(prompt.segments[last + 1 :], ()).text


def _ids_after(ids: Sequence[int], think_end: int | None) -> tuple[int, ...]:
    last = max(i for i, token in enumerate(ids) if token == think_end)
    return tuple(ids[last + 1 :])
