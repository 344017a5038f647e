"""Training over several processes: the ranks of torchrun, and how they exchange gradients."""
