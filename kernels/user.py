"""What a user brings: an attribute of an importable module, "module:name"; a back end made of it.

A back end is a function of the operands that returns the result (or writes it into `out`), or an
object with `candidates` as the modules of this package have it, and perhaps `cannot_run`: a reason,
or None.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from kernels.case import Candidate, CannotRun, Case, Target
from kernels.messages import first_line, one_line, suggest

OUR_NAMES = ("kernels", "microbench", "e2e")
# What Triton says where it has no GPU, or is given a tensor of the CPU.
NO_GPU_FOR_TRITON = ("0 active drivers", "cannot be accessed from Triton")


def find(name: str) -> Any:
    """What "module:name" names, importable from the current directory too.

    ValueError, in one line, when the module does not import, with its own error, or has no such
    attribute.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise ValueError(f"{name!r} is not of the form module:function, for example mynet:build")
    if module_name.endswith(".py"):
        module = ".".join(PurePath(module_name).with_suffix("").parts)
        raise ValueError(f"{name!r} names a file, not a module: write {module}:{attribute}")
    module = _import(module_name)
    member = getattr(module, attribute, None)
    if member is None:
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(f"{module_name} has no {attribute!r}{suggest(attribute, functions)}")
    return member


def _import(module_name: str) -> ModuleType:
    folder = Path.cwd()
    if str(folder) not in sys.path and "" not in sys.path:
        ours = Path(__file__).resolve().parents[1]
        for name in OUR_NAMES:
            if (folder / name / "__init__.py").is_file() and folder.resolve() != ours:
                raise ValueError(
                    f"the folder {name} beside {module_name} has the name of a package of "
                    "halfway's and would take its place: rename it"
                )
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (module_name == missing or module_name.startswith(missing + ".")):
            raise ValueError(
                f"no module {missing!r} in {os.getcwd()} or among the installed packages"
            ) from None
        raise ValueError(f"importing {module_name} raised {one_line(error)}") from None


def described(error: BaseException) -> str:
    """What a user's kernel raised, in one line: its type, its text, and the line that raised it.

    Of an error that no line of the user's has part in, the text alone.
    """
    text = one_line(error)
    if any(words in text for words in NO_GPU_FOR_TRITON):
        text = (
            text.rstrip(".")
            + "; a Triton kernel needs a GPU: TRITON_INTERPRET=1 runs it on the CPU"
        )
    others = [str(Path(__file__).resolve().parents[1] / name) for name in OUR_NAMES]
    others += [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    known = ("<", *(f"{folder}{os.sep}" for folder in others))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(known)
    ]
    if not frames:
        return first_line(error)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


class UserBackend:
    """A back end that the user names, "module:function" or "module:object". It is imported at its
    first use: ValueError then where there is none.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def found(self) -> Any:
        """The function or object. ValueError, in one line, where it is none."""
        found = find(self.name)
        if not (hasattr(found, "candidates") or callable(found)):
            raise ValueError("neither a function of the operands nor an object with `candidates`")
        return found

    @property
    def arguments(self) -> frozenset[str] | None:
        """The arguments that a function names; None for an object. ValueError as `found`."""
        return None if hasattr(self.found, "candidates") else self._names

    def check(self, case: Case, target: Target) -> None:
        """CannotRun with the object's own reason; and where a function without an argument `which`
        is asked for dgrad or wgrad. ValueError as `found`.
        """
        reason = None
        if hasattr(self.found, "cannot_run"):
            reason = self.found.cannot_run(case, target)
        elif case.problem.setting.get("pass", "fprop") != "fprop" and "which" not in self._names:
            reason = f"{self.name} has no argument `which`, so only its forward pass is measured"
        if reason:
            raise CannotRun(reason)

    def candidates(
        self, case: Case, operands: Any, target: Target, *, search: int
    ) -> Sequence[Candidate]:
        """The object's own, or one call of the function. ValueError as `found`."""
        if hasattr(self.found, "candidates"):
            return tuple(self.found.candidates(case, operands, target))
        named = getattr(operands, "named", {})  # a plain GEMM has nothing more
        given: dict[str, Any] = {n: value for n, value in named.items() if n in self._names}
        if "out" in self._names:
            outputs = operands.outputs
            given["out"] = outputs[0] if len(outputs) == 1 else outputs
        call = partial(self.found, *operands.inputs, **given)
        return (Candidate(self.name, call, allocates="out" not in given),)

    @cached_property
    def _names(self) -> frozenset[str]:
        try:
            return frozenset(inspect.signature(self.found).parameters)
        except (TypeError, ValueError):  # a builtin that does not say
            return frozenset()
