from .config import ClusterConfig as ClusterConfig, read_config as read_config
from .launch import LazyCluster as LazyCluster, describe as describe, start as start
from .local import local_cluster as local_cluster
from .resources import Resources as Resources, of_client as of_client, threads as threads
from .tls import Certificates as Certificates
