"""Run the commands and snippets of a document, and write what they print where it is shown.

    scripts/shown docs/tutorial.md docs/howto.md

In a document, ```console blocks hold commands after "$ " with their output below, ```python blocks
are run as they are and ```pycon blocks as doctests, all in one empty folder and in their order.
"""

import doctest
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(console|python|pycon)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """A command of a document with what is shown below it and what it printed."""

    command: str
    shown: str
    printed: str
    exit_code: int


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Every command of a console block, and what is shown below it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        words = 1 + next((i for i, line in enumerate(lines) if not line.endswith("\\\n")), 0)
        yield "".join(lines[:words]).rstrip("\n"), "".join(lines[words:])


def run_command(command: str, shown: str, folder: Path) -> Ran:
    """One command in a shell that finds the programs of this environment first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ran(command, shown, done.stdout, done.returncode)


def run_pycon(body: str, names: dict[str, Any], where: str) -> None:
    """A session with the interpreter, whose answers must be the ones shown."""
    test = doctest.DocTestParser().get_doctest(body, names, where, where, 0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    output: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=flags).run(
        test, out=output.append, clear_globs=False
    )
    names.update(test.globs)
    if outcome.failed:
        raise AssertionError("".join(output))


def run_document(text: str, folder: Path, where: str) -> Iterator[tuple[re.Match[str], list[Ran]]]:
    """Every block of a document, run in its order; yields what the console blocks printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with chdir(folder):
        for block in BLOCK.finditer(text):
            kind, body = block.groups()
            if kind == "console":
                yield block, [run_command(*part, folder) for part in commands(body)]
            elif kind == "pycon":
                run_pycon(body, names, where)
            else:
                exec(compile(body, where, "exec"), names)


def rewritten(text: str, folder: Path, where: str) -> str:
    """The document with the output of its commands as it is now."""
    parts, end = [], 0
    for block, ran in run_document(text, folder, where):
        for one in ran:
            if one.exit_code:
                raise SystemExit(f"{where}: {one.command}\n{one.printed}")
        fresh = "".join(f"$ {one.command}\n{trimmed(one.printed)}" for one in ran)
        parts += [text[end : block.start(2)], fresh]
        end = block.end(2)
    return "".join([*parts, text[end:]])


def trimmed(printed: str) -> str:
    """Without spaces at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def main(files: list[str]) -> None:
    for name in files:
        file = Path(name).resolve()
        with tempfile.TemporaryDirectory() as folder:
            file.write_text(rewritten(file.read_text(), Path(folder), file.name))
        print(f"{file.name}: every command run, output written")


if __name__ == "__main__":
    main(sys.argv[1:])
