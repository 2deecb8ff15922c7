"""Adapters: everything that turns (network, features or inputs) into an answer, behind one contract."""

from sourceward.adapters.base import (
    ADAPTERS,
    STATUS_TEXT,
    Adapted,
    Adapter,
    Traits,
    Unsuitable,
    adapter_traits,
    create_adapter,
    list_adapters,
    traits_table,
)
from sourceward.adapters.batchnorm import PredictionTimeBatchNorm
from sourceward.adapters.cost import Cost, measure_cost
from sourceward.adapters.ebtsa import EnergyAdaptation, NoAdaptation
from sourceward.adapters.memo import MEMO, MEMOOnFeatures
from sourceward.adapters.shot import ShotIM, ShotIMOnFeatures
from sourceward.adapters.t3a import T3A
from sourceward.adapters.tea import TEA, TEAOnFeatures
from sourceward.adapters.tent import Tent, TentOnFeatures, TentOnLatent
from sourceward.adapters.tsd import TSD, TSDOnFeatures
from sourceward.adapters.ttt import TestTimeTraining
from sourceward.adapters.views import Views

__all__ = [
    "ADAPTERS",
    "MEMO",
    "STATUS_TEXT",
    "T3A",
    "TEA",
    "TSD",
    "Adapted",
    "Adapter",
    "Cost",
    "EnergyAdaptation",
    "MEMOOnFeatures",
    "NoAdaptation",
    "PredictionTimeBatchNorm",
    "ShotIM",
    "ShotIMOnFeatures",
    "TEAOnFeatures",
    "TSDOnFeatures",
    "Tent",
    "TentOnFeatures",
    "TentOnLatent",
    "TestTimeTraining",
    "Traits",
    "Unsuitable",
    "Views",
    "adapter_traits",
    "create_adapter",
    "list_adapters",
    "measure_cost",
    "traits_table",
]
