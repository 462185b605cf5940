from .compare import compare_methods as compare_methods
from .prediction import predict as predict
from .run import (
    FitOptions as FitOptions,
    build as build,
    fit as fit,
    fit_into as fit_into,
    memory_kernels as memory_kernels,
    request_plan as request_plan,
    store_plan as store_plan,
    stored_kernels as stored_kernels,
)
