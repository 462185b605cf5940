"""Nobody is let in: addresses, certificates, listening sockets, links, names and secrets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from helpers.certificates import make_certificates
from helpers.commands import exits
from helpers.insights import make_result
from helpers.refusals import FIT, KERNELS, THREADS, K, features, gmkcf, raised, refused
from msgspec.structs import replace

from gmkcf_dask import GMKCF, Precomputed
from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.launch import start
from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.cluster.tls import Certificates, certificates, is_loopback
from gmkcf_dask.errors import (
    ClusterError,
    GmkcfError,
    InputError,
    StoreError,
    redacted,
    redacted_tree,
)
from gmkcf_dask.pipeline.benchmark.runs import Benchmark
from gmkcf_dask.results.run_folder import read_result, remove_run, write_run
from gmkcf_dask.store.files import npz_bytes, remove_tree
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.system.units import GIB

LOCAL = ClusterConfig("local", workers=1, memory=GIB)

# --- addresses --------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("gmkcf_dask.cluster.connect.CONNECT_SECONDS", 0.5)


@pytest.fixture
def no_network(monkeypatch):
    """A connection would be a failure: what is refused must be refused before."""
    import distributed

    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("connected"))


def opened(where: str, **access: object) -> None:
    place = {} if where in ("threads", "local") else {"address": where}
    with start(ClusterConfig("address" if place else where, **place, **access), 10):
        pass


OPEN_ADDRESSES = [
    "tcp://10.1.2.3:8786",
    "tcp://node1:8786",
    "node1:8786",
    "tcp://0.0.0.0:8786",
    "tcp://[2001:db8::1]:8786",
    "tcp://127.0.0.1.example.org:8786",
    "ws://10.1.2.3:8786",
    "ucx://10.1.2.3:8786",
]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("address", OPEN_ADDRESSES)
def test_an_open_scheduler_elsewhere_is_refused(address):
    sentence = raised(lambda: opened(address), InputError)
    assert address in sentence
    assert "--insecure" in sentence
    assert "tls://" in sentence


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("command", ["plan", "run", "build"])
def test_every_command_refuses_it(command, tmp_path):
    np.save(tmp_path / "x.npy", features())
    rest = {"plan": ("-k", K), "build": (tmp_path / "s",), "run": (*FIT, "--out", tmp_path / "r")}
    address = ("--cluster", "tcp://10.1.2.3:8786")
    assert "--insecure" in refused(command, tmp_path / "x.npy", *rest[command], *address)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "localhost:1", "tcp://[::1]:1"])
def test_loopback_is_tried(address):
    assert "no Dask scheduler answers" in raised(lambda: opened(address), ClusterError)


def test_an_open_scheduler_is_tried_where_that_is_meant(monkeypatch):
    import distributed

    asked = []

    def connect(address, **_):
        asked.append(address)
        raise OSError("not today")

    monkeypatch.setattr(distributed, "Client", connect)
    raised(lambda: opened("tcp://10.1.2.3:8786", insecure=True), ClusterError)
    assert asked == ["tcp://10.1.2.3:8786"]


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.9.1", "LOCALHOST", "::1")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.0.1", "localhost.evil.org")),
    ],
)
def test_what_is_loopback(host, here):
    assert is_loopback(host) is here


def test_a_given_client_is_the_users_own_business(one_worker):
    """`client=` was connected by the user, under the user's own security: it is used as it is."""
    assert of_client(one_worker).n_workers == 1


