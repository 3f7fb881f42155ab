"""Responses that a row could have had, and with what probability by the model: means over them ask no row's own.

A clipped score is biased where long scores point to one side: in a regression of counts, the large counts. What
clipping takes off on average over the responses that the model draws for the row's covariates is added again
(`pymc_dp.release.centred`), and then nothing is missing on average where the model holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_dp.model.arrays import leaf_value
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.split import RowLeaf
from pymc_dp.rows.on_demand import probabilities


@dataclass(frozen=True)
class PossibleResponses:
    """What one input of the rows could have held instead. Public: a function of the model's distributions.

    Attributes
    ----------
    place : int
        Which input of the rows holds the responses.
    values : tuple of int
        The responses, in increasing order; where they are infinitely many, some of them.
    stand_for : tuple of float
        How many responses each stands for: 1 where these are all.
    """

    place: int
    values: tuple[int, ...]
    stand_for: tuple[float, ...]

    def tables(self, rows: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Return the inputs of some rows once for each response, all rows having that response."""
        tables = []
        for response in self.values:
            changed = list(rows)
            changed[self.place] = np.full_like(rows[self.place], response)
            changed[self.place].flags.writeable = False  # as all rows are, so that functions are compiled once
            tables.append(changed)
        return tables

    def probabilities(self, log_likelihoods: FloatArray) -> FloatArray:
        """Return the probabilities of the responses, shape (responses, rows), from their log-likelihoods.

        Each row's add up to 1. Where that cannot be, they are zero.
        """
        found = np.empty_like(log_likelihoods)
        probabilities.write(log_likelihoods, np.array(self.stand_for), found)
        return found


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
