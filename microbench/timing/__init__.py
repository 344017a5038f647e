"""Timers, interleaving, and statistics of samples."""

SUSTAINED = "sustained"  # the regime in which the clock settles before and between blocks
TIMERS = ("auto", "events", "graph", "clock")
L2_STATES = ("cold", "warm")
REGIMES = (SUSTAINED, "burst")
# A launch this long can keep the GPU at its power limit: the clock must settle before and between.
# One such variant makes the comparison heavy: all of its variants are then timed in the same way.
HEAVY_S = 100e-6
LARGE_FLOPS = 4e9  # a problem of this size makes a comparison heavy too, however fast it runs
FEWEST_ROUNDS = 3  # when the budget is short: slow cases on a CPU
# Of each of several processes. In 15 large GEMMs on three H200s the standard deviation between
# processes was 1.3 % with two rounds and with three, 1.8 % with one.
FEWEST_OF_SEVERAL = 2
