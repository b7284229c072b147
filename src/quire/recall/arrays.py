"""numpy's arrays by what they hold; the element type is for the reader, numpy's own stubs are stricter than its rules."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[Any]
