from .checkpoints import RunCheckpoints as RunCheckpoints, open_checkpoints as open_checkpoints
from .finished_run import model_of_run as model_of_run, store_of_run as store_of_run
from .insight import About as About, Samples as Samples, explain as explain
from .metrics import scores as scores
from .report.render import render_report as render_report, write_report as write_report
from .run_folder import (
    read_insight as read_insight,
    read_result as read_result,
    write_run as write_run,
)
from .saved_model import Model as Model, load_model as load_model, save_model as save_model
from .schemas import Insight as Insight, RunResult as RunResult
