"""32-bit floating point arithmetic, one rounding after each operation.

Python computes in 64 bits. A sum, product or quotient of two 32-bit numbers, rounded once to 64 and once to 32 bits,
is the 32-bit result: 53 bits of mantissa are more than twice 24 bits and two.
"""

from __future__ import annotations

from ctypes import c_float


def to_float32(value: float) -> float:
    """The nearest 32-bit number; ties go to the even one."""
    return c_float(value).value


def float32_of(number: int) -> float:
    """The nearest 32-bit number of an integer, without the detour over 64 bits that would round twice."""
    size = abs(number)
    if size < 1 << 24:
        return float(number)
    surplus = size.bit_length() - 24
    kept, rest = size >> surplus, size & ((1 << surplus) - 1)
    half = 1 << (surplus - 1)
    if rest > half or (rest == half and kept & 1):
        kept += 1
    rounded = float(kept << surplus)
    return -rounded if number < 0 else rounded


def quotient(dividend: int, divisor: int) -> float:
    """Of two integers, each first made a 32-bit number."""
    return to_float32(float32_of(dividend) / float32_of(divisor))
