"""Scripts of this checkout: run as a user runs them, or imported by their path."""

import importlib.util
import subprocess
import sys

from helpers.paths import ROOT, with_helpers

SCRIPTS = ROOT / "scripts"


def run_script(name, *arguments, warnings="default", **options):
    """A script in a process of its own, with the helpers that the wrappers in scripts/ give it."""
    return subprocess.run(
        [sys.executable, "-W", warnings, SCRIPTS / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=with_helpers(),
        **options,
    )


def load_script(name):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
