from .fitting import (
    FitOptions as FitOptions,
    FittedRun as FittedRun,
    Stopwatch as Stopwatch,
    fit as fit,
    fit_into as fit_into,
    is_finished as is_finished,
    request_identity as request_identity,
    run_fingerprint as run_fingerprint,
    store_identity as store_identity,
)
from .kernels import (
    MemoryKernels as MemoryKernels,
    build_dense as build_dense,
    dense_kernels as dense_kernels,
    dense_tiles as dense_tiles,
    memory_factors as memory_factors,
    memory_kernels as memory_kernels,
    stored_kernels as stored_kernels,
)
from .planning import (
    disk_to_fill as disk_to_fill,
    free_disk as free_disk,
    job_of as job_of,
    plan_and_start as plan_and_start,
    plan_fit_and_start as plan_fit_and_start,
    request_plan as request_plan,
    store_plan as store_plan,
)
from .reading import (
    InputOptions as InputOptions,
    read_request as read_request,
    single_text_in_errors as single_text_in_errors,
)
from .reports import explain_again as explain_again, finish_reports as finish_reports
from .run import (
    RunOptions as RunOptions,
    RunOutcome as RunOutcome,
    build as build,
    choose_kernels as choose_kernels,
    select_kernels as select_kernels,
)
