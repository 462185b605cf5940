from .kubernetes import KubernetesJob as KubernetesJob, manifest as manifest
from .memory import driver_memory as driver_memory
from .slurm import SlurmJob as SlurmJob, slurm_script as slurm_script
