"""Promise 3 for texts and images: a prediction does not depend on its batch, its order or the threads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sourceward as sw
from sourceward.model import Model
from tests.tiny_runs import fit_tiny, tiny_images, tiny_texts

TTA = "hflip+crop+rotate+fourier+adain"
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]
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


def same(model: Model, inputs, order, cuts, exact: bool) -> None:
    """Predict everything at once, and in parts of another order."""
    whole = model.adapt(inputs)
    for rows in np.split(np.array(order), sorted(set(cuts))):
        part = model.adapt(
            inputs[rows] if isinstance(inputs, torch.Tensor) else [inputs[row] for row in rows]
        )
        if exact:
            for name in ("probabilities", "features", "energy_before", "energy_after", "status"):
                assert np.array_equal(getattr(part, name), getattr(whole, name)[rows]), (name, rows)
        else:
            np.testing.assert_allclose(part.probabilities, whole.probabilities[rows], atol=1e-2)


PARTS = {"order": st.permutations(range(20)), "cuts": st.lists(st.integers(1, 19), max_size=6)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tta", ["", TTA])
@settings(max_examples=5)
@given(**PARTS)
def test_images_in_any_batch(images_of, device, tta, order, cuts):
    """Bit for bit on a CPU; on CUDA the number of images in a call chooses the kernels of a convolution."""
    images = torch.from_numpy(tiny_images().items[::2][:20])
    same(images_of[device].with_tta(tta), images, order, cuts, exact=device == "cpu")


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20)
@given(**PARTS)
def test_texts_in_any_batch(texts_run, device, order, cuts):
    """Bit for bit: texts of one length, in batches of one size."""
    model = sw.load(texts_run, device)
    assert model.settings.step.noise_std > 0
    same(model, some_texts(20), order, cuts, exact=True)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
def test_transformers_in_any_batch(kind):
    """Attention over padding is where features of texts used to change."""
    transformers = pytest.importorskip("transformers")
    from sourceward.model.items import encode_texts

    small = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    small |= {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 64} if kind == "distilbert" else {}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=99, max_position_embeddings=80, **small)
    network = transformers.AutoModel.from_config(config).eval()

    def prepare(texts):
        rows = [[2 + len(word) * ord(word[0]) % 97 for word in text.split()] for text in texts]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def encode(batch):
        with torch.no_grad():
            return network(**batch).last_hidden_state[:, 0]

    texts, rng = some_texts(24), np.random.default_rng(1)
    whole = encode_texts(encode, prepare, texts)
    for _ in range(15):
        rows = rng.permutation(24)[: rng.integers(1, 24)]
        assert torch.equal(encode_texts(encode, prepare, [texts[row] for row in rows]), whole[rows])


def test_however_many_threads_there_are(images_of, texts_run):
    images, texts = torch.from_numpy(tiny_images().items[:8]), some_texts(8)
    models = {"image": images_of["cpu"].with_tta(TTA), "text": sw.load(texts_run, "cpu")}
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([models["image"].predict_proba(images), models["text"].predict_proba(texts)])
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found[0] * 2, found[1] + found[2]):
        assert np.array_equal(one, other)
