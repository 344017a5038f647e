"""Back end triton of op conv: fprop and dgrad (`data_*`, `gluon_*`), the weight gradient
(`wgrad_*`).
"""
