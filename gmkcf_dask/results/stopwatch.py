"""Where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stopwatch:
    """Seconds by stage."""

    seconds: dict[str, float]

    def time(self, stage: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return work()
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + elapsed

    def rounded(self) -> dict[str, float]:
        """To milliseconds."""
        return {stage: round(value, 3) for stage, value in self.seconds.items()}
