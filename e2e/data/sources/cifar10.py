"""CIFAR-10 from disk, in the Python or the binary form that its authors publish.

The Python form is pickles, and a pickle can run any program. The unpickler here only knows NumPy's
arrays.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from e2e.data.types import Arrays, Normal
from microbench.errors import UserError

RECORDS = 10_000  # images in each of the six files
CLASSES = 10
SAMPLE = (3, 32, 32)
PIXELS = 3 * 32 * 32
# Of the training images.
NORMAL = Normal((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
PYTHON_FOLDER, BINARY_FOLDER = "cifar-10-batches-py", "cifar-10-batches-bin"
FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")

Records = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read(folder: Path) -> tuple[Arrays, Arrays]:
    """(training, test) images of the CIFAR-10 in this folder or its usual subfolder.

    uint8 [50000, 3, 32, 32] and [10000, 3, 32, 32]. UserError when it is missing, truncated or
    broken.
    """
    base, suffix = _found(folder)
    paths = [base / f"{name}{suffix}" for name in FILES]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise UserError(f"{base} lacks {', '.join(missing)} of CIFAR-10")
    read = [(_binary if suffix else _pickled)(path) for path in paths]
    pixels, labels = (torch.as_tensor(np.concatenate(part)) for part in zip(*read, strict=True))
    pixels, kept = pixels.reshape(-1, *SAMPLE), len(read[-1][1])
    return Arrays(pixels[:-kept], labels[:-kept]), Arrays(pixels[-kept:], labels[-kept:])


def _found(folder: Path) -> tuple[Path, str]:
    """Where the files are, and how their names end."""
    for base in (folder, folder / PYTHON_FOLDER, folder / BINARY_FOLDER):
        for suffix in ("", ".bin"):
            if (base / f"{FILES[0]}{suffix}").is_file():
                return base, suffix
    packed = next((name for name in ARCHIVES if (folder / name).is_file()), None)
    remedy = f"; unpack it first: tar -xf {folder / packed} -C {folder}" if packed else ""
    raise UserError(
        f"no CIFAR-10 in {folder}: data_batch_1 to data_batch_5 and test_batch are expected there "
        f"(or each with .bin), or in {PYTHON_FOLDER} or {BINARY_FOLDER} below it{remedy}"
    )


def _binary(path: Path) -> Records:
    """Records of a class byte and 3,072 pixel bytes."""
    try:
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if raw.size != RECORDS * (1 + PIXELS):
        raise _broken(path, f"it has {raw.size:,} bytes, not {RECORDS * (1 + PIXELS):,}")
    records = raw.reshape(RECORDS, 1 + PIXELS)
    return _checked(path, records[:, 1:], records[:, 0])


def _pickled(path: Path) -> Records:
    """A dictionary with data, uint8 [10000, 3072], and labels, a list."""
    with path.open("rb") as file:
        try:
            table = _ArraysOnly(file, encoding="bytes").load()
            pixels, labels = np.asarray(table[b"data"]), np.asarray(table[b"labels"])
        except _Refused as error:
            raise UserError(
                f"{path} is refused: its pickle asks for {error}, which CIFAR-10 does not need"
            ) from None
        except Exception as error:  # a pickle of random bytes raises nearly anything
            raise _broken(path, f"not a pickle of CIFAR-10 ({type(error).__name__})") from None
    return _checked(path, pixels, labels)


def _checked(path: Path, pixels: NDArray[Any], labels: NDArray[Any]) -> Records:
    if pixels.shape != (RECORDS, PIXELS) or pixels.dtype != np.uint8:
        raise _broken(path, f"its data is {pixels.dtype} {list(pixels.shape)}")
    if labels.shape != (RECORDS,) or labels.dtype.kind not in "ui":
        raise _broken(path, f"it has {labels.size:,} labels of {labels.dtype}, not {RECORDS:,}")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise _broken(path, f"its labels go from {labels.min()} to {labels.max()}, not from 0 to 9")
    return pixels, labels.astype(np.int64)


def _broken(path: Path, why: str) -> UserError:
    return UserError(f"{path} is truncated or not a CIFAR-10 file: {why}; unpack the archive again")


class _Refused(Exception):
    """The pickle wants something that is not part of an array."""


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Bytes, as Python 3 writes them in the protocol of Python 2."""
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dictionaries, lists, numbers, text and NumPy arrays; _Refused for all else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """What an array is put together with, and only that."""
        name = (module_name.replace("numpy._core", "numpy.core"), global_name)
        if name not in _ALLOWED:
            raise _Refused(f"{module_name}.{global_name}")
        return _ALLOWED[name]


# NumPy's own functions for it are private; an array hands them out.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(1).__reduce_ex__(2)[0],
    ("numpy.core.numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}
