"""The training loop: feed, schedule, average, checkpoints, validation, log, and what stops it."""

import numpy as np
import pytest
import torch
from torch import nn

from sourceward import InputError, TrainingError
from sourceward._util.storage import load_tensors
from sourceward.data.feeds import ResidentFeed
from sourceward.functional.losses import Batch
from sourceward.nn import Network
from sourceward.settings import LoopSettings, TrainSettings
from sourceward.training.finetune import FineTuneSettings
from sourceward.training.learner import rate
from sourceward.training.loop import SELECT, Training, standard_error, takes_over
from sourceward.training.trainer import Trainer
from tests.helpers import make_domains, make_generator, train

SOURCES, CLASSES, DIM = 3, 3, 6
X, Y, SOURCE = make_domains()
INPUTS = [torch.from_numpy(X[s == SOURCE]).float() for s in range(SOURCES)]
LABELS = [torch.from_numpy(Y[s == SOURCE]) for s in range(SOURCES)]
FEED = ResidentFeed(INPUTS, LABELS, 16)
SHORT = TrainSettings(num_steps=2, chains=8)
KL = 0.02


def make_network(backbone: nn.Module | None = None, head: str = "prototype") -> Network:
    network = Network(SOURCES, CLASSES, DIM, head, backbone)
    network.reset_parameters(make_generator())
    network.fit_scale(torch.cat(INPUTS))
    return network


def loop(**options) -> LoopSettings:
    return LoopSettings(**{"max_iter": 12, "batch_size": 16, **options})


def test_a_feed_draws_as_many_rows_of_each_source():
    feed = ResidentFeed(INPUTS, LABELS, 50, shifted=(INPUTS[0] + 9, LABELS[0]))
    batch = feed(make_generator())
    assert batch.feature.shape == (SOURCES, 50, DIM)
    assert batch.shifted.shape == (50, DIM)
    for source in range(SOURCES):
        place = (batch.feature[source].unsqueeze(1) == INPUTS[source]).all(-1).int().argmax(1)
        assert torch.equal(INPUTS[source][place], batch.feature[source])
        assert torch.equal(LABELS[source][place], batch.label[source])
    again = feed(make_generator())
    assert all(torch.equal(a, b) for a, b in zip(batch, again))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("cosine", [1, 0.5, 0.0]), ("step", [1, 1, 0.1]), ("constant", [1, 1, 1])],
)
def test_rate(schedule, expected):
    assert [rate(p, schedule) for p in (0, 0.5, 1.0)] == pytest.approx(expected)


def test_each_part_has_its_own_rate():
    network = make_network(nn.Linear(DIM, DIM))
    rates = loop(learning_rate=0.1, energy_learning_rate=0.2, backbone_learning_rate=0.3)
    trainer = Trainer(network, rates, SHORT, KL)
    peaks = {id(p): group["peak"] for group in trainer.optimizer.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        part = name.split(".")[0]
        assert peaks[id(parameter)] == {"backbone": 0.3, "energy": 0.2}.get(part, 0.1), name


def test_what_is_frozen_is_not_trained():
    backbone = nn.Linear(DIM, DIM).requires_grad_(False)
    before = backbone.weight.clone()
    network = train(make_network(backbone), FEED, loop(), SHORT)
    assert torch.equal(network.backbone.weight, before)


class Losses:
    """A log that keeps what it is given."""

    def __init__(self):
        self.started, self.lines = [], []

    def start(self, iteration):
        self.started.append(iteration)
        self.lines = [line for line in self.lines if line[0] <= iteration]

    def write(self, iteration, line):
        self.lines.append((iteration, line))

    def of(self, kind):
        return [(iteration, line[kind]) for iteration, line in self.lines if kind in line]


def test_training_lowers_the_loss_and_ends_with_the_average():
    network, log = make_network(), Losses()
    averaged = train(network, FEED, loop(max_iter=70, learning_rate=0.03), SHORT, log=log)
    losses = log.of("loss")
    assert [iteration for iteration, _ in losses] == [20, 40, 60, 70]
    assert losses[-1][1]["classify"] < 0.8 * losses[0][1]["classify"]
    assert averaged is not network
    assert not averaged.training
    assert train(network, FEED, loop(average=0.0), SHORT) is network


def test_the_average_is_an_average():
    network = make_network()
    trainer = Trainer(network, loop(average=0.98, learning_rate=0.05), SHORT, KL)
    mean = network.latent.mean.weight.detach().clone()
    for k in range(1, 5):
        trainer.step(FEED)
        decay = min(0.98, k / (k + 9))
        mean = decay * mean + (1 - decay) * network.latent.mean.weight.detach()
    torch.testing.assert_close(trainer.average.latent.mean.weight, mean)


@pytest.mark.parametrize("frozen", [True, False])
def test_batch_norm_can_be_frozen(frozen):
    backbone = nn.Sequential(nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM))
    network = train(make_network(backbone), FEED, loop(freeze_batchnorm=frozen), SHORT)
    assert (network.backbone[1].running_mean == 0).all() == frozen


