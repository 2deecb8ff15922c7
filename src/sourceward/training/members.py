"""Average the weights of several fine-tunings: one network, at the price of one when it predicts.

Members start from the same pretrained weights and differ by seed, so their mean is a network as well (Rame et
al. 2022, DiWA; Arpit et al. 2022). Heads and energies are fitted to the features of the mean, so the members'
own heads do not have to agree.
"""

import copy
from dataclasses import replace
from typing import Any

import torch

from sourceward._util.storage import save_tensors
from sourceward.data.loading import SourceData
from sourceward.nn.backbones import Backbone
from sourceward.training.finetune import Classifier, FineTuneSettings, finetune
from sourceward.training.run_folder import MEMBERS, Context, RunFolder

SEED_STRIDE = 1_009
"""Between the seeds of members: more than the seeds of a bench, so that no two of its runs share a member."""


def finetune_members(
    data: SourceData, backbone: Backbone, context: Context, settings: FineTuneSettings
) -> tuple[Classifier, dict[str, Any]]:
    """Fine-tune `settings.members` times and return the mean of the weights, with each member's scores.

    A member that has finished in the run's folder is loaded, and so is the mean.
    """
    folder, main = context.folder, context.processes.is_main
    if settings.members == 1 or folder.finetuned.exists():
        return finetune(data, backbone, context, settings)
    if main:
        folder.start()
    start, infos = copy.deepcopy(backbone), []
    mean: dict[str, torch.Tensor] = {}
    for number in range(settings.members):
        own = RunFolder(folder.path / MEMBERS / str(number), folder.configuration)
        seed = context.seed + SEED_STRIDE * number
        member = replace(context, folder=own, seed=seed, board=None)
        classifier, info = finetune(data, copy.deepcopy(start), member, settings)
        context.processes.wait()
        infos.append(info)
        for name, value in classifier.state_dict().items():
            weight = 1 / (number + 1)
            moves = number and value.is_floating_point()
            mean[name] = torch.lerp(mean[name], value, weight) if moves else value.clone()
    classifier.load_state_dict(mean)
    summary = _summary(infos)
    if main:
        save_tensors(folder.finetuned, mean, summary)
    return classifier, summary


def _summary(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of the members one by one and on average, and the cost of all."""
    scores, costs = [info["scores"] for info in infos], [info["cost"] for info in infos]
    accuracy = sum(score["accuracy"] for score in scores) / len(scores)
    cost = costs[-1] | {
        "seconds": round(sum(cost["seconds"] for cost in costs), 2),
        "peak_memory_mb": max(cost["peak_memory_mb"] for cost in costs),
    }
    return {"scores": scores[-1] | {"accuracy": accuracy, "members": scores}, "cost": cost}
