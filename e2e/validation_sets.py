"""The networks that predictions are validated on: those that the method saw, and those held out."""

from __future__ import annotations

from collections.abc import Iterable

# What a default validation trains: networks of different kinds at batches from 1 to 512, four of
# them where the host is the limit and where the device is. The method was developed on these.
MATRIX = {
    "resnet18": "16,128",
    "wrn-16-4": "32,512",
    "gpt": "1,8",
    "vit_b_16": "8,64",
    "densenet121": "8",
    "swin_t": "64",
    "convnext_tiny": "64",
    "resnet50": "128",
    "resnext50_32x4d": "64",
    "mobilenet_v2": "128",
    "efficientnet_b0": "64",
    "vgg16": "32",
}
MATRIX_RECIPES = "fp32,tf32,amp,amp-bf16"

# The host's model is fitted on each machine to these among others, at a size that keeps no GPU busy
# (`e2e.prediction.calibration`).
CALIBRATED_ON = ("resnet18", "mobilenet_v2")

# Networks that no constant was fitted to, chosen by name and kind before any of them ran. Images
# are of the size that each was made for: 192 to 384 pixels, and 32.
HELD_OUT = {
    "timm:repvgg_a2": "8,64,256",  # plain convolutions in branches
    "timm:dla34": "8,64,256",  # aggregated residual blocks
    "timm:hrnet_w18": "8,32,128",  # many small kernels in parallel branches
    "timm:inception_v4": "8,32,128",  # 299 pixels
    "timm:nfnet_l0": "8,32,128",  # weights standardised at every step, no batch-norm
    "timm:tinynet_a": "8,64,256",  # depthwise, small, 192 pixels
    "timm:mobilenetv4_conv_small": "8,64,256",  # depthwise, small
    "timm:convmixer_768_32": "4,16,64",  # depthwise with large kernels, memory traffic
    "timm:mobilevit_s": "8,32,128",  # convolutions and attention, 256 pixels
    "timm:swinv2_tiny_window8_256": "8,32,128",  # attention in windows, 256 pixels
    "timm:deit3_small_patch16_224": "8,64,256",  # plain attention
    "timm:vit_base_patch16_384": "4,16,64",  # long sequences, 384 pixels
    "timm:mixer_b16_224": "8,32,128",  # no attention, large matrix multiplications
    "timm:poolformer_s12": "8,32,128",  # pooling in place of attention
    "shufflenet_v2_x1_0": "8,64,256",  # torchvision: channels split and shuffled
    "vgg16-cifar": "32,128,512",  # 32 pixels
}
HELD_OUT_RECIPES = "tf32,amp"
# Mean over the rows of predict-validation.json and predict-outside.json (`took_s`).
PREDICTING_S = 14.3


def seen(networks: Iterable[str]) -> list[str]:
    """Those that are in the matrix or among the calibration models, by timm's names too."""
    known = {*MATRIX, *CALIBRATED_ON}
    return [name for name in networks if name.removeprefix("timm:") in known]
