"""Queries of gradients along chosen axes, less what an expansion predicts of them: control variates of gradients."""

from dataclasses import dataclass

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.batches import Batches
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, ExpansionPoint, FloatArray, GradientPrediction
from pymc_dp.release.query import Rows, SumOverUnits
from pymc_dp.release.sizes import CountsByNorm
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import kept_by, preconditioned, scores_of


@dataclass(frozen=True, eq=False)
class _OfGradients(SumOverUnits):
    """Gradients of units along axes, less what an expansion predicts: see `PreconditionedGradient`."""

    point: ExpansionPoint
    axes: FloatArray
    prediction: GradientPrediction

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse arrays that do not fit."""
        super().refuse_unfit(rows)
        rows.refuse_other_shapes(self.prediction.theta, self.axes)
        rows.refuse_other_shapes(self.prediction.direction, self.prediction.jacobian)
        if self.prediction.offset.shape != self.point.theta.shape:
            raise PrivacyError("An offset of predicted gradients has one entry for each parameter.")

    def along(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the remainder of each unit's gradient along the axes, shape (axes, units)."""
        predicted = self.prediction
        found = chunk.scores(predicted.theta, self.axes)
        if predicted.jacobian.any():
            at_centre = preconditioned(predicted.jacobian.T, self.axes).T
            found -= chunk.scores(self.point.theta, at_centre)
        if predicted.direction.any():
            found += chunk.curvatures_along(self.point.theta, predicted.direction, self.axes)
        if predicted.offset.any():
            found -= preconditioned(predicted.offset[None], self.axes)
        if self.point.clip_gradient < LARGEST_CLIP_BOUND:
            found *= kept_by(scores_of(chunk, self.point), self.point.clip_gradient)
        return found


@dataclass(frozen=True, eq=False)
class PreconditionedGradient(_OfGradients):
    """The sum of log-likelihood gradients along axes, less what an expansion predicts of each, each clipped.

    With a unit's weight w, which the preconditioner and bound of the point set, a contribution is ``axes.T @ (w
    gradient - w predicted)``, clipped to `clip_bound`. With nothing predicted it is the sum of preconditioned
    gradients, each clipped. With an expansion's prediction it is a control variate: near the centre the remainders are
    small, and so are bound and noise. With `batches` it is the sum over a fresh batch, not scaled up to all units, and
    if `counted`, counts of clipped units are released with it.

    References
    ----------
    Baker, Fearnhead, Fox and Nemeth (2019), Control variates for stochastic gradient MCMC, Statistics and Computing 29.
    """

    clip_bound: float
    batches: Batches | None = None
    counted: bool = False
    kind: str = "gradient"

    @property
    def size(self) -> int:
        """The number of axes."""
        return int(self.axes.shape[1])

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the remainders."""
        return self.along(chunk).T


@dataclass(frozen=True, eq=False)
class GradientSizes(CountsByNorm, _OfGradients):
    """How many units have such a gradient of a norm in each half octave."""

    smallest: float
    bins: int
    kind: str = "gradient_sizes"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 in the bin of each remainder's norm."""
        return self.counts(self.along(chunk))
