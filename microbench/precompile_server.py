"""Imported by the process that compiling processes are forked from: it has all that they need."""

from microbench.precompile import load_compiler

load_compiler()
