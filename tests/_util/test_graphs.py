"""CUDA graphs: replays give the results of eager calls, and capture restores generators and tensors."""

from contextlib import suppress
from typing import NamedTuple

import pytest
import torch

from sourceward._util.devices import tensor_cores
from sourceward._util.graphs import Graph, HostCopy, LossGraph, each, replay, restored


class Pair(NamedTuple):
    inputs: dict
    label: torch.Tensor
    extra: torch.Tensor | None = None


def test_a_function_is_applied_to_every_tensor_of_a_batch():
    batch = Pair({"ids": torch.zeros(2, 3), "mask": torch.ones(2, 3)}, torch.ones(2))
    doubled = each(lambda tensor: 2 * tensor, batch)
    assert isinstance(doubled, Pair)
    assert [float(t.sum()) for t in (*doubled.inputs.values(), doubled.label)] == [0, 12, 4]
    assert doubled.extra is None


def test_generator_and_tensors_are_restored_even_after_an_error():
    generator, weight = torch.Generator().manual_seed(0), torch.ones(3)
    state = generator.get_state()
    with suppress(RuntimeError), restored(generator, [weight]):
        weight += torch.rand(3, generator=generator)
        raise RuntimeError
    assert torch.equal(weight, torch.ones(3))
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_copy_on_the_host_has_the_numbers_of_its_time(device):
    numbers = torch.arange(6.0, device=device).view(2, 3)
    copies = [HostCopy(numbers[:, 1:])]
    if device == "cuda":
        numbers.zero_()  # work that starts later
        copies.append(HostCopy(numbers[:, 1:]))
    assert copies[0].numpy().tolist() == [[1, 2], [4, 5]]
    assert copies[-1].numpy().sum() == (0 if device == "cuda" else 12)


@pytest.mark.cuda
def test_a_graph_gives_the_results_of_eager_calls():
    device = torch.device("cuda")
    graph = Graph(lambda x, y: (x @ y).relu(), torch.ones(4, 4), torch.ones(4, 4), device=device)
    for _ in range(3):
        x, y = torch.randn(2, 4, 4, device=device)
        torch.testing.assert_close(graph(x, y), (x @ y).relu())


@pytest.mark.cuda
def test_a_function_that_cannot_be_captured_runs_eagerly():
    graphs: dict = {}
    x = torch.arange(3.0, device="cuda")
    with pytest.warns(UserWarning, match="running eagerly"):
        assert replay(graphs, "key", lambda x: x * float(x.sum().item()), x).tolist() == [0, 3, 6]
    assert replay(graphs, "key", lambda x: x * float(x.sum().item()), x + 1).tolist() == [6, 12, 18]


@pytest.mark.cuda
def test_generators_draw_after_a_capture_that_failed():
    weight, generator = (
        torch.nn.Parameter(torch.ones(3, device="cuda")),
        torch.Generator("cuda").manual_seed(1),
    )
    expected = torch.rand(3, generator=torch.Generator("cuda").manual_seed(1), device="cuda")

    def loss(batch):
        drawn = torch.rand(3, generator=generator, device="cuda")
        return (weight * batch * drawn).sum() * weight.sum().item(), None  # waits for the device

    with pytest.raises(RuntimeError):
        LossGraph(loss, torch.ones(3, device="cuda"), generator, [weight], [])
    torch.cuda.synchronize()
    assert torch.equal(torch.rand(3, generator=generator, device="cuda"), expected)
    torch.rand(3, device="cuda")


@pytest.mark.cuda
def test_a_loss_graph_gives_the_losses_and_gradients_of_eager_calls():
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
    generators = [torch.Generator("cuda").manual_seed(1) for _ in range(2)]

    def loss(batch, generator):
        return (weight * batch * torch.rand(3, generator=generator, device="cuda")).square().sum(), None

    batches = torch.randn(4, 3, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    graph = LossGraph(lambda batch: loss(batch, generators[0]), batches[0], generators[0], [weight], [])
    assert graph.fits(batches[1])
    assert not graph.fits(batches[1, :2])
    for batch in batches:
        value, gradient = graph(batch)[0].clone(), weight.grad.clone()
        expected = loss(batch, generators[1])[0]
        torch.testing.assert_close(value, expected.detach())
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, weight)[0])


@pytest.mark.cuda
def test_two_loss_graphs_of_one_parameter_have_gradients_of_their_own():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0], device="cuda"))
    generator, batch = torch.Generator("cuda"), torch.tensor([3.0, 5.0], device="cuda")
    graphs = [
        LossGraph(
            lambda b, i=i: ((weight[i : i + 1] * b[i]).square().sum(), None), batch, generator, [weight], []
        )
        for i in range(2)
    ]
    for i in (0, 1, 0):
        graphs[i](batch)
        expected = torch.zeros(2)
        expected[i] = (2 * weight[i] * batch[i] ** 2).item()
        torch.testing.assert_close(weight.grad.cpu(), expected)


def test_tensor_cores_are_used_inside_the_block_alone():
    before = torch.get_float32_matmul_precision()
    for enabled, inside in ((True, "high"), (False, before)):
        with suppress(KeyError), tensor_cores(enabled):
            assert torch.get_float32_matmul_precision() == inside
            raise KeyError
        assert torch.get_float32_matmul_precision() == before
