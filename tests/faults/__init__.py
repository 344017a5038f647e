"""A bench that injects faults into halfway and looks for what must never happen."""
