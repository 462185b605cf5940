"""Write docs/api.md from docstrings and from the options of the commands; --check only compares."""

import inspect
import re
import sys
from pathlib import Path

import click

import gmkcf_dask
from gmkcf_dask.cli import main
from gmkcf_dask.estimators.models import PredictingClusterer

TARGET = Path(__file__).resolve().parents[1] / "docs" / "api.md"
WIDTH = 100
HEAD = """# Python names and commands

Everything public, written by `scripts/api` from the docstrings and the commands' own options.
"""
GROUPS = {
    "Estimators": lambda value: inspect.isclass(value) and hasattr(value, "fit"),
    "Pictures": lambda value: inspect.isclass(value) and value.__name__.endswith("Display"),
    "Functions": inspect.isfunction,
    "Other classes": inspect.isclass,
}
_NOT_ALL = (
    "`CoregSpectralClustering` has no place for new samples: neither `predict` nor `transform`."
)
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", flags=re.MULTILINE)
LISTED = {"Parameters", "Attributes", "Returns", "Raises", "Yields"}


def markdown(docstring: str) -> str:
    """A numpydoc docstring as Markdown: fields become lists, examples stay code."""
    head, *rest = SECTION.split(inspect.cleandoc(docstring) + "\n")
    parts = [prose(head)]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        shown = fields(body) if title in LISTED else prose(body)
        parts.append(f"*{title}*\n\n{shown}")
    return "\n\n".join(part for part in parts if part.strip())


def prose(text: str) -> str:
    """Paragraphs as they are; interpreter lines as a block of code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        code = paragraph.lstrip().startswith(">>>")
        parts.append(f"```pycon\n{paragraph}\n```" if code else paragraph)
    return "\n\n".join(parts)


def fields(body: str) -> str:
    """Name and type of each field, with its description behind them."""
    entries: list[tuple[str, list[str]]] = []
    for line in body.strip("\n").splitlines():
        if line and not line.startswith(" "):
            entries.append((line, []))
        elif entries:
            entries[-1][1].append(line.strip())
    return "\n".join(f"- {title(name)}{told(words)}" for name, words in entries)


def title(line: str) -> str:
    name, colon, kind = line.partition(" : ")
    return f"`{name}`{f' ({kind})' if colon else ''}"


def told(words: list[str]) -> str:
    text = " ".join(word for word in words if word)
    return f": {text}" if text else ""


def short(value: object) -> str:
    """The names of the parameters and their defaults, without types."""
    try:
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "()"
    shown, keyword_only = [], False
    for p in parameters:
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
            keyword_only = True
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        keyword_only = keyword_only or p.kind is p.VAR_POSITIONAL
        default = "" if p.default is p.empty else f"={default_of(p.default)}"
        shown.append(f"{mark}{p.name}{default}")
    return f"({', '.join(shown)})"


def default_of(value: object) -> str:
    if callable(value):
        return getattr(value, "__name__", "…")
    text = repr(value)
    return "…" if " object at 0x" in text or text == "<factory>" else text


def methods(cls: type, other_than: type | None = None) -> list[tuple[str, object]]:
    """Public methods that our own code defines and documents, without those of another class."""
    known = set() if other_than is None else {name for name, _ in methods(other_than)}
    public = []
    for name in dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base)):
        value = getattr(cls, name, None)
        ours = str(getattr(inspect.unwrap(value), "__module__", "")) if callable(value) else ""
        if ours.startswith("gmkcf_dask") and inspect.isroutine(value) and value.__doc__:
            public.append((name, value))
    return [(n, v) for n, v in public if not (n.startswith("_") or n in known)]


def entry(name: str, value: object, shared: type | None = None) -> str:
    """One public name."""
    parts = [f"### {name}", f"```\n{name}{short(value)}\n```", markdown(value.__doc__ or "")]
    if inspect.isclass(value):
        for method, function in methods(value, shared):
            parts.append(f"**{name}.{method}**`{short(function)}`")
            parts.append(markdown(function.__doc__ or ""))
    return "\n\n".join(parts)


def methods_of_all() -> str:
    """What every estimator can do, said once."""
    parts = ["### Methods of every estimator", _NOT_ALL]
    for name, function in methods(PredictingClusterer):
        parts.append(f"**{name}**`{short(function)}`")
        parts.append(markdown(function.__doc__ or ""))
    return "\n\n".join(parts)


def python_names() -> str:
    names = sorted(gmkcf_dask.__all__, key=lambda name: (not name.isupper(), name))
    left = {name: getattr(gmkcf_dask, name) for name in names}
    parts = []
    for group, belongs in GROUPS.items():
        members = {name: value for name, value in left.items() if belongs(value)}
        left = {name: value for name, value in left.items() if name not in members}
        if members:
            parts.append(f"## {group}")
            shared = PredictingClusterer if group == "Estimators" else None
            parts += [methods_of_all()] if shared else []
            parts += [entry(name, value, shared) for name, value in members.items()]
    assert not left, left
    return "\n\n".join(parts)


def commands(group: click.Group, words: tuple[str, ...]) -> list[str]:
    parts = []
    for name in sorted(group.commands):
        command = group.commands[name]
        path = (*words, name)
        above = click.Context(main, info_name=" ".join(words), **main.context_settings)
        context = click.Context(command, above, name, terminal_width=WIDTH)
        if isinstance(command, click.Group):
            parts += commands(command, path)
            continue
        parts.append(f"### {' '.join(path)}\n\n```\n{command.get_help(context)}\n```")
    return parts


def page() -> str:
    lines = "\n\n".join(
        [HEAD.strip(), python_names(), "## Commands", *commands(main, ("gmkcf",))]
    ).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv[1:]:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if made != current:
            sys.exit("docs/api.md is not what scripts/api writes: run it")
    else:
        TARGET.write_text(made, encoding="utf-8")
        print(f"{TARGET.name}: {len(made.splitlines())} lines")
