"""How fast, and why: measure the kernels of `kernels/` and say what bounds them."""

__version__ = "0.1.0"
