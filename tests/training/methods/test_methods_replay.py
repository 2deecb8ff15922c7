"""A loss can be recorded once and replayed, as a CUDA graph does: nothing in it is decided on the host.

`Tape` records the operations of a loss and its gradients on a CPU, with the tensors they read and write, and
runs them again on new values of the batch, the weights and the generator.
"""

import random
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sourceward.data.augment import Augmentation, augment
from sourceward.training.finetune import FINETUNE_METHODS, Rows
from tests.helpers import make_generator
from tests.training.methods.test_methods import CLASSES, batch, make

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "multinomial")
"""Operations that wait for the device: they give a number on the host, or a size that depends on values."""

FROM_HOST = ("lift_fresh",)
"""A tensor made of numbers on the host, in pageable memory: its copy to the device waits."""


def tensors(values: Any) -> list[torch.Tensor]:
    """Return all tensors in nested arguments."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class Tape(TorchDispatchMode):
    """Records operations; `replay` runs them again, each result into the memory of the first time."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator, self.calls, self.forbidden = generator, [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        drawn_from = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)]
        if torch.Tag.nondeterministic_seeded in func.tags and not any(
            generator._cdata == self.generator._cdata for generator in drawn_from
        ):
            self.forbidden.add(f"{name} draws from another generator")
        masks = [t for t in tensors(args[1:2]) if t.dtype == torch.bool] if name.startswith("index") else []
        filled = name == "index_put_" and all(t.numel() == 1 for t in tensors(args[2:3]))  # masked_fill_
        if (name in (*WAITS, *FROM_HOST) or (masks and not filled)) and not Checked.depth:
            self.forbidden.add(name)
        outputs = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, outputs))
        return outputs

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, outputs in self.calls:
            found = func(*args, **kwargs)
            for old, new in zip(tensors(outputs), tensors(found)):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class Checked(TorchFunctionMode):
    """Notes the functions whose checks of values wait on a CPU and are left out on CUDA."""

    depth = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        left_out = func is torch.nn.functional.one_hot
        Checked.depth += left_out
        try:
            return func(*args, **(kwargs or {}))
        finally:
            Checked.depth -= left_out


def record(classifier, inputs, generator) -> tuple[Tape, torch.Tensor]:
    """Return the tape of a loss and its gradients, and the loss, which a replay overwrites."""
    tape = Tape(generator)
    with Checked(), tape:
        loss = classifier.method.loss(classifier.backbone, classifier.head, Rows(*inputs), generator)
        loss.backward()
    return tape, loss


def host_state() -> list[Any]:
    return [random.getstate(), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("name", list(FINETUNE_METHODS))
def test_a_recorded_loss_replays_on_another_batch_with_new_draws(name):
    classifier, inputs, generator = make(name), batch(), make_generator(1)
    before, buffers = host_state(), [buffer.clone() for buffer in classifier.buffers()]
    tape, loss = record(classifier, inputs, generator)
    assert not tape.forbidden
    assert host_state() == before

    other = make(name)
    with torch.no_grad():
        for buffer, value in zip(classifier.buffers(), buffers):
            buffer.copy_(value)
        inputs[0].copy_(inputs[0].flip(0))
        inputs[1].copy_((inputs[1] * 2 + 1) % CLASSES)
        for parameter, mine in zip(other.parameters(), classifier.parameters()):
            parameter.mul_(1.1)
            mine.mul_(1.1)
    generator.manual_seed(7)
    tape.replay()

    fresh = make_generator(7)
    expected = other.method.loss(other.backbone, other.head, Rows(*inputs), fresh)
    expected.backward()
    assert torch.equal(generator.get_state(), fresh.get_state())
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    for (key, mine), parameter in zip(classifier.named_parameters(), other.parameters()):
        torch.testing.assert_close(mine.grad, parameter.grad, rtol=1e-3, atol=1e-5, msg=key)
    for mine, buffer in zip(classifier.buffers(), other.buffers()):
        torch.testing.assert_close(mine, buffer)


@pytest.mark.parametrize("name", ["mixstyle", "masf", "dson"])  # hooks, other weights, other layers
def test_a_compiled_backbone_gives_the_same_loss(name):
    losses = []
    for compiled in (True, False):
        classifier, generator = make(name).train(), make_generator()
        backbone = classifier.backbone
        if compiled:
            backbone = torch.compile(backbone, dynamic=False, backend="eager")
        some = [
            classifier.method.loss(backbone, classifier.head, Rows(*batch()), generator) for _ in range(3)
        ]
        losses.append(torch.stack(some))
    torch.testing.assert_close(*losses)


def test_augmentation_waits_for_nothing_and_draws_from_its_generator():
    settings, generator = Augmentation(rotate=10.0, sketch=0.5, fourier=0.5), make_generator()
    images = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8, generator=make_generator(1))
    before, tape = host_state(), Tape(generator)
    with tape:
        augment(images, settings, generator=generator)
    assert not tape.forbidden
    assert host_state() == before


class Frozen:
    """Losses that a graph would freeze."""

    @staticmethod
    def item(images, generator):
        return images.sum() * images.mean().item()

    @staticmethod
    def python_draw(images, generator):
        return images.sum() * random.random()

    @staticmethod
    def default_generator(images, generator):
        return (images * torch.rand(len(images), 1, 1, 1)).sum()

    @staticmethod
    def mask(images, generator):
        return images[images > 0].sum()

    @staticmethod
    def numbers_of_the_host(images, generator):
        return (images * torch.tensor([1.0, 2.0, 3.0])[:, None, None]).sum()


@pytest.mark.parametrize("name", [name for name in vars(Frozen) if not name.startswith("_")])
def test_what_a_graph_would_freeze_is_found(name):
    images, generator, before = batch()[0].requires_grad_(), make_generator(), host_state()
    tape = Tape(generator)
    with Checked(), tape:
        getattr(Frozen, name)(images, generator).backward()
    assert tape.forbidden or host_state() != before
