from .base import (
    MEAN as MEAN,
    Clustering as Clustering,
    Method as Method,
    MultipleKernelMethod as MultipleKernelMethod,
    SingleKernelMethod as SingleKernelMethod,
)
from .coreg import Coreg as Coreg
from .gmkcf import Gmkcf as Gmkcf
from .kcf import Kcf as Kcf
from .kkm import Kkm as Kkm
from .registry import make_method as make_method
from .rmkkm import Rmkkm as Rmkkm
from .select_k import KSuggestion as KSuggestion
from .spectral import Sc as Sc
