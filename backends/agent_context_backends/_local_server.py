"""The program that serves the embedded model. Run as a child; it ends when its stdin does.

One JSON object comes in, on the first line of stdin: the settings, its key among them, which so is
in nobody's list of processes. One goes out, on stdout, when the model is loaded: the address.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Serve until stdin ends."""
    settings = json.loads(sys.stdin.readline())
    server = _start(settings)
    sys.stdout.write(json.dumps({"address": server.listening_address}) + "\n")
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # nobody reads on
    os.dup2(nowhere, 2)
    sys.stdin.read()
    os._exit(0)  # the server's own end would wait for its open streams


def _start(settings: dict[str, Any]) -> Any:  # noqa: ANN401 - xllamacpp has no types
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model_path"]
    params.model_alias = {settings["model"]}
    params.api_keys = [settings["api_key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = settings["context_window"] * settings["slots"]
    params.n_parallel = settings["slots"]
    params.use_jinja = True
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
