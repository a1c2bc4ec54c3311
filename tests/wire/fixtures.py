"""What vendors and compatible servers send when they misbehave."""

import json
from pathlib import Path
from typing import Any

_LINES = (Path(__file__).parents[1] / "data" / "wire_fixtures.jsonl").read_text("utf-8")
FIXTURES: dict[str, dict[str, Any]] = {
    fixture["id"]: fixture for fixture in map(json.loads, _LINES.splitlines())
}


def payload(name: str) -> Any:
    return FIXTURES[name]["payload"]
