"""Where training data comes from, and how it becomes batches."""
