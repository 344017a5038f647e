"""The name of `Variants` until nothing imports this one."""

from e2e.training.variants import Variants as ArmTimer

__all__ = ["ArmTimer"]
