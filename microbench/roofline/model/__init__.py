"""Time from measured ceilings: physical terms, fitted coefficients, error on unseen cases."""

from microbench.roofline.model.features import Terms, terms
from microbench.roofline.model.fitting import Model, Prediction, fit
from microbench.roofline.model.held_out import HeldOut, PathError, describe, held_out_error

__all__ = [
    "HeldOut",
    "Model",
    "PathError",
    "Prediction",
    "Terms",
    "describe",
    "fit",
    "held_out_error",
    "terms",
]
