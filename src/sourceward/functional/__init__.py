"""Pure functions of tensors: no parameters, no state."""

from sourceward.functional.aggregation import AGGREGATIONS, cosine_to_sources
from sourceward.functional.calibration import LEVELS, energy_quantiles, energy_zscore, mixture_weight
from sourceward.functional.chain import ChainWeights
from sourceward.functional.energy import (
    EnergyWeights,
    Masks,
    energy,
    energy_and_grad,
    latent_bias,
    swish,
    swish_grad,
)
from sourceward.functional.losses import (
    Coefficients,
    Gaussian,
    Guided,
    Loss,
    Positive,
    eq7,
    eq10,
    guided_step,
    kl_divergence,
)
from sourceward.functional.metrics import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from sourceward.functional.oracle import oracle_latent, oracle_source
from sourceward.functional.rows import keyed_normal, keyed_normals, keyed_uniform, row_keys, row_multiple
from sourceward.functional.statistics import (
    class_centers,
    principal_components,
    whitening,
    within_and_between_covariance,
)
