"""Two real processes on the loopback: they draw different batches and end with the same weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sourceward._util.storage import tensor_hash
from sourceward.training.finetune import FineTuner
from sourceward.training.trainer import Trainer
from tests.tiny_runs import fit_tiny, tiny_features, tiny_images


def work(data, out, learner, settings, kill_at):
    """Fit in one process, and write a hash of its parameters and one of the labels that it drew."""
    torch.set_num_threads(1)
    step, drawn = learner.step, []

    def watched(self, feed):
        if self.iteration == kill_at:
            torch.distributed.barrier()
            raise KeyboardInterrupt

        def draw(generator):
            batch = feed(generator)
            drawn.append(batch.label)
            return batch

        return step(self, draw)

    learner.step = watched
    try:
        model = fit_tiny(data(), out, settings=settings)
    except KeyboardInterrupt:
        return
    rank = torch.distributed.get_rank()
    labels = {"drawn": torch.stack(drawn)} if drawn else {}
    hashes = tensor_hash(dict(model.network.named_parameters())), tensor_hash(labels)
    out.with_name(f"{out.name}-{rank}.txt").write_text(" ".join(hashes))


KNOWN = {part.__name__: part for part in (FineTuner, Trainer, tiny_features, tiny_images)}
RUN = "import sys; from tests.test_fitting_two_processes import run; run(sys.argv[1])"


def run(arguments):
    """Start `work` twice, in a process that has no threads yet: those of a forked one would wait for ever."""
    from accelerate import debug_launcher

    data, out, learner, settings, kill_at = json.loads(arguments)
    debug_launcher(work, (KNOWN[data], Path(out), KNOWN[learner], settings, kill_at), num_processes=2)


def launch(data, out, learner=Trainer, settings=None, kill_at=-1):
    pytest.importorskip("accelerate")
    arguments = json.dumps([data.__name__, str(out), learner.__name__, settings or {}, kill_at])
    subprocess.run([sys.executable, "-c", RUN, arguments], check=True, timeout=240)
    files = [out.with_name(f"{out.name}-{rank}.txt") for rank in range(2)]
    return [file.read_text().split() for file in files if file.exists()]


@pytest.mark.parametrize(("recipe", "learner"), [("two-stage", FineTuner), ("joint", Trainer)])
def test_own_batches_and_one_set_of_weights(recipe, learner, tmp_path):
    first, second = launch(tiny_images, tmp_path / "run", learner, {"recipe": recipe})
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert (tmp_path / "run/config.json").exists()


def test_killed_and_resumed_ends_with_the_same_bits(tmp_path):
    settings = {"recipe": "joint"}  # each process has class centres and a replay buffer of its own
    whole = launch(tiny_images, tmp_path / "whole", settings=settings)
    assert launch(tiny_images, tmp_path / "torn", settings=settings, kill_at=8) == []
    assert (tmp_path / "torn/checkpoint.safetensors").exists()
    again = launch(tiny_images, tmp_path / "torn", settings=settings)
    assert again[0][0] == again[1][0] == whole[0][0]


def test_features_are_fitted_by_one_process_and_loaded_by_the_other(tmp_path):
    first, second = launch(tiny_features, tmp_path / "run")
    assert first[0] == second[0]
    alone = fit_tiny(tiny_features(), tmp_path / "alone")
    assert first[0] == tensor_hash(dict(alone.network.named_parameters()))
