"""The terms of a ledger: what the time of a training step is divided into."""

from __future__ import annotations

# What the Tensor Cores compute, and what the other terms do not explain.
PRODUCT_TERMS = ("convolutions", "matrix products", "attention", "products")
RESIDUAL = "residual"
CONVOLUTIONS, MATRIX_PRODUCTS, ATTENTION, PRODUCTS = PRODUCT_TERMS
LAYOUT = "layout changes"
OTHER = "other ops"
TERMS = {  # kinds of ops (`kernels.aten.KINDS`) but for products, in the ledger's order
    "norm": "normalisation",
    "activation": "activation",
    "pooling": "pooling",
    "softmax": "softmax and loss",
    "elementwise": "elementwise",
    "reduce": "reductions",
    "index": "index",
    "copy": "copies",
    "cast": "casts",
    "layout": LAYOUT,
    "optimizer": "optimizer",
    "scaler": "loss scaler",
    "other": OTHER,
}
OP_TERMS = (*PRODUCT_TERMS, *TERMS.values())
GAPS, LOADER = "host and launch gaps", "loader wait"

# Of a recorded step also: work that is no operator's, and what the device waits for.
COMMUNICATION, COPIES, FILLS = "communication", "copies to and from the device", "fills"
RECOMPUTATION = "recomputation"  # of activations, by checkpointing
# Kernels that torch.compile made of several operators.
FUSED_ELEMENTWISE, FUSED_REDUCTIONS = "fused elementwise", "fused reductions"
FUSED_KERNELS = "fused kernels"
FUSED = (FUSED_ELEMENTWISE, FUSED_REDUCTIONS, FUSED_KERNELS)
FLOAT8 = "casts and scales for FP8"
EXCHANGE = "gradient exchange"  # communication of a training of ours, that nothing hides
STEP_TERMS = (COMMUNICATION, EXCHANGE, COPIES, FILLS, RECOMPUTATION, FLOAT8, *FUSED)
SYNC, ALLOCATION = "synchronisation", "memory allocation"
MODULES, COMPILATION = "module loading", "compilation"
LAUNCH, BETWEEN, PYTHON = "CPU launch", "between kernels", "outside of operators"
IDLE = (LOADER, SYNC, ALLOCATION, MODULES, COMPILATION, LAUNCH, BETWEEN, PYTHON)
