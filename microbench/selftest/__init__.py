"""The diagnosis against known answers: plant a condition, measure, see whether it is named."""
