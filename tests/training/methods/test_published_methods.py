"""Methods of the paper's comparison, each against a small independent computation."""

import itertools

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl
from torch.nn.functional import cross_entropy

from sourceward.data.augmix import augmix
from sourceward.nn import domain_norm
from sourceward.nn.auxiliary import DOMAIN_EMBEDDING, SINGLE_SAMPLE
from sourceward.nn.backbones import create_backbone
from sourceward.nn.domain_norm import DomainNorm, MixedNorm
from sourceward.training.finetune import Classifier, FineTuner, FineTuneSettings
from sourceward.training.methods import adversarial_noise, domain_embedding, entropy, l2a_ot, masf
from sourceward.training.methods.gradients import reverse_gradient
from tests.helpers import make_generator
from tests.training.methods.test_methods import CLASSES, EACH, SOURCES, batch, loss_of, make


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=make_generator(seed))


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * np.log(p / q)).sum())


def test_masf_aligns_soft_labels_of_classes_that_both_domains_have():
    logits = rows(3, 4, 4)
    present = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], dtype=torch.bool)
    p = (logits / 2).softmax(-1).double().numpy()
    pairs = []
    for domain in (0, 1):
        shared = [c for c in range(4) if present[domain, c] and present[2, c]]
        pairs.append(sum((kl(p[domain, c], p[2, c]) + kl(p[2, c], p[domain, c])) / 2 for c in shared) / 4)
    assert masf.soft_confusion(logits, present).item() == pytest.approx(np.mean(pairs), rel=1e-5)


def test_masf_takes_semi_hard_negatives():
    x, label, margin = rows(9, 2), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3]), 0.7
    distance = torch.cdist(x, x).square().double().numpy()
    losses = []
    for a, p in itertools.permutations(range(9), 2):
        if label[a] == label[p]:
            negative = [distance[a, n] for n in range(9) if label[n] != label[a]]
            farther = [d for d in negative if d > distance[a, p]]
            losses.append(max(0, margin + distance[a, p] - (min(farther) if farther else max(negative))))
    found = masf.semi_hard_triplet(x, label, margin)
    assert found.item() == pytest.approx(np.mean(losses), rel=1e-4)
    alone = torch.arange(3)  # no pair of one class
    assert masf.semi_hard_triplet(rows(3, 2).requires_grad_(), alone).item() == 0


def test_masf_takes_its_other_losses_after_one_step_on_meta_train(monkeypatch):
    """With an inner step of 0 they are those of the present weights; a step of 1 changes them as SGD does."""
    for rate in (0.0, 1.0):
        monkeypatch.setattr(masf, "INNER_RATE", rate)
        classifier, (images, label, _) = make("masf").eval(), batch()
        order = torch.rand(SOURCES, generator=make_generator()).argsort()
        images, label = (part.unflatten(0, (SOURCES, EACH))[order].flatten(0, 1) for part in (images, label))
        train = (SOURCES - 1) * EACH
        task = cross_entropy(classifier(images[:train]), label[:train])
        moved = make("masf").eval()
        names = [*moved.backbone.named_parameters("backbone"), *moved.head.named_parameters("head")]
        gradients = torch.autograd.grad(task, [classifier.get_parameter(name) for name, _ in names])
        with torch.no_grad():
            for (_, weight), gradient in zip(names, gradients):
                weight -= rate * gradient * min(1, 2 / gradient.norm().item())
        feature = moved.backbone(images)
        means = torch.stack(
            [
                torch.stack([feature[d * EACH : (d + 1) * EACH][part == c].mean(0) for c in range(CLASSES)])
                for d, part in enumerate(label.split(EACH))
            ]
        )
        aligned = masf.soft_confusion(moved.head(means), torch.ones(SOURCES, CLASSES, dtype=torch.bool))
        some = torch.cat([torch.arange(d * EACH, d * EACH + 2) for d in range(SOURCES)])
        network = moved.method
        hidden = torch.nn.functional.leaky_relu(network.hidden(feature[some]), 0.2)
        embedding = torch.nn.functional.leaky_relu(network.out(hidden), 0.2)
        local = masf.semi_hard_triplet(embedding, label[some], 10.0)
        torch.testing.assert_close(loss_of(classifier), task + aligned + 0.005 * local, rtol=1e-4, atol=1e-5)


