"""The files of cluster_configs/: each loads, sets what it must, and renders the same job script."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import files
from pathlib import Path

import dask
import pytest
import yaml
from needs import need_package, need_program

from gmkcf_dask.cluster import WORKER_ENVIRONMENT
from gmkcf_dask.cluster_config import read_config
from gmkcf_dask.cluster_values import SYSTEMS
from gmkcf_dask.kinds.started import prepare

pytestmark = pytest.mark.once
ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "cluster_configs"
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
        *(f"jobqueue/{system}.yaml" for system in SYSTEMS),
    }
    guide = (CONFIGS / "README.md").read_text()
    assert [path.name for path in ALL if f"{path.name}`" not in guide] == []


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_it_loads_and_sets_all_that_matters(path):
    needed_by(path)
    config = read_config(path)
    assert config.kind == yaml.safe_load(path.read_text())["gmkcf"]["kind"]
    if config.kind == "threads":
        return
    text = path.read_text()
    assert not config.insecure
    assert not config.dashboard
    for word in (
        "interface",
        "dashboard",
        "tls",
        "local",
    ):  # as a key, or in words where it is none
        assert word in text, word
    if config.kind not in ("local", "threads"):
        assert config.certificates is not None
    if config.kind in ("ssh", "jobqueue", "mpi"):
        assert config.interface
        assert config.memory
    if config.kind not in ("address", "scheduler-file"):
        assert config.local_directory
    for key, share in SPILL.items():
        assert config.settings[f"distributed.worker.memory.{key}"] == share
    environment = config.settings["distributed.nanny.pre-spawn-environ"]
    assert {key: str(value) for key, value in environment.items()} == WORKER_ENVIRONMENT


@pytest.mark.parametrize("path", [p for p in ALL if p not in MANIFESTS], ids=name_of)
def test_dask_itself_can_load_it(path):
    (found,) = dask.config.collect_yaml([str(path)])
    assert set(found) <= {"gmkcf", "distributed", "jobqueue"}


@pytest.mark.parametrize("system", SYSTEMS)
def test_job_script(system, monkeypatch):
    """GMKCF_SNAPSHOTS=write writes them anew, to be read before they are committed."""
    need_package("dask_jobqueue", INSTALL)
    from gmkcf_dask.kinds.jobqueue import described, job_script

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


def test_settings_of_the_file_are_exported_before_the_users_lines():
    need_package("dask_jobqueue", INSTALL)
    from gmkcf_dask.kinds.jobqueue import job_script

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


def test_the_scripts_parse():
    bash = need_bash()
    for path in CONFIGS.rglob("*.sh"):
        assert os.access(path, os.X_OK), path
        assert subprocess.run([bash, "-n", path], check=False).returncode == 0, path


def need_bash():
    need_program("bash", "apt install bash")
    return "bash"
