"""Clusters described by a file: every key known, every value fit, or one sentence."""

import json
from pathlib import Path

import dask
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from helpers.cluster_files import parse_config
from hypothesis import given, strategies as st

from gmkcf_dask.cli import main
from gmkcf_dask.cluster.config import KEYS, Adaptive, Connect, read_config
from gmkcf_dask.cluster.dask_settings import _DASK, check_setting, is_accepted
from gmkcf_dask.cluster.plain_yaml import LARGEST_FILE, MOST_PARTS, PlainLoader, load_file
from gmkcf_dask.cluster.tls import Certificates, pages
from gmkcf_dask.errors import InputError

HERE = Path("folder/cluster.yaml")


def parse(text):
    return parse_config(text.encode() if isinstance(text, str) else text, HERE)


def test_local():
    found = parse(
        """
        gmkcf: {kind: local, workers: 3, memory: 2GiB, dashboard: true, stall-timeout: 10m}
        distributed:
          worker: {memory: {spill: 0.8}}
          nanny: {pre-spawn-environ: {MALLOC_TRIM_THRESHOLD_: 1, OMP_NUM_THREADS: 2}}
        """
    )
    assert (found.kind, found.where, found.workers, found.memory) == ("local", "local", 3, 2 << 30)
    assert found.dashboard
    assert found.stall_timeout == 600.0
    assert found.settings == {
        "distributed.worker.memory.spill": 0.8,
        "distributed.nanny.pre-spawn-environ": {"MALLOC_TRIM_THRESHOLD_": 1, "OMP_NUM_THREADS": 2},
    }


def test_address_with_certificates_beside_the_file():
    found = parse(
        "gmkcf: {kind: address, address: 'tls://host:8786', "
        "tls: {ca: ca.pem, cert: /etc/me.pem, key: me.key}}"
    )
    assert found.where == "tls://host:8786"
    files = (Path("folder/ca.pem"), Path("/etc/me.pem"), Path("folder/me.key"))
    assert found.certificates == Certificates(*files)


def test_ssh():
    found = parse(
        """
        gmkcf:
          kind: ssh
          hosts: [a, b]
          python: $HOME/venv/bin/python
          connect: {username: me, port: 2222, known-hosts: hosts, client-keys: /key}
          wait: 2m
          minimum: 1
          threads: 2
          interface: eth0
          local-directory: /scratch
          storage: stores
        """
    )
    assert found.hosts == ("a", "b")
    assert found.connect == Connect("me", 2222, Path("folder/hosts"), (Path("/key"),))
    assert (found.python, found.wait, found.minimum) == ("$HOME/venv/bin/python", 120.0, 1)
    assert (found.threads, found.interface, found.local_directory) == (2, "eth0", "/scratch")
    assert found.storage == "folder/stores"


