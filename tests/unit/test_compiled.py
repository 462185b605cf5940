"""Compiled loops: compiled once, when they are called, and kept only where nobody else writes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest

from gmkcf_dask.system import compiled as module
from gmkcf_dask.system.compiled import cache_folder, compiled

VERSION = numba.__version__


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, where cache folders can be made."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@compiled
def _twice(x):
    return 2 * x


@compiled
def _sum_of_twice(values):
    total = 0.0
    for value in values:
        total += _twice(value)
    return total


def fresh():
    """The same functions, not compiled yet."""
    _twice.__init__(_twice.__wrapped__)
    _sum_of_twice.__init__(_sum_of_twice.__wrapped__)
    return _sum_of_twice


def hits(function):
    return sum(function._dispatcher.stats.cache_hits.values())


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc"))


def in_child(code, **environment):
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# --- when -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "import gmkcf_dask",
        "import gmkcf_dask.kernels.neighbours",
        "from gmkcf_dask import GMKCF",
        "from click.testing import CliRunner; from gmkcf_dask.cli import main; "
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0",
    ],
)
def test_numba_is_not_imported_before_it_is_needed(statement):
    code = f"import sys; {statement}; print('numba' in sys.modules)"
    assert in_child(code) == ["False"]


def test_compiled_functions_call_each_other(home):
    assert fresh()(np.arange(4.0)) == 12
    assert _sum_of_twice.__name__ == "_sum_of_twice"


def test_no_lock_no_threads_no_fast_mathematics(home):
    fresh()(np.arange(4.0))
    options = _sum_of_twice._dispatcher.targetoptions
    assert options["nogil"]
    assert not options.get("parallel")
    assert not options.get("fastmath")


def test_many_threads_compile_once(home):
    function = fresh()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(function, [np.arange(4.0)] * 32))
    assert results == [12] * 32
    assert len(function._dispatcher.signatures) == 1
    assert sum(function._dispatcher.stats.cache_misses.values()) == 1


# --- where ------------------------------------------------------------------------------------


def test_machine_code_is_kept_in_a_private_folder_of_the_user(home, monkeypatch):
    folder = home / ".cache" / "gmkcf_dask" / f"numba-{VERSION}"
    fresh()(np.arange(4.0))
    assert cache_folder(VERSION) == folder
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in (folder, folder.parent))
    assert files(folder)
    assert not hits(_sum_of_twice)
    fresh()(np.arange(4.0))
    assert hits(_sum_of_twice) == 1
    given = home / "given"
    monkeypatch.setenv("XDG_CACHE_HOME", str(given))
    assert given in cache_folder(VERSION).parents
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder(VERSION) == folder


def test_another_process_loads_what_is_kept(home):
    code = (
        "import numpy as np\n"
        "from gmkcf_dask.kernels import neighbour_loops as loops\n"
        "loops._sort(np.arange(3.0), np.arange(3), 3)\n"
        "stats = loops._sort._dispatcher.stats\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))"
    )
    assert in_child(code) == ["0", "1"]
    assert in_child(code) == ["1", "0"]


def test_numba_s_own_settings_move_nothing(home, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(elsewhere))
    fresh()(np.arange(4.0))
    assert files(home)
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    assert fresh()(np.arange(4.0)) == 12
    assert _sum_of_twice._dispatcher.stats.cache_path is None
    assert files(elsewhere) == []


def writable_root(home):
    (home / ".cache").mkdir()
    (home / ".cache").chmod(0o777)


def writable_folder(home):
    (home / ".cache" / "gmkcf_dask").mkdir(parents=True)
    (home / ".cache" / "gmkcf_dask").chmod(0o770)


def writable_version(home):
    folder = home / ".cache" / "gmkcf_dask" / f"numba-{VERSION}"
    folder.mkdir(parents=True)
    folder.chmod(0o702)


def link(home):
    (home / "real").mkdir(mode=0o700)
    (home / ".cache").mkdir()
    (home / ".cache" / "gmkcf_dask").symlink_to(home / "real")


def link_for_the_version(home):
    (home / "real").mkdir(mode=0o700)
    (home / ".cache" / "gmkcf_dask").mkdir(parents=True, mode=0o700)
    (home / ".cache" / "gmkcf_dask" / f"numba-{VERSION}").symlink_to(home / "real")


def file_in_the_way(home):
    (home / ".cache").write_text("")


def writable_home(home):
    home.chmod(0o777)


UNSAFE = [
    writable_root, writable_folder, writable_version, link, link_for_the_version, file_in_the_way,
    writable_home,
]  # fmt: skip


@pytest.mark.parametrize("unsafe", UNSAFE)
def test_an_unsafe_folder_is_not_used(home, unsafe):
    unsafe(home)
    assert cache_folder(VERSION) is None
    assert fresh()(np.arange(4.0)) == 12
    assert _sum_of_twice._dispatcher.stats.cache_path is None
    assert files(home) == []


def test_a_folder_of_another_user_is_not_used(home, monkeypatch):
    assert cache_folder(VERSION) is not None
    monkeypatch.setattr(module.os, "geteuid", lambda: os.getuid() + 1)
    assert cache_folder(VERSION) is None


def test_a_link_above_is_followed_to_where_it_leads(home):
    """Homes often keep their cache on another disk."""
    (home / "disk").mkdir(mode=0o700)
    (home / ".cache").symlink_to(home / "disk")
    assert cache_folder(VERSION) == home / "disk" / "gmkcf_dask" / f"numba-{VERSION}"
    (home / "disk").chmod(0o777)
    assert cache_folder(VERSION) is None


def test_without_a_home_there_is_no_cache(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(module.Path, "home", no_home)
    assert cache_folder(VERSION) is None


def test_a_home_that_cannot_be_written_costs_time_only():
    """Not even root makes a folder in /proc."""
    code = (
        "from gmkcf_dask.system.compiled import cache_folder\n"
        "from gmkcf_dask.kernels import neighbour_loops as loops\n"
        "import numpy as np\n"
        "values = np.array([1.0, 3.0, 2.0])\n"
        "loops._sort(values, np.arange(3), 3)\n"
        "print(*values, cache_folder('1'), loops._sort._dispatcher.stats.cache_path)"
    )
    found = in_child(code, HOME="/proc", XDG_CACHE_HOME="")
    assert found == ["3.0", "2.0", "1.0", "None", "None"]


def test_a_folder_that_became_read_only_is_not_used(home, monkeypatch):
    assert cache_folder(VERSION) is not None
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    assert cache_folder(VERSION) is None


@pytest.mark.usefixtures("home")
def test_nothing_is_written_into_the_package():
    fresh()(np.arange(4.0))
    package = Path(module.__file__).parents[1]
    assert files(package) == files(Path(__file__).parent) == []


# --- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", [b"", b"\x80\x05nonsense", b"cos\nnothing\n."])
def test_damaged_files_are_made_again(home, ending, damage):
    fresh()(np.arange(4.0))
    for path in files(home):
        if path.suffix == ending:
            path.write_bytes(damage)
    assert fresh()(np.arange(4.0)) == 12
    assert not hits(_sum_of_twice)
    assert fresh()(np.arange(4.0)) == 12
    assert hits(_sum_of_twice) == 1


def test_a_full_disk_costs_no_result(home, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert fresh()(np.arange(4.0)) == 12
    assert files(home) == []
