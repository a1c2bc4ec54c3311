"""On how many examples properties are tried: by the profile, and by what an example costs.

`dev` is for every day, `ci` for `CI=true`; `--hypothesis-profile ci` chooses it at home.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, settings

__all__ = ["examples", "load_profile"]


def load_profile() -> None:
    """Choose how many examples there are, before tests are read."""
    # How fast examples come says something of the machine, and nothing of what is tested.
    patient: dict[str, Any] = {
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    settings.register_profile("dev", max_examples=20, **patient)
    settings.register_profile("ci", max_examples=100, print_blob=True, **patient)
    settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


def examples(times: float = 1, *, allow: Iterable[HealthCheck] = (), **options: Any) -> settings:
    """Settings with `times` as many examples as the profile gives.

    Args:
        times: More than 1 where examples are cheap, less where each takes long.
        allow: Health checks that this test may fail.
        options: Further settings of hypothesis, such as `stateful_step_count`.
    """
    profile = settings()
    return settings(
        max_examples=max(1, round(times * profile.max_examples)),
        suppress_health_check=[*profile.suppress_health_check, *allow],
        **options,
    )