def test_bounds_path_and_storage_by_url():
    found = parse("gmkcf: {kind: local, adaptive: {minimum: 1, maximum: 4}, storage: 's3://b/c/'}")
    assert found.adaptive == Adaptive(1, 4)
    assert found.storage == "s3://b/c/"
    found = parse("gmkcf: {kind: scheduler-file, path: s.json}")
    assert found.path == Path("folder/s.json")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gmkcf: {kind: ssh}", "gmkcf.hosts is missing, and kind ssh needs it"),
        ("gmkcf: {kind: ssh, hosts: [a]}", "hosts must be a list of length >= 2"),
        ("gmkcf: {kind: ssh, hosts: [a, -b c]}", r"hosts\[1\] must be a name"),
        ("gmkcf: {kind: ssh, hosts: [a, b], adaptive: {}}", "no key 'adaptive' in gmkcf"),
        (
            "gmkcf: {kind: ssh, hosts: [a, b], connect: {user: me}}",
            "no key 'user' in gmkcf.connect: did you mean username",
        ),
        (
            "gmkcf: {kind: ssh, hosts: [a, b], connect: {port: 70000}}",
            "port must be a whole number <= 65535",
        ),
        (
            "gmkcf: {kind: ssh, hosts: [a, b], connect: {known-hosts: }, python: a b}",
            "name or path",
        ),
        ("gmkcf: {kind: local, adaptive: 3}", "adaptive must be a section, not 3"),
        ("gmkcf: {kind: local, adaptive: {minimum: 1}}", "gmkcf.adaptive.maximum is missing"),
        (
            "gmkcf: {kind: local, adaptive: {minimum: 3, maximum: 2}}",
            "gmkcf.adaptive has a minimum that is more",
        ),
        (
            "gmkcf: {kind: local, workers: 1, adaptive: {minimum: 1, maximum: 2}}",
            "has workers and adaptive: give one of them",
        ),
        (
            "gmkcf: {kind: address, address: 'tls://h:1', insecure: true, "
            "tls: {ca: a, cert: b, key: c}}",
            "has tls and insecure: give one of them",
        ),
        ("gmkcf: {kind: jobqueue, system: [slurm]}", "system must be a text.* not a list"),
        ("gmkcf: {kind: mpi, workers: 3}", "no key 'workers' in gmkcf"),
        ("", "must begin with a section gmkcf"),
        ("- 1", "must begin with a section gmkcf"),
        ("gmkcf: local", "has no section gmkcf with the kind"),
        ("gmkfc: {kind: local}", "no key 'gmkfc': did you mean gmkcf"),
        (
            "gmkcf: {kind: lokal}",
            "gmkcf.kind must be one of threads, local, address, scheduler-file, ssh, jobqueue, "
            "mpi, not 'lokal'",
        ),
        ("gmkcf: {kind: [local]}", "not a list"),
        (
            "gmkcf: {kind: local, wrokers: 3}",
            r"'wrokers' in gmkcf \(kind local\): did you mean workers",
        ),
        ("gmkcf: {kind: threads, tls: {}}", "no key 'tls' in gmkcf"),
        ("gmkcf: {kind: address}", "gmkcf.address is missing, and kind address needs it"),
        ("gmkcf: {kind: local, workers: 0}", "workers must be a whole number >= 1, not 0"),
        ("gmkcf: {kind: local, workers: true}", "not True"),
        ("gmkcf: {kind: local, workers: 1e3}", "workers must be a whole number"),
        ("gmkcf: {kind: local, memory: lots}", "amount of memory such as 4GiB, not 'lots'"),
        ("gmkcf: {kind: local, memory: -1GiB}", "amount of memory"),
        ("gmkcf: {kind: local, dashboard: 1}", "must be true or false, not 1"),
        ("gmkcf: {kind: local, stall-timeout: soon}", "must be a time such as"),
        ("gmkcf: {kind: local, stall-timeout: .nan}", "must be a time such as"),
        ("gmkcf: {kind: local, tls: {ca: a}}", "gmkcf.tls.cert is missing"),
        ("gmkcf: {kind: local, workers: 1, workers: 2}", "line 1: a key is there twice"),
        ("gmkcf: &a {kind: local}\ndistributed: *a", "references"),
        ("gmkcf: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("gmkcf: {kind: local", "cannot be read: line 1"),
        (b"gmkcf: \xff\xfe", "cannot be read"),
        (b"\x00", "cannot be read"),
        (r'gmkcf: {kind: "\ud800"}', "line 1: a text has half a character"),
        (r'gmkcf: {kind: local, "\udfff": 1}', "line 1: a text has half a character"),
        (
            'gmkcf: {kind: local}\ndistributed: {comm: {default-scheme: "\\ud800"}}',
            "line 2: a text has half a character",
        ),
        ("gmkcf: " + "[" * 5000, "cannot be read"),
        ("gmkcf: " + "{a: " * 30 + "1" + "}" * 30, "more than 20 levels"),
        (
            "gmkcf: {kind: local}\ndistributed: {wroker: {}}",
            "no key 'wroker' in distributed: did you mean worker",
        ),
        ("gmkcf: {kind: local}\ndistributed: {worker: 1}", "distributed.worker must be a section"),
        (
            "gmkcf: {kind: local}\ndistributed: {worker: {preload: [x]}}",
            "distributed.worker.preload is not taken from a file",
        ),
        *(
            (f"gmkcf: {{kind: local}}\ndistributed: {section}", "is not taken from a file")
            for section in (
                "{scheduler: {preload_argv: [x]}}",
                "{scheduler: {http: {routes: [x]}}}",
                "{scheduler: {active-memory-manager: {policies: [{class: x}]}}}",
                "{nanny: {pre-spawn-environ: {PYTHONPATH: x}}}",
                "{nanny: {pre-spawn-environ: {LD_PRELOAD: x}}}",
                "{nanny: {environ: {MALLOC_ARENA_MAX: 1}}}",
                "{nanny: {pre-spawn-environ: {MALLOC_ARENA_MAX: [1]}}}",
            )
        ),
        ("gmkcf: {kind: local}\ndistributed: {nanny: {pre-spawn-environ: 1}}", "must be a section"),
        *(
            (
                f"gmkcf: {{kind: local}}\ndistributed: {{nanny: {{pre-spawn-environ: {{{one}}}}}}}",
                "it has to be a number for the allocator or for threads of BLAS",
            )
            for one in (
                "OMP_TOOL_LIBRARIES: 1",
                "OMP_TOOL_LIBRARIES: /tmp/evil.so",
                "OMP_DISPLAY_ENV: 1",
                "MALLOC_TRACE: 1",
                "MALLOC_TRIM_THRESHOLD_: lots",
                "OMP_NUM_THREADS: true",
                "1: 1",
            )
        ),
        *(
            (f"gmkcf: {{kind: local}}\ndistributed: {section}", sentence)
            for section, sentence in (
                ("{worker: {memory: {target: lots}}}", "memory.target must be a number"),
                ("{worker: {memory: {spill: 70}}}", "memory.spill must be a number <= 1.0, not 70"),
                ("{worker: {memory: {pause: true}}}", "memory.pause must be a number, not True"),
                ("{worker: {memory: {max-spill: much}}}", "must be an amount of memory"),
                ("{worker: {memory: {monitor-interval: }}}", "must be a time such as"),
                ("{worker: {lifetime: {restart: 1}}}", "must be true or false"),
                ("{worker: {connections: {outgoing: many}}}", "must be a whole number"),
                (
                    "{scheduler: {allowed-failures: -1}}",
                    "must be a whole number >= 0",
                ),
                ("{scheduler: {worker-ttl: soon}}", "worker-ttl must be a time"),
                ("{comm: {timeouts: {connect: [1]}}}", "must be a time"),
                ("{comm: {tls: {ca-file: 3}}}", "must be a text in one line"),
                ("{comm: {tls: {min-version: 1.1}}}", "must be one of 1.2, 1.3, not 1.1"),
                ("{comm: {default-scheme: ucx}}", "must be one of tcp, tls"),
                ("{comm: {compression: best}}", "compression must be one of auto"),
                ("{comm: {zstd: {level: 23}}}", "level must be a whole number <= 22"),
            )
        ),
    ],
)
def test_what_is_wrong_is_said(text, sentence):
    with pytest.raises(InputError, match=sentence) as raised:
        parse(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_all_that_dask_sets_itself_is_fit():
    """The values that Dask comes with are values it can read: no reader may refuse one."""
    import distributed  # noqa: F401  # brings its defaults

    defaults = dask.config.merge(*dask.config.defaults)["distributed"]
    known = set()

    def walk(value, name):
        if isinstance(value, dict) and not is_accepted(name):
            for key, part in value.items():
                walk(part, f"{name}.{str(key).replace('_', '-')}")
        elif is_accepted(name):
            known.add(name)
            check_setting(name, value, "defaults", Path())

    walk(defaults, "distributed")
    assert {f"distributed.{name}" for name in _DASK} == known


def test_what_dask_can_switch_off():
    settings = parse(
        "gmkcf: {kind: local}\n"
        "distributed:\n"
        "  worker: {memory: {spill: false, max-spill: 10GB}, lifetime: {duration: 1 hour}}\n"
        "  scheduler: {worker-saturation: .inf, idle-timeout: null, worker-ttl: 60}\n"
    ).settings
    assert settings == {
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.max-spill": "10GB",
        "distributed.worker.lifetime.duration": "1 hour",
        "distributed.scheduler.worker-saturation": float("inf"),
        "distributed.scheduler.idle-timeout": None,
        "distributed.scheduler.worker-ttl": 60,
    }


def test_no_file_or_too_large(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the cluster file .*: No such file"):
        read_config(tmp_path / "no.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        read_config(tmp_path)
    (tmp_path / "big.yaml").write_bytes(b"#" * (LARGEST_FILE + 1))
    with pytest.raises(InputError, match="is not a cluster file"):
        read_config(tmp_path / "big.yaml")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({key for pair in KEYS.values() for keys in pair for key in keys}))


@given(
    kind=st.sampled_from(list(KEYS)) | VALUES,
    ours=st.dictionaries(NAMES, VALUES, max_size=3),
    dasks=VALUES,
)
def test_any_value_is_taken_or_refused_in_a_sentence(kind, ours, dasks):
    text = yaml.safe_dump({"gmkcf": {"kind": kind, **ours}, "distributed": dasks})
    try:
        parse(text)
    except InputError as error:
        sentence = str(error)
    else:
        sentence = ""
    assert "\n" not in sentence


@pytest.fixture
def features(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", np.abs(rng.normal(size=(30, 4))) + 3 * (np.arange(30) % 2)[:, None])
    return tmp_path / "x.npy"


def gmkcf(*arguments):
    return CliRunner().invoke(main, [str(word) for word in arguments])


def test_the_command_line_wins_over_the_file(features, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("gmkcf: {kind: threads, workers: 1, memory: 3GiB}\n")
    plan = ("plan", features, "-k", 2, "--cluster", file)
    assert "runs on: 1 threads of this process" in gmkcf(*plan).output
    assert "runs on: 2 threads of this process" in gmkcf(*plan, "--workers", 2).output
    file.write_text("gmkcf: {kind: threads, workers: 1, memory: 3}\n")
    refused = gmkcf("run", features, "-k", 2, "--out", tmp_path / "no", "--cluster", file)
    assert refused.exit_code == 3, refused.output
    assert gmkcf(*plan, "--memory", "3GiB").exit_code == 0


def test_settings_of_the_file_reach_the_workers(features, tmp_path, monkeypatch):
    # Dask leaves what it set for the workers of an earlier cluster in this process
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    from gmkcf_dask.cli.options import cluster_config
    from gmkcf_dask.cluster.launch import start

    file = tmp_path / "cluster.yaml"
    file.write_text(
        "gmkcf: {kind: local, workers: 1, memory: 1GiB}\n"
        "distributed:\n"
        "  worker: {memory: {spill: 0.55}}\n"
        "  nanny: {pre-spawn-environ: {MALLOC_TRIM_THRESHOLD_: 12345, MALLOC_ARENA_MAX: 3}}\n"
    )
    names = ("tls_ca", "tls_cert", "tls_key", "workers", "memory", "stall_timeout")
    options = dict.fromkeys(names) | {"cluster": str(file), "insecure": False, "dashboard": False}

    def asked():
        import os

        environment = {
            name: os.environ.get(name) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX")
        }
        return environment | {
            "spill": dask.config.get("distributed.worker.memory.spill"),
            "threads": os.environ["OMP_NUM_THREADS"],
        }

    before = json.dumps(dask.config.config, default=str, sort_keys=True)
    with start(cluster_config(options, load_file(file)), 10) as resources:
        (found,) = resources.runner.client.run(asked).values()
    assert found == {
        "MALLOC_TRIM_THRESHOLD_": "12345",
        "MALLOC_ARENA_MAX": "3",
        "spill": 0.55,
        "threads": "1",
    }
    assert json.dumps(dask.config.config, default=str, sort_keys=True) == before


@pytest.mark.parametrize("dashboard", [False, True])
def test_without_a_dashboard_only_the_health_page_is_served(dashboard):
    from gmkcf_dask.cluster.launch import start

    def answers(where):
        import urllib.error
        import urllib.request

        try:
            return urllib.request.urlopen(where, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code

    def port_of(dask_worker):
        return dask_worker.http_server.port

    text = f"gmkcf: {{kind: local, workers: 1, memory: 1GiB, dashboard: {str(dashboard).lower()}}}"
    with start(parse(text), 10) as resources:
        client = resources.runner.client
        (worker,) = client.run(port_of).values()
        scheduler = client.scheduler_info(n_workers=0)["services"]["dashboard"]
        for port, others in ((scheduler, 200 if dashboard else 404), (worker, 404)):
            here = f"http://127.0.0.1:{port}"
            assert answers(f"{here}/health") == 200
            names = ["metrics"]
            if port == scheduler:
                names += ["json/identity.json", "info/main/workers.html"]
            assert {answers(f"{here}/{name}") for name in names} == {others}


def test_a_dashboard_has_its_pages_beside_a_cluster_without_one():
    """Both are in one process, whose settings of Dask they share."""
    import distributed  # noqa: F401, which brings these settings

    before = dask.config.get("distributed.scheduler.http.routes")
    with dask.config.set(pages(dashboard=False)):
        found = pages(dashboard=True)["distributed.scheduler.http.routes"]
    assert "distributed.http.scheduler.info" in found
    assert dask.config.get("distributed.scheduler.http.routes") == before
    with dask.config.set({"distributed.scheduler.http.routes": ["my.own"]}):
        assert pages(dashboard=True)["distributed.scheduler.http.routes"] == ["my.own"]


def test_a_default_stands_for_a_variable_that_is_not_set(monkeypatch):
    from gmkcf_dask.cluster.process_settings import directory_here

    found = parse("gmkcf: {kind: local, local-directory: '${SOMEWHERE:-/tmp}/me'}")
    monkeypatch.delenv("SOMEWHERE", raising=False)
    assert directory_here(found) == "/tmp/me"
    monkeypatch.setenv("SOMEWHERE", "/fast")
    assert directory_here(found) == "/fast/me"


@pytest.mark.slow
def test_bounds_threads_and_folder_of_local_workers(tmp_path, monkeypatch):
    from gmkcf_dask.cluster.launch import describe, start

    monkeypatch.setenv("SOMEWHERE", str(tmp_path / "scratch"))
    text = "kind: local, threads: 2, memory: 1GiB, local-directory: $SOMEWHERE"
    bounds = "adaptive: {minimum: 1, maximum: 2}"
    described = describe(parse(f"gmkcf: {{{text}, {bounds}}}"), 10)
    assert (described.n_workers, described.threads_per_worker) == (1, 2)
    with start(parse(f"gmkcf: {{{text}, {bounds}}}"), 10) as resources:
        assert (resources.n_workers, resources.threads_per_worker) == (1, 2)
        assert list((tmp_path / "scratch").rglob("worker-*"))
        client = resources.runner.client
        waiting = client.map(lambda _: __import__("time").sleep(1), range(30), pure=False)
        client.wait_for_workers(2, timeout=60)
        client.cancel(waiting)
    monkeypatch.delenv("SOMEWHERE")
    with (
        pytest.raises(InputError, match="names a variable that is not set here"),
        start(parse(f"gmkcf: {{{text}}}"), 10),
    ):
        pass


def test_a_plan_of_a_cluster_that_is_not_started(features, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("gmkcf: {kind: ssh, hosts: [a, b, c], workers: 2, memory: 1GiB}\n")
    found = gmkcf("plan", features, "-k", 2, "--cluster", file)
    assert "runs on: 4 workers on 2 hosts" in found.output
    assert (
        "runs on: 6 workers"
        in gmkcf("plan", features, "-k", 2, "--cluster", file, "--workers", 3).output
    )


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("kind: ssh, hosts: [a, b, c], workers: 2, minimum: 5", (), "never more than 4 come"),
        ("kind: ssh, hosts: [a, b, c], workers: 3, minimum: 5", (), None),
        ("kind: ssh, hosts: [a, b, c], workers: 8, minimum: 5", ("--workers", 1), None),
    ],
)
def test_nobody_waits_for_more_workers_than_come(text, words, sentence, features, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(f"gmkcf: {{{text}, memory: 1GiB}}\n")
    found = gmkcf("plan", features, "-k", 2, "--cluster", file, *words)
    assert found.exit_code == (0 if sentence is None else 2), found.output
    assert sentence is None or sentence in found.output


def test_insecure_and_certificates(features, tmp_path, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.cluster.tls.certificates", lambda *_: "three files that fit")
    file = tmp_path / "cluster.yaml"
    tls = "{ca: ca.pem, cert: c.pem, key: k.pem}"
    file.write_text(f"gmkcf: {{kind: address, address: 'tls://h:1', tls: {tls}}}\n")
    out = tmp_path / "no"
    found = gmkcf("run", features, "-k", 2, "--out", out, "--cluster", file, "--insecure")
    assert found.exit_code == 2
    assert "--insecure and certificates do not go together" in found.output
    assert not out.exists()


def test_certificates_that_are_missing_are_named_as_the_file_does(features, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "gmkcf: {kind: address, address: 'tls://h:1', "
        "tls: {ca: certificates/ca.pem, cert: c.pem, key: k.pem}}\n"
    )
    found = gmkcf("plan", features, "-k", 2, "--cluster", file)
    assert found.exit_code == 2
    missing = tmp_path / "certificates" / "ca.pem"
    assert found.output.startswith(f"error: {file}: gmkcf.tls.ca {missing} is not a file")


def test_a_store_of_another_run_is_not_replaced(features, tmp_path):
    """Two runs of one name have their kernels at one place of the storage."""
    file = tmp_path / "cluster.yaml"
    file.write_text("gmkcf: {kind: threads, storage: stores}\n")
    common = ("-k", 2, "--max-iter", 2, "--cluster", file, "--overwrite")
    first = ("run", features, *common, "--kernels", "linear,cosine", "--out", tmp_path / "a/run")
    assert gmkcf(*first).exit_code == 0
    manifest = (tmp_path / "stores/run.zarr/manifest.json").read_bytes()
    second = ("run", features, *common, "--kernels", "linear,rbf_1", "--out")
    found = gmkcf(*second, tmp_path / "b/run")
    assert found.exit_code == 2
    assert "so it may be another run's" in found.output
    assert (tmp_path / "stores/run.zarr/manifest.json").read_bytes() == manifest
    # its own run may replace it, whether that had one kernel or all
    assert gmkcf(*second, tmp_path / "a/run").exit_code == 0
    assert (tmp_path / "stores/run.zarr/manifest.json").read_bytes() != manifest
    every = ("--method", "kkm", "--kernel", "all")
    assert gmkcf(*second, tmp_path / "a/run", *every).exit_code == 0
    assert gmkcf(*first).exit_code == 0


def test_a_bad_file_is_told_before_any_work(features, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("gmkcf: {kind: local, wokers: 1}\n")
    out = tmp_path / "out"
    found = gmkcf("run", features, "-k", 2, "--out", out, "--cluster", file)
    assert found.exit_code == 2
    assert "did you mean workers?" in found.output
    assert not out.exists()


def test_keys_of_certificates_are_named():
    text = "gmkcf: {kind: address, address: 'tls://h:1', tls: {ca-file: a, cert: b, key: c}}"
    with pytest.raises(InputError, match=r"no key 'ca-file' in gmkcf\.tls: known are ca"):
        parse(text)
    with pytest.raises(InputError, match=r"gmkcf\.tls\.key is missing"):
        parse(text.replace("ca-file", "ca").replace(", key: c", ""))


# bounds, and what YAML 1.1 would have made of it


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "gmkcf: {" + ", ".join(f"k{i}: 1" for i in range(60_000)) + "}",
        "gmkcf: {" + ", ".join(f"k{i}: 1" for i in range(4_900)) + "}",
        "".join(f"k{i}:\n" for i in range(9_000)),
        "gmkcf: [" + "1," * 30_000 + "]",
        "[" * 60_000,
        "{" * 60_000,
        "gmkcf: " + "'" + "x" * 60_000 + "'",
        "? [" + "a," * 2_000 + "]\n: 1",
    ],
    ids=lambda text: f"{text[:12]} of {len(text)}",
)
def test_a_file_of_many_parts_is_refused_at_once(text, monkeypatch):
    counted = []
    compose = PlainLoader.compose_node
    counting = lambda *args: counted.append(1) or compose(*args)  # noqa: E731
    monkeypatch.setattr(PlainLoader, "compose_node", counting)
    with pytest.raises(InputError) as told:
        parse(text)
    assert len(counted) <= MOST_PARTS + 1
    assert len(str(told.value)) < 500


def test_a_large_file_is_refused_by_its_size(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("gmkcf: {" + ", ".join(f"k{i}: 1" for i in range(60_000)) + "}")
    with pytest.raises(InputError, match="not a cluster file"):
        read_config(path)


@pytest.mark.parametrize(
    "value", ["1:30", "010", "0o10", "0x10", "1_0", "yes", "2026-01-31", "1e1", "!!int '1:30'"]
)
def test_numbers_are_those_of_yaml_1_2_and_1_1_alike(value):
    with pytest.raises(InputError) as told:
        parse(f"gmkcf: {{kind: local, workers: {value}}}")
    assert "workers must be a whole number" in str(told.value) or "valid int of YAML" in str(
        told.value
    )


@pytest.mark.parametrize("value", ["yes", "no", "on", "off", "y", "N", "!!bool yes"])
def test_flags_are_true_or_false(value):
    with pytest.raises(InputError, match=r"true or false|valid bool of YAML"):
        parse(f"gmkcf: {{kind: local, dashboard: {value}}}")


def test_plain_values_are_what_they_look_like():
    text = "[12, -3, +4, 0.5, .5, 1e3, -2.5E-3, .inf, true, False, null, ~, '', 1:30, no, 010, x]"
    found = yaml.load(text, PlainLoader)
    assert found == [
        12, -3, 4, 0.5, 0.5, 1000.0, -0.0025, float("inf"), True, False, None, None, "", "1:30",
        "no", "010", "x",
    ]  # fmt: skip
    assert yaml.load("a:\nb: ~", PlainLoader) == {"a": None, "b": None}


@pytest.mark.parametrize(
    "value",
    ["!!timestamp 2026-01-31", "!!binary aGk=", "!!set {a}", "!!omap [a: 1]", "!!float 1:2"],
)
def test_other_tags_are_not_taken(value):
    with pytest.raises(InputError, match="cannot be read"):
        parse(f"gmkcf: {{kind: local, workers: {value}}}")


def test_merge_keys_are_keys():
    with pytest.raises(InputError, match="'<<'"):
        parse("gmkcf: {kind: local, <<: {workers: 2}}")
