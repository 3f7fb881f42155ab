r"""The log-ratio of a batch less half of its variance: what the minibatch penalty test releases, as one number.

With :math:`a = n T / b` and clipped log-ratios :math:`|r_i| \le M` of the b units of a batch,

.. math:: f(r) = a \sum_i r_i - \frac{a^2}{2} \Big( \sum_i r_i^2 - \frac1b \Big(\sum_i r_i\Big)^2 \Big).

Replacing one unit of the batch moves f by at most :math:`2 a M + 2 (1 - 1/b) a^2 M^2`. Proof: let S be the sum of the
other units, :math:`|S| \le (b - 1) M`, and x become x'. Then the bracket moves by at most
:math:`(1 - 1/b) |x^2 - x'^2| + \frac2b |S| |x - x'| \le (1 - 1/b)\, u\, (|x + x'| + 2M)` with :math:`u = |x - x'|`,
and :math:`|x + x'| \le 2M - u` gives :math:`(1 - 1/b)\, u\, (4M - u) \le (1 - 1/b)\, 4 M^2`. (The published bound has
:math:`3 (1 - 1/b) a^2 M^2` for the second term; it is valid but loose.)

The sums are exact integers on a grid; f is then an exact fraction, rounded once toward zero to a second grid. Two
values x apart are at most x and one step of that grid apart after rounding, so a step is added to the sensitivity.
"""

import math
from fractions import Fraction

from pymc_dp.rows.clipped_sum import ClippedMoments


def penalised(moments: ClippedMoments, unit: Fraction, grid: float) -> int:
    """Return f as a multiple of `grid`, rounded toward zero.

    Parameters
    ----------
    moments : ClippedMoments
        Of the clipped log-ratios of the units of the batch, as multiples of their grid.
    unit : Fraction
        a times that grid.
    grid : float
        The grid of the result.
    """
    variance = unit**2 * (moments.squares - Fraction(moments.total**2, moments.count))
    return math.trunc((unit * moments.total - variance / 2) / Fraction(grid))


def sensitivity(scale: float, bound: float, batch_size: int) -> float:
    """Return how far f moves when one unit of the batch is replaced, at most; rounding not included."""
    reach = scale * bound
    exact = 2.0 * reach + 2.0 * (1.0 - 1.0 / batch_size) * reach**2
    return exact * (1.0 + 2.0**-50)  # for the roundings of this line
