"""Back end triton of op conv: fprop and dgrad (`data_*`), the weight gradient (`wgrad_*`), and both
for depthwise convolutions (`depthwise_*`).
"""

PRECISIONS = ("fp16", "bf16", "tf32", "fp8-e4m3")
