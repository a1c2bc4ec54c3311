"""The turns of a conversation: one runs, the others wait, and each ends exactly once.

All of this is bookkeeping inside the actor; the work itself is a task on the I/O loop.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec.structs import replace

from agent_context import events
from agent_context._actor.checkpoint import TurnCheckpoint
from agent_context._actor.config import ActorConfig
from agent_context._actor.hidden_messages import RecalledMessages
from agent_context._actor.model_client import ModelClient
from agent_context._actor.prompt_cache_tracker import PromptCacheTracker
from agent_context._actor.replay import encode_completion
from agent_context._actor.state import (
    ActorState,
    TurnMessage,
    check_total_size,
    to_turn_messages,
)
from agent_context._actor.turn import (
    CompressionReady,
    RoundFinished,
    RoundStored,
    TurnFinished,
    TurnRequest,
    TurnTimedOut,
)
from agent_context._actor.turn_recall import TurnRecall
from agent_context._actor.turn_task import TurnTask, WriteCheckpoint
from agent_context._context.persistent_vector import PersistentVector
from agent_context._runtime import Failure, IoTask, Reply, Timer, io_loop
from agent_context._validation import check_async, check_type
from agent_context.errors import (
    AgentContextError,
    ConversationBusy,
    InvalidOptions,
    StoreError,
    TurnCancelled,
    TurnTimeout,
)
from agent_context.messages import Completion, Message, MessageId, Usage, new_id
from agent_context.options import SendOptions
from agent_context.protocol import Send, SendStream
from agent_context.ref import AskCancelled
from agent_context.stream import Channel, Stream
from agent_context.tools.loop import ToolLoop

__all__ = ["TurnQueue"]

_MAX_WAITING: Final = 1_000
_GRACE: Final = 5.0
"""Seconds that a cancelled call has to end before the turn ends without it."""


@dataclass(slots=True, eq=False)
class Turn:
    """One turn, from its acceptance to its end, as the actor knows it."""

    request: TurnRequest
    pending: tuple[TurnMessage, ...]
    """What it says and has not stored yet."""
    id: str = field(default_factory=new_id)
    channel: Channel | None = None
    replies: list[Reply[Completion]] = field(default_factory=list[Reply[Completion]])
    deadline: float = 0.0
    """On the monotonic clock."""
    timer: Timer | None = None
    """Ends the turn at its deadline while it waits."""
    task: TurnTask | None = None
    io_task: IoTask | None = None
    after: MessageId | None = None
    """The last stored message that its request held; None if it held none."""
    stored_ids: frozenset[MessageId] = frozenset()
    """Of what the turn has stored so far."""
    abort_reason: AgentContextError | None = None
    keep_partial: bool = True

    @property
    def options(self) -> SendOptions:
        return self.request.options

    def can_join(self) -> bool:
        """Whether its messages may be sent with another turn, which then answers both."""
        alone = self.channel is not None or self.request.key is not None
        return self.options.on_busy == "steer" and not alone

    def cancel_task(self) -> None:
        """Cancel its task on the I/O loop."""
        if self.io_task is not None:
            self.io_task.cancel()

    def fail(self, error: BaseException, *, partial_message: Message | None = None) -> None:
        """Fail the turn for every caller; `partial_message` is what it left in the conversation."""
        if self.channel is not None:
            self.channel.end(error=error, kept=partial_message)
        for reply in self.replies:
            reply.set_error(error)

    def initial_checkpoint(self) -> TurnCheckpoint:
        """Its checkpoint before the model is asked, in this round."""
        keep = self.keep_partial and self.request.stores
        pending = tuple(said.record for said in self.pending)
        return TurnCheckpoint(self.id, keep, pending, self.after, key=self.request.key)

    def checkpoint(self) -> TurnCheckpoint:
        """Its current checkpoint. From any thread."""
        start = self.initial_checkpoint()
        return start if self.task is None else self.task.describe(start)


class TurnQueue:
    """The running turn, the waiting ones, and the handling of partial answers."""

    __slots__ = ("_client", "_config", "_post", "_state", "cache_tracker", "running", "waiting")

    def __init__(
        self,
        state: ActorState,
        config: ActorConfig,
        client: ModelClient,
        post: Callable[[object], bool],
    ) -> None:
        self._state = state
        self._config = config
        self._client = client
        self._post = post
        self.cache_tracker = PromptCacheTracker(state)
        self.running: Turn | None = None
        self.waiting: deque[Turn] = deque()

    def count(self) -> tuple[int, int]:
        """The number of running and waiting turns."""
        return int(self.running is not None), len(self.waiting)

    def use_config(self, config: ActorConfig, client: ModelClient) -> None:
        """Use this configuration for every later turn, including those already waiting."""
        self._config, self._client = config, client
        for turn in self.waiting:
            chosen = turn.options.merged_over(config.options)
            options = chosen.model_copy(update={"model": config.options.model})
            turn.request = replace(turn.request, options=options)

    # Accepting.

    def accept(self, asked: Send | SendStream) -> Reply[Completion] | Stream:
        """Start or queue a turn, as `options.on_busy` says."""
        turn = self._create_turn(asked)
        answer = self._create_answer(turn, streamed=isinstance(asked, SendStream))
        if self.running is None:
            self._begin(turn)
        else:
            self._queue(turn)
        return answer

    def _create_turn(self, asked: Send | SendStream) -> Turn:
        options = check_type("options", asked.options, SendOptions)
        options = options.merged_over(self._config.options)
        if asked.loop is not None:
            check_type("loop", asked.loop, ToolLoop)
        if asked.around is not None:
            check_async("around", asked.around)
        if asked.key is not None and options.commit == "manual":
            raise InvalidOptions("key: commit='manual' stores no answer that could be given again")
        if asked.outgoing is not None and asked.history is None:
            raise InvalidOptions("outgoing: it needs a history, behind which it is sent")
        history, outgoing = asked.history, asked.outgoing
        said = self._state.with_unique_ids(to_turn_messages(asked.messages))
        check_total_size(said)
        request = TurnRequest(
            options=options,
            messages=said,
            context=tuple(each.record for each in to_turn_messages(asked.context)),
            history=None if history is None else _to_vector(history),
            outgoing=None if outgoing is None else tuple(_to_vector(outgoing)),
            loop=asked.loop,
            around=asked.around,
            key=asked.key,
            ask=asked,
        )
        turn = Turn(request, said, keep_partial=options.on_abort == "keep")
        turn.deadline = time.monotonic() + options.timeout
        return turn

    def _create_answer(self, turn: Turn, *, streamed: bool) -> Reply[Completion] | Stream:
        if not streamed:
            reply: Reply[Completion] = Reply()
            turn.replies.append(reply)
            return reply
        turn.channel = Channel()
        post, turn_id = self._post, turn.id
        return Stream(turn_id, turn.channel, lambda: post(AskCancelled(turn_id)))

    def _queue(self, turn: Turn) -> None:
        match turn.options.on_busy:
            case "reject":
                raise ConversationBusy("a turn is running, and on_busy is 'reject'")
            case "interrupt":
                self._wait(turn, first=True)
                self._abort_running(TurnCancelled("another turn interrupted this one"), keep=True)
            case "steer":
                self._steer(turn)
            case "queue":
                self._wait(turn, first=False)

    def _wait(self, turn: Turn, *, first: bool) -> None:
        if len(self.waiting) >= _MAX_WAITING:
            raise ConversationBusy(f"{_MAX_WAITING} turns are waiting already")
        self._state.reserve_ids(turn.pending)
        post, turn_id = self._post, turn.id
        turn.timer = io_loop().call_later(turn.options.timeout, lambda: post(TurnTimedOut(turn_id)))
        if first:
            self.waiting.appendleft(turn)
        else:
            self.waiting.append(turn)

    def _steer(self, turn: Turn) -> None:
        """Join the next waiting turn if it steers too, else become the next."""
        following = self.waiting[0] if self.waiting else None
        if following is None or not (following.can_join() and turn.can_join()):
            self._wait(turn, first=True)
            return
        self._state.reserve_ids(turn.pending)
        following.pending += turn.pending
        following.replies += turn.replies

    # Running.

    def start_next(self) -> None:
        """Start the turn that has waited longest, unless one runs."""
        while self.running is None and self.waiting:
            self._begin(self.waiting.popleft())

    def _begin(self, turn: Turn) -> None:
        state, request = self._state, turn.request
        anything = turn.pending or request.context or request.options.scratch or request.history
        if not (len(state.zones) or anything):
            self._fail(turn, InvalidOptions("there is nothing to send: no message was ever said"))
            return
        if turn.timer is not None:
            turn.timer.cancel()
        state.reserve_ids(turn.pending)
        incremental = state.zones.incremental
        turn.after = incremental[len(incremental) - 1].id if len(incremental) else None
        turn.task = TurnTask(
            turn.id,
            replace(request, messages=turn.pending),
            zones=state.zones,
            client=self._client,
            config=self._config,
            recall=TurnRecall(self._config.recall, state.hidden),
            previous=self.cache_tracker.previous_request(),
            channel=turn.channel,
            write_checkpoint=self._checkpoint_writer(turn),
            post=self._post,
        )
        self.running = turn
        seconds = turn.deadline - time.monotonic()
        turn.io_task = turn.task.spawn(seconds, self._record_start(turn))

    def _record_start(self, turn: Turn) -> Reply[None] | None:
        """Journal that the turn runs; settles once committed. None without a store."""
        journal = self._state.journal
        if journal is None:
            return None
        recorded: Reply[None] = Reply()
        journal.set_running_turn(turn.initial_checkpoint())
        journal.on_committed(lambda error: recorded.set(Failure(error) if error else None))
        return recorded

    def _checkpoint_writer(self, turn: Turn) -> WriteCheckpoint | None:
        """A function with which the task writes a checkpoint of the turn."""
        journal = self._state.journal
        return None if journal is None else lambda: journal.checkpoint(turn.checkpoint())

    def announce_recalled(self, turn_id: str, found: RecalledMessages) -> None:
        """Announce what a turn sends again."""
        recalled = partial(
            events.Recalled,
            turn_id=turn_id,
            ids=found.ids,
            scores=found.scores,
            words=found.words,
            tokens=found.tokens,
        )
        self._state.announce(lambda: recalled)

    def apply_compression(self, ready: CompressionReady) -> None:
        """Apply a running turn's own compression and reply with the zones to send."""
        turn = self.running
        if turn is None or turn.id != ready.turn_id:
            ready.reply.set_error(TurnCancelled("the turn has ended"))
            return
        try:
            self._state.apply_compression(ready.result)
        except Exception as error:  # noqa: BLE001 - what can't be put in place ends its turn
            ready.reply.set_error(error)
            return
        ready.reply.set(self._state.zones_before(turn.after))

    def store_round(self, round: RoundFinished) -> None:
        """Store a round of a running turn, and reply with the zones of the next request."""
        turn = self.running
        if turn is None or turn.id != round.turn_id:
            round.reply.set_error(TurnCancelled("the turn has ended"))
            return
        try:
            stored = self._store_round(turn, round)
        except Exception as error:  # noqa: BLE001 - a round that can't be stored ends its turn
            round.reply.set_error(error)
            return
        if self._state.journal is not None:
            self._state.journal.set_running_turn(turn.initial_checkpoint())
        self._state.on_committed(lambda error: round.reply.set(Failure(error) if error else stored))

    def _store_round(self, turn: Turn, round: RoundFinished) -> RoundStored:
        self._record_usage(turn, round.completion, round)
        messages: Sequence[TurnMessage] = round.messages
        if turn.request.stores:
            messages = self._store(turn, messages)
        self._state.release_ids(turn.pending)
        turn.pending = self._take_joining(turn)
        if turn.task is not None:
            turn.task.begin_round(turn.pending)
        zones = self._state.zones_before(turn.after)
        return RoundStored(zones, turn.stored_ids, messages)

    def _take_joining(self, turn: Turn) -> tuple[TurnMessage, ...]:
        """Take the messages of the waiting turns that join this one."""
        said: tuple[TurnMessage, ...] = ()
        while self.waiting and self.waiting[0].can_join():
            joining = self.waiting.popleft()
            if joining.timer is not None:
                joining.timer.cancel()
            said += joining.pending
            turn.replies += joining.replies
        return said

    # Ending.

    def finish(self, report: TurnFinished) -> Turn | None:
        """Handle the end of a task and return its turn; None if it has ended before.

        `start_next` begins the next one.
        """
        turn = self.running
        if turn is None or turn.id != report.turn_id:
            return None
        if report.completion is None or report.answer is None:
            error = turn.abort_reason or report.error
            self._finish_failed(turn, error or TurnCancelled("the turn was cancelled"))
            return turn
        try:
            self._complete(turn, report)
        except Exception as error:  # noqa: BLE001 - an answer that can't be stored ends its turn all the same
            self._fail(turn, error)
        return turn

    def _complete(self, turn: Turn, report: TurnFinished) -> None:
        completion, answer = report.completion, report.answer
        assert completion is not None  # noqa: S101 - `finish` has seen to that
        assert answer is not None  # noqa: S101
        self._record_usage(turn, completion, report)
        if turn.request.stores:
            said = TurnMessage(answer, completion.message)
            (stored,) = self._store(turn, (said,), ends_with=completion)
            completion = completion.model_copy(update={"message": stored.message})
        self._settle(turn, completion)

    def _record_usage(
        self, turn: Turn, completion: Completion, report: TurnFinished | RoundFinished
    ) -> None:
        stored = turn.request.stores
        self.cache_tracker.record_turn(turn.id, report.comparison, completion.usage, stored=stored)

    def _store(
        self, turn: Turn, heard: Sequence[TurnMessage], ends_with: Completion | None = None
    ) -> tuple[TurnMessage, ...]:
        """Store the turn's remaining messages; returns the results as stored.

        `ends_with` is the answer that ends the turn.
        """
        state = self._state
        heard = state.with_unique_ids(heard)
        said = (*turn.pending, *heard)
        last = ends_with is not None
        answer = encode_completion(ends_with) if ends_with and state.journal is not None else None
        key = turn.request.key if last else None
        used = ends_with.turn if ends_with else None
        state.store_turn(said, after=turn.after, answer=answer, used=used, key=key)
        state.release_ids(turn.pending)
        turn.pending, turn.after = (), said[-1].record.id
        turn.stored_ids |= {each.record.id for each in said}
        return heard

    def _settle(self, turn: Turn, completion: Completion) -> None:
        self._release(turn)

        def settle(unkept: BaseException | None) -> None:
            error = _with_answer(unkept, completion)
            if turn.channel is not None:
                turn.channel.end(completion=None if error else completion, error=error)
            for reply in turn.replies:
                reply.set(Failure(error) if error else completion)

        self._state.on_committed(settle)

    def _finish_failed(self, turn: Turn, error: BaseException) -> None:
        try:
            kept = self._keep_partial(turn)
        except Exception as unkept:  # noqa: BLE001 - nor may what arrived of it keep a turn from its end
            self._fail(turn, unkept)
        else:
            self._fail(turn, error, partial_message=kept)

    def _keep_partial(self, turn: Turn) -> Message | None:
        """Keep the partial answer of an aborted turn, if its policy says so."""
        checkpoint = turn.checkpoint()
        if checkpoint.answer is None:
            return None
        arrived = checkpoint.answer_and_results()[len(checkpoint.pending_messages) :]
        if not arrived:
            return None
        (kept, *_) = self._store(turn, to_turn_messages(arrived))
        comparison = turn.task.comparison if turn.task else None
        if comparison is not None:
            self.cache_tracker.remember(comparison.to_sent_request(Usage(), stored=True))
        return kept.message

    def _fail(
        self, turn: Turn, error: BaseException, *, partial_message: Message | None = None
    ) -> None:
        self._release(turn)
        if isinstance(error, TurnCancelled):
            self._state.announce(lambda: partial(events.Cancelled, turn_id=turn.id))
        else:
            self._state.announce(lambda: partial(events.TurnFailed, turn_id=turn.id, error=error))

        def tell(lost: BaseException | None) -> None:
            turn.fail(lost or error, partial_message=None if lost else partial_message)

        self._state.on_committed(tell)

    def _release(self, turn: Turn) -> None:
        self._state.release_ids(turn.pending)
        if turn is self.running:
            self.running = None
            if self._state.journal is not None:
                self._state.journal.set_running_turn(None)
        if turn.timer is not None:
            turn.timer.cancel()

    # Cancelling.

    def cancel(self, turn_id: str | None, error: AgentContextError | None = None) -> bool:
        """End the turn with this id, or the running one for None; False if there is none."""
        error = error or TurnCancelled("the turn was cancelled")
        turn = self.running
        if turn is not None and turn_id in {None, turn.id}:
            self._abort_running(error, keep=turn.keep_partial)
            return True
        for turn in self.waiting:
            if turn.id == turn_id:
                self.waiting.remove(turn)
                self._fail(turn, error)
                return True
        return False

    def cancel_request(self, asked: object) -> None:
        """Cancel the turn that this message started, or that has this id."""
        for turn in (self.running, *self.waiting):
            if turn is not None and (turn.request.ask is asked or turn.id == asked):
                self.cancel(turn.id, TurnCancelled("nobody waits for the turn any more"))
                return

    def time_out(self, turn_id: str) -> None:
        """Fail a turn whose deadline has passed."""
        for turn in (self.running, *self.waiting):
            if turn is not None and turn.id == turn_id:
                seconds = turn.options.timeout
                self.cancel(turn_id, TurnTimeout(f"the turn took longer than {seconds} s"))
                return

    def _abort_running(self, error: AgentContextError, *, keep: bool) -> None:
        turn = self.running
        if turn is None or turn.abort_reason is not None:
            return
        turn.abort_reason, turn.keep_partial = error, keep
        turn.cancel_task()
        post, late = self._post, TurnFinished(turn.id, error=error)
        io_loop().call_later(_GRACE, lambda: post(late))

    def close(self, error: BaseException) -> None:
        """Cancel everything: the conversation stops."""
        waiting, self.waiting = self.waiting, deque()
        turn = self.running
        if turn is not None:
            turn.cancel_task()
            self._finish_failed(turn, error)
        for turn in waiting:
            self._fail(turn, error)

    def drop(self, error: BaseException) -> None:
        """Drop every turn without storing anything: memory and store differ."""
        waiting, self.waiting = self.waiting, deque()
        running, self.running = self.running, None
        for turn in (running, *waiting):
            if turn is not None:
                turn.cancel_task()
                turn.fail(error)


def _with_answer(error: BaseException | None, completion: Completion) -> BaseException | None:
    """The error, with the paid answer that could not be stored."""
    if not isinstance(error, StoreError):
        return error
    own = copy.copy(error)  # other turns get the same one
    own.completion = completion
    own.__cause__ = error
    return own


def _to_vector(messages: object) -> PersistentVector:
    return PersistentVector.of(said.record for said in to_turn_messages(messages))