# --- certificates -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl, which is not here")
    return make_certificates(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, ours):
    return make_certificates(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module")
def tls_cluster(ours):
    with local_cluster(1, GIB, ClusterConfig("local", certificates=ours)) as client:
        yield client


def options_of(files: Certificates) -> tuple[object, ...]:
    return ("--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key)


def test_a_local_cluster_with_certificates_talks_tls(tls_cluster):
    assert tls_cluster.scheduler.address.startswith("tls://127.0.0.1:")
    workers = tls_cluster.scheduler_info(n_workers=-1)["workers"]
    assert all(address.startswith("tls://127.0.0.1:") for address in workers)
    assert tls_cluster.submit(sum, [1, 2]).result(timeout=20) == 3


def test_a_job_runs_through_tls(tls_cluster, ours, tmp_path):
    np.save(tmp_path / "x.npy", features())
    address = ("--cluster", tls_cluster.scheduler.address, *options_of(ours))
    out = (*FIT, "--max-iter", 2, "--out", tmp_path / "run", "--block", 10, *KERNELS)
    found = exits(0, "run", tmp_path / "x.npy", *out, *address)
    assert "1 workers at tls://127.0.0.1" in found.stdout


def test_certificates_may_come_from_dasks_configuration(tls_cluster, ours):
    import dask

    tls = "distributed.comm.tls"
    files = {"ca-file": ours.ca, "client.cert": ours.cert, "client.key": ours.key}
    with (
        dask.config.set({f"{tls}.{name}": str(path) for name, path in files.items()}),
        start(ClusterConfig("address", address=tls_cluster.scheduler.address), 10) as resources,
    ):
        assert resources.n_workers == 1


@pytest.mark.usefixtures("impatient")
def test_a_client_of_another_authority_is_refused(tls_cluster, theirs):
    address = tls_cluster.scheduler.address
    sentence = raised(lambda: opened(address, certificates=theirs), ClusterError)
    assert "certificates" in sentence


def test_a_client_with_the_right_authority_but_a_foreign_certificate(tls_cluster, ours, theirs):
    """It trusts our authority, so the refusal is the scheduler's alone."""
    from distributed import Client, Security

    mixed = Security(
        tls_ca_file=str(ours.ca), tls_client_cert=str(theirs.cert), tls_client_key=str(theirs.key),
        require_encryption=True,
    )  # fmt: skip
    with pytest.raises(OSError):
        Client(tls_cluster.scheduler.address, security=mixed, timeout=1, set_as_default=False)


def test_a_plaintext_client_is_refused(tls_cluster):
    from distributed import Client

    address = tls_cluster.scheduler.address.replace("tls://", "tcp://")
    with pytest.raises(OSError):
        Client(address, timeout=1, set_as_default=False)
    assert tls_cluster.submit(sum, [1, 2]).result(timeout=20) == 3


@pytest.mark.usefixtures("impatient")
def test_our_own_plaintext_client_gets_a_sentence(tls_cluster):
    address = tls_cluster.scheduler.address.replace("tls://", "tcp://")
    assert "no Dask scheduler answers" in raised(lambda: opened(address), ClusterError)


@pytest.mark.usefixtures("no_network")
def test_tls_without_certificates_is_a_sentence():
    sentence = raised(lambda: opened("tls://node1:8786"), InputError)
    assert "--tls-ca" in sentence
    assert "distributed.comm.tls" in sentence


def test_certificates_that_cannot_be_used(ours, theirs, tmp_path):
    assert "--tls-key" in raised(lambda: certificates(ours.ca, ours.cert, None), InputError)
    missing = tmp_path / "missing.pem"
    assert str(missing) in raised(lambda: certificates(missing, ours.cert, ours.key), InputError)
    for files in ((ours.ca, ours.cert, theirs.key), (ours.key, ours.cert, ours.key)):
        sentence = raised(lambda files=files: certificates(*files), InputError)
        assert "cannot be used" in sentence
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", ours.key, "-aes128", "-passout", "pass:x", "-out", locked]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    assert "password" in raised(lambda: certificates(ours.ca, ours.cert, locked), InputError)
    assert certificates(None, None, None) is None


@pytest.mark.parametrize("place", ["threads", "tcp://127.0.0.1:1"])
def test_certificates_that_would_do_nothing_are_told(place, ours):
    assert "certificates" in raised(lambda: opened(place, certificates=ours), InputError)


# --- sockets and the dashboard ----------------------------------------------------------------


def listening(pid: int | None = None) -> set[str]:
    """Hosts on which a process and its children accept connections."""
    found: set[str] = set()
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            connections = one.net_connections(kind="inet")
            found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    except psutil.Error:  # ended meanwhile
        pass
    return found


def test_a_local_run_listens_on_loopback_only(tmp_path):
    """A whole run in a process of its own, scanned from here until it ends."""
    np.save(tmp_path / "x.npy", features(300))
    here = ("--cluster", "local", "--workers", "1", "--memory", "1GiB", "--block", "100")
    command = ("run", tmp_path / "x.npy", *FIT, "--out", tmp_path / "run", *KERNELS, *here)
    seen: set[str] = set()
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-m", "gmkcf_dask.cli", *map(str, command), "--max-iter", "2"],
            stdout=log,
            stderr=log,
        )
        begun = time.monotonic()
        while run.poll() is None:
            assert time.monotonic() - begun < 120
            seen |= listening(run.pid)
            time.sleep(0.05)
    assert run.returncode == 0, (tmp_path / "log").read_text()
    assert seen, "the scan saw no socket at all"
    assert all(is_loopback(host) for host in seen), seen


def test_there_is_no_dashboard(one_worker):
    port = one_worker.scheduler_info(n_workers=0)["services"].get("dashboard")
    if port is not None:  # the health page that remains
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5)