def test_everything_is_in_the_state():
    """Save, load into a fresh trainer, and three steps later the two are the same."""
    first = Trainer(make_network(), loop(), SHORT, KL, seed=1)
    for _ in range(4):
        first.step(FEED)
    second = Trainer(make_network(), loop(), SHORT, KL, seed=2)
    second.load_state_dict({k: v.clone() for k, v in first.state_dict().items()}, first.iteration)
    for _ in range(3):
        a, b = first.step(FEED), second.step(FEED)
        assert torch.equal(a.total, b.total)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_a_checkpoint_is_written_at_intervals_and_at_the_end(tmp_path):
    path, written = tmp_path / "checkpoint", []

    def watched(generator):
        written.append(load_tensors(path)[1]["iteration"] if path.exists() else 0)
        return FEED(generator)

    train(make_network(), watched, loop(), SHORT, checkpoint=path, checkpoint_every=5)
    assert written == [0] * 5 + [5] * 5 + [10] * 2
    assert load_tensors(path)[1]["iteration"] == 12
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_that_does_not_belong_is_refused(tmp_path):
    path = tmp_path / "checkpoint"
    train(make_network(), FEED, loop(), SHORT, checkpoint=path, fingerprint="a")
    with pytest.raises(InputError, match=r"belongs to other data or settings\. Remove it"):
        train(make_network(), FEED, loop(), SHORT, checkpoint=path, fingerprint="b")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is damaged"):
        train(make_network(), FEED, loop(), SHORT, checkpoint=path, fingerprint="a")


