"""Adapters: everything that turns (network, features or inputs) into an answer, behind one contract."""

from sourceward.adaptation.base import (
    ADAPTERS,
    STATUS_TEXT,
    AdaptationResult,
    Adapter,
    Traits,
    Unsuitable,
    adapter_traits,
    create_adapter,
    list_adapters,
    traits_table,
)
from sourceward.adaptation.baselines.batchnorm import PredictionTimeBatchNorm
from sourceward.adaptation.baselines.memo import MEMO, MEMOOnFeatures
from sourceward.adaptation.baselines.shot import ShotIM, ShotIMOnFeatures
from sourceward.adaptation.baselines.t3a import T3A
from sourceward.adaptation.baselines.tea import TEA, TEAOnFeatures
from sourceward.adaptation.baselines.tent import Tent, TentOnFeatures, TentOnLatent
from sourceward.adaptation.baselines.trained_with import DomainAdaptive, GeneratedClassifier
from sourceward.adaptation.baselines.tsd import TSD, TSDOnFeatures
from sourceward.adaptation.baselines.ttt import TTT
from sourceward.adaptation.energy import EnergyAdaptation, NoAdaptation
from sourceward.adaptation.stream import StreamAdaptation
from sourceward.adaptation.tta import TestTimeAugmentation

__all__ = [
    "ADAPTERS",
    "MEMO",
    "STATUS_TEXT",
    "T3A",
    "TEA",
    "TSD",
    "TTT",
    "AdaptationResult",
    "Adapter",
    "DomainAdaptive",
    "EnergyAdaptation",
    "GeneratedClassifier",
    "MEMOOnFeatures",
    "NoAdaptation",
    "PredictionTimeBatchNorm",
    "ShotIM",
    "ShotIMOnFeatures",
    "StreamAdaptation",
    "TEAOnFeatures",
    "TSDOnFeatures",
    "Tent",
    "TentOnFeatures",
    "TentOnLatent",
    "TestTimeAugmentation",
    "Traits",
    "Unsuitable",
    "adapter_traits",
    "create_adapter",
    "list_adapters",
    "traits_table",
]
