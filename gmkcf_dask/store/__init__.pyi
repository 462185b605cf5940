from .build import build_store as build_store, find_store as find_store
from .kernel_store import (
    KernelStore as KernelStore,
    delete_store as delete_store,
    is_store as is_store,
)
from .lock import owning as owning, writing as writing
from .manifest import Manifest as Manifest
from .object_storage import is_remote as is_remote, location as location
from .repair import repair_store as repair_store
from .request import KernelRequest as KernelRequest
from .verify import find_damage as find_damage
