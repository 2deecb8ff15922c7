"""Every fine-tuning method: one contract, then each against its defining equation."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from sourceward._util.errors import InputError
from sourceward.data.augmix import augmix as augmix_copy
from sourceward.data.feeds import ResidentFeed
from sourceward.functional.losses import Batch
from sourceward.nn.auxiliary import DOMAIN_EMBEDDING, ROTATION, SINGLE_SAMPLE
from sourceward.nn.backbones import Backbone, create_backbone
from sourceward.training.finetune import FINETUNE_METHODS, Classifier, FineTuner, FineTuneSettings, Rows
from sourceward.training.learner import _moving
from sourceward.training.methods import augmix, mixing, mixstyle
from sourceward.training.methods.random_draws import beta, other_source_rows, permutation
from tests.helpers import make_generator

SOURCES, CLASSES, EACH, SIDE = 3, 4, 5, 16
WITHOUT_DRAWS = ("erm", "entropy", "dson", "domain_embedding")
every = pytest.mark.parametrize("name", list(FINETUNE_METHODS))


def make(name: str, **options) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("tiny:conv", image_size=SIDE)
        classifier = Classifier(
            backbone, backbone.dim, SOURCES, CLASSES, FineTuneSettings(method=name, **options)
        )
    classifier.reset_head(make_generator())
    for parameter in backbone.auxiliary.parameters():  # at zero, all rotations would have the same logits
        parameter.data.normal_(std=0.1, generator=make_generator())
    return classifier


def batch(rows: int = SOURCES * EACH):
    images = torch.rand(rows, 3, SIDE, SIDE, generator=make_generator(1)) * 2 - 1
    label = torch.arange(rows) % CLASSES
    return images, label, torch.arange(SOURCES).repeat_interleave(rows // SOURCES)


def loss_of(classifier: Classifier, seed: int = 0):
    inputs = batch()
    return classifier.method.loss(classifier.backbone, classifier.head, Rows(*inputs), make_generator(seed))


@every
def test_the_loss_is_finite_reproducible_and_trains_every_parameter(name):
    classifier = make(name)
    loss = loss_of(classifier)
    assert loss.ndim == 0
    assert torch.isfinite(loss)
    classifier.reset_head(make_generator(3))
    with torch.no_grad():
        classifier.head.weight.mul_(100)
    loss_of(classifier).backward()
    own = (*classifier.backbone.auxiliary.parameters(), *classifier.method.parameters())
    for parameter in (*classifier.backbone.network.parameters(), *classifier.head.parameters(), *own):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    for parameter in (*classifier.backbone.network.parameters(), *classifier.head.parameters()):
        assert parameter.grad.abs().sum() > 0
    assert torch.equal(loss_of(make(name)), loss)
    if name not in WITHOUT_DRAWS:
        assert not torch.equal(loss_of(make(name), seed=1), loss)


@pytest.mark.cuda
@every
def test_an_iteration_is_captured_as_a_graph_and_gives_the_losses_of_one_that_is_not(name):
    images, label, _ = batch()
    shown = Batch(*(part.unflatten(0, (SOURCES, -1)).cuda() for part in (images, label)))
    losses = []
    for captured in (True, False):
        learner = FineTuner(make(name).to("cuda").train(), FineTuneSettings(method=name), bf16=True)
        learner._capturable = captured
        losses.append([learner.step(lambda _: shown).item() for _ in range(3)])
        assert bool(learner.graphs) == captured
    assert np.isfinite(losses).all()
    assert len({*losses[0]}) == 3
    np.testing.assert_allclose(*losses, rtol=0.02)  # of bfloat16


@every
def test_the_average_follows_every_tensor_of_a_method(name):
    """The tensors are listed once: a method may write to them, and put no others in their place."""
    images, label, _ = batch()
    shown = Batch(*(part.unflatten(0, (SOURCES, -1)) for part in (images, label)))
    learner = FineTuner(make(name).train(), FineTuneSettings(method=name, average=0.5))
    learner.step(lambda _: shown)
    learner.load_state_dict(learner.state_dict(), learner.iteration)
    learner.step(lambda _: shown)
    for listed, module in zip(learner._averaged, (learner.average, learner.network)):
        now = _moving(module)
        assert [[*map(id, part)] for part in listed] == [[*map(id, part)] for part in now]


@pytest.mark.parametrize("name", [name for name in FINETUNE_METHODS if name != "dson"])  # other norm layers
def test_evaluation_does_not_depend_on_the_method(name):
    """No hook and no randomness remains after a loss: the classifier predicts as one trained by ERM."""
    classifier, plain = make(name), make("erm")
    loss_of(classifier)
    images = batch()[0]
    classifier.eval(), plain.eval()
    classifier.load_state_dict({**classifier.state_dict(), **plain.state_dict()})
    assert torch.equal(classifier(images), plain(images))


@every
def test_an_easy_task_is_learned(name):
    iterations = 80 if name == "single_sample" else 40  # its classifiers are drawn at random
    rates = {"backbone_learning_rate": 5e-3, "head_learning_rate": 1e-2}
    classifier = make(name, max_iter=iterations, batch_size=8, average=0.0, **rates)
    label = torch.arange(40) % CLASSES
    images = 0.3 * torch.randn(40, 3, SIDE, SIDE, generator=make_generator(1))
    for c in range(CLASSES):
        images[label == c, :, 4 * c : 4 * c + 4] += 1.0
    learner = FineTuner(classifier, classifier.method.settings, seed=0)
    feed = ResidentFeed([images] * SOURCES, [label] * SOURCES, 8)
    classifier.train()
    classifier.backbone.freeze_batchnorm()
    for _ in range(iterations):
        learner.step(feed)
    classifier.eval()
    for logits in (classifier(images), *own_logits(classifier.backbone, images)):
        assert (logits.argmax(1) == label).float().mean() > 0.9


def own_logits(backbone: Backbone, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the logits of the classifier that a method trains for its own adapter, if it does."""
    if SINGLE_SAMPLE in backbone.auxiliary:
        network = backbone.auxiliary[SINGLE_SAMPLE]
        return [network(*network.describe(backbone, images))]
    if DOMAIN_EMBEDDING in backbone.auxiliary:
        network = backbone.auxiliary[DOMAIN_EMBEDDING]
        return [network(backbone(images), network.embed(images).mean(0, keepdim=True))]
    return []


