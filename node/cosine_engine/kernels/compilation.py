"""The compilation of kernels, and the types of their arrays."""

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

ZERO: Final = np.float32(0)
ONE: Final = np.float32(1)


def cache_folder(engine: Path, *, within: Path) -> Path:
    """Return the folder of compiled kernels for the sources in the folder of engines.

    Numba compares only the file of a kernel with the one that it compiled, not the files of what the kernel calls.
    """
    sources = (*sorted((engine / "kernels").glob("*.py")), engine / "kv_pool.py")
    return within / blake2b(b"".join(file.read_bytes() for file in sources), digest_size=8).hexdigest()


_HERE: Final = Path(__file__).parent
# If the folder cannot be written, Numba uses other folders.
config.CACHE_DIR = str(cache_folder(_HERE.parent, within=Path(config.CACHE_DIR or _HERE / "__pycache__")))


def compiled(kernel: Kernel) -> Kernel:
    """Compile a function. Sums may be vectorised, in an order that depends only on their length.

    It cannot allocate arrays. References to arrays are not counted: threads would wait for each other's counting.
    """
    found: Kernel = njit(fastmath=True, nogil=True, cache=True, error_model="numpy", _nrt=False)(kernel)
    return found


def inlined(kernel: Kernel) -> Kernel:
    """Compile a function as a part of its callers: calls with arrays are slow."""
    found: Kernel = njit(fastmath=True, nogil=True, error_model="numpy", inline="always", _nrt=False)(kernel)
    return found


@intrinsic  # type: ignore[untyped-decorator]
def floats_at(typing: Any, address: Any, shape: Any) -> Any:
    """Return the contiguous array of float32 with this shape, a tuple, at an address."""
    del typing
    array = types.Array(types.float32, len(shape), "C")

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        found = make_array(array)(context, builder)
        sizes = [
            context.cast(builder, size, kind, types.intp)
            for size, kind in zip(cgutils.unpack_tuple(builder, given[1]), signature.args[1], strict=True)
        ]
        strides = [context.get_constant(types.intp, 4)]
        for size in sizes[:0:-1]:
            strides.insert(0, builder.mul(strides[0], size))
        data = builder.inttoptr(given[0], context.get_data_type(types.float32).as_pointer())
        populate_array(found, data=data, shape=sizes, strides=strides, itemsize=4, meminfo=None)
        return found._getvalue()

    return array(types.intp, shape), generate


@inlined
def shaped(array: Floats, shape: tuple[int, ...]) -> Floats:
    """Return the first elements of a contiguous array in another shape."""
    found: Floats = floats_at(array.ctypes.data, shape)
    return found
