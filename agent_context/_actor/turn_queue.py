"""The turns of a conversation: one runs, the others wait, and each ends exactly once.

All of this is bookkeeping inside the actor; the work itself is a job on the I/O loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from agent_context import events
from agent_context._actor import commands
from agent_context._actor.changes import to_messages
from agent_context._actor.config import ActorConfig
from agent_context._actor.model_client import ModelClient
from agent_context._actor.prompt_cache_tracker import PromptCacheTracker
from agent_context._actor.replay import encode_completion
from agent_context._actor.state import ActorState, to_records
from agent_context._actor.turn import (
    CompressionReady,
    PrefixChanged,
    RoundFinished,
    Turn,
    TurnEnded,
    TurnTimedOut,
)
from agent_context._actor.turn_task import RoundStored, TurnTask, WriteCheckpoint, run_turn
from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context._runtime import Failure, IoTask, Reply, io_loop
from agent_context._validation import check_type
from agent_context.compression.executor import CompressionResult
from agent_context.errors import (
    AgentContextError,
    ConversationBusy,
    InvalidOptions,
    TurnCancelled,
    TurnTimeout,
)
from agent_context.messages import Completion, Message
from agent_context.options import SendOptions
from agent_context.protocol import Send, SendStream
from agent_context.ref import AskCancelled
from agent_context.stream import Channel, Stream
from agent_context.tools.loop import ToolLoop

__all__ = ["TurnQueue"]

_MOST_WAITING: Final = 1_000
_GRACE: Final = 5.0
"""Seconds that a cancelled call has to end before the turn ends without it."""


class TurnQueue:
    """Who is next, and what becomes of what arrived."""

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
        """How many turns run and wait."""
        return int(self.running is not None), len(self.waiting)

    def use_config(self, config: ActorConfig, client: ModelClient) -> None:
        """Begin every later turn by these, those that wait already too."""
        self._config, self._client = config, client
        for turn in self.waiting:
            chosen = turn.asked.options.merged_over(config.options)
            turn.options = chosen.model_copy(update={"model": config.options.model})

    def accept(self, asked: Send | SendStream) -> Reply[Completion] | Stream:
        """Begin or queue a turn, by `options.on_busy`."""
        options = check_type("options", asked.options, SendOptions).merged_over(
            self._config.options
        )
        if asked.loop is not None:
            check_type("loop", asked.loop, ToolLoop)
        turn = Turn(asked, options, self._state.to_records(asked.messages))
        turn.context = to_records(asked.context)
        turn.history = (
            None if asked.history is None else PersistentVector.of(to_records(asked.history))
        )
        turn.keep_partial = options.on_abort == "keep"
        if asked.key is not None and options.commit == "manual":
            raise InvalidOptions("key: commit='manual' stores no answer that could be given again")
        turn.deadline = time.monotonic() + options.timeout
        answer = self._answer(turn)
        if self.running is None:
            self._begin(turn)
        else:
            self._queue(turn)
        return answer

    def _answer(self, turn: Turn) -> Reply[Completion] | Stream:
        if isinstance(turn.asked, Send):
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
        if len(self.waiting) >= _MOST_WAITING:
            raise ConversationBusy(f"{_MOST_WAITING} turns are waiting already")
        self._watch(turn)
        if first:
            self.waiting.appendleft(turn)
        else:
            self.waiting.append(turn)

    def _steer(self, turn: Turn) -> None:
        """Join the turn that goes next if it steers too, or else go next."""
        following = self.waiting[0] if self.waiting else None
        if following is None or not (following.can_join() and turn.can_join()):
            self._wait(turn, first=True)
            return
        following.records += turn.records
        following.replies += turn.replies

    def _watch(self, turn: Turn) -> None:
        post, turn_id = self._post, turn.id
        turn.timer = io_loop().call_later(turn.options.timeout, lambda: post(TurnTimedOut(turn_id)))

    def _begin(self, turn: Turn) -> None:
        state = self._state
        history = turn.history
        said = turn.records or turn.context or turn.options.scratch or history
        if not (len(state.zones) or said):
            self._fail(turn, InvalidOptions("there is nothing to send: no message was ever said"))
            return
        if turn.timer is not None:
            turn.timer.cancel()
        incremental = state.zones.incremental
        turn.after = incremental[len(incremental) - 1].id if len(incremental) else None
        turn.call = TurnTask(
            client=self._client,
            options=turn.options,
            strategy=self._config.strategy,
            editor=self._config.editor,
            records=turn.records,
            context=turn.context,
            history=None if history is None else Zones(state.zones.immutable, EMPTY, history),
            loop=turn.asked.loop,
            channel=turn.channel,
            before=self.cache_tracker.previous_request(),
            broken=lambda report: self._post(PrefixChanged(turn.id, report)),
            note=self._checkpoint_writer(turn),
        )
        self.running = turn
        turn.job = spawn_turn_task(
            turn, turn.call, state.zones, self._record_start(turn), self._post
        )

    def _record_start(self, turn: Turn) -> Reply[None] | None:
        """What settles when it is kept that the turn runs; None if that is kept nowhere."""
        journal = self._state.journal
        if journal is None:
            return None
        noted: Reply[None] = Reply()
        journal.set_running_turn(turn.initial_checkpoint())
        journal.on_committed(lambda error: noted.set(Failure(error) if error else None))
        return noted

    def _checkpoint_writer(self, turn: Turn) -> WriteCheckpoint | None:
        """Writes down what is known of the turn now; for the job to use."""
        journal = self._state.journal
        return None if journal is None else lambda: journal.checkpoint(turn.checkpoint())

    def finish(self, report: TurnEnded) -> Turn | None:
        """Take in a job's end and return its turn; None for one that has ended before.

        `start_next` begins the next one.
        """
        turn = self.running
        if turn is None or turn.id != report.turn_id:
            return None
        if report.completion is None:
            error = turn.abort_reason or report.error
            self._finish_failed(turn, error or TurnCancelled("the turn was cancelled"))
            return turn
        try:
            self._complete(turn, report.completion)
        except Exception as error:  # noqa: BLE001 - an answer that can't be stored ends its turn all the same
            self._fail(turn, error)
        return turn

    def _finish_failed(self, turn: Turn, error: BaseException) -> None:
        try:
            self._keep_partial(turn, error)
        except Exception as unkept:  # noqa: BLE001 - nor may what arrived of it keep a turn from its end
            self._fail(turn, unkept)

    def store_round(self, ended: RoundFinished) -> None:
        """Store a round of a running turn, and answer with what the next call says."""
        turn = self.running
        if turn is None or turn.id != ended.turn_id:
            ended.reply.set_error(TurnCancelled("the turn has ended"))
            return
        try:
            self._record_usage(turn, ended.completion)
            said = (ended.completion.message, *ended.results)
            if turn.options.commit == "auto":
                said = self._store(turn, *said)
            turn.records = self._take_joining(turn)
            if turn.call is not None:
                turn.call.begin_round(turn.records)
        except Exception as error:  # noqa: BLE001 - a round that can't be stored ends its turn
            ended.reply.set_error(error)
            return
        zones = commands.zones_before(self._state.zones, turn.after)
        kept = RoundStored(zones, turn.stored_ids, said[0], said[1:])
        if self._state.journal is not None:
            self._state.journal.set_running_turn(turn.initial_checkpoint())
        self._state.on_committed(lambda error: ended.reply.set(Failure(error) if error else kept))

    def _take_joining(self, turn: Turn) -> tuple[StoredMessage, ...]:
        """What the turns at hand say that want to join this one, which answers them too."""
        said: tuple[StoredMessage, ...] = ()
        while self.waiting and self.waiting[0].can_join():
            joining = self.waiting.popleft()
            self._release(joining)
            said += joining.records
            turn.replies += joining.replies
        return said

    def _complete(self, turn: Turn, completion: Completion) -> None:
        self._record_usage(turn, completion)
        if turn.options.commit == "auto":
            (message,) = self._store(turn, completion.message, of=completion)
            completion = completion.model_copy(update={"message": message})
        self._settle(turn, completion)

    def _record_usage(self, turn: Turn, completion: Completion) -> None:
        if turn.call is None:
            return
        stored = turn.options.commit == "auto"
        turn.call.client.calibrate(turn.call.weighed, completion)
        self.cache_tracker.record_turn(turn.id, turn.call.prefix, completion.usage, stored=stored)

    def _store(
        self, turn: Turn, *heard: Message, of: Completion | None = None
    ) -> tuple[Message, ...]:
        """Keep what the turn said and heard since; returns what it heard as it was stored.

        `of` is the answer that ends the turn.
        """
        said = self._state.to_records((*(r.message for r in turn.records), *heard))
        answer = (
            encode_completion(of) if of is not None and self._state.journal is not None else None
        )
        key = turn.asked.key if of is not None else None
        commands.store_turn_messages(self._state, said, after=turn.after, answer=answer, key=key)
        turn.records, turn.after = (), said[-1].id
        turn.stored_ids |= {record.id for record in said}
        return to_messages(said[-len(heard) :])

    def _settle(self, turn: Turn, completion: Completion) -> None:
        self._release(turn)

        def settle(error: BaseException | None) -> None:
            if turn.channel is not None:
                turn.channel.end(completion=None if error else completion, error=error)
            for reply in turn.replies:
                reply.set(Failure(error) if error else completion)

        self._state.on_committed(settle)

    def _keep_partial(self, turn: Turn, error: BaseException) -> None:
        """End a turn that didn't get to its end: keep what had arrived, if it may be kept."""
        kept, draft = None, turn.checkpoint()
        if draft.answer is not None and (
            left := draft.answer_and_results()[len(draft.pending_messages) :]
        ):
            kept = self._store(turn, *left)[0]
            self.cache_tracker.remember(turn.call.prefix if turn.call else None, stored=True)
        self._fail(turn, error, kept=kept)

    def _fail(self, turn: Turn, error: BaseException, *, kept: Message | None = None) -> None:
        self._release(turn)
        if isinstance(error, TurnCancelled):
            self._state.announce(lambda: partial(events.Cancelled, turn_id=turn.id))
        else:
            self._state.announce(lambda: partial(events.TurnFailed, turn_id=turn.id, error=error))
        self._state.on_committed(lambda lost: turn.fail(lost or error, kept=None if lost else kept))

    def _release(self, turn: Turn) -> None:
        if turn is self.running:
            self.running = None
            if self._state.journal is not None:
                self._state.journal.set_running_turn(None)
        if turn.timer is not None:
            turn.timer.cancel()

    def start_next(self) -> None:
        """Begin the turn that waits longest, unless one runs."""
        while self.running is None and self.waiting:
            self._begin(self.waiting.popleft())

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

    def cancel_asked(self, asked: object) -> None:
        """Cancel the turn that was begun by this message or has this id."""
        for turn in (self.running, *self.waiting):
            if turn is not None and (turn.asked is asked or turn.id == asked):
                self.cancel(turn.id, TurnCancelled("nobody waits for the turn any more"))
                return

    def time_out(self, turn_id: str) -> None:
        """The deadline of this turn has passed."""
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
        post, late = self._post, TurnEnded(turn.id, error=error)
        io_loop().call_later(_GRACE, lambda: post(late))

    def apply_compression(self, wanted: CompressionReady) -> None:
        """Put a running turn's own compression in place and answer with what it may send now."""
        turn = self.running
        if turn is None or turn.id != wanted.turn_id:
            wanted.reply.set_error(TurnCancelled("the turn has ended"))
            return
        try:
            commands.apply_compression(self._state, wanted.compaction)
        except Exception as error:  # noqa: BLE001 - what can't be put in place ends its turn
            wanted.reply.set_error(error)
            return
        wanted.reply.set(commands.zones_before(self._state.zones, turn.after))

    def close(self, error: BaseException) -> None:
        """End everything now: the conversation stops."""
        waiting, self.waiting = self.waiting, deque()
        turn = self.running
        if turn is not None:
            turn.cancel_task()
            self._finish_failed(turn, error)
        for turn in waiting:
            self._fail(turn, error)

    def drop(self, error: BaseException) -> None:
        """End everything without a trace: what is in memory is not what is kept."""
        waiting, self.waiting = self.waiting, deque()
        running, self.running = self.running, None
        for turn in (running, *waiting):
            if turn is not None:
                turn.cancel_task()
                turn.fail(error)


