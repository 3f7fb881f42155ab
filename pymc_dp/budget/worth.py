"""The error that the noise of privacy adds to a posterior, and how it could be made smaller: arithmetic."""

import math
from dataclasses import dataclass

from pymc_dp.accounting import gaussian_epsilon

#: An error, in posterior standard deviations, up to which a posterior is good enough to publish.
GOOD_ERROR = 0.5


@dataclass(frozen=True)
class Worth:
    """An error by noise, and what it depends on.

    The noise of a sum goes with the inverse root of rho, and does not depend on the number of units n; what the sum
    tells goes with n and the posterior's standard deviation with its inverse root. A unit's standardised score is about
    as long as the root of the number of parameters, and so are clip bounds.
    """

    error: float  # that noise adds to means, in posterior standard deviations, root mean square over parameters
    n_units: int
    size: int  # unconstrained parameters
    rho: float  # the run's cost as Gaussian releases; NaN where it is paid for in another way
    delta: float  # the budget's

    def epsilon_for(self, error: float) -> float:
        """Return the epsilon at which noise alone would add so large an error; NaN where rho is not known."""
        if not (self.error > 0.0 and math.isfinite(self.rho)):
            return math.nan
        return gaussian_epsilon(self.rho * (self.error / error) ** 2, self.delta)

    def n_units_for(self, error: float) -> float:
        """Return the number of units at which it would."""
        return self.n_units * (self.error / error) ** 2

    def parameters_for(self, error: float) -> float:
        """Return for about how many parameters it would."""
        return self.size * (error / self.error) ** 2

    def what_would_help(self, *, roughly: bool = False) -> list[str]:
        """Return a line on what would make the error small, where it is not; `roughly` if known before any run."""
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
            begin = f"It would be {GOOD_ERROR:g} with about"
            return [f"{begin} {', or '.join(ways)}; {help_of_clipping}."]
        return [
            f"Over many draws of noise, noise moves means by {self.error:.2g} sd on average. It would be "
            f"{GOOD_ERROR:g} with {', or '.join(ways)}; {help_of_clipping}."
        ]
