"""A tiny corpus, what threads find in it, and the same through a cluster file."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import numpy as np

from helpers.faulty import environment, run, start
from helpers.needs import need_program
from helpers.paths import CONFIGS

RUN = ("-k", 3, "--kernels", "rbf_1,cosine", "--block", 40, "--max-iter", 4, "--seed", 3)


def features(folder):
    """A file with 120 samples around three centres."""
    rng = np.random.default_rng(0)
    X = np.abs(rng.normal(size=(120, 6))) + 3 * (np.arange(120) % 3)[:, None]
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def command(folder, cluster, *more, out="out"):
    """`gmkcf run` on the corpus at a place."""
    words = ("run", features(folder), *RUN, "--out", folder / out, "--cluster", cluster, *more)
    return [str(word) for word in words]


def on_threads(folder):
    """`labels.csv` of the threaded run."""
    code, said = run(*command(folder, "threads", out="threads"))
    assert code == 0, said
    return (folder / "threads" / "labels.csv").read_bytes()


def ends(process, seconds=240):
    """Exit code and all that was said, within a time; its whole process group ends with it."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"it did not end within {seconds} s: {out}{err}") from None
    return process.returncode, out + err


def same_labels(folder, cluster, *more):
    """Run through a cluster file in a process of its own, and compare with threads."""
    expected = on_threads(folder)
    code, said = ends(start(*command(folder, cluster, *more)))
    assert code == 0, said
    assert (folder / "out" / "labels.csv").read_bytes() == expected
    return said


def refused(folder, text, *more, code):
    """The one sentence of a run with this cluster file that does not begin; nothing is written."""
    file = folder / "refused.yaml"
    file.write_text(text)
    found, said = run(*command(folder, file, *more, out="no"))
    assert found == code, said
    assert not (folder / "no").exists()
    (sentence,) = [line for line in said.splitlines() if not line.startswith("resume with: ")]
    assert sentence.startswith("error: ")
    return sentence


def certificates(folder, days=365):
    """An authority and a member, made by the script that users are given."""
    need_program("openssl", "apt install openssl")
    script = CONFIGS / "tls" / "make_certificates.sh"
    subprocess.run([script, folder, str(days)], check=True, capture_output=True)
    return folder


def tls_section(folder):
    """Of a cluster file."""
    return f"{{ca: {folder}/ca.pem, cert: {folder}/member.pem, key: {folder}/member.key}}"


@contextmanager
def dask_processes(folder, n_workers, certificates=None):
    """A scheduler and workers as users start them; yields the scheduler file, still to come."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scheduler.json"
    words = ["--scheduler-file", str(file), "--interface", "lo", "--no-dashboard"]
    words += ["--dashboard-address", "127.0.0.1:0"]
    settings = folder / "dask"
    settings.mkdir()
    shutil.copy(CONFIGS / "workers.yaml", settings)
    if certificates is not None:
        text = (CONFIGS / "tls" / "dask-tls.yaml").read_text()
        text = text.replace("/home/me/certificates", str(certificates))
        (settings / "dask-tls.yaml").write_text(text)
    own = {"DASK_CONFIG": str(settings)}
    worker = ["--nthreads", "1", "--local-directory", str(folder), "--death-timeout", "60"]
    commands = [["dask_scheduler", *words, "--port", "0"]]
    commands += [["dask_worker", *words, *worker]] * n_workers
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{name}", *rest],
                env=environment() | own,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a worker is a nanny and its child
            )
            for name, *rest in commands
        ]
        try:
            yield file
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