def spawn_turn_task(
    turn: Turn,
    call: TurnTask,
    zones: Zones,
    noted: Reply[None] | None,
    post: Callable[[object], bool],
) -> IoTask:
    """Begin the job. It calls nobody before `noted` is settled."""
    turn_id, seconds = turn.id, turn.deadline - time.monotonic()

    async def swap(compaction: CompressionResult) -> Zones:
        reply: Reply[Zones] = Reply()
        post(CompressionReady(turn_id, compaction, reply))
        return await reply

    async def keep(completion: Completion, results: tuple[Message, ...]) -> RoundStored:
        reply: Reply[RoundStored] = Reply()
        post(RoundFinished(turn_id, completion, results, reply))
        return await reply

    async def work() -> None:
        # On the loop itself: a timer of its own would cost two calls across threads.
        overdue = asyncio.get_running_loop().call_later(seconds, post, TurnTimedOut(turn_id))
        try:
            if noted is not None:
                await noted
            post(TurnEnded(turn_id, completion=await run_turn(call, zones, swap, keep)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            post(TurnEnded(turn_id, error=error))
        finally:
            overdue.cancel()

    job = io_loop().spawn(work)
    cancelled = TurnEnded(turn_id, error=TurnCancelled("the turn's job was cancelled"))
    job.add_done_callback(lambda _: post(cancelled))
    return job
