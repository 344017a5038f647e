"""What torch.compile and CUDA graphs leave in a trace.

Inductor's kernels are named by what they fuse, "triton_red_fused_gelu_native_layer_norm_3", and its
GEMMs and convolutions are operators as without it. A kernel of a CUDA graph has no operator at all:
of those only the kernel's name tells what they are. Names as torch 2.0 to 2.14 writes them.
"""

from __future__ import annotations

import re

from e2e.profile.trace import Span
from e2e.results.terms import (
    ATTENTION,
    CONVOLUTIONS,
    FUSED_ELEMENTWISE,
    FUSED_KERNELS,
    FUSED_REDUCTIONS,
    MATRIX_PRODUCTS,
    TERMS,
)

REGION, GUARDS = "Torch-Compiled Region", "TorchDynamo Cache Lookup"
COMPILE = "_compile.compile_inner"  # of one frame
GRAPH_CALL = "## Call CompiledFxGraph"  # around all that a compiled graph does
_CODE = (REGION, "CompiledFunction", GRAPH_CALL)
_TIMED = " (dynamo_timed)"
_COMPILING = frozenset({"dynamo", "entire_frame_compile", "backend_compile", "inductor_compile"})
# poi: elementwise; red, per, spl: reductions; tem: templates of GEMMs; for: lists of tensors.
_TRITON = re.compile(r"triton_(?P<kind>[a-z]+)_fused_(?P<ops>.*?)(?:_\d+)?$")
_KINDS = {
    "poi": FUSED_ELEMENTWISE, "red": FUSED_REDUCTIONS, "per": FUSED_REDUCTIONS,
    "spl": FUSED_REDUCTIONS,
}  # fmt: skip
_CASTS = frozenset({"_to_copy", "to", "convert_element_type"})
_TEMPLATES = ((r"attention", ATTENTION), (r"conv", CONVOLUTIONS), (r"mm", MATRIX_PRODUCTS))
# Kernels of libraries and of torch itself, the first that matches.
_KERNELS = tuple(
    (re.compile(pattern, re.IGNORECASE), term)
    for pattern, term in (
        (r"flash_(fwd|bwd)|fmha|attention", ATTENTION),
        (r"multi_tensor_apply", TERMS["optimizer"]),
        (r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm", TERMS["norm"]),
        (r"fprop|dgrad|wgrad|convolve|winograd|cudnn.*conv", CONVOLUTIONS),
        (r"nvjet|gemm|gemv|cutlass|splitKreduce", MATRIX_PRODUCTS),
        (r"softmax|nll_loss", TERMS["softmax"]),
        (r"pool", TERMS["pooling"]),
        (r"reduce_kernel", TERMS["reduce"]),
        (r"index|gather|scatter|embedding", TERMS["index"]),
        (r"elementwise_kernel", TERMS["elementwise"]),
    )
)


def is_compiling(span: Span) -> bool:
    """Whether the CPU compiled meanwhile: dynamo, inductor, or Triton's search for the fastest."""
    return span.name.endswith(_TIMED) or span.name in _COMPILING


def is_compiled_code(span: Span) -> bool:
    """Whether it is a call of what torch.compile made."""
    return span.name.startswith(_CODE)


def fused_term(kernel: str) -> str | None:
    """The term of a kernel that inductor wrote, by its name; None for any other."""
    match = _TRITON.fullmatch(kernel)
    if match is None:
        return None
    if match["kind"] == "tem":
        terms = (term for word, term in _TEMPLATES if re.search(word, match["ops"]))
        return next(terms, FUSED_KERNELS)
    if match["ops"] in _CASTS:
        return TERMS["cast"]
    return _KINDS.get(match["kind"], FUSED_KERNELS)


def fused_words(kernel: str) -> str:
    """What a kernel of inductor's does: "gelu_native_layer_norm"; "" for any other kernel."""
    match = _TRITON.fullmatch(kernel)
    return match["ops"] if match else ""


def term_of_library_kernel(kernel: str) -> str | None:
    """The term of a kernel of a library or of torch, by its name; None where that tells nothing."""
    return next((term for pattern, term in _KERNELS if pattern.search(kernel)), None)
