"""Traced networks against what is known of them from elsewhere: published FLOPs, layer counts."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torchvision import models

from kernels.attention import Attention
from kernels.conv import Conv
from kernels.conv.shape import DIMS, ConvShape
from kernels.gemm import Gemm
from microbench.errors import UserError
from microbench.network.trace import CLIP_FRAMES, Layer, Traced, load, trace
from microbench.results.types import NotMeasured

BATCH = 4

MASKED = """
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8, 16))

    def forward(self, x):
        q = x * self.weight
        mask = torch.ones(8, 8, dtype=torch.bool)
        for options in ({"attn_mask": mask}, {"is_causal": True}, {"attn_mask": mask}):
            q = F.scaled_dot_product_attention(q, q, q, **options)
        return q

def build():
    return Twice(), torch.ones(2, 4, 8, 16)
"""


@cache
def traced(network: str, batch: int = BATCH) -> Traced:
    return trace(network, batch)


def of(found: Traced, op: str, which: str) -> list[Layer]:
    return [layer for layer in found.layers if (layer.problem.op, layer.which) == (op, which)]


def total(items: list[Layer] | list[NotMeasured]) -> int:
    return sum(item.count * getattr(item, "problem", item).flops for item in items)


def complaint(network: str, batch: int = 2, image: int | None = None) -> str:
    with pytest.raises(UserError) as caught:
        trace(network, batch, image)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write `source` as module `name` into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, source: str) -> str:
        header = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
        (tmp_path / f"{name}.py").write_text(header + source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return f"{name}:build"

    return write


@pytest.mark.parametrize("network", ["resnet50", "mobilenet_v2", "vit_b_16", "swin_t"])
def test_forward_flops_are_the_published_ones(network: str) -> None:
    found = traced(network)
    published = models.get_model_weights(network)["DEFAULT"].meta["_ops"]  # GMACs an image
    forward = total([layer for layer in found.layers if layer.which == "fprop"])
    forward += total([s for s in found.skipped if s.what == "bmm"]) // 3  # forward is one of three
    assert forward / BATCH / 2e9 == pytest.approx(published, rel=0.01)


def test_resnet50_has_its_53_convolutions_and_one_linear_layer() -> None:
    found = traced("resnet50")
    convs = of(found, "conv", "fprop")
    assert sum(layer.count for layer in convs) == 53
    assert len(convs) == 23
    assert sum(layer.count for layer in of(found, "conv", "wgrad")) == 53
    assert sum(layer.count for layer in of(found, "conv", "dgrad")) == 52
    stem = Conv(ConvShape(4, 3, 224, 224, 64, 7, 7, 2, 3), "fprop")
    assert found.layers[0] == Layer(stem, "fprop", 1, ("conv1",))
    assert [layer.which for layer in found.layers[:2]] == ["fprop", "wgrad"]
    gemms = [layer for layer in found.layers if layer.problem.op == "gemm"]
    assert gemms[0] == Layer(Gemm(BATCH, 1000, 2048), "fprop", 1, ("fc",))
    assert [(g.which, *g.problem.mnk, g.problem.layout) for g in gemms[1:]] == [
        ("dgrad", BATCH, 2048, 1000, "nn"), ("wgrad", 1000, 2048, BATCH, "tn"),
    ]  # fmt: skip
    assert (found.network, found.batch, found.image) == ("resnet50", BATCH, 224)


def test_shapes_come_in_forward_order_and_vit_is_gemms_and_attention() -> None:
    found = traced("mobilenet_v2")
    assert len({(layer.problem, layer.which) for layer in found.layers}) == len(found.layers)
    seen: list[ConvShape] = []
    for layer in found.layers:
        if layer.problem.op == "conv":
            shape = layer.problem.shape
            assert shape not in seen[:-1]  # once left, a shape does not come back
            if not seen or seen[-1] != shape:
                seen.append(shape)
                assert layer.which == "fprop"
    depthwise = [layer for layer in of(found, "conv", "fprop") if layer.problem.dims["groups"] != 1]
    assert sum(layer.count for layer in depthwise) == 17
    assert depthwise[0].names == ("features.1.conv.0.0",)
    found = traced("vit_b_16")
    tokens, width = BATCH * 197, 768
    gemms = [(g.problem.dims, g.count) for g in of(found, "gemm", "fprop")]
    assert [(dims["n"], dims["k"], count) for dims, count in gemms] == [
        (3 * width, width, 12), (width, width, 12), (4 * width, width, 12),
        (width, 4 * width, 12), (1000, width, 1),
    ]  # fmt: skip
    assert all(dims["m"] in (tokens, BATCH) for dims, _ in gemms)
    attention = [layer for layer in found.layers if layer.problem.op == "attention"]
    assert [(a.problem, a.which, a.count, len(a.names)) for a in attention] == [
        (Attention(BATCH, 12, 12, 197, 64, which, "full"), which, 12, 12)
        for which in ("fprop", "bprop")
    ]
    assert found.skipped == ()


def test_attention_that_is_no_case_is_skipped_with_its_reason(written) -> None:
    found = trace(written("masked", MASKED), 2)
    assert [(s.what, s.count, s.flops) for s in found.skipped] == [
        ("scaled_dot_product_attention, fprop", 2, 4 * 2 * 4 * 8 * 8 * 16),
        ("scaled_dot_product_attention, bprop", 2, 8 * 2 * 4 * 8 * 8 * 16),
    ]  # fmt: skip
    causal = [layer.problem for layer in found.layers if layer.problem.op == "attention"]
    assert causal == [Attention(2, 4, 4, 8, 16, which) for which in ("fprop", "bprop")]


def test_auxiliary_heads_are_measured_video_is_not_and_weights_take_no_memory(written) -> None:
    found = traced("inception_v3")
    assert found.image == 299
    assert not found.skipped
    dims = [layer.problem.dims for layer in of(found, "conv", "wgrad")]
    assert {(each["r"], each["s"]) for each in dims if each["padding"] == "0x3"} == {(1, 7)}
    assert any("AuxLogits.fc" in g.names for g in of(found, "gemm", "wgrad"))
    found = trace("r3d_18", 1)
    stem = found.skipped[0]
    assert stem.what == "3-D convolution, fprop"
    outputs = 64 * CLIP_FRAMES * 56 * 56
    assert stem.flops == 2 * outputs * 3 * 3 * 7 * 7
    assert {layer.problem.op for layer in found.layers} == {"gemm"}
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    built = load("vgg16", 256, None, fake)
    assert all(isinstance(weight, FakeTensor) for weight in built.module.parameters())
    assert isinstance(built.inputs[0], FakeTensor)
    found = trace("resnet18", 10**9)  # 600 TB of images
    assert found.layers[0].problem.dims["n"] == 10**9
    name = written("kept", "net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))\n"
                   "def build():\n    return net\n")  # fmt: skip
    first = trace(name, 2, 8)
    net, state = sys.modules["kept"].net, torch.get_rng_state()
    assert trace(name, 2, 8) == first
    assert type(net[0].weight.data) is torch.Tensor
    assert net[0].weight.grad is None
    assert float(net[1].running_mean.abs().max()) == 0.0
    assert torch.equal(torch.get_rng_state(), state)


def test_own_function_with_bias_same_padding_odd_images_and_a_1d_convolution(written) -> None:
    name = written(
        "own",
        """
