"""What comes out of a fit: run folders, checkpoints, saved models, scores, reports and plots.

Files are read and written in one module each, by the schemas of `schemas`:

- `run_folder`: labels.csv, factors.npz, result.json and insight.json
- `checkpoints`: the state of a running fit
- `saved_model`: a fitted model as one folder; `finished_run` makes a model of a run folder
- `insight`: what the clusters mean, shown by `report` and `plots`
- `metrics`: scores against known labels

The public names are imported when they are first used: most commands need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmkcf_dask.results.checkpoints import RunCheckpoints, open_checkpoints
    from gmkcf_dask.results.finished_run import model_of_run, store_of_run
    from gmkcf_dask.results.insight import About, Samples, explain
    from gmkcf_dask.results.metrics import scores
    from gmkcf_dask.results.report.render import render_report, write_report
    from gmkcf_dask.results.run_folder import read_insight, read_result, write_run
    from gmkcf_dask.results.saved_model import Model, load_model, save_model
    from gmkcf_dask.results.schemas import Insight, RunResult

__all__ = [
    "About",
    "Insight",
    "Model",
    "RunCheckpoints",
    "RunResult",
    "Samples",
    "explain",
    "load_model",
    "model_of_run",
    "open_checkpoints",
    "read_insight",
    "read_result",
    "render_report",
    "save_model",
    "scores",
    "store_of_run",
    "write_report",
    "write_run",
]
_HOME = {
    "RunCheckpoints": "checkpoints",
    "open_checkpoints": "checkpoints",
    "model_of_run": "finished_run",
    "store_of_run": "finished_run",
    "About": "insight",
    "Samples": "insight",
    "explain": "insight",
    "scores": "metrics",
    "render_report": "report.render",
    "write_report": "report.render",
    "read_insight": "run_folder",
    "read_result": "run_folder",
    "write_run": "run_folder",
    "Model": "saved_model",
    "load_model": "saved_model",
    "save_model": "saved_model",
    "Insight": "schemas",
    "RunResult": "schemas",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
