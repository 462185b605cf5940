"""scikit-learn's own callbacks (`set_callbacks`, from version 1.9), fed with our events.

Their interface is experimental and used in this module only. Without it `set_callbacks` raises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import sklearn

from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Event, StageProgress, stage_label, stage_of

_F = TypeVar("_F", bound=Callable[..., Any])

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin, with_callbacks
except ImportError:  # older, or changed once more

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Without callbacks there is nothing to tear down."""
        return method

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Says what is missing."""

        def set_callbacks(self, *callbacks: Any) -> Any:
            """Not here: scikit-learn has callbacks from version 1.9 on."""
            raise InputError(
                "set_callbacks needs the callbacks of scikit-learn 1.9 or later, and "
                f"{sklearn.__version__} is installed: update it, or give callbacks=[...]"
            )


class Tasks:
    """Reports stages, restarts and iterations to scikit-learn's callbacks as its tasks.

    The fit is the root task. Below it every stage is a task, and every restart one whose subtasks
    are its iterations.
    """

    def __init__(self, estimator: Any, X: Any) -> None:
        self._estimator, self._X = estimator, X
        self._root = estimator._init_callback_context(max_subtasks=None)
        self._open: list[Any] = []
        self._stage = ""
        self._begin(self._root)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageProgress):
            self._turn_to(stage_label(stage_of(event)), 0)
            return
        self._turn_to(f"run {event.restart + 1}", event.max_iter)
        # our event comes when an iteration is over: only then is it known that there was one
        iteration = self._open[-1].subcontext(task_name="iteration")
        self._begin(iteration)
        self._end(iteration)

    def done(self) -> None:
        """The fit has ended."""
        self._turn_to("", 0)
        self._end(self._root)

    def _turn_to(self, stage: str, max_subtasks: int) -> None:
        if stage == self._stage:
            return
        while self._open:
            self._end(self._open.pop())
        self._stage = stage
        if stage:
            task = self._root.subcontext(task_name=stage, max_subtasks=max_subtasks)
            self._open.append(task)
            self._begin(task)

    def _begin(self, task: Any) -> None:
        task.call_on_fit_task_begin(estimator=self._estimator, X=self._X)

    def _end(self, task: Any) -> None:
        if task.call_on_fit_task_end(estimator=self._estimator, X=self._X):
            raise InputError(
                "a callback asked to stop the fit, which this estimator cannot: set max_iter or "
                "tol, or raise an exception"
            )


def supports_callbacks(fit: _F) -> _F:
    """A `fit` that reports its progress to the callbacks that were set on the estimator."""

    @wraps(fit)
    def fit_with_callbacks(self: Any, X: Any, *args: Any, **named: Any) -> Any:
        if not (hasattr(self, "_skl_callbacks") or hasattr(self, "_parent_callback_ctx")):
            return fit(self, X, *args, **named)
        tasks = self._callback_tasks = Tasks(self, X)
        try:
            result = fit(self, X, *args, **named)
        finally:
            del self._callback_tasks
        tasks.done()
        return result

    return cast(_F, with_callbacks(fit_with_callbacks))


def callbacks_of(estimator: Any) -> list[Any]:
    """The callables of the parameter `callbacks`, and scikit-learn's that were set."""
    tasks = getattr(estimator, "_callback_tasks", None)
    return [*(estimator.callbacks or ()), *(() if tasks is None else (tasks,))]


def with_callbacks_of(estimator: Any, clone: Any) -> Any:
    """The clone, with the callbacks that were set on what it is a clone of."""
    if hasattr(estimator, "_skl_callbacks"):
        clone._skl_callbacks = estimator._skl_callbacks
    return clone
