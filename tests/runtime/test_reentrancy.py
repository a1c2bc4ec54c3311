from threading import Thread

from agent_context._runtime import in_scope, reentrancy_scope


def test_a_block_is_inside_its_key_and_no_other() -> None:
    with reentrancy_scope("a"):
        assert in_scope("a")
        assert not in_scope("b")

    assert not in_scope("a")


def test_blocks_nest() -> None:
    with reentrancy_scope("a"), reentrancy_scope("b"), reentrancy_scope("a"):
        assert in_scope("a")
        assert in_scope("b")

    assert not in_scope("a")


def test_a_block_is_left_by_an_exception_too() -> None:
    try:
        with reentrancy_scope("a"):
            raise ValueError  # noqa: TRY301
    except ValueError:
        pass

    assert not in_scope("a")


def test_another_thread_is_not_inside() -> None:
    seen: list[bool] = []

    with reentrancy_scope("a"):
        thread = Thread(target=lambda: seen.append(in_scope("a")))
        thread.start()
        thread.join()

    assert seen == [False]
