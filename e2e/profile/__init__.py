"""What a profiler's trace of a training says: reader, partition of a step, two traces aligned."""