class Net(nn.Module):
    def __init__(self, rates=tuple(torch.linspace(0, 0.5, 3).tolist())):
        super().__init__()
        self.conv = nn.Conv2d(5, 8, 3, padding="same", dilation=2, bias=True)
        self.row = nn.Conv1d(5, 4, 7, stride=2, padding=6, dilation=2)
        self.head = nn.Linear(8, 6, bias=False)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        self.scale = nn.Parameter(torch.ones(8))
        assert [x.item() for x in torch.linspace(0, 1, 3)] == [0, 0.5, 1]

    def forward(self, x, y):
        z = (F.dropout(self.conv(x)) * self.scale[:, None, None]).mean((2, 3))
        return {"a": [self.head(z)], "b": self.head(y), "n": 3, "row": self.row(x.flatten(2))}

def build():
    return Net(), (torch.randn(7, 5, 9, 12), torch.zeros(7, 8))
""",
    )
    found = trace(name, 256)
    assert (found.batch, found.image) == (7, None)
    conv, row = of(found, "conv", "fprop")
    assert [conv.problem.dims[d] for d in DIMS] == [7, 5, 9, 12, 8, 3, 3, 1, 2, 2, 1]
    assert [row.problem.dims[d] for d in DIMS] == [7, 5, 1, 108, 4, 1, 7, 2, "0x6", 2, 1]
    assert [(g.which, g.count) for g in found.layers if g.problem.op == "gemm"] == [
        ("fprop", 2), ("dgrad", 1), ("wgrad", 2),
    ]  # fmt: skip
    assert "leave out --image 64" in complaint(name, image=64)


def test_a_transposed_convolution_is_the_dgrad_of_one(written) -> None:
    name = written(
        "up",
        """
