"""The front door: `agent_context.__all__` is what is public there."""

from types import ModuleType

import agent_context


def test_all_is_what_is_public() -> None:
    for name in agent_context.__all__:
        getattr(agent_context, name)  # they are imported when they are used

    public = {
        name
        for name, value in vars(agent_context).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert public == set(agent_context.__all__)


def test_every_public_name_can_be_imported() -> None:
    missing = [name for name in agent_context.__all__ if not hasattr(agent_context, name)]

    assert missing == []
