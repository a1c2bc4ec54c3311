"""The turns of a conversation: one runs, the others wait, and each ends exactly once.

All of this is bookkeeping inside the actor; the work itself is a job on the I/O loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from agent_context import events
from agent_context.checks import checked
from agent_context.conversation import edits
from agent_context.conversation.calls import Call, Note, RoundKept
from agent_context.conversation.changes import views
from agent_context.conversation.exchange import Exchange
from agent_context.conversation.job import spawned
from agent_context.conversation.log import answer_of
from agent_context.conversation.prefixes import Books
from agent_context.conversation.settings import Settings
from agent_context.conversation.state import State, at_rest
from agent_context.conversation.turn import (
    PrefixLost,
    RoundEnded,
    SwapWanted,
    Turn,
    TurnEnded,
    TurnOverdue,
)
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
from agent_context.records import Record
from agent_context.ref import Abandoned
from agent_context.rounds import ToolLoop
from agent_context.runtime import Failed, Reply, io_loop
from agent_context.stream import Channel, Stream
from agent_context.vector import EMPTY, Vector
from agent_context.zones import Zones

__all__ = ["Turns"]

_MOST_WAITING: Final = 1_000
_GRACE: Final = 5.0
"""Seconds that a cancelled call has to end before the turn ends without it."""


class Turns:
    """Who is next, and what becomes of what arrived."""

    __slots__ = ("_exchange", "_post", "_settings", "_state", "books", "running", "waiting")

    def __init__(
        self,
        state: State,
        settings: Settings,
        exchange: Exchange,
        post: Callable[[object], bool],
    ) -> None:
        self._state = state
        self._settings = settings
        self._exchange = exchange
        self._post = post
        self.books = Books(state)
        self.running: Turn | None = None
        self.waiting: deque[Turn] = deque()

    def count(self) -> tuple[int, int]:
        """How many turns run and wait."""
        return int(self.running is not None), len(self.waiting)

    def use(self, settings: Settings, exchange: Exchange) -> None:
        """Begin every later turn by these, those that wait already too."""
        self._settings, self._exchange = settings, exchange
        for turn in self.waiting:
            chosen = turn.asked.options.over(settings.options)
            turn.options = chosen.model_copy(update={"model": settings.options.model})

    def accept(self, asked: Send | SendStream) -> Reply[Completion] | Stream:
        """Begin or queue a turn, by `options.on_busy`."""
        options = checked("options", asked.options, SendOptions).over(self._settings.options)
        if asked.loop is not None:
            checked("loop", asked.loop, ToolLoop)
        turn = Turn(asked, options, self._state.at_rest_all(asked.messages))
        turn.context = at_rest(asked.context)
        turn.history = None if asked.history is None else Vector.of(at_rest(asked.history))
        turn.keep = options.on_abort == "keep"
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
        return Stream(turn_id, turn.channel, lambda: post(Abandoned(turn_id)))

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
        if following is None or not (following.joins() and turn.joins()):
            self._wait(turn, first=True)
            return
        following.records += turn.records
        following.replies += turn.replies

    def _watch(self, turn: Turn) -> None:
        post, turn_id = self._post, turn.id
        turn.timer = io_loop().call_later(turn.options.timeout, lambda: post(TurnOverdue(turn_id)))

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
        turn.call = Call(
            exchange=self._exchange,
            options=turn.options,
            strategy=self._settings.strategy,
            editor=self._settings.editor,
            records=turn.records,
            context=turn.context,
            history=None if history is None else Zones(state.zones.immutable, EMPTY, history),
            loop=turn.asked.loop,
            channel=turn.channel,
            before=self.books.before(),
            broken=lambda report: self._post(PrefixLost(turn.id, report)),
            note=self._noting(turn),
        )
        self.running = turn
        turn.job = spawned(turn, turn.call, state.zones, self._noted(turn), self._post)

    def _noted(self, turn: Turn) -> Reply[None] | None:
        """What settles when it is kept that the turn runs; None if that is kept nowhere."""
        journal = self._state.journal
        if journal is None:
            return None
        noted: Reply[None] = Reply()
        journal.running(turn.begun())
        journal.when_kept(lambda error: noted.set(Failed(error) if error else None))
        return noted

    def _noting(self, turn: Turn) -> Note | None:
        """Writes down what is known of the turn now; for the job to use."""
        journal = self._state.journal
        return None if journal is None else lambda: journal.checkpoint(turn.draft())

    def ended(self, report: TurnEnded) -> Turn | None:
        """Take in a job's end and return its turn; None for one that has ended before.

        `go_on` begins the next one.
        """
        turn = self.running
        if turn is None or turn.id != report.turn_id:
            return None
        if report.completion is None:
            error = turn.why_aborted or report.error
            self._end_badly(turn, error or TurnCancelled("the turn was cancelled"))
            return turn
        try:
            self._complete(turn, report.completion)
        except Exception as error:  # noqa: BLE001 - an answer that can't be stored ends its turn all the same
            self._fail(turn, error)
        return turn

    def _end_badly(self, turn: Turn, error: BaseException) -> None:
        try:
            self._break_off(turn, error)
        except Exception as unkept:  # noqa: BLE001 - nor may what arrived of it keep a turn from its end
            self._fail(turn, unkept)

    def round(self, ended: RoundEnded) -> None:
        """Store a round of a running turn, and answer with what the next call says."""
        turn = self.running
        if turn is None or turn.id != ended.turn_id:
            ended.reply.set_error(TurnCancelled("the turn has ended"))
            return
        try:
            self._heard(turn, ended.completion)
            said = (ended.completion.message, *ended.results)
            if turn.options.commit == "auto":
                said = self._store(turn, *said)
            turn.records = self._steered(turn)
            if turn.call is not None:
                turn.call.begin_round(turn.records)
        except Exception as error:  # noqa: BLE001 - a round that can't be stored ends its turn
            ended.reply.set_error(error)
            return
        zones = edits.seen(self._state.zones, turn.after)
        kept = RoundKept(zones, turn.own, said[0], said[1:])
        if self._state.journal is not None:
            self._state.journal.running(turn.begun())
        self._state.when_kept(lambda error: ended.reply.set(Failed(error) if error else kept))

    def _steered(self, turn: Turn) -> tuple[Record, ...]:
        """What the turns at hand say that want to join this one, which answers them too."""
        said: tuple[Record, ...] = ()
        while self.waiting and self.waiting[0].joins():
            joining = self.waiting.popleft()
            self._release(joining)
            said += joining.records
            turn.replies += joining.replies
        return said

    def _complete(self, turn: Turn, completion: Completion) -> None:
        self._heard(turn, completion)
        if turn.options.commit == "auto":
            (message,) = self._store(turn, completion.message, of=completion)
            completion = completion.model_copy(update={"message": message})
        self._settle(turn, completion)

    def _heard(self, turn: Turn, completion: Completion) -> None:
        if turn.call is None:
            return
        stored = turn.options.commit == "auto"
        turn.call.exchange.learn(turn.call.weighed, completion)
        self.books.enter(turn.id, turn.call.prefix, completion.usage, stored=stored)

    def _store(
        self, turn: Turn, *heard: Message, of: Completion | None = None
    ) -> tuple[Message, ...]:
        """Keep what the turn said and heard since; returns what it heard as it was stored.

        `of` is the answer that ends the turn.
        """
        said = self._state.at_rest_all((*(r.message for r in turn.records), *heard))
        answer = answer_of(of) if of is not None and self._state.journal is not None else None
        key = turn.asked.key if of is not None else None
        edits.store(self._state, said, after=turn.after, answer=answer, key=key)
        turn.records, turn.after = (), said[-1].id
        turn.own |= {record.id for record in said}
        return views(said[-len(heard) :])

    def _settle(self, turn: Turn, completion: Completion) -> None:
        self._release(turn)

        def settle(error: BaseException | None) -> None:
            if turn.channel is not None:
                turn.channel.end(completion=None if error else completion, error=error)
            for reply in turn.replies:
                reply.set(Failed(error) if error else completion)

        self._state.when_kept(settle)

    def _break_off(self, turn: Turn, error: BaseException) -> None:
        """End a turn that didn't get to its end: keep what had arrived, if it may be kept."""
        kept, draft = None, turn.draft()
        if draft.answer is not None and (left := draft.left()[len(draft.said) :]):
            kept = self._store(turn, *left)[0]
            self.books.remember(turn.call.prefix if turn.call else None, stored=True)
        self._fail(turn, error, kept=kept)

    def _fail(self, turn: Turn, error: BaseException, *, kept: Message | None = None) -> None:
        self._release(turn)
        if isinstance(error, TurnCancelled):
            self._state.announce(lambda: partial(events.Cancelled, turn_id=turn.id))
        else:
            self._state.announce(lambda: partial(events.TurnFailed, turn_id=turn.id, error=error))
        self._state.when_kept(lambda lost: turn.fail(lost or error, kept=None if lost else kept))

    def _release(self, turn: Turn) -> None:
        if turn is self.running:
            self.running = None
            if self._state.journal is not None:
                self._state.journal.running(None)
        if turn.timer is not None:
            turn.timer.cancel()

    def go_on(self) -> None:
        """Begin the turn that waits longest, unless one runs."""
        while self.running is None and self.waiting:
            self._begin(self.waiting.popleft())

    def cancel(self, turn_id: str | None, error: AgentContextError | None = None) -> bool:
        """End the turn with this id, or the running one for None; False if there is none."""
        error = error or TurnCancelled("the turn was cancelled")
        turn = self.running
        if turn is not None and turn_id in {None, turn.id}:
            self._abort_running(error, keep=turn.keep)
            return True
        for turn in self.waiting:
            if turn.id == turn_id:
                self.waiting.remove(turn)
                self._fail(turn, error)
                return True
        return False

    def abandon(self, asked: object) -> None:
        """Cancel the turn that was begun by this message or has this id."""
        for turn in (self.running, *self.waiting):
            if turn is not None and (turn.asked is asked or turn.id == asked):
                self.cancel(turn.id, TurnCancelled("nobody waits for the turn any more"))
                return

    def overdue(self, turn_id: str) -> None:
        """The deadline of this turn has passed."""
        for turn in (self.running, *self.waiting):
            if turn is not None and turn.id == turn_id:
                seconds = turn.options.timeout
                self.cancel(turn_id, TurnTimeout(f"the turn took longer than {seconds} s"))
                return

    def _abort_running(self, error: AgentContextError, *, keep: bool) -> None:
        turn = self.running
        if turn is None or turn.why_aborted is not None:
            return
        turn.why_aborted, turn.keep = error, keep
        turn.end_job()
        post, late = self._post, TurnEnded(turn.id, error=error)
        io_loop().call_later(_GRACE, lambda: post(late))

    def swap(self, wanted: SwapWanted) -> None:
        """Put a running turn's own compression in place and answer with what it may send now."""
        turn = self.running
        if turn is None or turn.id != wanted.turn_id:
            wanted.reply.set_error(TurnCancelled("the turn has ended"))
            return
        try:
            edits.swap(self._state, wanted.compaction)
        except Exception as error:  # noqa: BLE001 - what can't be put in place ends its turn
            wanted.reply.set_error(error)
            return
        wanted.reply.set(edits.seen(self._state.zones, turn.after))

    def close(self, error: BaseException) -> None:
        """End everything now: the conversation stops."""
        waiting, self.waiting = self.waiting, deque()
        turn = self.running
        if turn is not None:
            turn.end_job()
            self._end_badly(turn, error)
        for turn in waiting:
            self._fail(turn, error)

    def drop(self, error: BaseException) -> None:
        """End everything without a trace: what is in memory is not what is kept."""
        waiting, self.waiting = self.waiting, deque()
        running, self.running = self.running, None
        for turn in (running, *waiting):
            if turn is not None:
                turn.end_job()
                turn.fail(error)
