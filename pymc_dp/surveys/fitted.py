"""What surveys read of a published posterior: draws, and what is known of its likelihood."""

import numpy as np
from xarray import DataTree

from pymc_dp.diagnostics import facts_of
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model
from pymc_dp.model.posterior import PRIVATE_LIKELIHOOD, known_parameters, places_of, unconstrained_draws
from pymc_dp.model.view import ModelView
from pymc_dp.release.interface import FloatArray

#: Draws that mean and covariance are taken of.
_MOST_DRAWS = 2000


class Fitted:
    """A posterior on the unconstrained scale.

    Parameters
    ----------
    result : DataTree
        With a group ``posterior``, and ``private_likelihood`` where there is one.
    model : pm.Model
        The model that it is a posterior of.
    view : ModelView
        What was read of it.

    Attributes
    ----------
    draws : ndarray, shape (draws, parameters)
    mean : ndarray, shape (parameters,)
    likelihood : Dataset or None
        The private likelihood.
    known : ndarray of bool
        Which of its parameters it depends on.
    places : ndarray of int
        Where they stand in the model's.

    Raises
    ------
    InvalidArgument
        If there are no draws, or of another model.
    """

    def __init__(self, result: DataTree, model: Model, view: ModelView) -> None:
        facts_of(result)
        if "posterior" not in result:
            raise InvalidArgument("This result holds no draws: the table is compared with a posterior.")
        self.draws = unconstrained_draws(model, result["posterior"].to_dataset(), _MOST_DRAWS)
        self.mean: FloatArray = self.draws.mean(axis=0)
        self.likelihood = result[PRIVATE_LIKELIHOOD].to_dataset() if PRIVATE_LIKELIHOOD in result else None
        if self.likelihood is not None:
            self.known = known_parameters(self.likelihood)
            self.places = places_of(self.likelihood, view.parameters)

    def covariance(self, taken: np.ndarray) -> FloatArray:
        """Return the covariance of draws of some of the likelihood's parameters."""
        return np.atleast_2d(np.cov(self.draws[:, self.places[taken]].T))

    def information(self, taken: np.ndarray) -> FloatArray:
        """Return the likelihood's curvature without noise."""
        return self._block("information", taken)

    def noise(self, taken: np.ndarray) -> FloatArray:
        """Return the covariance of what privacy hides of its maximum."""
        return self._block("noise", taken) + self._block("bias", taken)

    def effective_parameters(self) -> float | None:
        """Return by how many parameters the posterior's mean follows the rows; None where that is not known.

        The trace of W = P (H⁻¹ + V)⁻¹: the log-likelihood of the rows that the fit was made to is larger by this, on
        average, than that of new rows. Noise in the fit makes both smaller alike.
        """
        return None if self.likelihood is None else float(np.trace(self._pull))

    def loss_by_noise(self) -> tuple[float, float]:
        """Return mean and variance of what noise in the fit takes off the log-likelihood of all rows.

        Noise v of covariance V moves the posterior's mean by W v, which costs half of (W v)ᵀ H (W v). Nothing, where no
        noise is known of.
        """
        if self.likelihood is None:
            return 0.0, 0.0
        moved = self.information(self.known) @ self._pull @ self.noise(self.known) @ self._pull.T
        return 0.5 * float(np.trace(moved)), 0.5 * float(np.trace(moved @ moved))

    @property
    def _pull(self) -> FloatArray:
        """W = P (H⁻¹ + V)⁻¹: by how much the posterior's mean follows the likelihood's maximum."""
        inverse = np.linalg.inv(self.information(self.known))
        found: FloatArray = np.linalg.solve(inverse + self.noise(self.known), self.covariance(self.known)).T
        return found

    def _block(self, name: str, taken: np.ndarray) -> FloatArray:
        assert self.likelihood is not None  # noqa: S101  asked where there is one
        found: FloatArray = self.likelihood[name].values[np.ix_(taken, taken)]
        return found
