"""Promise 3 for texts and images: a prediction does not depend on its batch, its order or the threads."""

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward.model import Model
from sourceward.model.items import encode_texts
from sourceward.nn import alone
from tests.helpers import make_domains
from tests.tiny_runs import fit_tiny, tiny_images, tiny_texts

TTA = "hflip+crop+rotate+fourier+adain"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
CLOSE = 0.01
"""Largest difference of a probability on CUDA, as docs/security.md states it."""
WORDS = "fine great lovely awful poor sad very a b c"


@pytest.fixture(scope="module")
def images_of(tiny_run):
    return {device: sw.load(tiny_run, device) for device in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]}


@pytest.fixture(scope="module")
def texts_run(tmp_path_factory):
    """A model of texts with noise in its chains: a last bit of a feature becomes other noise."""
    out = tmp_path_factory.mktemp("texts")
    fit_tiny(tiny_texts(), out / "run", settings={"noise_std": 0.1, "num_steps": 3})
    return out / "run"


def some_texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS.split(), size=1 + 7 * i % 60)) for i in range(count)]


def same(model: Model, inputs, seed: int = 0) -> None:
    """Predict everything at once, and in parts of another order: the same bits on a CPU, on CUDA the same
    labels, but for ties, and close probabilities."""
    whole, rng = model.adapt(inputs), np.random.default_rng(seed)
    cuts = np.unique(rng.integers(1, len(inputs), size=rng.integers(7)))
    for rows in np.split(rng.permutation(len(inputs)), cuts):
        part = model.adapt([inputs[row] for row in rows] if isinstance(inputs, list) else inputs[rows])
        if model.device.type == "cpu":
            for name in ("probabilities", "features", "energy_before", "energy_after", "status"):
                assert np.array_equal(getattr(part, name), getattr(whole, name)[rows]), (name, rows)
        else:
            expected = whole.probabilities[rows]
            np.testing.assert_allclose(part.probabilities, expected, rtol=0, atol=CLOSE)
            first, second = np.sort(expected)[:, -1], np.sort(expected)[:, -2]
            clear = first - second > 2 * CLOSE
            assert clear.mean() > 0.5
            assert np.array_equal(part.probabilities.argmax(1)[clear], expected.argmax(1)[clear])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tta", ["", TTA])
def test_images_in_any_batch(images_of, device, tta):
    images = torch.from_numpy(tiny_images().items[::2][:20])
    for seed in range(5):
        same(images_of[device].with_tta(tta), images, seed)


@pytest.mark.parametrize("device", DEVICES)
def test_texts_in_any_batch(texts_run, device):
    model = sw.load(texts_run, device)
    assert model.settings.step.noise_std > 0
    for seed in range(20):
        same(model, some_texts(20), seed)


@pytest.mark.cuda
@pytest.mark.parametrize("dim", [24, 640])
def test_features_in_any_batch(dim):
    """On CUDA; `tests/test_promises.py` has the same on a CPU."""
    rows, label, source = make_domains(dim=dim)
    est = sw.EnergyAdapter(num_steps=4, max_iter=30, noise_std=0.1, device="cuda", train={"components": None})
    model = Model(est.fit(rows, label, sample_domain=source))
    for seed in range(5):
        same(model, make_domains(rows=200, dim=dim, sources=1, seed=1)[0] + 0.3, seed)


class First(torch.nn.Module):
    """The feature of a text is that of its first token."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, batch):
        return self.network(**batch).last_hidden_state[:, 0]


def transformer(kind):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    small |= {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 64} if kind == "distilbert" else {}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=99, max_position_embeddings=80, **small)
    network = First(transformers.AutoModel.from_config(config)).eval().requires_grad_(False)

    def prepare(texts):
        rows = [[2 + len(word) * ord(word[0]) % 97 for word in text.split()] for text in texts]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    return network, prepare


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
def test_transformers_in_any_batch(kind):
    """Attention over padding is where features of texts used to change."""
    network, prepare = transformer(kind)
    texts, rng = some_texts(24), np.random.default_rng(1)
    whole = encode_texts(network, prepare, texts)
    for _ in range(15):
        rows = rng.permutation(24)[: rng.integers(1, 24)]
        assert torch.equal(encode_texts(network, prepare, [texts[row] for row in rows]), whole[rows])


@pytest.fixture(scope="module")
def pointwise_run(tmp_path_factory):
    """A model with 1x1 convolutions, for which torch has another kernel with one thread than with more."""
    out = tmp_path_factory.mktemp("pointwise")
    options = {"backbone": "torchvision:mobilenet_v2", "freeze": True}
    fit_tiny(tiny_images(), out / "run", **options, settings={"image_size": 64, "noise_std": 0.1})
    return out / "run"


@pytest.mark.parametrize("count", [1, 9])
def test_however_many_threads_there_are(monkeypatch, images_of, pointwise_run, texts_run, count):
    """Fewer samples than threads, and more of them."""
    monkeypatch.setattr(alone, "available_cores", lambda: 4)
    images, pointwise = torch.from_numpy(tiny_images().items[:count]), sw.load(pointwise_run, "cpu")
    wide = images.repeat_interleave(4, 2).repeat_interleave(4, 3)
    cases = [
        (images_of["cpu"].with_tta(TTA), images),
        (pointwise.with_tta(""), wide),
        (pointwise.with_tta("hflip+fourier"), wide),
        (sw.load(texts_run, "cpu"), some_texts(count)),
    ]
    for model, inputs in cases:
        same_by_threads(lambda model=model, inputs=inputs: model.predict_proba(inputs))


def same_by_threads(predict):
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(np.asarray(predict()))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("dim", [24, 600])
def test_features_however_many_threads_there_are(dim):
    rows, label, source = make_domains(dim=dim)
    est = sw.EnergyAdapter(num_steps=4, max_iter=30, noise_std=0.1).fit(rows, label, sample_domain=source)
    same_by_threads(lambda: est.predict_proba(rows + 0.3))


def test_transformers_however_many_threads_there_are(monkeypatch):
    network, prepare = transformer("bert")
    monkeypatch.setattr(alone, "available_cores", lambda: 4)
    same_by_threads(lambda: encode_texts(network, prepare, some_texts(9)))
    same_by_threads(lambda: encode_texts(network, prepare, some_texts(1)))
