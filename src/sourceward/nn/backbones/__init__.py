"""Backbones: networks from images or texts to features.

create_backbone("timm:resnet18")                       the default weights of the library
create_backbone("torchvision:resnet50.imagenet1k_v1")  one set of weights among several
create_backbone("torchvision:resnet50-v1", weights="v1.safetensors")   stride in the 1x1 convolution
create_backbone("hf:distilbert-base-uncased")          a text (or image) model of the Hugging Face Hub
create_backbone("folder/")                             a Hugging Face folder
create_backbone(my_module, image_size=96)              your own `nn.Module`
create_backbone("tiny:conv"), create_backbone("tiny:text")             no download: for tests and demos
"""

from sourceward.nn.backbones.backbone import Backbone
from sourceward.nn.backbones.factory import FAMILIES, create_backbone, list_backbones
from sourceward.nn.backbones.preprocessing import ImagePreprocessing, TextPreprocessing
