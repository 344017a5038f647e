"""How fast, and why: measure the kernels of `kernels/` and say what bounds them."""
