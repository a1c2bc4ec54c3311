import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

PROLOGUE = """
import os, sys
from pykka import ActorRegistry
from agent_context.errors import ConversationClosed
from agent_context._runtime import *

class Talk(PoolActor):
    def on_receive(self, message):
        return message

def refused(function, *args):
    try:
        function(*args)
    except ConversationClosed as error:
        assert "spawn" in str(error)
        return True
    return False

async def nothing():
    pass

ref = Talk.start()
assert ref.ask("hello", timeout=20) == "hello"
io, delivery = io_loop(), SubscriberQueue(print)
assert io.spawn(nothing).wait(20)
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ref.ask("still here", timeout=20) == "still here"
    sys.exit(0)
"""


def in_child(checks: str) -> None:
    program = PROLOGUE + textwrap.dedent(checks)
    # -W: from Python 3.12 on, forking with threads is warned of, which is the point here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]

    finished = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)

    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_child_is_refused_by_the_actors_of_its_parent() -> None:
    in_child(
        """
        assert refused(ref.ask, "hello")
        assert refused(ref.tell, "hello")
        assert refused(ref.stop)
        assert not post(ref, "hello")
        assert ActorRegistry.get_all() == []
        """,
    )


def test_a_child_can_start_actors_of_its_own() -> None:
    in_child(
        """
        mine = Talk.start()
        assert mine.ask("hello", timeout=20) == "hello"
        assert ActorRegistry.get_all() == [mine]
        assert ActorRegistry.stop_all(timeout=20) == [True]
        """,
    )


def test_a_child_has_an_io_loop_and_subscribers_of_its_own() -> None:
    in_child(
        """
        assert refused(io.spawn, nothing)
        assert refused(io.offload, int)
        assert io_loop() is not io
        assert io_loop().spawn(nothing).wait(20)
        got = []
        mine = SubscriberQueue(got.append)
        mine.put(1)
        assert mine.flush(20) and got == [1]
        """,
    )
