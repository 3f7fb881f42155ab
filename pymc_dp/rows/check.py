"""Check on synthetic data that the sum over rows is the model's log-likelihood.

The check compares values and gradients at several random points. The synthetic data have the shapes and types of the
model's data, so that a refusal depends on the model alone and reveals nothing about the data.

Long tables are checked with fewer rows first. Agreement suffices to accept: an operation that mixes rows also mixes few
of them, since the one-row graph is compared with the model's own graph for that number of rows. Disagreement does not
suffice to refuse, because a model may contain its number of rows; then the whole length decides.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.simulation import drawn_from_the_prior, likelihood_of_any_rows, synthetic_rows
from pymc_dp.model.view import ModelView
from pymc_dp.rows.contributions import Contributions
from pymc_dp.rows.engine import RowEngine
from pymc_dp.rows.graphs import GATHER, PRODUCT, Part
from pymc_dp.rows.table import RowTable

_POINTS = 3
_TOLERANCE = 1e-6
#: Tolerance for models that sum in single precision, per root of the number of rows: four standard deviations of the
#: rounding error of a sequential sum.
_ROUNDING_IN_SINGLE_PRECISION = 4 * 2.0**-24 / 3
#: Numbers in the tables of the first check.
_FEW_NUMBERS = 2**16
_FEWEST_ROWS = 1000

_MIXES_ROWS = (
    "The likelihood is not a sum over rows: computed row by row it is another function of the parameters. Some "
    "statistic over rows is taken inside the model (a mean, a cumulative sum, a lag, a normalisation, the number "
    "of rows?). Compute it before the model from public information, or leave it out."
)


def check_factorisation(view: ModelView, engine: RowEngine) -> None:
    """Refuse a model whose log-likelihood is not the sum of its one-row log-likelihoods.

    Raises `UnsupportedModel`, also if the likelihood is finite on no synthetic table.
    """
    row_split = view.row_split

    def compared_with(n_rows: int | None) -> int:
        """Return the number of points at which values were compared, on all kinds of synthetic tables.

        An operation that mixes rows may have an effect on one kind only.
        """
        whole_model = likelihood_of_any_rows(row_split, view.value_variables, n_rows)
        generator = np.random.default_rng(0)
        compared, table = 0, []
        for table in synthetic_rows(row_split.leaves, generator, n_rows or row_split.n_rows):
            compared += _compare(whole_model, view, engine, table, generator)
        if n_rows is None and not compared:
            drawn = drawn_from_the_prior(row_split.leaves, table)
            compared = 0 if drawn is None else _compare(whole_model, view, engine, drawn, generator)
        return compared

    width = sum(math.prod(leaf.row_shape()) for leaf in row_split.leaves)
    few = max(_FEWEST_ROWS, _FEW_NUMBERS // max(1, width))
    if few < row_split.n_rows:
        with suppress(Exception):  # graphs for another number of rows may fail in any way
            if compared_with(few):
                return
    if not compared_with(None):
        raise UnsupportedModel(
            "No synthetic data gave the likelihood a finite value, so it cannot be checked that it is a sum over rows. "
            "Hard limits on the data, or parameters that are hardly ever valid, are the usual reason: a probability or "
            "a scale that is a linear predictor without a link function, or cut points that need not increase (pass "
            "transform=pm.distributions.transforms.ordered to their prior)."
        )


def _compare(
    whole_model: Callable[..., Sequence[np.ndarray]],
    view: ModelView,
    engine: RowEngine,
    table: Sequence[np.ndarray],
    generator: np.random.Generator,
) -> int:
    """Compare values and gradients at some points; return the number of points with finite values."""
    rows = [
        np.ascontiguousarray(np.moveaxis(values, leaf.axis, 0))
        for leaf, values in zip(view.row_split.leaves, table, strict=True)
    ]
    parts = engine.graphs.parts
    (chunk,) = RowTable(rows).chunks(len(rows[0]))
    compared = 0
    for _ in range(_POINTS):
        values = view.parameters.split(generator.normal(scale=0.5, size=view.parameters.size))
        try:
            expected = whole_model(*values, *table)
        except (IndexError, ValueError, np.linalg.LinAlgError):
            continue  # this synthetic table is impossible
        if not all(np.isfinite(part).all() for part in expected):
            continue
        found = engine.gradient(values, chunk)
        sums = [found.log_likelihoods.sum(), *[_summed(part, found) for part in parts]]
        magnitudes = [np.abs(found.log_likelihoods).sum(), *[_summed(part, found, np.abs) for part in parts]]
        for one, other, magnitude in zip(expected, sums, magnitudes, strict=True):
            difference = np.abs(np.ravel(one) - np.ravel(other))
            rounding = _ROUNDING_IN_SINGLE_PRECISION * math.sqrt(chunk.n_rows) if one.dtype == np.float32 else 0.0
            tolerance = max(_TOLERANCE, rounding)
            if not (np.isfinite(difference).all() and np.all(difference <= tolerance * (1.0 + np.ravel(magnitude)))):
                raise UnsupportedModel(_MIXES_ROWS)
        compared += 1
    return compared


def _summed(
    part: Part, found: Contributions, of: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> np.ndarray | float:
    """Return the sum over rows of one value variable's gradients, or of their absolute values (`of`)."""
    if part.k == 0:
        return 0.0
    slopes = of(found.slopes[part.first : part.first + part.k])
    if part.kind == PRODUCT:
        return np.asarray((slopes @ of(found.vectors[part.factor])).T)
    if part.kind == GATHER:
        total = np.zeros((part.size, part.k))
        np.add.at(total, found.indices[part.factor], slopes.T)
        return total
    return np.asarray(slopes.sum(axis=1))
