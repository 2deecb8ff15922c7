"""`LatentNet`: a Gaussian over z from a feature. Fed x it is the prior, fed a class centre the posterior."""

from torch import Tensor, nn
from torch.nn.functional import softplus

from sourceward.functional import Gaussian, swish
from sourceward.functional.rows import elementwise


class LatentNet(nn.Module):
    """x -> mean and std of z in R^dim, one hidden layer and two output layers, shared by all sources.

    std = 0.1 + 0.9 softplus(.), so it is at least 0.1. The size matches the parameter counts the
    paper reports.

    Args:
        dim: width of feature and latent.
        hidden: width of the hidden layer; `dim` when None.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or dim
        self.hidden = nn.Linear(dim, hidden)
        self.mean = nn.Linear(hidden, dim)
        self.std = nn.Linear(hidden, dim)

    def forward(self, feature: Tensor) -> Gaussian:
        hidden = swish(self.hidden(feature))
        return Gaussian(self.mean(hidden), 0.1 + 0.9 * elementwise(softplus, self.std(hidden)))
