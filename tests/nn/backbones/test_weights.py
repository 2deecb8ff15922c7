"""Weights from files: what fits is loaded, what does not is named."""

import pytest
import torch
from safetensors.torch import save_file

from sourceward._util.errors import InputError
from sourceward.nn.backbones import create_backbone
from sourceward.nn.backbones.weights import load_weights
from tests.nn.backbones.tiny import OwnNet, hf_folder


class TestWeights:
    @pytest.fixture
    def state(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        return create_backbone("tiny:conv").network.state_dict()

    @pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.backbone.network."])
    @pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
    def test_prefixes_half_precision_and_heads(self, state, prefix, suffix, tmp_path):
        kept = {k: v.half() for k, v in state.items() if v.is_floating_point()}  # counters may be absent
        file = {prefix + key: value for key, value in kept.items()} | {prefix + "fc.weight": torch.ones(2, 2)}
        path = tmp_path / f"weights{suffix}"
        save_file(file, path) if suffix == ".safetensors" else torch.save({"state_dict": file}, path)
        loaded = create_backbone("tiny:conv", weights=path).network.state_dict()
        for key, value in kept.items():
            assert loaded[key].dtype == torch.float32
            assert torch.equal(loaded[key], value.float())

    def test_what_does_not_fit_is_counted_and_named(self, state):
        state["1.weight"] = torch.ones(9)
        state["stray.weight"] = state.pop("0.weight")
        with pytest.raises(
            InputError, match=r"1 missing \(0.weight\).*1 unexpected \(stray.*1 of another shape"
        ):
            create_backbone("tiny:conv", weights=state)

    @pytest.mark.parametrize(
        "name", ["cut.safetensors", "empty.safetensors", "empty.pt", "code.pt", "none.pt"]
    )
    def test_bad_files_get_one_sentence(self, state, name, tmp_path):
        path = tmp_path / name
        if name == "cut.safetensors":
            save_file(state, path)
            path.write_bytes(path.read_bytes()[:5000])
        elif name == "code.pt":
            torch.save(OwnNet(), path)
        elif name.startswith("empty"):
            path.touch()
        with pytest.raises(InputError) as error:
            create_backbone("tiny:conv", weights=path)
        assert name in str(error.value)
        assert "\n" not in str(error.value)

    def test_text_weights_with_another_head(self, tmp_path):
        made = create_backbone(hf_folder(tmp_path / "bert", "bert"))
        state = {f"bert.{k}": v + 1 for k, v in made.network.model.state_dict().items()}
        state["cls.predictions.bias"] = torch.ones(3)
        load_weights(made.network.model, state, label="bert")
        assert torch.equal(made.network.model.embeddings.LayerNorm.bias, torch.ones(16))
