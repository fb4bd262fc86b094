"""The driver's library: where it lies, loading it, and loading it anew once the driver was started again."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
from pathlib import Path
from typing import Final

import pynvml
from hami_chassis.errors import Permanent

_SONAME: Final = "libnvidia-ml.so.1"
LIBRARY_FOLDERS: Final = (
    "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)  # fmt: skip
"""Under a driver root, in order."""
DRIVER_GONE: Final = (
    pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)  # fmt: skip
"""What a library says whose driver was stopped, or started again in another version."""


class DriverError(Permanent):
    """The driver cannot be used; the message says what to change."""

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        """`is_gone`: loading the library anew may help."""
        super().__init__(message)
        self.is_gone = is_gone


def find_library(library_file: str, driver_root: str) -> str:
    """The driver's library: the file that was named, else the one under the root, else the loader's."""
    if library_file:
        return library_file
    if driver_root and driver_root != "/":
        for folder in LIBRARY_FOLDERS:
            path = Path(driver_root) / folder / _SONAME
            if path.exists():
                return str(path.resolve())
    return _SONAME


def load(library: str) -> None:
    """Raises DriverError. The bindings load the library by its plain name only, so it is put where they keep it."""
    try:
        pynvml.nvmlLib = ctypes.CDLL(library)
        pynvml.nvmlInit()
    except OSError as error:
        raise DriverError(
            f"nvml.library_file {library}: {error}; is NVIDIA's driver installed?", is_gone=True
        ) from error
    except pynvml.NVMLError as error:
        raise DriverError(f"{library} cannot be initialised: {error}", is_gone=True) from error


def unload() -> None:
    """Lets the library go, so that another version can be loaded from the same path. No call may be under way."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    loaded = pynvml.nvmlLib
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  # functions of the library that goes
    if loaded is not None:
        _ctypes.dlclose(loaded._handle)  # noqa: SLF001  # ctypes has no other way


def text(value: str | bytes) -> str:
    """A text of the bindings, which answer either."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