@pytest.mark.parametrize("name", ["mixup", "cutmix", "augmix", "rotation", "mixstyle"])
def test_texts_are_refused(name):
    backbone = create_backbone("tiny:text")

    def loss():
        classifier = Classifier(backbone, backbone.dim, 2, 2, FineTuneSettings(method=name))
        tokens, label = backbone.prepare(["one", "two"]), torch.tensor([0, 1])
        return classifier.method.loss(backbone, classifier.head, Rows(tokens, label, label), make_generator())

    with pytest.raises(InputError, match="Use 'erm'"):
        loss()


def test_beta_has_its_moments():
    for alpha in (0.1, 0.2, 1.0):
        draws = beta(alpha, 20_000, make_generator()).double()
        variance = 1 / (4 * (2 * alpha + 1))
        assert draws.mean().item() == pytest.approx(0.5, abs=4 * (variance / 20_000) ** 0.5)
        assert draws.var().item() == pytest.approx(variance, rel=0.05)
        assert ((draws >= 0) & (draws <= 1)).all()


def test_other_source_rows_are_of_another_source():
    domain = torch.arange(SOURCES).repeat_interleave(200)
    other = other_source_rows(domain, SOURCES, make_generator())
    assert (domain[other] != domain).all()
    assert len(set(other.tolist())) > 300
    for source in range(SOURCES):
        met = domain[other[domain == source]].bincount(minlength=SOURCES)
        assert (met[[s for s in range(SOURCES) if s != source]] > 60).all()
    alone = other_source_rows(torch.zeros(50, dtype=torch.long), 1, make_generator())
    assert ((alone >= 0) & (alone < 50)).all()
    assert sorted(permutation(9, make_generator()).tolist()) == list(range(9))


def softmax_ce(logits, label):
    logits = logits.detach().double().numpy()
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -log_p[np.arange(len(label)), label.numpy()]


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_labels_are_mixed_as_the_images_are(name):
    classifier = make(name).eval()
    images, label, _ = batch()
    generator = make_generator(5)
    order = permutation(len(images), generator)
    mixed, share = classifier.method.mix(images, images[order], generator)
    if name == "mixup":
        weight = share[:, None, None, None]
        torch.testing.assert_close(mixed, weight * images + (1 - weight) * images[order])
    else:
        own, other = (mixed == images).all(1), (mixed == images[order]).all(1)
        assert (own | other).all()
        moved = order != torch.arange(len(order))
        torch.testing.assert_close(own.float().mean((1, 2))[moved], share[moved])
    logits = classifier(mixed)
    share = share.numpy()
    expected = (share * softmax_ce(logits, label) + (1 - share) * softmax_ce(logits, label[order])).mean()
    assert loss_of(classifier, seed=5).item() == pytest.approx(expected, rel=1e-5)


def test_boxes_are_rectangles_of_the_requested_area():
    share = torch.full((4000,), 0.75)
    box = mixing.random_boxes(share, 40, 20, make_generator())[:, 0]
    area = box.float().mean((1, 2))
    assert area.max() <= 0.25 + 0.05  # half of each side, rounded to whole pixels
    inner = box[:, 0].sum(1) + box[:, -1].sum(1) + box[:, :, 0].sum(1) + box[:, :, -1].sum(1) == 0
    assert area[inner].mean().item() == pytest.approx(0.25, abs=0.005)
    tall, wide = box.any(2).sum(1), box.any(1).sum(1)
    assert torch.equal(box.sum((1, 2)), tall * wide)  # rectangles
    assert not mixing.random_boxes(torch.ones(3), 8, 8, make_generator()).any()


