"""Cluster files without a file, and the job scripts they lead to."""

from gmkcf_dask.cluster.config import parse_document
from gmkcf_dask.cluster.jobqueue import cluster_class, job_options
from gmkcf_dask.cluster.plain_yaml import parse_yaml


def parse_config(content, path):
    """The cluster that the content of a file describes; `path` is for relative paths."""
    return parse_document(parse_yaml(content, path), path)


def job_script(config, process, address):
    """The script of one job, for a scheduler at an address."""
    job = cluster_class(config).job_cls
    return str(job(address, name="gmkcf-worker", **job_options(config, process)).job_script())