def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ConvTranspose2d(4, 4, 3, stride=(2, 1)),
    )
""",
    )
    found = trace(name, 2, 8)
    up = [layer for layer in found.layers if layer.names == ("1",)]
    assert [layer.which for layer in up] == ["fprop", "dgrad", "wgrad"]
    assert [up[0].problem.dims[d] for d in DIMS] == [2, 4, 16, 16, 8, 3, 3, 2, 1, 1, 2]
    assert up[0].problem.flops == 2 * (2 * 8 * 8 * 8) * (2 * 3 * 3)
    last = [layer for layer in found.layers if layer.names == ("2",)]
    assert [layer.which for layer in last] == ["fprop", "dgrad", "wgrad"]
    assert [last[0].problem.dims[d] for d in DIMS] == [2, 4, 33, 18, 4, 3, 3, "2x1", 0, 1, 1]
    assert not found.skipped


@pytest.mark.parametrize("reentrant", [True, False])
def test_frozen_weights_checkpointing_inference_and_lstm(written, reentrant: bool) -> None:
    """What checkpointing runs again is a forward."""
    name = written(
        "mixed",
        f"""
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.first = nn.Linear(8, 6)
        self.block = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
        self.lstm = nn.LSTM(12, 10, batch_first=True)
        self.teacher = nn.Linear(8, 5)

    def forward(self, x):
        with torch.inference_mode():
            self.teacher(x)
        y = checkpoint(self.block, self.first(self.frozen(x)), use_reentrant={reentrant})
        return self.lstm(y.view(2, 3, 12))[0]

def build():
    return Net(), torch.empty(6, 8)
""",
    )
    found = trace(name, 2)
    runs = {n: {} for n in ("frozen", "first", "block.0", "lstm", "teacher")}
    for layer in found.layers:
        for path in layer.names:
            runs[path][layer.which] = runs[path].get(layer.which, 0) + layer.count
    assert runs["frozen"] == {"fprop": 1}
    assert runs["teacher"] == {"fprop": 1}
    assert runs["first"] == {"fprop": 1, "wgrad": 1}
    assert runs["block.0"] == {"fprop": 2, "dgrad": 1, "wgrad": 1}
    assert runs["lstm"]["wgrad"] == runs["lstm"]["fprop"]


def test_a_batch_that_is_too_small_is_one_line() -> None:
    text = complaint("resnet18", batch=1, image=32)
    assert text.startswith("resnet18 cannot train on 1x3x32x32: batch norm needs more than one")
