"""`gmkcf doctor`: every worker is shown, and what is wrong is said with how to mend it."""

import re
import signal

import pytest
from distributed import Client
from helpers.faulty import environment, run, separate_cluster, small_store
from helpers.places import CONFIGS, certificates, dask_processes, tls_section
from helpers.sights import blind_to, reads_only
from msgspec import structs

from gmkcf_dask.cluster.doctor import Examined, diagnose, examine_cluster, report_lines
from gmkcf_dask.compute.worker_checks import installed_versions
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.system.units import GIB

HERE = installed_versions()
WELL = Examined("node1", HERE, GIB, 1, {}, 1, "/scratch", 50 * GIB)


@pytest.fixture
def store(tmp_path):
    (tmp_path / "shared").mkdir()
    return small_store(tmp_path / "shared" / "s.zarr").path


@pytest.mark.cluster
def test_a_cluster_that_is_well(store, tmp_path):
    """Through a cluster file, over TLS, with our settings of workers."""
    made = certificates(tmp_path / "tls")
    with dask_processes(tmp_path / "dask", 2, made) as file:
        config = tmp_path / "cluster.yaml"
        config.write_text(
            f"gmkcf: {{kind: scheduler-file, path: {file}, wait: 60s, minimum: 2, "
            f"tls: {tls_section(made)}}}"
        )
        code, said = run("doctor", store, "--cluster", config, "-k", 7)
    assert code == 0, said
    lines = said.splitlines()
    workers = [number for number, line in enumerate(lines) if line.startswith("tls://")]
    assert len(workers) == 2
    for first in workers:
        _, host, versions, settings, disk, sight, trip = lines[first : first + 7]
        assert re.fullmatch(r"  on \S+: 1 thread, \S+ [GM]iB of memory", host)
        assert all(f"{name} {version}" in versions for name, version in HERE.items())
        assert settings == "  allocator and BLAS: as recommended; BLAS uses 1 thread"
        assert re.fullmatch(rf"  \S+ \w+ free in {tmp_path}/dask\S+", disk)
        assert re.fullmatch(r"  reads and writes the store, at \S+ \w+/s", sight)
        assert re.fullmatch(r"  150 × 7 numbers \(8\.2 KiB\) there and back in \d+ ms", trip)
    assert lines[-1] == "all is well"


@pytest.mark.parametrize(
    ("within", "line"),
    [
        (blind_to, r"it does not see the store \(there is no .*\): put it where"),
        (reads_only, r"it cannot write to the store \(Read-only file system\): mount it for"),
    ],
)
@pytest.mark.cluster
def test_one_worker_is_wrong(within, line, store, tmp_path):
    cluster = separate_cluster(
        tmp_path / "cluster",
        2,
        settings={"MALLOC_TRIM_THRESHOLD_": "0"},
        last_within=within(store.parent),
    )
    with cluster as (address, *_):
        code, said = run("doctor", store, "--cluster", address)
    assert code == 2
    (wrong,) = [one for one in said.splitlines() if "WRONG: " in one]
    assert re.match(f"  WRONG: {line}", wrong)
    assert "error: 1 of 2 workers would fail in a run" in said
    assert "MALLOC_TRIM_THRESHOLD_" in said, "workers without our settings are told of them"
    assert "put cluster_configs/workers.yaml where its Dask settings are" in said


@pytest.mark.cluster
def test_another_version_on_one_worker(tmp_path):
    installed = tmp_path / "other" / "zarr-3.0.1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: zarr\nVersion: 3.0.1\n")
    path = f"{installed.parent}:{environment()['PYTHONPATH']}"
    cluster = separate_cluster(tmp_path / "cluster", 2, last_worker={"PYTHONPATH": path})
    with cluster as (address, *_):
        code, said = run("doctor", "--cluster", address)
    assert code == 2
    (wrong,) = [one for one in said.splitlines() if "WRONG: " in one]
    assert "zarr 3.0.1 on tcp://" in wrong
    assert wrong.endswith(f"{HERE['zarr']} here: install the same versions everywhere")


@pytest.mark.cluster
def test_a_place_for_a_store_that_is_still_to_be_made(tmp_path):
    (tmp_path / "shared").mkdir()
    place = tmp_path / "shared" / "later" / "s.zarr"
    code, said = run("doctor", place, "--cluster", "threads")
    assert code == 0, said
    assert "sees the place, and could make a store there" in said
    assert not list((tmp_path / "shared").iterdir()), "something is left"
    (tmp_path / "shared" / "later").write_text("")
    code, said = run("doctor", place, "--cluster", "threads")
    assert code == 2
    assert re.search(r"error: no store can be made at \S+ \(\S+later is a file\)", said)
    within = reads_only(tmp_path / "shared")
    with separate_cluster(tmp_path / "cluster", 1, last_within=within) as (address, *_):
        code, said = run("doctor", tmp_path / "shared" / "s.zarr", "--cluster", address)
    assert code == 2
    assert "Read-only file system" in said
    with separate_cluster(tmp_path / "blind", 1, last_within=blind_to(tmp_path / "shared")) as (
        address,
        *_,
    ):
        code, said = run("doctor", tmp_path / "shared" / "s.zarr", "--cluster", address)
    assert code == 2
    assert re.search(r"WRONG: no store .* \(\S+shared is another one than the driver's\)", said)


def test_a_build_that_broke_off_and_damage_are_no_obstacle(store):
    """Doctor is asked just then."""
    next((store / "kernels").rglob("c/*/*")).write_bytes(b"x")
    assert run("doctor", store, "--cluster", "threads")[0] == 0
    manifest = Manifest.read(store)
    structs.replace(manifest, complete=False).write(store)
    code, said = run("doctor", store, "--cluster", "threads")
    assert code == 0, said
    assert "reads and writes the store" in said


@pytest.mark.cluster
def test_a_worker_that_does_not_answer(tmp_path):
    with (
        separate_cluster(tmp_path / "cluster", 2) as (address, _, workers),
        Client(address, set_as_default=False) as client,
    ):
        workers[0].send_signal(signal.SIGSTOP)
        patients = examine_cluster(client, None, (1000, 4), wait=10.0)
    (silent,) = [patient for patient in patients if patient.problems]
    assert silent.problems[0].startswith("it does not answer (no answer within 10 s)")
    (other,) = [patient for patient in patients if not patient.problems]
    assert other.round_trip is not None


@pytest.mark.cluster
def test_every_local_kind_of_file(store):
    for name in ("local", "threads"):
        code, said = run("doctor", store, "--cluster", CONFIGS / f"{name}.yaml")
        assert code == 0, said
        assert said.splitlines()[-1] == "all is well"


def test_judged_alone():
    assert diagnose("a", WELL, 0.1, HERE).problems == ()
    small = Examined("node1", HERE, GIB // 8, 1, {}, 1, "/scratch", 10)
    patient = diagnose("a", small, 0.1, HERE)
    assert "memory" in patient.problems[0]
    assert patient.notes[0].startswith("only 10 B free in /scratch, where it spills to")
    lost = diagnose("a", ImportError("No module named 'gmkcf_dask'"), None, HERE)
    assert "install gmkcf-dask there" in lost.problems[0]
    lines = report_lines([patient, lost], (10, 2))
    assert [line for line in lines if not line.startswith(" ")] == ["a", "a"]
    assert sum("WRONG" in line for line in lines) == 2
