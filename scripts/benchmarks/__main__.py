"""`scripts/bench NAME`: each benchmark is a module with `add_arguments(parser)` and `run(args)`."""

from __future__ import annotations

import argparse
import importlib

from measure import save, show

MODULES = {
    "gram": "gram",
    "iteration": "iteration",
    "sweep": "sweep",
    "overhead": "overhead",
    "build": "building",
    "memory": "memory",
    "scaling": "scaling",
    "endtoend": "endtoend",
    "import": "small",
    "larger-than-memory": "larger_than_memory",
    "solver": "solver",
    "roofline": "roofline",
    "report": "page",
    "tile-codecs": "tile_codecs",
    "latency": "latency",
    "million": "million",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    modules = {name: importlib.import_module(module) for name, module in MODULES.items()}
    for name, module in modules.items():
        own = commands.add_parser(name, help=module.__doc__.split("\n")[0])
        module.add_arguments(own)
    args = parser.parse_args()
    report = modules[args.name].run(args)
    show(report)
    print(f"written: {save(report)}")
    raise SystemExit(0 if all(bar.held for bar in report.bars) else 1)


if __name__ == "__main__":
    main()
