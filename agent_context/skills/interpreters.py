"""How a script is run from a text that is already open, and still believes to be its file."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from agent_context.errors import SkillError
from agent_context.skills.scripts import Script

__all__ = ["PROGRAMS", "command"]

PROGRAMS: Mapping[str, Sequence[str]] = {
    ".js": ("node",),
    ".py": (sys.executable,),
    ".sh": ("bash", "sh"),
}
"""What runs scripts with these suffixes: the first that there is."""

_PYTHON = """
import os, sys
def source(descriptor):
    with os.fdopen(int(descriptor), "rb") as file:
        return file.read()
code = compile(source(sys.argv[1]), sys.argv[2], "exec", dont_inherit=True)
del sys.argv[:2]
__file__ = sys.argv[0]
sys.path[0] = os.path.dirname(__file__)
del os, sys, source
exec(code)
"""

_JAVASCRIPT = """
const [descriptor, path, ...args] = process.argv.slice(1);
const text = require('fs').readFileSync(Number(descriptor), 'utf8').replace(/^#!.*/, '');
const Module = require('module');
const main = new Module(path, null);
main.filename = path;
main.paths = Module._nodeModulePaths(require('path').dirname(path));
process.argv = [process.execPath, path, ...args];
process.mainModule = main;
main._compile(text, path);
"""

_OWN_PLACE = re.compile(rb"\$BASH_SOURCE\b(?!\[)|\$\{BASH_SOURCE(?:\[0\])?\}")


def command(
    script: Script, descriptor: int, args: Sequence[str], programs: Mapping[str, str]
) -> tuple[list[str], bytes]:
    """The arguments of a process that runs what it finds in `descriptor`, and what to put there.

    Raises `SkillError` for a script that nothing here runs.
    """
    suffix = PurePosixPath(script.name).suffix.lower()
    if suffix not in PROGRAMS:
        raise SkillError(f"script {script.name!r} can't be run: only {', '.join(PROGRAMS)} can")
    program = _program(script.name, (programs[suffix],) if suffix in programs else PROGRAMS[suffix])
    path = str(script.path)
    match suffix:
        case ".py":
            return [program, "-c", _PYTHON, str(descriptor), path, *args], script.source
        case ".js":
            said = ["-e", _JAVASCRIPT, "--", str(descriptor), path]
            return [program, *said, *args], script.source
        case _:
            # bash would say of a text that it is where it was read from, and `$0` is right.
            source = _OWN_PLACE.sub(b"${0}", script.source)
            return [program, "-c", f". /dev/fd/{descriptor}", path, *args], source


def _program(name: str, candidates: Sequence[str]) -> str:
    found = next(filter(None, map(shutil.which, candidates)), None)
    if found is None:
        raise SkillError(
            f"script {name!r} can't be run: there is no {' or '.join(candidates)} on this machine"
        )
    return found
