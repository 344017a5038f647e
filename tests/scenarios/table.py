"""What is planted in each script, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "examples" / "diagnose"
NO_AMP = "--no-amp"  # of scripts whose cause only two runs show


@dataclass(frozen=True)
class Steps:
    """Numbers of steps: of warm-up, timed without the profiler, recorded."""

    after: int = 8
    bare: int = 20
    traced: int = 3


@dataclass(frozen=True)
class Planted:
    """One script: `cause` is in the title of the finding that must come first, "" for none.

    `other` are arguments of a run that it is compared with. `fix_saves`: the script with --fixed
    does the same work without the cause, so that its step shows the gain. `extra`: only on request.
    `on_cpu`: the cause is named without a GPU too.
    """

    name: str
    cause: str
    script: str = ""
    arguments: tuple[str, ...] = ()
    other: str | None = None
    fix_saves: bool = True
    steps: Steps = Steps()
    extra: bool = False
    on_cpu: bool = False

    @property
    def path(self) -> Path:
        """The script."""
        return SCRIPTS / f"{self.script or self.name}.py"


_SLOWER = "slower in half precision"
_ATOMICS = [
    Planted(f"atomics-{op}", _SLOWER, "atomics", ("--op", op), NO_AMP, extra=True)
    for op in ("gather", "bilinear", "grid_sample")
]
SCENARIOS = {
    planted.name: planted
    for planted in (
        Planted("mlp_small", "CPU launch"),
        Planted("slow_loader", "data loading", on_cpu=True),
        # Without TF32 the base is slower, and AMP as fast.
        Planted("tf32_base", "the base already uses", other=NO_AMP, fix_saves=False),
        Planted("nchw", "layout changes"),
        Planted("odd_vocab", "no multiple of 8"),
        Planted("bf16_norm", "normalisation in BF16", steps=Steps(8, 20, 2)),
        Planted("recast", "casts between types"),
        Planted("syncs", "synchronisation"),
        Planted("fp32_island", "stayed in float32"),
        Planted("atomics", _SLOWER, other=NO_AMP),
        Planted("new_shapes", "search for kernels", steps=Steps(3, 12, 2)),
        Planted("optimizer_bound", "updates one tensor at a time", on_cpu=True),
        Planted("control", "", steps=Steps(8, 20, 2)),
        *_ATOMICS,
    )
}
