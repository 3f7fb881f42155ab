"""The error that privacy noise adds to posterior means, and the changes that would reduce it to an acceptable size."""

import math
from dataclasses import dataclass

from pymc_dp.accounting import gaussian_epsilon

#: An error, in posterior standard deviations, up to which a posterior is good enough to publish.
GOOD_ERROR = 0.5


@dataclass(frozen=True)
class Worth:
    """The expected error of posterior means from privacy noise, and the quantities that it depends on.

    With n units and d parameters, the noise of a released sum is proportional to rho^(-1/2) and does not depend on n;
    its information is proportional to n, and the posterior's standard deviation to n^(-1/2). The norm of a unit's
    standardised score, and so the clip bound, is about d^(1/2). So the error goes with (d / (rho n))^(1/2).
    """

    error: float  # of means, in posterior standard deviations, root mean square over parameters
    n_units: int
    size: int  # unconstrained parameters
    rho: float  # the run's cost as Gaussian releases; NaN where it is charged in another way
    delta: float  # the budget's

    def epsilon_for(self, error: float) -> float:
        """Return the epsilon at which the error would have the given size; NaN where rho is not known."""
        if not (self.error > 0.0 and math.isfinite(self.rho)):
            return math.nan
        return gaussian_epsilon(self.rho * (self.error / error) ** 2, self.delta)

    def n_units_for(self, error: float) -> float:
        """Return the number of units at which the error would have the given size."""
        return self.n_units * (self.error / error) ** 2

    def parameters_for(self, error: float) -> float:
        """Return the approximate number of parameters at which the error would have the given size."""
        return self.size * (error / self.error) ** 2

    def advice(self, *, roughly: bool = False) -> list[str]:
        """Return a line on changes that would make a large error acceptable; `roughly` for an error known by theory."""
        if not self.error > GOOD_ERROR:
            return []
        epsilon = self.epsilon_for(GOOD_ERROR)
        ways = [f"epsilon {epsilon:.2g}"] if math.isfinite(epsilon) else []
        digits = 1 if roughly else 3
        ways.append(f"{float(f'{self.n_units_for(GOOD_ERROR):.{digits}g}'):,.0f} units")
        if self.size > 1:
            ways.append(f"{max(1, round(self.parameters_for(GOOD_ERROR)))} of {self.size} parameters")
        help_of_clipping = "or by answers of fewer kinds or cut at nearer limits, which allow for smaller clip bounds"
        if roughly:
            return [f"It would be {GOOD_ERROR:g} with about {', or '.join(ways)}; {help_of_clipping}."]
        return [
            f"Over many draws of noise, noise moves means by {self.error:.2g} sd on average. It would be "
            f"{GOOD_ERROR:g} with {', or '.join(ways)}; {help_of_clipping}."
        ]
