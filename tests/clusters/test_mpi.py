"""dask-mpi under mpirun: the same labels, and an end for every rank, whichever way it ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.faulty import AS_PAPER, environment, serial_of, start, wait_until
from helpers.marks import mostly_slow
from helpers.needs import need_package
from helpers.places import certificates, command, ends, features, on_threads, tls_section

pytestmark = pytest.mark.once
INSTALL = "pip install 'gmkcf-dask[cluster-tests]'"


@pytest.fixture(scope="module")
def mpiexec():
    """The one that comes with the package mpich, which mpi4py finds beside it."""
    for package in ("mpi4py", "dask_mpi"):
        need_package(package, INSTALL)
    found = Path(sys.executable).parent / "mpiexec"
    if not found.exists():
        need_package("mpich", INSTALL)
    return str(found)


def under(mpiexec, processes, words, without=""):
    """The command under mpiexec; its first process may be without a variable of ours."""
    gmkcf = [sys.executable, "-m", "gmkcf_dask.cli", *words]
    ranks = ["-n", str(processes), *gmkcf]
    if without:
        ranks = ["-n", "1", "env", "-u", without, *gmkcf, ":", "-n", str(processes - 1), *gmkcf]
    return subprocess.Popen(
        [mpiexec, *ranks],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def mpi_file(folder, **more):
    text = "".join(f", {key.replace('_', '-')}: {value}" for key, value in more.items())
    (folder / "mpi.yaml").write_text(f"gmkcf: {{kind: mpi, interface: lo, memory: 1GiB{text}}}\n")
    return folder / "mpi.yaml"


def nobody_is_left(word):
    """No process of a run, once it is over; its children may take a moment."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        found = [p for p in psutil.process_iter(["cmdline"]) if word in (p.info["cmdline"] or [])]
        if not found:
            return True
        time.sleep(0.1)
    return False


def test_workers_are_counted_by_mpirun(mpiexec, tmp_path):
    """In a process of its own: MPI listens wherever it is loaded."""
    file = tmp_path / "cluster.yaml"
    file.write_text("gmkcf: {kind: mpi, interface: lo, memory: 1GiB}\n")
    code, said = ends(start(*command(tmp_path, file, "--workers", 3)))
    assert code == 2, said
    assert "--workers is not for a cluster of kind mpi" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("encrypted", [False, True], ids=["tcp", "tls"])
@pytest.mark.cluster
def test_the_same_labels_and_a_clean_end(encrypted, mpiexec, tmp_path):
    expected = on_threads(tmp_path)
    more = {"local_directory": tmp_path / "scratch"}
    if encrypted:
        more["tls"] = tls_section(certificates(tmp_path / "tls"))
    begin = time.monotonic()
    code, said = ends(under(mpiexec, 4, command(tmp_path, mpi_file(tmp_path, **more))), 150)
    assert code == 0, said
    assert time.monotonic() - begin < 120
    assert f"on 2 workers at {'tls' if encrypted else 'tcp'}://127.0.0.1:" in said
    assert "Traceback" not in said
    assert " - INFO - " not in said
    assert (tmp_path / "out" / "labels.csv").read_bytes() == expected
    # every rank had a folder of its own there, and removed it
    assert list((tmp_path / "scratch").iterdir()) == []
    assert nobody_is_left(str(tmp_path / "out"))


@pytest.mark.cluster
def test_bad_input_ends_every_rank(mpiexec, tmp_path):
    words = command(tmp_path, mpi_file(tmp_path))
    words[words.index("-k") + 1] = "1000"
    code, said = ends(under(mpiexec, 3, words), 60)
    assert code == 2, said
    assert said.count("error: ") == 1, said
    assert nobody_is_left(str(tmp_path / "out"))


def test_what_is_wrong_on_one_rank_ends_all_of_them(mpiexec, tmp_path, monkeypatch):
    """The others must not wait for it."""
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    words = command(tmp_path, mpi_file(tmp_path, local_directory="$SOMEWHERE"))
    code, said = ends(under(mpiexec, 3, words, without="SOMEWHERE"), 60)
    assert code == 2, said
    assert said.count("error: ") == 1, said
    assert "error: rank 0 on " in said
    assert "local-directory $SOMEWHERE names a variable that is not set here" in said
    assert nobody_is_left(str(tmp_path / "out"))


@mostly_slow(
    ("more", "sentence"),
    [
        ({"interface": "ib77"}, "no network interface 'ib77'"),
        ({"tls": "{ca: no.pem, cert: no.pem, key: no.pem}"}, "gmkcf.tls.ca"),
        ({"memroy": "1GiB"}, "did you mean memory?"),
    ],
)
def test_what_is_wrong_on_all_ranks_is_said_once(more, sentence, mpiexec, tmp_path):
    text = {"kind": "mpi", "interface": "lo", "memory": "1GiB"} | more
    lines = "".join(f"  {key}: {value}\n" for key, value in text.items())
    (tmp_path / "mpi.yaml").write_text(f"gmkcf:\n{lines}")
    code, said = ends(under(mpiexec, 3, command(tmp_path, tmp_path / "mpi.yaml")), 60)
    assert code == 2, said
    assert said.count("error: ") == 1, said
    assert sentence in said


@pytest.mark.cluster
def test_a_signal_ends_every_rank_and_leaves_a_checkpoint(mpiexec, tmp_path):
    more = ("--tol", 0, "--max-iter", 5000, "--checkpoint-every", 1, *AS_PAPER)
    features(tmp_path)
    process = under(mpiexec, 3, command(tmp_path, mpi_file(tmp_path), *more))
    assert wait_until(lambda: serial_of(tmp_path / "out"), process), process.communicate()
    process.send_signal(signal.SIGTERM)
    code, said = ends(process, 60)
    assert code != 0, said
    assert nobody_is_left(str(tmp_path / "out"))


def test_too_few_processes(mpiexec, tmp_path):
    code, said = ends(under(mpiexec, 2, command(tmp_path, mpi_file(tmp_path))), 60)
    assert code == 2, said
    assert "needs 3 processes or more" in said
    assert said.count("error: ") == 1, said


def test_without_mpirun(mpiexec, tmp_path):
    code, said = ends(start(*command(tmp_path, mpi_file(tmp_path))), 60)
    assert code == 2, said
    assert "start with mpirun -n N gmkcf" in said