def test_mixstyle_gives_maps_the_mixed_statistics():
    maps = torch.randn(4, 3, 6, 6, generator=make_generator()) * torch.arange(1, 5)[:, None, None, None] + 2
    other, share = torch.tensor([1, 2, 3, 0]), torch.tensor([0.25, 1.0, 0.0, 0.5])
    mixed = mixstyle.mix_statistics(maps, other, share)
    mean, std = maps.mean((2, 3)), maps.std((2, 3))
    weight = share[:, None]
    torch.testing.assert_close(mixed.mean((2, 3)), weight * mean + (1 - weight) * mean[other])
    torch.testing.assert_close(
        mixed.std((2, 3)), weight * std + (1 - weight) * std[other], atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(mixed[1], maps[1], atol=1e-5, rtol=1e-5)  # a share of 1 changes nothing
    shape = (maps - mean[..., None, None]) / std[..., None, None]
    new = (mixed - mixed.mean((2, 3), keepdim=True)) / mixed.std((2, 3), keepdim=True)
    torch.testing.assert_close(new, shape, atol=1e-4, rtol=1e-4)  # normalised maps are unchanged


def test_mixstyle_takes_no_gradient_through_statistics():
    maps = torch.randn(2, 1, 4, 4, requires_grad=True)
    mixstyle.mix_statistics(maps, torch.tensor([1, 0]), torch.tensor([0.5, 0.5])).sum().backward()
    std = maps.detach().std((2, 3))
    expected = ((std + std[[1, 0]]) / 2 / std)[..., None, None].expand_as(maps)
    torch.testing.assert_close(maps.grad, expected, atol=1e-4, rtol=1e-4)


def test_mixstyle_is_applied_after_the_first_two_stages():
    assert mixstyle.stage_ends(create_backbone("tiny:conv", image_size=32), (4, 8)) == [
        "network.5",
        "network.8",
    ]


@pytest.mark.parametrize(
    ("spec", "stages"),
    [
        ("torchvision:resnet18", ["layer1", "layer2"]),
        ("timm:resnet50", ["layer1", "layer2"]),  # the next stage begins with maps of the same size
        ("torchvision:mobilenet_v2", ["features.3", "features.6"]),
    ],
)
def test_mixstyle_is_applied_where_a_stage_ends(spec, stages):
    backbone = create_backbone(spec, weights=None, image_size=64)
    assert mixstyle.stage_ends(backbone, (4, 8)) == [f"network.{stage}" for stage in stages]
    assert backbone.training
    assert len(mixstyle.stage_ends(create_backbone("tiny:conv", image_size=8), (4, 8))) == 1


def test_jensen_shannon_of_known_predictions():
    p = np.array([[[0.7, 0.3]], [[0.2, 0.8]], [[0.5, 0.5]]])
    mean = p.mean(0)
    expected = (p * np.log(p / mean)).sum(-1).mean()
    assert augmix.jensen_shannon(torch.tensor(p).log()).item() == pytest.approx(expected, rel=1e-6)
    assert augmix.jensen_shannon(torch.zeros(3, 2, 4)).item() == pytest.approx(0, abs=1e-7)


def test_augmix_is_cross_entropy_plus_twelve_times_the_divergence():
    classifier = make("augmix").eval()
    with torch.no_grad():
        classifier.head.weight.mul_(100)
    images, label, _ = batch()
    generator, half = make_generator(), (0.5, 0.5, 0.5)  # the normalisation of the tiny backbone
    copies = [(augmix_copy((images + 1) / 2, generator=generator) - 0.5) / 0.5 for _ in range(2)]
    assert classifier.backbone.preprocessing.mean == classifier.backbone.preprocessing.std == half
    logits = torch.stack([classifier(x) for x in (images, *copies)])
    expected = cross_entropy(logits[0], label) + 12 * augmix.jensen_shannon(logits)
    torch.testing.assert_close(loss_of(classifier), expected)


def test_rotation_is_two_cross_entropies():
    classifier = make("rotation").eval()
    images, label, _ = batch()
    rotations = torch.randint(4, (len(images),), generator=make_generator(4))
    rotated = torch.stack([image.rot90(int(k), (1, 2)) for image, k in zip(images, rotations)])
    logits = classifier.backbone.auxiliary[ROTATION](classifier.backbone(rotated))
    expected = cross_entropy(classifier(images), label) + cross_entropy(logits, rotations)
    torch.testing.assert_close(loss_of(classifier, seed=4), expected)


def test_the_rotation_head_is_saved_with_the_backbone():
    backbone = make("rotation").backbone
    again = Backbone.from_config(backbone.config())
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again.auxiliary[ROTATION].weight, backbone.auxiliary[ROTATION].weight)
    assert "auxiliary" not in make("erm").backbone.config()