class Faulty(nn.Module):
    """A backbone whose output is multiplied by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factor * self.weight


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (
            0.0,
            "Features collapsed to zero at iteration 0.*Lower `backbone_learning_rate`, or freeze",
        ),
        (1e-4, "Features collapsed to zero at iteration 0.*Lower `backbone_learning_rate`"),
        (float("nan"), "no longer finite at iteration 0. Lower `learning_rate` or `backbone_learning_rate`"),
        (float("inf"), "no longer finite at iteration 0. Lower `learning_rate` or `backbone_learning_rate`"),
    ],
)
def test_features_that_collapse_or_blow_up_stop_the_training(factor, says):
    network = make_network(Faulty(factor))
    network.shift.zero_()
    with pytest.raises(TrainingError, match=says):
        train(network, FEED, loop(), SHORT)


def test_an_energy_that_diverges_stops_the_training():
    network = make_network()
    with torch.no_grad():
        network.energy.biases[2].fill_(float("nan"))
    with pytest.raises(
        TrainingError, match=r"The energy diverged at iteration 0. Lower `energy_learning_rate`"
    ):
        train(network, FEED, loop(), SHORT)


def test_a_rate_that_is_far_too_large_is_noticed_before_the_end():
    with pytest.raises(TrainingError, match=r"`learning_rate`|`energy_learning_rate`"):
        train(make_network(), FEED, loop(max_iter=100, learning_rate=1e30, energy_learning_rate=1e30), SHORT)


def test_shifted_samples_pass_the_backbone_too():
    seen = []

    class Watch(nn.Linear):
        def forward(self, inputs):
            seen.append(len(inputs))
            return super().forward(inputs)

    feed = ResidentFeed(INPUTS, LABELS, 16, shifted=(INPUTS[0] + 9, LABELS[0]))
    train(make_network(Watch(DIM, DIM)), feed, loop(max_iter=1), SHORT)
    assert seen == [SOURCES * 16, 16]
    assert isinstance(feed(make_generator()), Batch)


def test_a_single_source_takes_negatives_from_noisy_inputs_and_noisy_features():
    backbone = torch.nn.Linear(3, 4)
    network = Network(1, 2, 4, backbone=backbone)
    seen = []
    network.backbone.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    inputs, labels = torch.randn(40, 3), torch.arange(40) % 2
    settings = TrainSettings(num_steps=2, input_noise=0.5)
    trainer = Trainer(network, LoopSettings(max_iter=4, batch_size=8), settings, KL)
    trainer.step(ResidentFeed([inputs], [labels], 8))
    noisy, clean = seen if len(seen[0]) == 8 and not torch.isin(seen[0], inputs).all() else seen[::-1]
    assert torch.isin(clean, inputs).all()
    assert 0.2 < (noisy - clean).std() < 0.8


def test_weights_that_break_in_the_last_update_are_noticed():
    network = Network(1, 2, 4)
    feed = ResidentFeed([torch.randn(40, 4)], [torch.arange(40) % 2], 8)
    loop = LoopSettings(max_iter=3, batch_size=8, learning_rate=1e30, schedule="constant")
    with pytest.raises(TrainingError, match="Lower `learning_rate`"):
        train(network, feed, loop, TrainSettings(num_steps=2))


class Killed(Exception):
    pass


def run(log, path=None, kill_at=None, accuracies=None, **options):
    """A training of 45 iterations with validation; returns it when it has ended."""
    settings = loop(max_iter=45, learning_rate=0.01)
    trainer = Trainer(make_network(), settings, SHORT, KL)

    def feed(generator):
        if trainer.iteration == kill_at:
            raise Killed
        return FEED(generator)

    def validate(network):
        assert not network.training
        number = trainer.iteration
        return {"accuracy": accuracies[number] if accuracies else 0.5, "center": network.centers.sum().item()}

    training = Training(
        trainer,
        lambda start: feed,
        48,
        checkpoint=path,
        checkpoint_every=10,
        validate=validate,
        evaluate_every=15,
        log=log,
        progress=False,
        **options,
    )
    training.run()
    return training


@pytest.mark.parametrize("kill_at", [0, 7, 10, 16, 31, 44])
def test_stopped_anywhere_it_ends_with_the_same_weights_scores_and_log(kill_at, tmp_path):
    whole, log, path = Losses(), Losses(), tmp_path / "checkpoint"
    expected = run(whole)
    with pytest.raises(Killed):
        run(log, path, kill_at)
    again = run(log, path)
    assert log.started == [0, kill_at // 10 * 10]
    for name, value in expected.learner.state_dict().items():
        assert torch.equal(value, again.learner.state_dict()[name]), name
    assert log.of("validation") == whole.of("validation")
    assert log.of("loss") == whole.of("loss")
    assert again.best_scores == expected.best_scores
    assert all(torch.equal(again.best[name], value) for name, value in expected.best.items())


def test_a_finished_training_takes_no_further_step(tmp_path):
    path = tmp_path / "checkpoint"
    first = run(Losses(), path)
    again = run(Losses(), path, kill_at=45)
    assert again.learner.iteration == 45
    assert torch.equal(again.learner.current.centers, first.learner.current.centers)


@pytest.mark.parametrize(("select", "chosen"), [("best", 30), ("last", 45)])
def test_the_weights_that_the_rule_selects_are_kept(select, chosen, tmp_path):
    accuracies = {15: 0.7, 30: 0.7, 45: 0.2}  # of equals the later
    log, path = Losses(), tmp_path / "checkpoint"
    with pytest.raises(Killed):
        run(log, path, 40, accuracies, select=select)
    training = run(log, path, None, accuracies, select=select)
    assert [iteration for iteration, _ in log.of("validation")] == [15, 30, 45]
    assert training.best_scores["iteration"] == chosen
    weight = "latent.mean.weight"
    last = torch.equal(training.best[weight], training.learner.current.state_dict()[weight])
    assert last == (chosen == 45)


def test_validation_does_not_change_the_training():
    plain = train(make_network(), FEED, loop(max_iter=45, learning_rate=0.01), SHORT)
    validated = run(Losses()).learner.current
    for name, value in plain.state_dict().items():
        assert torch.equal(value, validated.state_dict()[name]), name


def test_the_global_random_state_is_left_alone():
    network = make_network(nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.5)))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(network, FEED, loop(), SHORT)
    assert torch.equal(torch.rand(3), expected)


def look(iteration, accuracies, samples=50):
    each = {str(i): {"accuracy": a, "samples": samples} for i, a in enumerate(accuracies)}
    return {"accuracy": float(np.mean(accuracies)), "per_source": each, "iteration": iteration}


def chosen(looks, rule):
    kept = {}
    for scores in looks:
        if takes_over(scores, kept, rule):
            kept = scores
    return kept["iteration"]


@pytest.mark.parametrize("seed", range(20))
def test_seen_one_at_a_time_is_as_good_as_seen_together(seed):
    draws = np.random.default_rng(seed).binomial(50, 0.9, (12, 3)) / 50
    looks = [look(i, draw) for i, draw in enumerate(draws)]
    means = draws.mean(1)
    best = len(means) - 1 - int(means[::-1].argmax())
    bar = means[best] - standard_error(looks[best]["per_source"])
    assert chosen(looks, "best") == best
    assert chosen(looks, "late") == np.flatnonzero(means >= bar).max()
    assert chosen(looks, "last") == 11


def test_the_standard_error_is_the_spread_of_the_mean_over_sources():
    draws = np.random.default_rng(0).binomial([1000, 4000], [0.9, 0.6], (200_000, 2)) / [1000, 4000]
    told = standard_error({"a": {"accuracy": 0.9, "samples": 1000}, "b": {"accuracy": 0.6, "samples": 4000}})
    assert told == pytest.approx(draws.mean(1).std(), rel=0.01)


def test_another_rule_is_refused_by_name():
    with pytest.raises(InputError, match=r"Unknown finetune\.select 'lat'\. Did you mean 'late'"):
        FineTuneSettings(select="lat")
    for rule in SELECT:
        FineTuneSettings(select=rule)


def test_a_perfect_look_does_not_forbid_later_ones():
    assert chosen([look(i, [right / 200], 200) for i, right in enumerate((200, 199, 199))], "late") == 2
    assert chosen([look(i, [right / 9], 9) for i, right in enumerate((9, 8, 5))], "late") == 1
