"""Skills in directories: those that ship with the tests, and those that a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[1] / "data" / "skills"


@pytest.fixture
def make_skill(tmp_path: Path) -> MakeSkill:
    return MakeSkill(tmp_path / "skills")


class MakeSkill:
    """Writes skills below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def __call__(
        self, name: str, head: str | None = None, body: str = "Do it.", **files: str | bytes
    ) -> Path:
        """A skill's directory; `files` have `__` for `/` and a last `_` for the dot."""
        folder = self.root / name
        folder.mkdir()
        head = f"name: {name}\ndescription: About {name}." if head is None else head
        (folder / "SKILL.md").write_bytes(f"---\n{head}\n---\n{body}".encode())
        for key, content in files.items():
            path = folder / ".".join(key.replace("__", "/").rsplit("_", 1))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder
