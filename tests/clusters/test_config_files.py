"""The files of cluster_configs/: each loads, sets what it must, and renders the same job script."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import files
from pathlib import Path
from typing import get_args

import dask
import pytest
import yaml
from helpers.needs import need_package, need_program
from helpers.paths import CONFIGS, ROOT
from msgspec.structs import replace

from gmkcf_dask.cluster.config import read_config
from gmkcf_dask.cluster.process_settings import WORKER_ENVIRONMENT, prepare
from gmkcf_dask.cluster.schema import System
from gmkcf_dask.cluster.tls import pages

pytestmark = pytest.mark.once
SNAPSHOTS = Path(__file__).parent / "snapshots"
ALL = sorted(CONFIGS.rglob("*.yaml"))
MANIFESTS = sorted((CONFIGS / "kubernetes").glob("*.yaml"))
OURS = [path for path in ALL if "gmkcf:" in path.read_text().splitlines()]
SPILL = {"target": 0.6, "spill": 0.7, "pause": 0.8, "terminate": 0.95}
INSTALL = "pip install 'gmkcf-dask[cluster-tests]'"


def name_of(path):
    return path.relative_to(CONFIGS).as_posix()


def needed_by(path):
    if "jobqueue" in path.parts:
        need_package("dask_jobqueue", INSTALL)


def test_there_is_one_for_every_kind():
    assert {name_of(path) for path in OURS} == {
        "address.yaml",
        "local.yaml",
        "mpi.yaml",
        "scheduler_file.yaml",
        "ssh.yaml",
        "threads.yaml",
        *(f"jobqueue/{system}.yaml" for system in get_args(System)),
    }
    guide = (CONFIGS / "README.md").read_text()
    assert [path.name for path in ALL if f"{path.name}`" not in guide] == []


STARTED = {"memory", "threads", "interface", "local-directory", "tls", "dashboard"}
SET = {
    "threads": {"workers", "memory"},  # nothing listens, and nothing spills
    "local": STARTED - {"interface", "tls"} | {"workers"},  # always loopback; TLS if one wants it
    "address": {"address", "tls", "wait", "minimum"},  # its processes are started by others
    "scheduler-file": {"path", "tls", "wait", "minimum"},
    "ssh": STARTED | {"hosts", "workers", "python", "connect", "wait"},
    "jobqueue": STARTED | {"system", "workers", "wait", "minimum"},
    "mpi": STARTED | {"wait"},
}
"""By kind, the keys that its file sets."""


def comments(path):
    """All that a file says behind #, with lines that go on as one."""
    lines = [line.partition("#")[2] for line in path.read_text().splitlines()]
    return "\n".join(lines).replace("\\\n", " ")


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_it_loads_and_sets_all_that_matters(path):
    needed_by(path)
    config = read_config(path)
    ours = yaml.safe_load(path.read_text())["gmkcf"]
    assert config.kind == ours["kind"]
    said = {key for key, value in ours.items() if value is not None}
    assert said - {"kind", "stall-timeout"} == SET[config.kind]
    assert not config.insecure
    assert not config.dashboard
    if config.certificates is not None:
        assert config.certificates.ca == path.parent / "certificates" / "ca.pem"
    if config.kind == "threads":
        assert "no interface, no TLS and no dashboard, and no worker spills" in comments(path)
        return
    if config.kind == "local":
        assert "The interface is always loopback" in comments(path)
        assert "tls: {ca: certificates/ca.pem," in comments(path)
    for key, share in SPILL.items():
        assert config.settings[f"distributed.worker.memory.{key}"] == share
    environment = config.settings["distributed.nanny.pre-spawn-environ"]
    assert {key: str(value) for key, value in environment.items()} == WORKER_ENVIRONMENT


BY_HAND = ["address.yaml", "scheduler_file.yaml", "workers.yaml"]


@pytest.mark.parametrize("name", BY_HAND)
def test_what_others_start_is_shown_as_commands(name):
    """With interface, folder and pages, which no file of ours can set there; Dask knows each."""
    lines = comments(CONFIGS / name).splitlines()
    for program in ("scheduler", "worker"):
        (line,) = [line for line in lines if line.strip().startswith(f"dask {program}")]
        words = line.split()
        assert words[words.index("--dashboard-address") + 1] == "127.0.0.1:0"
        assert {"--interface", "--no-dashboard"} < set(words)
        assert ("--local-directory" in words) == (program == "worker")
        known = importlib.import_module(f"distributed.cli.dask_{program}").main.params
        options = {option for param in known for option in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options


def test_settings_for_workers_that_others_start():
    found = yaml.safe_load((CONFIGS / "workers.yaml").read_text())["distributed"]
    assert found["worker"]["memory"] == SPILL
    environment = found["nanny"]["pre-spawn-environ"]
    assert {key: str(value) for key, value in environment.items()} == WORKER_ENVIRONMENT
    assert {
        f"distributed.{member}.http.routes": found[member]["http"]["routes"]
        for member in ("scheduler", "worker")
    } == pages(dashboard=False)


def test_an_installed_package_has_the_files():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    where = wheel["wheel"]["shared-data"]["cluster_configs"]
    assert where == "share/gmkcf_dask/cluster_configs"
    assert f"`{where}`" in (CONFIGS / "README.md").read_text()


@pytest.mark.parametrize("path", [p for p in ALL if p not in MANIFESTS], ids=name_of)
def test_dask_itself_can_load_it(path):
    (found,) = dask.config.collect_yaml([str(path)])
    assert set(found) <= {"gmkcf", "distributed", "jobqueue"}


@pytest.mark.parametrize("system", get_args(System))
def test_job_script(system, monkeypatch):
    """GMKCF_SNAPSHOTS=write writes them anew, to be read before they are committed."""
    need_package("dask_jobqueue", INSTALL)
    from helpers.cluster_files import job_script

    from gmkcf_dask.cluster.jobqueue import described

    for name in WORKER_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    config = read_config(CONFIGS / "jobqueue" / f"{system}.yaml")
    with dask.config.set(config.settings):
        found = job_script(config, prepare(config, only_loopback=False), "tls://HOST:8786")
        assert described(config) == (8, 1, 4 << 30)
    found = found.replace(sys.executable, "PYTHON").replace(str(CONFIGS), "CONFIGS")
    found = re.sub(r"[ \t]+$", "", found, flags=re.MULTILINE)
    path = SNAPSHOTS / f"{system}.sh"
    if os.environ.get("GMKCF_SNAPSHOTS") == "write":
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("value", [None, "", "/scratch/job 7"])
@pytest.mark.parametrize("system", ["slurm", "htcondor"])
def test_the_folder_of_a_job_is_one_word_whatever_its_variable(system, value):
    """The one in which a private folder is made, of which the worker is told."""
    need_package("dask_jobqueue", INSTALL)
    from helpers.cluster_files import job_script

    for folder in ("$TMPDIR", "${TMPDIR}", "${TMPDIR:-/tmp}"):
        config = read_config(CONFIGS / "jobqueue" / f"{system}.yaml")
        config = replace(config, local_directory=folder)
        with dask.config.set(config.settings):
            script = job_script(config, prepare(config, only_loopback=False), "tls://HOST:8786")
        script = script.replace('""', '"')  # as HTCondor has it
        assert ' --local-directory "$gmkcf_spill" --no-dashboard ' in script
        word = re.search(r"mkdir -p -- ([^;\n]+)", script)[1]
        variables = {} if value is None else {"TMPDIR": value}
        said = subprocess.run(
            [need_bash(), "-c", f"printf '%s|' {word}"],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout == f"{value or '/tmp'}|"


def test_settings_of_the_file_are_exported_before_the_users_lines():
    need_package("dask_jobqueue", INSTALL)
    from helpers.cluster_files import job_script

    config = read_config(CONFIGS / "jobqueue" / "slurm.yaml")
    own = {
        "jobqueue.slurm.job-script-prologue": ["module load python"],
        "distributed.comm.timeouts.connect": "1 m",
    }
    config = replace(config, settings=config.settings | own, memory=3 << 30, threads=2)
    with dask.config.set(config.settings):
        script = job_script(config, prepare(config, only_loopback=False), "tls://HOST:8786")
    lines = script.splitlines()
    assert "#SBATCH --mem=6G" in lines
    assert "--nthreads 2 --memory-limit 3.00GiB --nworkers 2" in script
    assert "export DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT='1 m'" in lines
    prologue = lines.index("module load python")
    exported = [number for number, line in enumerate(lines) if line.startswith("export ")]
    assert max(exported) < prologue < len(lines) - 1


def strict(schema):
    """The same schema, which Kubernetes would prune by, refusing what is not in it."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(part) for key, part in schema.items()}
    if isinstance(found.get("properties"), dict) and "additionalProperties" not in found:
        found["additionalProperties"] = False
    return found


@pytest.fixture(scope="module", params=MANIFESTS, ids=name_of)
def manifest(request):
    need_package("jsonschema", INSTALL)
    need_package("dask_kubernetes", "pip install --no-deps dask-kubernetes==2026.3.0")
    from jsonschema import Draft7Validator

    name = f"crds/{request.param.name}"
    (path,) = [path for path in files("dask-kubernetes") if str(path).endswith(name)]
    (version,) = yaml.safe_load(path.locate().read_text())["spec"]["versions"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {"apiVersion": {"const": f"kubernetes.dask.org/{version['name']}"}}
    schema["properties"] |= {"kind": {"type": "string"}, "metadata": {"type": "object"}}
    parts = yaml.safe_load_all(request.param.read_text())  # a ConfigMap may stand beside it
    (found,) = [part for part in parts if part["kind"].startswith("Dask")]
    return found, Draft7Validator(schema)


def test_manifest_is_what_the_operator_takes(manifest):
    found, validator = manifest
    assert [error.message for error in validator.iter_errors(found)] == []
    cluster = found["spec"].get("cluster", found)["spec"]
    (worker,) = cluster["worker"]["spec"]["containers"]
    environment = {entry["name"]: entry["value"] for entry in worker["env"]}
    assert environment.items() >= WORKER_ENVIRONMENT.items()
    assert environment["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
    for key, share in SPILL.items():
        assert float(environment[f"DASK_DISTRIBUTED__WORKER__MEMORY__{key.upper()}"]) == share
    assert "--no-dashboard" in worker["args"]
    assert any(word.startswith("--interface=") for word in worker["args"])
    assert any(word.startswith("--local-directory=") for word in worker["args"])


@pytest.mark.parametrize("wrong", [{"replica": 4}, {"replicas": "many"}])
def test_a_wrong_manifest_is_not(manifest, wrong):
    found, validator = manifest
    cluster = found["spec"].get("cluster", found)["spec"]
    worker = {key: value for key, value in cluster["worker"].items() if key != "replicas"} | wrong
    broken = found["spec"] | {"worker": worker}
    if "cluster" in found["spec"]:
        broken = found["spec"] | {"cluster": {"spec": cluster | {"worker": worker}}}
    assert list(validator.iter_errors(found | {"spec": broken})) != []


def test_why_certificates_were_not_made(tmp_path):
    bash = shutil.which(need_bash())
    script = CONFIGS / "tls" / "make_certificates.sh"

    def fails(*words, **more):
        done = subprocess.run(
            [bash, script, *words], capture_output=True, text=True, check=False, **more
        )
        assert done.returncode == 1
        return done.stderr

    (tmp_path / "bin").mkdir()
    path = {"PATH": str(tmp_path / "bin")}
    assert "openssl is not here: install it" in fails(tmp_path / "new", env=path)
    assert not (tmp_path / "new").exists()
    need_program("openssl", "apt install openssl")
    said = fails(tmp_path / "new", "many")
    assert "many" in said  # openssl's own words
    assert "openssl x509 failed: no certificates were made" in said


def test_the_scripts_parse():
    bash = need_bash()
    for path in CONFIGS.rglob("*.sh"):
        assert os.access(path, os.X_OK), path
        assert subprocess.run([bash, "-n", path], check=False).returncode == 0, path


def need_bash():
    need_program("bash", "apt install bash")
    return "bash"
