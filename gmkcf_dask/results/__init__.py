"""What comes out of a fit: run folders, checkpoints, saved models, scores, reports and plots.

Files are read and written in one module each, by the schemas of `schemas`:

- `run_folder`: labels.csv, factors.npz, result.json and insight.json
- `checkpoints`: the state of a running fit
- `saved_model`: a fitted model as one folder; `finished_run` makes a model of a run folder
- `insight`: what the clusters mean, shown by `report` and `plots`
- `metrics`: scores against known labels

The public names are imported when they are first used: most commands need few of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