def test_a_dashboard_is_for_local_clusters_and_needs_bokeh(monkeypatch):
    assert "local" in raised(lambda: opened("threads", dashboard=True), InputError)
    monkeypatch.setattr("gmkcf_dask.cluster.process_settings.find_spec", lambda _: None)
    assert "bokeh" in raised(lambda: opened("local", dashboard=True), InputError)


def test_a_dashboard_that_was_asked_for_is_on_loopback(monkeypatch):
    with start(replace(LOCAL, dashboard=True), 10) as resources:
        address = resources.dashboard
        assert address.startswith("http://127.0.0.1:")
        assert [host for host in listening() if not is_loopback(host)] == []
        with urllib.request.urlopen(address, timeout=20) as page:
            assert b"Dask" in page.read()
        # a page of this address may open a connection for its pictures, one of another site not
        assert asks_for_websocket(address, address.rpartition("/")[0]) == 101
        assert asks_for_websocket(address, "http://evil.example") == 403


def asks_for_websocket(address, origin):
    """Status of the answer to a browser that shows a page of `origin`."""
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    connection = HTTPConnection(parts.hostname, parts.port, timeout=10)
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        "Origin": origin,
    }
    connection.request("GET", f"{parts.path}/ws", headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


# --- names, paths, links ----------------------------------------------------------------------

BAD_NAMES = ["..", ".", "a/b", "../a", "", "a b", "x" * 65, "ä", "a\n", "zarr.json", "a\0"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_become_paths_are_plain(name, tmp_path):
    model = GMKCF(2, kernels="precomputed", store=tmp_path / "s.zarr")
    raised(lambda: model.fit([Precomputed(np.eye(4), name)]), InputError)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError):
        Benchmark(tmp_path, tmp_path, (name,), (object(),), 1)


@pytest.mark.parametrize("name", ["..", "../../x", "/etc"])
def test_a_manifest_cannot_name_a_folder_elsewhere(name, tmp_path):
    GMKCF(K, kernels="rbf_1", store=tmp_path / "s.zarr", random_state=0, tol=0.1).fit(features())
    path = tmp_path / "s.zarr" / "manifest.json"
    path.write_text(path.read_text().replace('"name": "rbf_1"', f'"name": "{name}"'))
    assert "damaged" in raised(lambda: KernelStore.open(tmp_path / "s.zarr"), StoreError)


@pytest.fixture
def treasure(tmp_path):
    """A folder of somebody else's, which must be the same at the end."""
    folder = tmp_path / "treasure"
    folder.mkdir()
    for name in ("labels.csv", "result.json", "factors.npz", "manifest.json"):
        (folder / name).write_text("precious")
    yield folder
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == dict.fromkeys(
        ("labels.csv", "result.json", "factors.npz", "manifest.json"), "precious"
    )


def test_a_run_folder_that_is_a_link_is_not_overwritten(treasure, tmp_path):
    np.save(tmp_path / "x.npy", features())
    (tmp_path / "run").symlink_to(treasure)
    command = ("run", tmp_path / "x.npy", *FIT, "--out", tmp_path / "run", *KERNELS, *THREADS)
    assert "symbolic link" in refused(*command, "--overwrite")
    assert "another run" in refused(*command)
    assert "symbolic link" in raised(lambda: remove_run(tmp_path / "run"), InputError)


def test_files_of_a_run_that_are_links_are_replaced_themselves(treasure, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("labels.csv", "result.json", "factors.npz"):
        (run / name).symlink_to(treasure / name)
    write_run(run, ("a",), np.array([0]), {"w": np.ones(1)}, make_result())
    assert not any(path.is_symlink() for path in run.iterdir())
    (run / "labels.csv").unlink()
    (run / "labels.csv").symlink_to(treasure / "labels.csv")
    remove_run(run)
    assert list(run.iterdir()) == []


def test_a_kernels_run_folder_that_leads_elsewhere_is_refused(treasure, tmp_path):
    np.save(tmp_path / "x.npy", features())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rbf_1").symlink_to(treasure)
    how = ("--method", "kkm", "--kernel", "all", "-k", K, "--out", tmp_path / "run")
    command = ("run", tmp_path / "x.npy", *how, *KERNELS, *THREADS)
    assert "leads out of" in refused(*command)
    assert "leads out of" in refused(*command, "--overwrite")


@pytest.mark.parametrize("what", ["full folder", "empty folder", "nothing"])
def test_a_store_is_never_made_through_a_link(what, treasure, tmp_path):
    target = {"full folder": treasure, "empty folder": tmp_path / "e", "nothing": tmp_path / "no"}
    (tmp_path / "e").mkdir()
    np.save(tmp_path / "x.npy", features())
    (tmp_path / "s.zarr").symlink_to(target[what])
    code = 4 if what == "full folder" else 2  # there is a manifest.json that cannot be read
    refused("build", tmp_path / "x.npy", tmp_path / "s.zarr", *KERNELS, *THREADS, code=code)
    assert (tmp_path / "s.zarr").is_symlink()
    assert list((tmp_path / "e").iterdir()) == []


def test_a_store_that_is_a_link_is_not_removed(tmp_path):
    np.save(tmp_path / "x.npy", features())
    out = ("--out", tmp_path / "run", *FIT, *THREADS)
    exits(0, "run", tmp_path / "x.npy", *out, *KERNELS)
    (tmp_path / "run" / "store.zarr").rename(tmp_path / "kept.zarr")
    (tmp_path / "run" / "store.zarr").symlink_to(tmp_path / "kept.zarr")
    refused("run", tmp_path / "x.npy", *out, "--overwrite", "--kernels", "linear")
    assert KernelStore.open(tmp_path / "kept.zarr").names == ("rbf_1", "cosine")


def test_links_inside_a_removed_folder_are_not_followed(treasure, tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "link").symlink_to(treasure)
    (tmp_path / "way").symlink_to(treasure)
    raised(lambda: remove_tree(tmp_path / "way"), InputError)
    raised(lambda: remove_tree(treasure, folder), InputError)
    raised(lambda: remove_tree(folder / "sub" / "link" / "..", folder), InputError)
    remove_tree(folder)
    remove_tree(folder)
    assert not folder.exists()


# --- no pickle, no secrets --------------------------------------------------------------------


def test_objects_are_never_written():
    with pytest.raises(ValueError, match="Object arrays"):
        npz_bytes({"w": np.array([{}], dtype=object)})


def test_no_module_touches_a_pickle():
    import gmkcf_dask

    wrong = []
    for path in Path(gmkcf_dask.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        words = ("import pickle", "cloudpickle", "joblib", "allow_pickle=True", "from_npy_stack")
        wrong += [f"{path.name}: {word}" for word in words if word in text]
        wrong += [f"{path.name}: np.load" for line in text.splitlines()
                  if "np.load(" in line and "allow_pickle=False" not in line]  # fmt: skip
        wrong += [f"{path.name}: np.savez" for line in text.splitlines() if "np.savez" in line]
    assert wrong == []


SECRETS = {
    "tcp://ann:hunter2@host:8786": "tcp://***@host:8786",
    "s3://bucket?token=hunter2&x=1": "s3://bucket?token=***&x=1",
    "aws_secret_access_key=hunter2": "aws_secret_access_key=***",
    "{'password': 'hunter2'}": "{'password': '***'}",
    "API-KEY: hunter2": "API-KEY: ***",
    "kernel rbf_1: 5 of 6 tiles": "kernel rbf_1: 5 of 6 tiles",
    "monkey business: none": "monkey business: none",
    "?key=hunter2": "?key=***",
    "there is no kernel store at turkey: check the path": "there is no kernel store at turkey: "
    "check the path",
    "there is no kernel store at key: check the path": "there is no kernel store at key: check the "
    "path",
    "nothing at runs/key=5/store.zarr": "nothing at runs/key=5/store.zarr",
}


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_struck_out(text):
    assert redacted(text) == SECRETS[text]
    assert str(GmkcfError(text)) == SECRETS[text]


def test_secrets_are_struck_out_of_results(tmp_path):
    plan = {"token": "hunter2", "n": [1, "key=hunter2"]}
    result = make_result(store="s3://a:hunter2@b", plan=plan)
    write_run(tmp_path / "run", ("a",), np.array([0]), {}, result)
    text = (tmp_path / "run" / "result.json").read_text()
    assert "hunter2" not in text
    assert json.loads(text)["plan"]["n"][0] == 1
    weights = {"token": 0.25, "api_key": 0.75}
    result = make_result(store="/data/key=5/s.zarr", kernel_weights=weights)
    write_run(tmp_path / "run", ("a",), np.array([0]), {}, result)
    assert read_result(tmp_path / "run") == result
    assert redacted_tree({"n_samples": 3, "kernels": ("a",)}) == {"n_samples": 3, "kernels": ["a"]}


@pytest.mark.parametrize("address", ["tcp://ann:hunter2@host:8786", "tcp://ann@10.0.0.1:8786"])
def test_secrets_in_an_address_are_not_printed(address, tmp_path):
    np.save(tmp_path / "x.npy", features())
    found = exits(2, "plan", tmp_path / "x.npy", "-k", K, "--cluster", address)
    assert "hunter2" not in found.output
    assert "ann" not in found.output


def test_the_systems_own_words_are_checked_too(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("cannot open s3://ann:hunter2@bucket")

    np.save(tmp_path / "x.npy", features())
    monkeypatch.setattr("gmkcf_dask.pipeline.request_plan", fail)
    found = gmkcf("plan", tmp_path / "x.npy", "-k", K, *THREADS)
    assert "hunter2" not in found.output
    assert "s3://***@bucket" in found.output


def test_nothing_is_run_from_the_current_folder(tmp_path):
    """A module lying beside the data must not be imported in place of ours."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    np.save(tmp_path / "x.npy", features())
    code = "import sys; sys.path.remove('') if '' in sys.path else None; import gmkcf_dask.cli"
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)


# --- Dask's own settings that demand encryption -------------------------------------------------


def test_settings_that_demand_encryption(ours, tmp_path):
    """As one has them after following the guide: local clusters use the same certificates."""
    import distributed  # noqa: F401, which brings the other settings

    demanded = {"distributed.comm.require-encryption": True}
    with (
        dask.config.set(demanded),
        pytest.raises(InputError, match=r"demand encryption .* give its tls:// address"),
        start(ClusterConfig("address", address="tcp://127.0.0.1:1"), 10),
    ):
        pass
    with (
        dask.config.set(demanded),
        pytest.raises(InputError, match="a local cluster, by Dask's settings, needs certificates"),
        start(LOCAL, 10),
    ):
        pass
    names = [f"distributed.comm.tls.{who}" for who in ("scheduler", "worker", "client")]
    tls = {"distributed.comm.tls.ca-file": str(ours.ca)}
    tls |= {f"{name}.cert": str(ours.cert) for name in names}
    tls |= {f"{name}.key": str(ours.key) for name in names}
    with (
        dask.config.set({**demanded, **tls}),
        start(LOCAL, 10) as resources,
    ):
        assert resources.runner.client.scheduler.address.startswith("tls://127.0.0.1:")
    missing = tls | {"distributed.comm.tls.ca-file": str(tmp_path / "none.pem")}
    with (
        dask.config.set({**demanded, **missing}),
        pytest.raises(InputError, match=r"such as \S+none\.pem, cannot be used"),
        start(LOCAL, 10),
    ):
        pass
