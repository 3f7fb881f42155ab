"""Responses that a row could have had, and with what probability by the model: means over them ask no row's own.

A clipped score is biased where long scores point to one side: in a regression of counts, the large counts. What
clipping takes off on average over the responses that the model draws for the row's covariates is added again
(`pymc_dp.release.preconditioned`), and then nothing is missing on average where the model holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.arrays import leaf_value
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.split import RowLeaf
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.table import IntArray

#: Of more responses than this, every so many-th is asked for first.
_FIRST_ASKED = 8
#: Between two of those whose log-likelihoods both are smaller than the largest by this, nothing counts: e^-30 is 1e-13.
_FAR_BELOW = 30.0
#: Responses of a smaller probability are left out of means.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class PossibleResponses:
    """Responses that one input of the rows could have held instead. Public: a function of the model's distributions.

    `place` is the input that holds the responses. `values` are these in increasing order, or some of them where they
    are infinitely many; each stands for `stand_for` of them, which is 1 where these are all.
    """

    place: int
    values: tuple[int, ...]
    stand_for: tuple[float, ...]

    @property
    def _step(self) -> int:
        return _FIRST_ASKED if len(self.values) > 2 * _FIRST_ASKED else 1

    def near(self, log_likelihoods: Callable[[IntArray], FloatArray], n_rows: int) -> NDArray[np.bool_]:
        """Return whether the responses from one to the next of those that are asked for first count for each row.

        Shape (responses that are asked for first, rows). `log_likelihoods` returns those of the rows with each of some
        of `values`, which are named by their places there, shape (responses, rows). Of many responses it is asked for
        every eighth. Those between two count if one of the two is not far below the row's largest. Nothing else does
        where probabilities have one mode, or modes that are as wide as the distance of those responses.
        """
        first = np.arange(0, len(self.values), self._step)
        near = np.ones((first.size, n_rows), dtype=np.bool_)
        if self._step > 1:
            clip.write_near(log_likelihoods(first), _FAR_BELOW, near)
        return near

    def probabilities(
        self, log_likelihoods: Callable[[IntArray], FloatArray], near: NDArray[np.bool_], least: float = _NEGLIGIBLE
    ) -> tuple[IntArray, FloatArray]:
        """Return which responses count for some row, and their probabilities, shape (responses, rows).

        Each row's add up to 1, but for those up to `least`, which are zero. Where that cannot be, all are. What counts
        for a row is decided by this row alone: another row has its log-likelihoods computed for nothing.
        """
        counted = np.repeat(near.any(axis=1), self._step)[: len(self.values)]
        counted[:: self._step] = True
        asked = np.flatnonzero(counted)
        shares, occur = np.empty((asked.size, near.shape[1])), np.zeros(asked.size, dtype=np.bool_)
        place, always = asked // self._step, asked % self._step == 0
        weights = np.array(self.stand_for)[asked]
        clip.write_probabilities(log_likelihoods(asked), weights, near, place, always, least, shares, occur)
        return (asked, shares) if self._step == 1 else (asked[occur], shares[occur])


def possible_responses(leaves: Sequence[RowLeaf], responses: tuple[tuple[int, ...], bool]) -> PossibleResponses | None:
    """Return the possible responses of a row, if they are whole numbers and one input holds them.

    `responses` is what `pymc_dp.model.structure.responses_of_rows` says.
    """
    values, finite = responses
    places = [place for place, leaf in enumerate(leaves) if leaf.observed and leaf.row_shape() == ()]
    if not values or len(places) != 1:
        return None
    held = leaf_value(leaves[places[0]].source).dtype
    if held.kind in "iu":  # writing a larger number would raise
        values = tuple(value for value in values if value <= np.iinfo(held).max)
    edges = [values[0] - 0.5, *((np.array(values[1:]) + np.array(values[:-1])) / 2.0), values[-1] + 0.5]
    stand_for = tuple(np.ones(len(values)) if finite else np.diff(edges))
    return PossibleResponses(places[0], values, stand_for)