def test_entropy_counts_every_class_alike():
    logits, label = rows(2, 6, 3), torch.tensor([0, 0, 0, 1, 2, 2])
    member = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 0, 1, 0, 1, 1]], dtype=torch.bool)
    expected = []
    for source in range(2):
        log_p = logits[source].double().log_softmax(-1)
        own = [[-log_p[i, c] for i in range(6) if member[source, i] and label[i] == c] for c in range(3)]
        expected.append(np.mean([np.mean(values) for values in own if values]))
    found = entropy.balanced_cross_entropy(logits, label, member)
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_entropy_networks_lie_side_by_side():
    """Each of them is three linear layers with ReLU between, of the released code's widths."""
    networks, x = entropy.Networks(5, 2, 3), rows(4, 5)
    found = networks(x)
    assert [tuple(weight.shape[1:]) for weight in networks.weights] == [(5, 1024), (1024, 256), (256, 3)]
    for number in range(2):
        hidden = x
        for layer in range(3):
            weight, bias = networks.weights[layer][number], networks.biases[layer][number]
            hidden = torch.nn.functional.linear(hidden.relu() if layer else hidden, weight.T, bias[0])
        torch.testing.assert_close(found[number], hidden)


def test_entropy_reverses_and_stops_gradients():
    """The gradient of the backbone: cross-entropy, minus 0.1 and 0.001 of the adversaries', plus 0.05."""
    classifier, (images, label, domain) = make("entropy").eval(), batch()
    method, weight = classifier.method, next(classifier.backbone.network.parameters())
    own = domain == torch.arange(SOURCES).unsqueeze(1)

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, weight, retain_graph=True)[0]

    feature = classifier.backbone(images)
    terms = {
        1.0: cross_entropy(classifier.head(feature), label),
        -0.1: cross_entropy(method.discriminator(feature)[0], domain),
        -0.001: entropy.balanced_cross_entropy(method.entropy(feature), label, own),
        0.05: entropy.balanced_cross_entropy(method.own(feature), label, ~own),
    }
    expected = sum(factor * gradient(term) for factor, term in terms.items())
    loss = loss_of(classifier)
    torch.testing.assert_close(gradient(loss), expected, rtol=1e-4, atol=1e-7)
    ours = entropy.balanced_cross_entropy(method.own(feature.detach()), label, own)
    parameters = [*method.own.parameters()]
    for found, expected in zip(
        torch.autograd.grad(loss, parameters, retain_graph=True), torch.autograd.grad(ours, parameters)
    ):
        assert torch.equal(found, expected)
    x = torch.ones(2, requires_grad=True)
    (3 * reverse_gradient(x, 0.5)).sum().backward()
    assert x.grad.tolist() == [-1.5, -1.5]


@pytest.mark.parametrize("training", [True, False])
def test_dson_mixes_batch_and_instance_statistics(training):
    maps = rows(6, 4, 5, 5) * 2 + 1
    norm = torch.nn.BatchNorm2d(4)
    norm.running_mean.normal_(generator=make_generator(1))
    norm.weight.data.normal_(generator=make_generator(2))
    mixed = MixedNorm(norm, 1).train(training)
    norm.train(training)
    mixed.mix.data.fill_(1.0)
    torch.testing.assert_close(mixed(maps), norm(maps), rtol=1e-4, atol=1e-5)
    if training:
        torch.testing.assert_close(mixed.running_mean, norm.running_mean)
    mixed.mix.data.fill_(0.0)
    alone = torch.nn.functional.instance_norm(maps, weight=norm.weight, bias=norm.bias)
    torch.testing.assert_close(mixed(maps), alone, rtol=1e-4, atol=1e-5)


