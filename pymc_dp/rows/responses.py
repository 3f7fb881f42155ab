"""Responses that a row could have had, and with what probability by the model: means over them ask no row's own.

A clipped score is biased where long scores point to one side: in a regression of counts, the large counts. What
clipping takes off on average over the responses that the model draws for the row's covariates is added again
(`pymc_dp.release.centred`), and then nothing is missing on average where the model holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_dp.model.arrays import leaf_value
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.split import RowLeaf
from pymc_dp.rows.on_demand import clip

#: Of more responses than this, every so many-th is asked for first.
_FIRST_ASKED = 8
#: Between two of those whose log-likelihoods both are smaller than the largest by this, nothing counts: e^-30 is 1e-13.
_FAR_BELOW = 30.0


@dataclass(frozen=True)
class PossibleResponses:
    """Responses that one input of the rows could have held instead. Public: a function of the model's distributions.

    `place` is the input that holds the responses. `values` are these in increasing order, or some of them where they
    are infinitely many; each stands for `stand_for` of them, which is 1 where these are all.
    """

    place: int
    values: tuple[int, ...]
    stand_for: tuple[float, ...]

    def table(self, rows: Sequence[np.ndarray], which: int) -> list[np.ndarray]:
        """Return the inputs of some rows, all with the response ``values[which]``."""
        changed = list(rows)
        changed[self.place] = np.full_like(rows[self.place], self.values[which])
        changed[self.place].flags.writeable = False  # as all rows are, so that functions are compiled once
        return changed

    def probabilities(self, log_likelihoods: Callable[[int], FloatArray]) -> tuple[list[int], FloatArray]:
        """Return which responses count for some row, and their probabilities, shape (responses, rows).

        Each row's add up to 1. Where that cannot be, they are zero. `log_likelihoods` returns those of the rows with
        the response ``values[which]``. Of many responses it is asked for every eighth first, and then for those
        between two of which one is not far below a row's largest. Nothing else counts where probabilities have one
        mode, or modes that are as wide as the distance of those responses. What counts for a row is decided by this
        row alone: another row has its log-likelihoods computed for nothing.
        """
        step = _FIRST_ASKED if len(self.values) > 2 * _FIRST_ASKED else 1
        first = range(0, len(self.values), step)
        found = {which: log_likelihoods(which) for which in first}
        far = np.fmax.reduce(list(found.values())) - _FAR_BELOW
        for begin in first if step > 1 else ():
            counts = (found[begin] >= far) | (found.get(begin + step, found[begin]) >= far)
            if counts.any():
                for which in range(begin + 1, min(begin + step, len(self.values))):
                    found[which] = np.where(counts, log_likelihoods(which), -np.inf)
        asked = sorted(found)
        shares = np.empty((len(asked), far.size))
        logs = np.array([found[which] for which in asked])
        clip.write_probabilities(logs, np.array(self.stand_for)[asked], shares)
        return asked, shares


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
