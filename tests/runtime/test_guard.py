from threading import Thread

from agent_context.runtime import inside, is_inside


def test_a_block_is_inside_its_key_and_no_other() -> None:
    with inside("a"):
        assert is_inside("a")
        assert not is_inside("b")

    assert not is_inside("a")


def test_blocks_nest() -> None:
    with inside("a"), inside("b"), inside("a"):
        assert is_inside("a")
        assert is_inside("b")

    assert not is_inside("a")


def test_a_block_is_left_by_an_exception_too() -> None:
    try:
        with inside("a"):
            raise ValueError  # noqa: TRY301
    except ValueError:
        pass

    assert not is_inside("a")


def test_another_thread_is_not_inside() -> None:
    seen: list[bool] = []

    with inside("a"):
        thread = Thread(target=lambda: seen.append(is_inside("a")))
        thread.start()
        thread.join()

    assert seen == [False]
