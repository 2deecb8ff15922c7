"""Test-time training by rotation (Sun et al., ICML 2020).

Trained beside the classifier, a second head names the quarter turns of an image. A test sample brings this
task with it: the backbone takes a few steps on turned copies of the sample, answers, and goes back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sourceward.adaptation.base import ADAPTERS, Unsuitable
from sourceward.adaptation.baselines.peer import Peer, Response, at_least, backbone_student, sample_generators
from sourceward.data.augment import Augmentation, draw_boxes
from sourceward.data.image_ops import crop_and_hflip as crop_and_flip
from sourceward.functional.rotate import rotate
from sourceward.nn import Network
from sourceward.nn.backbones import Backbone
from sourceward.nn.backbones.backbone import ROTATION


@ADAPTERS.register("ttt")
@dataclass(frozen=True)
class TestTimeTraining(Peer):
    """TTT: for each sample alone, the backbone practises naming its rotations; then back (Sun 2020).

    The rotation head itself stays. Needs a backbone that was fine-tuned with `finetune.method=rotation`.

    Args:
        copies: cropped, mirrored and turned copies of the sample in a step.
        rate: of plain gradient descent; the released code's.
        steps: updates for each sample; 0 learns nothing.
        seed: of the copies.
    """

    __test__: ClassVar[bool] = False  # for pytest: no test, whatever the name says
    keeps_state: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    reads: ClassVar[str] = "inputs"

    batch_size: int = 1
    copies: int = 32
    rate: float = 1e-3
    steps: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "copies")
        at_least(self, 0, "rate", "steps")

    def check(self, network: Network) -> None:
        super().check(network)
        if ROTATION not in inner_backbone(network).auxiliary:
            raise Unsuitable(
                "Test-time training needs a rotation head, but this model has none. "
                "Fit it with --set finetune.method=rotation."
            )

    def stream(self, network: Network, batches: Iterator[Any]) -> Iterator[Response]:
        student = backbone_student(network, own_statistics=False)
        backbone = inner_backbone(student.network)
        backbone.auxiliary.requires_grad_(False)
        learned = list(backbone.network.parameters())
        original = [parameter.detach().clone() for parameter in learned]
        optimizer = torch.optim.SGD(learned, lr=self.rate)
        for batch in batches:
            answers = []
            for sample, generator in zip(batch.split(1), sample_generators(batch, self.seed)):
                for _ in range(self.steps):
                    optimizer.zero_grad(set_to_none=True)
                    self.task(backbone, sample, generator).backward()
                    optimizer.step()
                answers.append(student.answer(sample))
                with torch.no_grad():
                    torch._foreach_copy_(list[Tensor](learned), original)
            feature, vote, per_source = zip(*answers)
            yield Response(torch.cat(feature), torch.cat(vote), torch.cat(per_source, dim=1))

    def task(self, backbone: Backbone, sample: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of naming the turns of copies of the sample."""
        copies = sample.expand(self.copies, -1, -1, -1)
        turns = torch.randint(4, (self.copies,), generator=generator, device=sample.device)
        boxes = draw_boxes(copies, Augmentation(), generator)
        mirrored = torch.rand(self.copies, generator=generator, device=sample.device) < 0.5
        views = crop_and_flip(copies, boxes, mirrored, (sample.shape[-2], sample.shape[-1]))
        return cross_entropy(backbone.auxiliary[ROTATION](backbone(rotate(views, turns))), turns)


def inner_backbone(network: Network) -> Backbone:
    """The backbone itself, without what projects its features."""
    for module in network.modules():
        if isinstance(module, Backbone):
            return module
    raise Unsuitable("Test-time training turns images, but this model has no image backbone.")