def test_dson_normalises_many_rows_in_parts(monkeypatch):
    mixed, maps = MixedNorm(torch.nn.BatchNorm2d(4), 1).eval(), rows(7, 4, 5, 5)
    whole = mixed(maps)
    monkeypatch.setattr(domain_norm, "ROWS", 3)
    torch.testing.assert_close(mixed(maps), whole)
    batch_statistics = mixed.train()(maps)  # of all rows
    mixed.eval().running_mean = mixed.running_var = None  # as adapters that use a batch's statistics do
    torch.testing.assert_close(mixed(maps), batch_statistics)
    monkeypatch.undo()
    assert torch.equal(mixed.train()(maps), batch_statistics)


def test_dson_keeps_the_activations_inside_batch_norm():
    backbone = create_backbone("timm:mobilenetv2_050", weights=None, image_size=32).eval()
    images = rows(2, 3, 32, 32)
    before = backbone(images)
    backbone.use_domain_norm(2)
    for module in backbone.modules():
        if isinstance(module, MixedNorm):
            module.mix.data.fill_(1.0)  # batch norm alone
    torch.testing.assert_close(backbone.eval()(images), before, rtol=1e-4, atol=1e-5)


def test_dson_gives_every_source_its_own_branch():
    classifier, images = make("dson"), batch()[0]
    layers = [module for module in classifier.modules() if isinstance(module, DomainNorm)]
    assert len(layers) == 3
    for number, layer in enumerate(layers):
        layer.norm.weight.data.normal_(1, 0.3, generator=make_generator(number))
    backbone = classifier.backbone.train()
    whole = backbone(images)
    for source in range(SOURCES):  # rows of other sources do not matter
        others = images.clone()
        keep = slice(source * EACH, (source + 1) * EACH)
        others[: source * EACH], others[(source + 1) * EACH :] = 0.3, -0.2
        torch.testing.assert_close(backbone(others)[keep], whole[keep], rtol=1e-4, atol=1e-5)
    backbone.eval()
    torch.testing.assert_close(backbone(images)[:4], backbone(images[:4]), rtol=1e-4, atol=1e-5)
    inner, one = backbone.network.inner, images[:1]
    branches = inner(one.repeat(SOURCES, 1, 1, 1))
    torch.testing.assert_close(backbone(one)[0], branches.mean(0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(branches[0], branches[1])


def test_the_sinkhorn_distance_is_that_of_the_best_assignment():
    from scipy.optimize import linear_sum_assignment

    first, second = rows(5, 8), rows(5, 8, seed=1)
    cost = 1 - torch.nn.functional.cosine_similarity(first[:, None], second[None], -1).double().numpy()
    best = cost[linear_sum_assignment(cost)].mean()
    found = l2a_ot.sinkhorn_distance(first, second).item()
    assert best - 1e-4 <= found <= best + 0.05
    assert l2a_ot.sinkhorn_distance(first, first).item() < 0.01
    batches = l2a_ot.sinkhorn_distance(torch.stack([first, second]), torch.stack([second, first]))
    assert batches[0].item() == pytest.approx(found, rel=1e-5)


def test_sinkhorn_distance_and_augmix_keep_all_digits_under_autocast():
    first, second, images = rows(6, 8), rows(6, 8, seed=1), rows(2, 3, 16, 16).sigmoid()
    plain = l2a_ot.sinkhorn_distance(first, second), augmix(images, generator=make_generator())
    with torch.autocast("cpu", torch.bfloat16):
        again = l2a_ot.sinkhorn_distance(first, second), augmix(images, generator=make_generator())
    for one, other in zip(plain, again):
        assert torch.equal(one, other)


def test_l2a_ot_separates_the_players():
    """The classifier sees generated images as constants; the generator sees the classifier as a constant."""
    classifier = make("l2a_ot")
    loss_of(classifier).backward()
    images, label, domain = batch()
    method = classifier.method
    order = torch.rand(SOURCES, generator=make_generator()).argsort()
    real = (images * 0.5 + 0.5).clamp(0, 1)
    fake = method.generate(real, SOURCES + order[domain])
    assert fake.shape == images.shape
    both = torch.cat([images, (fake.detach() - 0.5) / 0.5])
    losses = cross_entropy(classifier(both), label.repeat(2), reduction="none")
    expected = torch.autograd.grad(losses.mean(), classifier.head.weight)[0]
    torch.testing.assert_close(classifier.head.weight.grad, expected, rtol=1e-4, atol=1e-6)
    moves = [parameter.grad.abs().sum() for parameter in method.generate.parameters()]
    assert sum(moves) > 0
    known = cross_entropy(method.domains.last(method.domains(real)), domain)
    torch.testing.assert_close(
        method.domains.last.weight.grad, torch.autograd.grad(known, method.domains.last.weight)[0]
    )


def test_domains_are_classified_by_the_nearest_prototype():
    embedding = rows(3, 11, 2)
    prototypes = embedding[:, :2].mean(1).double().numpy()  # a fifth of each domain
    losses = []
    for domain in range(3):
        for query in embedding[domain, 2:].double().numpy():
            score = np.exp(-((query - prototypes) ** 2).sum(1))
            losses.append(-np.log(score[domain] / score.sum()))
    assert domain_embedding.prototype_loss(embedding).item() == pytest.approx(np.mean(losses), rel=1e-5)
    one = domain_embedding.prototype_loss(embedding[:, :1])  # it is its own prototype
    assert one < domain_embedding.prototype_loss(embedding[:, :2])


def test_the_domain_classifier_reads_the_embedding_of_the_domain():
    classifier, (images, label, domain) = make("domain_embedding").eval(), batch()
    network = classifier.backbone.auxiliary[DOMAIN_EMBEDDING]
    feature, embedding = classifier.backbone(images), network.embed(images)
    prototype = torch.stack([embedding[domain == d].mean(0) for d in range(SOURCES)])[domain]
    assert (embedding >= 0).all()
    assert embedding.shape[1] == feature.shape[1] // 4
    read = network.feature[0](feature).relu()
    task = cross_entropy(network.classifier(torch.cat([read, prototype], 1)), label)
    domains = domain_embedding.prototype_loss(embedding.unflatten(0, (SOURCES, EACH)))
    probe = cross_entropy(classifier.head(feature), label)
    torch.testing.assert_close(loss_of(classifier), task + domains + probe)
    loss_of(classifier).backward()
    got = network.project[0].weight.grad.clone()  # trained by the prototypes alone
    network.zero_grad()
    domains.backward()
    torch.testing.assert_close(got, network.project[0].weight.grad)


def test_adversarial_noise_has_its_norm_after_clipping():
    """The scale is that of a root finder, on images of all shades; 135 is the norm of 224 pixels."""
    from scipy.optimize import brentq

    noise, shade = rows(4, 3, 16, 16), torch.tensor([0.0, 0.5, 0.9, 1.0]).view(4, 1, 1, 1)
    pixels = (shade + 0.1 * rows(4, 3, 16, 16, seed=1)).clamp(0, 1)
    found = adversarial_noise.with_noise(pixels, noise)
    for x, n, y in zip(*(part.double().numpy() for part in (pixels, noise, found))):

        def excess(scale, x=x, n=n):
            return np.linalg.norm((x + scale * n).clip(0, 1) - x) - 135 * 16 / 224

        np.testing.assert_allclose(y, (x + brentq(excess, 0, 100) * n).clip(0, 1), atol=1e-5)
    full = rows(1, 3, 4, 4).abs().requires_grad_()  # white pixels leave no room for brighter ones
    noisy = adversarial_noise.with_noise(torch.ones(1, 3, 4, 4), full)
    noisy.sum().backward()
    assert torch.equal(noisy, torch.ones(1, 3, 4, 4))
    assert full.grad.isfinite().all()


def test_adversarial_noise_has_its_norm_where_there_is_just_room_for_it():
    size = torch.linspace(0.01, 3, 999).view(-1, 1, 1, 1)  # rounding decides which of these are clipped
    noise = size.repeat(1, 3, 2, 2).requires_grad_()
    pixels = torch.full_like(noise, 1 - adversarial_noise.STRENGTH)
    noisy = adversarial_noise.with_noise(pixels, noise)
    noisy.sum().backward()
    torch.testing.assert_close(noisy, torch.ones_like(noisy), rtol=0, atol=1e-5)
    assert noise.grad.isfinite().all()


def test_adversarial_noise_climbs():
    classifier = make("adversarial_noise")
    before = [loss_of(classifier, seed).item() for seed in range(8)]
    for seed in range(8):
        loss_of(classifier, seed).backward()
    weights = classifier.method.noise.weights
    with torch.no_grad():  # a step of gradient descent on the loss makes noise harder
        weights -= 0.3 * weights.grad / weights.grad.norm()
    after = [loss_of(classifier, seed).item() for seed in range(8)]
    assert np.mean(after) > np.mean(before)


def test_adversarial_noise_remembers_earlier_generators(monkeypatch):
    monkeypatch.setattr(adversarial_noise, "EVERY", 2)
    method = make("adversarial_noise").method
    first = method.noise.weights.detach().clone()
    for number in range(1, 5):
        method.noise.weights.data.fill_(number)
        method._remember()
    slots = method.earlier[:, 0].tolist()
    assert slots[1:3] == [2.0, 4.0]
    torch.testing.assert_close(method.earlier[0], first)


def test_single_sample_is_variational_inference_over_held_out_sources():
    classifier, (images, label, _) = make("single_sample").eval(), batch()
    network = classifier.backbone.auxiliary[SINGLE_SAMPLE]
    feature, generator = classifier.backbone(images), make_generator()
    found = loss_of(classifier)
    maps, inner = [], classifier.backbone.network
    for number in range(len(inner)):  # maps of strides 4 and 8, of 16 pixels
        images = inner[number](images)
        maps += [images.mean((2, 3))] if number in (5, 9) else []
    about = network.domain(torch.cat(maps, 1)).split(EACH)
    each, labels = feature.split(EACH), label.split(EACH)
    centers = torch.stack(
        [torch.stack([x[y == c].mean(0) for c in range(CLASSES)]) for x, y in zip(each, labels)]
    )
    losses = []
    for target in range(SOURCES):
        others = torch.stack([centers[s] for s in range(SOURCES) if s != target]).mean(0)
        q, source = network.generate(centers[target]), network.source(others)
        theta = source.mean + source.std * torch.randn(source.mean.shape, generator=generator)
        p_mean, p_std = zip(
            *(
                network.generate(network.join(torch.cat([theta, x.expand_as(theta)], 1)))
                for x in about[target]
            )
        )
        p = torch.stack(p_mean), torch.stack(p_std)
        drawn = q.mean + q.std * torch.randn(q.mean.shape, generator=generator)
        scale = feature.shape[1] ** 0.5
        total = cross_entropy(each[target] @ drawn.T / scale, labels[target])
        sampled = p[0] + p[1] * torch.randn(p[0].shape, generator=generator)
        total = total + cross_entropy(
            torch.einsum("bd,bcd->bc", each[target], sampled) / scale, labels[target]
        )
        losses.append(total + 1e-3 / feature.shape[1] * torch_kl(Normal(*q), Normal(*p)).sum((1, 2)).mean())
    expected = torch.stack(losses).mean() + cross_entropy(classifier.head(feature), label)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    stored = network.centers.clone()  # it follows the batches, and is what test samples use
    torch.testing.assert_close(stored, 0.1 * centers.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["single_sample", "domain_embedding", "rotation"])
def test_networks_that_a_method_adds_learn_at_the_rate_of_the_head(name):
    settings = FineTuneSettings(method=name, backbone_learning_rate=1e-6, head_learning_rate=1e-2)
    torch.manual_seed(0)
    network = Classifier(create_backbone("tiny:conv", weights=None), 128, SOURCES, CLASSES, settings)
    learner = FineTuner(network, settings)
    rates = {id(p): group["peak"] for group in learner.optimizer.param_groups for p in group["params"]}
    for key, parameter in network.named_parameters():
        pretrained = key.startswith("backbone.") and ".network." in key
        assert rates[id(parameter)] == (1e-6 if pretrained else 1e-2), key
