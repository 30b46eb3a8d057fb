"""`log1p` of numbers from 0 to 40,000, written so that a loop over it becomes vector instructions.

A call of the C library's keeps a loop from that, and is what such a loop would take longest for.
"""

from __future__ import annotations

_LN2_UPPER, _LN2_LOWER = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_R1, _R2, _R3, _R4 = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
)
_R5, _R6, _R7 = 1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01
_UP_TO_8, _UP_TO_4, _UP_TO_2, _UP_TO_1 = 2.0**7.5, 2.0**3.5, 2.0**1.5, 2.0**0.5


def log1p(x: float) -> float:
    """log(1 + x), within 2 units in the last place.

    1 + x is taken as 2^e (1 + f) with 1 + f within a factor of the square root of 2 of 1, and log(1 + f) as a
    polynomial. Source: Sun's fdlibm, `e_log.c` and `s_log1p.c`, whose coefficients these are.
    """
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u  # by rounding
    e = 8.0 if u > _UP_TO_8 else 0.0
    u = u * 2.0**-8 if u > _UP_TO_8 else u
    e = e + 4.0 if u > _UP_TO_4 else e
    u = u * 2.0**-4 if u > _UP_TO_4 else u
    e = e + 2.0 if u > _UP_TO_2 else e
    u = u * 2.0**-2 if u > _UP_TO_2 else u
    e = e + 1.0 if u > _UP_TO_1 else e
    f = (u * 0.5 if u > _UP_TO_1 else u) - 1.0
    s = f / (2.0 + f)
    z, half = s * s, 0.5 * f * f
    r = z * (_R1 + z * (_R2 + z * (_R3 + z * (_R4 + z * (_R5 + z * (_R6 + z * _R7))))))
    return e * _LN2_UPPER - ((half - (s * (half + r) + (e * _LN2_LOWER + lost))) - f)
