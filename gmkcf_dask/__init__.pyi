from .compute.dense import DenseKernels as DenseKernels
from .compute.plan import Plan as Plan, make_plan as make_plan
from .compute.tiled import TiledKernels as TiledKernels
from .corpus import Corpus as Corpus, TextOptions as TextOptions, read_corpus as read_corpus
from .estimators import (
    GMKCF as GMKCF,
    KCF as KCF,
    CoregSpectralClustering as CoregSpectralClustering,
    KernelKMeans as KernelKMeans,
    KernelSpectralClustering as KernelSpectralClustering,
    RobustMultipleKernelKMeans as RobustMultipleKernelKMeans,
    load as load,
)
from .estimators.compare import compare as compare
from .estimators.select_k import suggest_k as suggest_k
from .events import (
    IterationDone as IterationDone,
    StageNote as StageNote,
    StageProgress as StageProgress,
)
from .events.listeners import History as History, JsonLines as JsonLines
from .events.progress import Progress as Progress
from .kernels.specs import FunctionKernel as FunctionKernel, Precomputed as Precomputed
from .methods.select_k import KSuggestion as KSuggestion
from .results.comparison import Comparison as Comparison
from .results.metrics import scores as scores
from .results.plots import (
    ConvergenceDisplay as ConvergenceDisplay,
    EmbeddingDisplay as EmbeddingDisplay,
    FusedKernelDisplay as FusedKernelDisplay,
    KernelWeightsDisplay as KernelWeightsDisplay,
)
from .store.kernel_store import KernelStore as KernelStore

__version__: str
