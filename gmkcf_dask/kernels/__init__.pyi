from .cross import CrossKernels as CrossKernels
from .specs import (
    FunctionKernel as FunctionKernel,
    KernelSpec as KernelSpec,
    Precomputed as Precomputed,
    parse_kernel as parse_kernel,
    precomputed_specs as precomputed_specs,
    resolve_kernels as resolve_kernels,
)
from .tiles import ResolvedKernel as ResolvedKernel
from .tiling import Precision as Precision, Tiling as Tiling
