"""Responses that a row could have had, and with what probability by the model: means over them ask no row's own.

A clipped score is biased where long scores point to one side: in a regression of counts, the large counts. What
clipping takes off on average over the responses that the model draws for the row's covariates is added again
(`pymc_dp.release.centred`), and then nothing is missing on average where the model holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm

from pymc_dp.parameters import FloatArray
from pymc_dp.rows.engine import RowEngine
from pymc_dp.rows.split import RowLeaf
from pymc_dp.rows.table import Chunk
from pymc_dp.structure import responses_of_rows


@dataclass(frozen=True)
class PossibleResponses:
    """Whole numbers that one input of the rows could have held instead, with probabilities from the likelihood.

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

    def drawn(
        self, values: Sequence[np.ndarray], chunk: Chunk, engine: RowEngine
    ) -> Iterator[tuple[Chunk, FloatArray]]:
        """Yield the rows with each response in place of their own, and its probabilities, shape (rows,).

        The probabilities of a row add up to 1, or are all zero.
        """
        point = engine.at(values)
        chunks = [
            _with_response(chunk, self.place, np.full_like(chunk.rows[self.place], response))
            for response in self.values
        ]
        log_likelihoods = np.array([engine.log_likelihood(point, each) for each in chunks])
        yield from zip(chunks, self.probabilities(log_likelihoods), strict=True)

    def probabilities(self, log_likelihoods: FloatArray) -> FloatArray:
        """Return the probabilities of the responses, shape (responses, rows), from their log-likelihoods."""
        with np.errstate(all="ignore"):
            logs = np.where(np.isnan(log_likelihoods), -np.inf, log_likelihoods)
            masses = np.array(self.stand_for)[:, None] * np.exp(logs - logs.max(axis=0))
            total = np.zeros(masses.shape[1])
            for mass in masses:  # in this order for every row, whatever rows are beside it
                total += mass
            found: FloatArray = np.where(np.isfinite(total) & (total > 0.0), masses / total, 0.0)
        return found


def _with_response(chunk: Chunk, place: int, responses: np.ndarray) -> Chunk:
    rows = list(chunk.rows)
    rows[place] = responses
    return Chunk(chunk.units, None, rows)


def possible_responses(model: pm.Model, leaves: Sequence[RowLeaf]) -> PossibleResponses | None:
    """Return the possible responses of a row, if they are whole numbers and one input holds them."""
    values, finite = responses_of_rows(model)
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    places = [place for place, leaf in enumerate(leaves) if leaf.source in observed and leaf.row_shape() == ()]
    if not values or len(places) != 1:
        return None
    edges = [values[0] - 0.5, *((np.array(values[1:]) + np.array(values[:-1])) / 2.0), values[-1] + 0.5]
    return PossibleResponses(places[0], values, tuple(np.ones(len(values)) if finite else np.diff(edges)))
