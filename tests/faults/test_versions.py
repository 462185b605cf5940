"""Other versions on the cluster than here: refused before any work, with all that differs."""

import os
import re
from types import SimpleNamespace

import pytest
from helpers.faulty import FIT, environment, run, separate_cluster, small_store

from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.compute import worker_checks
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import ClusterError, ClusterWarning, UnfitWorker


def test_the_same_everywhere(one_worker):
    of_client(one_worker)


@pytest.mark.parametrize("package", worker_checks.PACKAGES)
def test_a_mismatch_is_refused(one_worker, monkeypatch, package):
    real = worker_checks.version
    monkeypatch.setattr(
        worker_checks, "version", lambda name: "0.0" if name == package else real(name)
    )
    with pytest.raises(ClusterError) as raised:
        of_client(one_worker)
    sentence = str(raised.value)
    # the scheduler of a local cluster lives in this process
    assert f"({package} {real(package)} on worker tcp://" in sentence
    assert sentence.count(" here") == 1
    assert raised.value.exit_code == 2


@pytest.mark.once
def test_a_worker_with_another_version_installed(tmp_path):
    """A process of its own that finds another gmkcf-dask; the other worker has the right one."""
    installed = tmp_path / "other" / "gmkcf_dask-0.0.7.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: gmkcf-dask\nVersion: 0.0.7\n")
    path = os.pathsep.join([str(installed.parent), environment()["PYTHONPATH"]])
    fit = ("fit", small_store(tmp_path / "s.zarr").path, *FIT, "--out", tmp_path / "out")
    with separate_cluster(tmp_path / "cluster", last_worker={"PYTHONPATH": path}) as (address, *_):
        code, said = run(*fit, "--cluster", address)
    assert code == 2
    here = re.escape(worker_checks.version("gmkcf-dask"))
    named = rf"\(gmkcf-dask 0\.0\.7 on worker tcp://127\.0\.0\.1:\d+, {here} here\)"
    assert re.search(named, said), said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_driver_that_compares_more_packages_is_told_too():
    """A worker's own list may be shorter: it came with another version of this package."""
    driver = (*worker_checks.installed_versions().items(), ("another", "1.0"))
    assert worker_checks._other_versions(driver) == ("another unknown, not 1.0",)


def test_a_scheduler_that_is_silent_for_a_moment_ends_no_run(monkeypatch):
    unfit = UnfitWorker("worker a is small: give it more")
    unfit.worker = "a"
    runner = Runner()
    with pytest.raises(UnfitWorker):  # nobody else is there
        runner.exclude(unfit)
    monkeypatch.setattr(Runner, "_workers", lambda self: None)
    with pytest.warns(ClusterWarning, match="continues on the other workers"):
        runner.exclude(unfit)
    assert runner.excluded == {"a"}


def test_a_worker_that_is_silent_is_not_called_another_version(monkeypatch):
    here = worker_checks.installed_versions()
    answers = {"a": here, "b": TimeoutError("no answer within 60 s")}
    client = SimpleNamespace(run_on_scheduler=lambda function: function())
    monkeypatch.setattr(worker_checks, "ask_workers", lambda *_: answers)
    with pytest.raises(ClusterError, match=r"^worker b does not answer \(no answer within 60 s\)"):
        worker_checks.refuse_other_versions(client)
    answers["b"] = OSError("gone")
    with pytest.raises(ConnectionError, match="worker b does not answer"):
        worker_checks.refuse_other_versions(client)


def test_a_client_that_has_given_up_knows_of_no_workers(two_workers):
    """Asked while a lost cluster is told: that must end in the sentence for it."""
    from distributed import Client

    client = Client(two_workers.scheduler.address, set_as_default=False)
    runner = of_client(client).runner
    assert len(runner.workers()) == 2
    client.close()
    assert runner.workers() == {}
    assert runner._stalled("no task finished", "key").retries == 0
