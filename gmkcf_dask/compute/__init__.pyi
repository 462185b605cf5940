from .costs import Job as Job
from .dense import DenseKernels as DenseKernels
from .operators import FusedKernel as FusedKernel, KernelStack as KernelStack, Overview as Overview
from .plan import Plan as Plan, make_plan as make_plan
from .runner import Runner as Runner
from .tiled import ResidencyMonitor as ResidencyMonitor, TiledKernels as TiledKernels

STALL_SECONDS: float
