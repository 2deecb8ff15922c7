"""`Learner`: weights, optimizer, averaging and randomness of every training, saved and restored together."""

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from sourceward._util.devices import ALONE, Processes
from sourceward._util.graphs import LossGraph, each
from sourceward.data.feeds import Feed
from sourceward.settings import LoopSettings

CHECK_EVERY = 20
"""Iterations between checks of the loss: each of them waits for the device."""

MEAN_FROM = 100
"""The first iterate of a plain mean; the middle one of a training that is shorter than twice as long."""

STATISTICS = ("running_mean", "running_var")
"""Of batch norm."""

FUSED_FROM = 1_000_000
"""Parameters from which a CPU takes an optimizer's step in one kernel, too: faster for large networks."""

SEED_STRIDE = 1_000_003
"""Between the seeds of processes: more than there are iterations."""


class Learner:
    """Weights, their moving average, an optimizer and the randomness of the batches.

    Args:
        network: initialised; trained in place. What lies under `backbone` and `energy` has rates of its own.
        loop: optimisation settings.
        seed: of batches, noise and dropout.
        processes: those that train together; each draws its own batches, gradients are averaged.
        bf16: run what is under `autocast` in bfloat16.
    """

    modules: tuple[str, ...] = ("network", "average")
    """Attributes whose tensors belong to the state."""

    def __init__(
        self,
        network: Any,
        loop: LoopSettings,
        seed: int = 0,
        *,
        processes: Processes = ALONE,
        bf16: bool = False,
    ) -> None:
        self.network, self.loop, self.processes = network, loop, processes
        self.seed = seed + SEED_STRIDE * processes.rank
        self.average = copy.deepcopy(network).requires_grad_(False).eval()
        self.device = next(network.parameters()).device
        fused = True if _fuses(network, self.device) else None
        groups = _groups(network, loop)
        kind = torch.optim.Adam if loop.optimizer == "adam" else torch.optim.AdamW
        self.optimizer = kind(groups, weight_decay=loop.weight_decay, fused=fused)
        self.generator = torch.Generator(device=self.device).manual_seed(self.seed)
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=bf16)
        self.iteration = 0
        self._averaged = _moving(self.average), _moving(network)  # once: modules are slow to walk through
        self.graphs: dict[Any, LossGraph] = {}
        self._capturable = self.device.type == "cuda"  # hundreds of small kernels are one launch

    def step(self, feed: Feed) -> Any:
        """Take one iteration and return its loss."""
        raise NotImplementedError

    def parts(self, loss: Any) -> dict[str, float]:
        """Terms of a loss by name, `total` among them; waits for the device."""
        raise NotImplementedError

    def gradients(
        self,
        function: Callable[[Any], tuple[Tensor, Any]],
        batch: Any,
        changed: Iterable[Tensor] = (),
        key: Any = None,
    ) -> tuple[Tensor, Any]:
        """`function(batch)`, a loss and what else it tells, with the loss's gradients in place.

        On CUDA it is recorded with the first batch and replayed for those of the same shapes; what is
        returned is overwritten by the next call.

        Args:
            function: the same one in every call with the same key.
            batch: what it is given.
            changed: tensors beside the network's buffers that it writes to.
            key: of the function, where there are several.
        """
        if key not in self.graphs and self._capturable:
            self._capture(key, function, batch, [*self.network.buffers(), *changed])
        if self.network.backbone is not None:
            torch.manual_seed(self.seed + self.iteration)  # its dropout draws from the global generator
        if key in self.graphs and not self.graphs[key].fits(batch):
            self.graphs, self._capturable = {}, False
        if key in self.graphs:
            return self.graphs[key](batch)
        self.optimizer.zero_grad(set_to_none=True)
        outputs = function(batch)
        outputs[0].backward()
        return outputs

    def _capture(self, key: Any, function: Callable[..., Any], batch: Any, changed: list[Tensor]) -> None:
        """Forward and backward as a CUDA graph; where that cannot be, go on without one."""
        parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        try:
            self.graphs[key] = LossGraph(function, batch, self.generator, parameters, changed)
        except RuntimeError as error:  # something in it waits for the device: launch by launch, then
            warnings.warn(f"No CUDA graph, training runs launch by launch: {error}", stacklevel=2)
            self.graphs, self._capturable = {}, False
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

    def apply_gradients(self) -> None:
        """One step of the optimizer, which ends the iteration."""
        self.update()
        self.advance()

    def update(self) -> None:
        """One step of the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate(self.iteration / self.loop.max_iter, group["schedule"])
        self.processes.average_gradients(self.network.parameters())
        self.optimizer.step()
        for group in self.optimizer.param_groups:  # one kernel does not count its changes, see `nn.folded`
            increment_version(group["params"])

    def advance(self) -> None:
        """End the iteration: its weights join the average."""
        self.iteration += 1
        self._update_average()

    @property
    def current(self) -> Any:
        """The weights to use: the average, unless none is kept."""
        return self.average if self.loop.average else self.network

    @torch.no_grad()
    def _update_average(self) -> None:
        """Batch norm statistics are averaged as weights are: to first order the mean of the iterates'
        statistics is that of their mean, and the last iterate's are not. Other buffers are copied."""
        decay = averaging(self.iteration, self.loop.average, self.loop.max_iter)
        (ours, other), (theirs, others) = self._averaged
        torch._foreach_lerp_(ours, theirs, 1 - decay)
        if other:
            torch._foreach_copy_(other, others)

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor that the rest of the training depends on."""
        state = {"generator": self.generator.get_state()}
        for name in self.modules:
            state |= {f"{name}.{k}": v for k, v in getattr(self, name).state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{k}": v for k, v in slots.items()}
        return state

    def local_names(self) -> list[str]:
        """Names in the state of what each process has of its own: randomness, replay buffer, and buffers
        that its own batches change, such as class centres and batch norm statistics."""
        found = ["generator"]
        for name in self.modules:
            module = getattr(self, name)
            trained = dict(module.named_parameters())
            found += [f"{name}.{key}" for key in module.state_dict() if key not in trained]
        return found

    def load_state_dict(self, state: dict[str, Tensor], iteration: int) -> None:
        self.generator.set_state(state["generator"])
        for name in self.modules:
            prefix = f"{name}."
            part = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            getattr(self, name).load_state_dict(part)
        full = self.optimizer.state_dict()
        full["state"] = {}
        for key, value in state.items():
            if key.startswith("optimizer."):
                _, index, slot = key.split(".")
                full["state"].setdefault(int(index), {})[slot] = value
        if len({frozenset(slots) for slots in full["state"].values()}) > 1:
            raise ValueError("the state of its optimizer is not complete")
        self.optimizer.load_state_dict(full)
        for parameter, slots in self.optimizer.state.items():  # one kernel reads their memory side by side
            slots |= {name: _laid_out(value, parameter) for name, value in slots.items()}
        self.iteration = iteration


def _laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a tensor of a parameter's shape in its memory format, which files do not keep."""
    if value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def flat(inputs: Any) -> Any:
    """(sources, batch, ...) to (sources x batch, ...), of a tensor or of each of several by name."""
    return each(lambda value: value.flatten(0, 1), inputs)


