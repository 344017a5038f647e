"""The name of `Task` until nothing imports this one."""

from e2e.training.variants import Task

__all__ = ["Task"]
