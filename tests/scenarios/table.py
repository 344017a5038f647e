"""What is planted in each script, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDERS = (Path(__file__).parents[2] / "examples" / "diagnose", Path(__file__).parent / "scripts")
NO_AMP = "--no-amp"  # of scripts whose cause only two runs show


@dataclass(frozen=True)
class Steps:
    """Numbers of steps: of warm-up, timed without the profiler, recorded."""

    after: int = 8
    bare: int = 20
    traced: int = 3


@dataclass(frozen=True)
class Planted:
    """One script: the title of the cause that must come first matches `cause`, "" for no cause.

    No title may match `never`, with the cause or without it; where nothing is planted and `never`
    is "", no cause at all may be named. `may_refuse`: saying that nothing can be said is right too.
    `other` is one more argument of a run that it is compared with. `fix_saves`: the script with
    --fixed does the same work without the cause, so that its step shows the gain. `on_cpu`: the
    cause is named without a GPU too.
    """

    name: str
    cause: str
    script: str = ""
    arguments: tuple[str, ...] = ()
    other: str | None = None
    fix_saves: bool = True
    steps: Steps = Steps()
    on_cpu: bool = False
    never: str = ""
    may_refuse: bool = False

    @property
    def path(self) -> Path:
        """The script."""
        places = (folder / f"{self.script or self.name}.py" for folder in FOLDERS)
        return next(place for place in places if place.exists())


def _kind(
    name: str, script: str, cause: str, never: str = "", *, may_refuse: bool = False,
    steps: Steps = Steps(),
) -> Planted:  # fmt: skip
    """One kind of a script of several: its name ends with the kind."""
    kind = name.partition("-")[2].replace("-", "_")
    return Planted(
        name, cause, script, ("--kind", kind), never=never, may_refuse=may_refuse, steps=steps
    )


_SLOWER = "slower in half precision"
_LOADING, _OWN = "data loading", "script's own code"
_LOOP, _OPTIMIZER = "small operations outside", "an optimizer"
_BURSTS = Steps(8, 40, 3)
SCENARIOS = {
    planted.name: planted
    for planted in (
        Planted("mlp_small", "CPU launch"),
        Planted("slow_loader", _LOADING, on_cpu=True),
        # Without TF32 the base is slower, and AMP as fast.
        Planted("tf32_base", "the base already uses", other=NO_AMP, fix_saves=False),
        Planted("nchw", "layout changes"),
        Planted("odd_vocab", "no multiple of 8"),
        Planted("bf16_norm", "normalisation in BF16", steps=Steps(8, 20, 2)),
        Planted("recast", "casts between types"),
        Planted("syncs", "synchronisation"),
        Planted("fp32_island", "stayed in float32"),
        Planted("new_shapes", "search for kernels", steps=Steps(3, 12, 2)),
        Planted("optimizer_bound", "updates one tensor at a time", on_cpu=True),
        Planted("control", "", steps=Steps(8, 20, 2)),
        *(
            Planted(f"atomics-{op}", _SLOWER, "atomics", ("--op", op), NO_AMP)
            for op in ("gather", "bilinear")
        ),
        _kind("loader-workers", "loaders", _LOADING, "CPU launch", steps=_BURSTS),
        _kind("loader-bursts", "loaders", _LOADING, "CPU launch", steps=_BURSTS),
        _kind("loader-thread", "loaders", f"{_LOADING}|{_OWN}", "CPU launch"),
        _kind("loader-and-launches", "loaders", _LOADING, steps=_BURSTS),
        _kind("own-numpy", "loaders", _OWN, f"CPU launch|{_LOADING}"),
        _kind("own-sleep", "loaders", _OWN, f"CPU launch|{_LOADING}"),
        _kind("float32-gemms", "float32", "IEEE float32"),
        _kind("float32-convolutions", "float32", "", "IEEE float32"),
        _kind("loop-closure", "loops", "", f"{_OPTIMIZER}|CPU launch"),
        _kind("loop-closure-optimizer", "loops", "updates one tensor at a time"),
        _kind("attention-written", "attention", "attention", "no multiple of 8"),
        _kind("attention-math", "attention", "attention", "no multiple of 8"),
        _kind("loop-ema", "loops", _LOOP, _OPTIMIZER),
        _kind("loop-metrics", "loops", _LOOP, _OPTIMIZER),
        _kind("loop-clip", "loops", _LOOP, _OPTIMIZER),
        _kind("loop-finite", "loops", "synchronisation", _OPTIMIZER),
        # It falls between the recorded steps, or takes most of them.
        _kind("loop-save", "loops", f"copies|{_OWN}",
              f"CPU launch|{_LOADING}", may_refuse=True, steps=_BURSTS),
        _kind("loop-in-backward", "loops", _OPTIMIZER, may_refuse=True),
        _kind("inference-float32", "inference", "IEEE float32", _OPTIMIZER),
        _kind("inference-launches", "inference", "CPU launch", _OPTIMIZER),
    )
}  # fmt: skip