def rate(progress: float, schedule: str) -> float:
    """The learning rate's share of its peak when `progress` in [0, 1) of the training is done.

    >>> rate(0.0, "cosine"), rate(0.5, "cosine"), rate(0.7, "step")
    (1.0, 0.5, 0.1)
    """
    if schedule == "cosine":
        return 0.5 * (1 + round(math.cos(math.pi * progress), 12))
    return 0.1 if schedule == "step" and progress >= 0.6 else 1.0


def averaging(iteration: int, average: float, max_iter: int) -> float:
    """How much of the average stays when an iterate comes in.

    The memory is short at first, so that the start is forgotten; an `average` of 1 is the plain mean of all
    iterates from the hundredth on, or of the second half of a short training.

    >>> averaging(1, 0.98, 1000), averaging(1000, 0.98, 1000)
    (0.1, 0.98)
    >>> averaging(100, 1.0, 1000), averaging(101, 1.0, 1000), averaging(102, 1.0, 1000)
    (0.0, 0.5, 0.6666666666666666)
    >>> averaging(6, 1.0, 10)
    0.5
    """
    if average == 1:
        taken = max(0, iteration - min(MEAN_FROM, max_iter // 2))
        return taken / (taken + 1)
    return min(average, iteration / (iteration + 9))


def _moving(network: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """What is averaged, weights and batch norm statistics, and the buffers that are not."""
    averaged: list[Tensor] = list(network.parameters())
    copied: list[Tensor] = []
    for module in network.modules():
        normalises = isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name, buffer in module.named_buffers(recurse=False):
            (averaged if normalises and name in STATISTICS else copied).append(buffer)
    return averaged, copied


def _fuses(network: nn.Module, device: torch.device) -> bool:
    """Whether the optimizer's step is one kernel."""
    if device.type == "cpu":
        return sum(parameter.numel() for parameter in network.parameters()) >= FUSED_FROM
    return device.type == "cuda"


def _groups(network: nn.Module, loop: LoopSettings) -> list[dict[str, Any]]:
    """Parameters by learning rate and schedule: backbone (psi), energies (theta), the rest (phi)."""
    rates = {"backbone": loop.backbone_learning_rate, "energy": loop.energy_learning_rate}
    schedules = {"energy": loop.energy_schedule or loop.schedule}
    groups: dict[tuple[float, str], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            part = _part(name)
            key = rates.get(part, loop.learning_rate), schedules.get(part, loop.schedule)
            groups.setdefault(key, []).append(parameter)
    return [
        {"params": params, "peak": peak, "lr": peak, "schedule": schedule}
        for (peak, schedule), params in groups.items()
    ]


def _part(name: str) -> str:
    """The part of the network that a parameter belongs to, by name.

    What a training method adds to a backbone starts at random and learns at the rate of the heads, but for a
    copy of the backbone's own network.

    >>> _part("backbone.network.conv.weight"), _part("backbone.auxiliary.rotation.weight")
    ('backbone', 'auxiliary')
    >>> _part("backbone.auxiliary.domain.network.conv.weight")
    'backbone'
    """
    first, *inner = name.split(".")
    added = first == "backbone" and inner[0] == "auxiliary" and "network" not in inner
    return "auxiliary" if added else first
