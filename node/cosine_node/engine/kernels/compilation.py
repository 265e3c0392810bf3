"""How kernels are compiled, and the types of their arrays."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from numba import carray, njit, types
from numba.extending import intrinsic

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

ZERO: Final = np.float32(0)
ONE: Final = np.float32(1)


def compiled(kernel: Kernel) -> Kernel:
    """Compile a function. Sums may be vectorised, in an order that depends on their length alone."""
    found: Kernel = njit(fastmath=True, nogil=True, cache=True, error_model="numpy")(kernel)
    return found


def inlined(kernel: Kernel) -> Kernel:
    """Compile a function as a part of its callers: calls with arrays are slow."""
    found: Kernel = njit(fastmath=True, nogil=True, error_model="numpy", inline="always")(kernel)
    return found


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing: Any, address: Any) -> Any:
    """Convert an integer to a pointer to float32."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@compiled
def floats_at(address: int, count: int) -> Floats:
    """Return the array [count] at an address."""
    found: Floats = carray(_pointer(address), (count,))
    return found
