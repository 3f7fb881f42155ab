"""Queries of gradients along chosen axes, less what an expansion predicts of them: control variates of gradients."""

from dataclasses import dataclass

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.batches import Batches
from pymc_dp.release.interface import (
    LARGEST_CLIP_BOUND,
    ExpansionPoint,
    FloatArray,
    GradientPrediction,
)
from pymc_dp.release.query import Asked, Query
from pymc_dp.release.sizes import CountsByNorm, half_octaves
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import kept_by, preconditioned, scores_of, squares_of


@dataclass(frozen=True, eq=False)
class _OfGradients:
    """Gradients of units along axes, less what an expansion predicts.

    Attributes
    ----------
    point : ExpansionPoint
        The expansion: its centre, and by which preconditioner and bound units are weighted.
    axes : ndarray, shape (parameters, axes)
        What is asked for is ``axes.T @ (w gradient - w predicted)``, with the unit's weight w.
    prediction : GradientPrediction
        Where, and what is predicted there.
    """

    point: ExpansionPoint
    axes: FloatArray
    prediction: GradientPrediction

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """The point that is asked about."""
        return (self.prediction.theta,)

    def _refuse_shapes(self, asked: Asked) -> None:
        """Refuse arrays of other shapes, which compiled loops would read beyond, and curvatures that are not known."""
        size = self.point.theta.size
        asked.rows.refuse_other_shapes(self.point.theta, self.point.preconditioner)
        asked.rows.refuse_other_shapes(self.prediction.theta, self.axes)
        asked.rows.refuse_other_shapes(self.prediction.direction, self.prediction.jacobian)
        if self.prediction.offset.shape != (size,):
            raise PrivacyError("An offset of predicted gradients has one entry for each parameter.")
        if self.prediction.direction.any():
            asked.rows.refuse_without_second_order()

    def _along(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return what is asked for of each unit, shape (axes, units)."""
        predicted = self.prediction
        found = preconditioned(chunk.gradient(predicted.theta), self.axes)
        if predicted.jacobian.any():
            at_centre = preconditioned(predicted.jacobian.T, self.axes).T
            found -= preconditioned(chunk.gradient(self.point.theta), at_centre)
        if predicted.direction.any():
            found += preconditioned(chunk.curvature_times(self.point.theta, predicted.direction), self.axes)
        if predicted.offset.any():
            found -= preconditioned(predicted.offset[None], self.axes)
        if self.point.clip_gradient < LARGEST_CLIP_BOUND:
            found *= kept_by(scores_of(chunk, self.point), self.point.clip_gradient)
        return found


@dataclass(frozen=True, eq=False)
class PreconditionedGradient(_OfGradients, Query):
    """The sum of log-likelihood gradients along axes, less what an expansion predicts of each, each clipped.

    With nothing predicted it is the sum of preconditioned gradients, each clipped. With an expansion's prediction it is
    a control variate: near the centre what is left is small, and so are bound and noise.

    Attributes
    ----------
    point, axes, prediction
        As in `_OfGradients`.
    clip_bound : float
        The largest norm of what is left of a unit's.
    batches : Batches, optional
        Ask a fresh batch; the sum is not scaled up to all units. Default: all units.
    counted : bool
        Release counts of clipped units with it; batches only.
    kind : str
        The name of the release.

    References
    ----------
    Baker, Fearnhead, Fox and Nemeth (2019), Control variates for stochastic gradient MCMC, Statistics and Computing 29.
    """

    clip_bound: float
    batches: Batches | None = None
    counted: bool = False
    kind: str = "gradient"

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum of what is left, each clipped."""
        self._refuse_shapes(asked)
        size = self.axes.shape[1]
        return asked.rows.sum_over_units(
            lambda chunk: self._along(chunk).T, size, self.clip_bound, asked.grid, units=asked.batch
        )


@dataclass(frozen=True, eq=False)
class GradientSizes(_OfGradients, CountsByNorm):
    """How many units have such a gradient of a norm in each half octave.

    Attributes
    ----------
    point, axes, prediction
        As in `PreconditionedGradient`.
    smallest : float
        The first bin holds norms from here on, and all smaller ones.
    bins : int
        Number of bins; the last one holds all larger norms.
    kind : str
        The name of the release. Its value has the shape (bins,).
    """

    smallest: float
    bins: int
    kind: str = "gradient_sizes"

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the counts."""
        self._refuse_shapes(asked)

        def counts(chunk: UnitsOfChunk) -> FloatArray:
            return half_octaves(squares_of(self._along(chunk)), self.smallest, self.bins)

        return asked.rows.sum_over_units(counts, self.bins, self.bound(asked.terms), asked.grid)
