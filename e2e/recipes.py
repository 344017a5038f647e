"""Precision recipes: which arithmetic each part of a training step is done in.

O0 to O3 are the optimization levels of NVIDIA's apex
(https://nvidia.github.io/apex/amp.html#opt-levels), made of what torch itself offers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec

from e2e.case import FULL, OFF, SHORT, TrainCase
from microbench.errors import UserError

# How many algorithms cuDNN times for a convolution (torch.backends.cudnn.benchmark_limit). Ten are
# PyTorch's. On an H200 ResNet-50's first step in fp32 at batch 256 takes 57 s with ten and 5 s with
# three, and its later steps are 7 % slower with three. Those of tf32 and amp are as fast with no
# search at all, so a short search leaves them out: their first steps took 26 and 16 s with three.
SEARCH_LIMITS = {FULL: 10, SHORT: 3}
DYNAMIC, NONE = "dynamic", "none"
FLOAT8_NEEDS = {"tensorwise": (8, 9), "rowwise": (9, 0)}  # compute capability
NO_GRAPHS = "CUDA graphs need a CUDA device; a CPU has none"


@dataclass(frozen=True)
class Recipe:
    """The precision of each part of a step: fp32, fp16 or bf16.

    `weights` is what forward and backward read; `batchnorm` the same for batch-norm layers.
    `autocast` is what torch.autocast casts GEMMs and convolutions to, None without autocast.
    `masters`: whether the optimizer updates float32 copies of the weights. `scale` is the loss
    scale: "none", "dynamic" or a static factor. `tf32`: whether float32 GEMMs and convolutions may
    run as TF32. `float8`: what has a scale of its own where linear layers multiply in FP8 (see
    training/float8.py), None where they do not; `auto` leaves layers in `autocast` that FP8 does
    not make faster.
    """

    name: str
    text: str
    weights: str = "fp32"
    batchnorm: str = "fp32"
    autocast: str | None = None
    masters: bool = False
    scale: str | float = NONE
    tf32: bool = False
    float8: str | None = None
    auto: bool = False

    @property
    def needs_loss_scaling(self) -> bool:
        """Whether float16 gradients occur, which a loss scale keeps from vanishing."""
        return "fp16" in (self.weights, self.autocast)


_ALL = (
    Recipe("fp32", "IEEE float32 throughout, TF32 off"),
    Recipe("tf32", "float32 storage; Tensor Cores with 10-bit mantissas", tf32=True),
    Recipe(
        "amp",
        "torch.autocast to float16 with a dynamic loss scale; weights stay float32",
        autocast="fp16", scale=DYNAMIC,
    ),
    Recipe("amp-bf16", "torch.autocast to bfloat16; no loss scale needed", autocast="bf16"),
    Recipe(
        "fp16", "weights, activations, batch-norm and optimizer in float16; no loss scale",
        weights="fp16", batchnorm="fp16",
    ),
    Recipe(
        "bf16", "weights, activations, batch-norm and optimizer in bfloat16",
        weights="bf16", batchnorm="bf16",
    ),
    Recipe("O0", "apex's name for fp32"),
    Recipe("O1", "apex's name for amp", autocast="fp16", scale=DYNAMIC),
    Recipe(
        "O2", "float16 weights, float32 batch-norm and master weights, dynamic loss scale",
        weights="fp16", masters=True, scale=DYNAMIC,
    ),
    Recipe(
        "O3", "apex's name for fp16; --keep-batchnorm-fp32 keeps batch-norm in float32",
        weights="fp16", batchnorm="fp16",
    ),
    Recipe(
        "fp8", "linear layers multiply in FP8, one scale a tensor; the rest as amp-bf16",
        autocast="bf16", float8="tensorwise",
    ),
    Recipe(
        "fp8-rowwise", "linear layers multiply in FP8, one scale a row; the rest as amp-bf16",
        autocast="bf16", float8="rowwise",
    ),
    Recipe(
        "fp8-auto", "as fp8, of the linear layers that it makes faster: they are timed first",
        autocast="bf16", float8="tensorwise", auto=True,
    ),
)  # fmt: skip
RECIPES = {recipe.name: recipe for recipe in _ALL}


def parse_recipes(text: str) -> list[str]:
    """The recipes of a list such as "fp32,amp", in its order, each once; case does not matter.

    UserError for an empty list or an unknown name.
    """
    lower = {name.lower(): name for name in RECIPES}
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UserError(f"--recipe is empty; choose from {', '.join(RECIPES)}")
    for name in names:
        if name.lower() not in lower:
            raise UserError(f"--recipe: unknown {name!r}; choose from {', '.join(RECIPES)}")
    return list(dict.fromkeys(lower[name.lower()] for name in names))


def recipe_of(case: TrainCase) -> Recipe:
    """The recipe that a case is trained under, with the user's changes where they apply.

    A static loss scale replaces the recipe's own where gradients are float16. KeyError for an
    unknown recipe.
    """
    recipe = RECIPES[case.recipe]
    if case.loss_scale is not None and recipe.needs_loss_scaling:
        recipe = replace(recipe, scale=float(case.loss_scale))
    if case.keep_batchnorm_fp32:
        recipe = replace(recipe, batchnorm="fp32")
    return recipe


def cannot_run(recipe: Recipe, kind: str, capability: tuple[int, int] | None) -> str | None:
    """Why a device cannot train under this recipe, or None.

    `kind` is "cuda" or "cpu"; `capability` is the compute capability (major, minor). TF32 and
    bfloat16 need 8.0, FP8 8.9, or 9.0 where each row has a scale, and torchao.
    """
    if recipe.float8 and find_spec("torchao") is None:
        return "FP8 needs torchao, which is not installed; pip install 'halfway[fp8]'"
    if kind == "cpu":
        return "tf32 is a Tensor Core mode; a CPU has none" if recipe.tf32 else None
    what, least = "", (0, 0)
    if recipe.float8:
        what, least = "FP8", FLOAT8_NEEDS[recipe.float8]
    elif recipe.tf32:
        what, least = "tf32", (8, 0)
    elif "bf16" in (recipe.weights, recipe.autocast):
        what, least = "bf16", (8, 0)
    if capability is None or capability >= least:
        return None
    needs, has = ("{}.{}".format(*version) for version in (least, capability))
    return f"{what} needs compute capability {needs}, this GPU has {has}"


def algorithms_timed(recipe: Recipe, search: str | None) -> int | None:
    """How many algorithms cuDNN times for a convolution; None: it takes the first that suits.

    `search` is one of SEARCHES or None. A short one is for IEEE float32 alone.
    """
    ieee = recipe.weights == "fp32" and recipe.autocast is None and not recipe.tf32
    if search in (None, OFF) or (search == SHORT and not ieee):
        return None
    return SEARCH_LIMITS[search]
