"""Back end triton of op conv: fprop and dgrad (`data_*`), the weight gradient (`wgrad_*`)."""

PRECISIONS = ("fp16", "bf16", "tf32")
