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
from pymc_dp.model.structure import ResponsesOfRows
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.table import IntArray

#: Of more responses than this, every so many-th is asked for first.
_FIRST_ASKED = 8
#: Between two of those whose log-likelihoods both are smaller than the largest by this, nothing counts: e^-30 is 1e-13.
_FAR_BELOW = 30.0
#: And by which logarithm the probabilities are smaller of responses that are counted to see how much a row's vary.
_FEW_BELOW = 8.0
#: Responses of a smaller probability are left out of means.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class PossibleResponses:
    """Responses that one input of the rows could have held instead. Public: a function of the model's distributions.

    `place` is the input that holds the responses. `values` are these in increasing order, or some of them where they
    are infinitely many; each stands for `stand_for` of them, which is 1 where these are all. Where they are `dense`,
    rows whose responses vary much are told enough by some of them at equal distances.
    """

    place: int
    values: tuple[float, ...]
    stand_for: tuple[float, ...]
    dense: bool = False

    @property
    def strides(self) -> tuple[int, ...]:
        """Every how many-th response can tell enough of a row."""
        return (1, 2, 4, _FIRST_ASKED) if self.dense else (1,)

    @property
    def _step(self) -> int:
        return _FIRST_ASKED if len(self.values) > 2 * _FIRST_ASKED else 1

    def near(self, log_likelihoods: Callable[[IntArray], FloatArray], n_rows: int) -> NDArray[np.uint8]:
        """Return which of the responses from one to the next of those that are asked for first count for each row.

        Shape (responses that are asked for first, rows): 0 for none, else every how many-th. `log_likelihoods` returns
        those of the rows with each of some of `values`, which are named by their places there, shape (responses, rows).
        Of many responses it is asked for every eighth. Those between two count if one of the two is not far below the
        row's largest. Nothing else does where probabilities have one mode, or modes that are as wide as the distance of
        those responses.
        """
        first = np.arange(0, len(self.values), self._step)
        if self._step == 1:
            return np.ones((first.size, n_rows), dtype=np.uint8)
        logs, near = log_likelihoods(first), np.empty((first.size, n_rows), dtype=np.bool_)
        clip.write_near(logs, _FAR_BELOW, near)
        strides = self._strides(logs, first) if self.dense else 1
        return np.multiply(near, strides, dtype=np.uint8)

    def _strides(self, logs: FloatArray, first: IntArray) -> NDArray[np.uint8]:
        """Return every how many-th response tells enough of each row: they are a standard deviation apart, or less.

        Those that are less than e^8 times as rare as the one that occurs most are up to four standard deviations away,
        if responses are normal.
        """
        weighted = logs + np.log(np.array(self.stand_for)[first])[:, None]
        inside = np.sum(weighted > np.fmax.reduce(weighted, axis=0) - _FEW_BELOW, axis=0)
        strides: NDArray[np.uint8] = np.array(self.strides, dtype=np.uint8)[np.searchsorted(self.strides[1:], inside)]
        return strides

    def n_asked(self, near: NDArray[np.uint8]) -> int:
        """Return how many log-likelihoods of rows are asked for, if each row is among others for which as many are."""
        n_near = np.sum(near > 0, axis=0) * self._step // np.maximum(near.max(axis=0), 1)
        return near.size + int(n_near.sum())

    def probabilities(
        self, log_likelihoods: Callable[[IntArray], FloatArray], near: NDArray[np.uint8], least: float = _NEGLIGIBLE
    ) -> tuple[IntArray, FloatArray]:
        """Return which responses count for some row, and their probabilities, shape (responses, rows).

        Each row's add up to 1, but for those up to `least`, which are zero. Where that cannot be, all are. What counts
        for a row is decided by this row alone: another row has its log-likelihoods computed for nothing.
        """
        numbers = np.arange(len(self.values))
        counted = numbers % self._step == 0
        for stride in self.strides:
            of_rows = np.repeat((near == stride).any(axis=1), self._step)[: numbers.size]
            counted |= of_rows & (numbers % stride == 0)
        asked = np.flatnonzero(counted)
        shares, occur = np.empty((asked.size, near.shape[1])), np.zeros(asked.size, dtype=np.bool_)
        place, always = asked // self._step, asked % self._step == 0
        weights = np.array(self.stand_for)[asked]
        logs = log_likelihoods(asked)
        clip.write_probabilities(logs, weights, near, asked, place, always, least, shares, occur)
        return (asked, shares) if self._step == 1 else (asked[occur], shares[occur])


def possible_responses(leaves: Sequence[RowLeaf], responses: ResponsesOfRows) -> PossibleResponses | None:
    """Return the possible responses of a row, if the model says which, and one input holds them."""
    places = [place for place, leaf in enumerate(leaves) if leaf.observed and leaf.row_shape() == ()]
    if not responses.values or len(places) != 1:
        return None
    values = np.array(responses.values)
    held = leaf_value(leaves[places[0]].source).dtype
    if held.kind in "iu":  # writing a larger number would raise
        values = values[values <= np.iinfo(held).max]
    half = 0.5 * np.diff(values)
    beyond = (0.5, 0.5) if responses.are_whole else (half[0], half[-1])
    edges = [values[0] - beyond[0], *(values[1:] - half), values[-1] + beyond[1]]
    stand_for = np.ones(values.size) if responses.are_all else np.diff(edges)
    return PossibleResponses(places[0], tuple(values.tolist()), tuple(stand_for.tolist()), not responses.are_whole)
