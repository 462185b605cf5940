"""Every command and snippet of the documents runs, and prints what is shown."""

import re

import pytest
from helpers.paths import ROOT
from helpers.scripts import load_script

shown = load_script("shown")

pytestmark = pytest.mark.once


def shape(printed):
    """The beginning of every line without its numbers, which may differ on other machines."""
    lines = [re.sub(r"[\d.,]+", "#", line) for line in printed.splitlines() if line.strip()]
    return [" ".join(line.split())[:10] for line in lines]


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::gmkcf_dask.errors.NumericsWarning")
@pytest.mark.parametrize("name", ["choosing", "tutorial", "howto"])
@pytest.mark.slow
def test_document(name, tmp_path):
    file = ROOT / "docs" / f"{name}.md"
    for _, ran in shown.run_document(file.read_text(encoding="utf-8"), tmp_path, file.name):
        for one in ran:
            assert one.exit_code == 0, f"{one.command}\n{one.printed}"
            assert shape(one.printed) == shape(one.shown), one.command


def test_what_is_shown_is_what_is_printed(tmp_path):
    text = "A\n\n```console\n$ echo 1; \\\n    echo two\nold\n```\n\n```python\nx = 1\n```\n"
    text += "\n```pycon\n>>> x + 1\n2\n```\n"
    fresh = shown.rewritten(text, tmp_path, "here")
    assert "$ echo 1; \\\n    echo two\n1\ntwo\n```" in fresh
    assert fresh == shown.rewritten(fresh, tmp_path, "here")
    with pytest.raises(AssertionError, match="Expected"):
        list(shown.run_document("```pycon\n>>> 1\n2\n```\n", tmp_path, "here"))
    with pytest.raises(SystemExit, match="false"):
        shown.rewritten("```console\n$ false\n```\n", tmp_path, "here")


def test_the_api_is_what_the_docstrings_say(capsys):
    api = load_script("api")

    assert api.page() == api.TARGET.read_text(encoding="utf-8"), "run scripts/api"
