from .arrays import (
    AnyFloats as AnyFloats,
    AnyLabels as AnyLabels,
    Floats as Floats,
    Labels as Labels,
)
from .disk_space import (
    disk_full_errors as disk_full_errors,
    full_error as full_error,
    typed_error as typed_error,
)
from .resources import (
    cores as cores,
    free_memory as free_memory,
    peak_resident_bytes as peak_resident_bytes,
    total_memory as total_memory,
)
from .retry import (
    is_full as is_full,
    is_trouble as is_trouble,
    retried as retried,
    storage_error as storage_error,
)
from .temporary import run_folder as run_folder, temporary_root as temporary_root
from .units import (
    GIB as GIB,
    KIB as KIB,
    MIB as MIB,
    ceil_div as ceil_div,
    human_bytes as human_bytes,
    human_time as human_time,
)
