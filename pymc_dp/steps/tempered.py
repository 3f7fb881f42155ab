"""What samplers on batches without replacement share: their arguments, and the tempered posterior they draw from."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.release.batches import BatchesWithoutReplacement
from pymc_dp.steps.learning_step import LearningStep
from pymc_dp.steps.tuning import power_of_likelihood, tempering_facts


class TemperedBatches(LearningStep):
    """A step on batches without replacement, whose target may be a power of the likelihood times the prior."""

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        batch_size: int | None = None,
        tempering: float = 1.0,
        n_units: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(vars, **shared)
        name = type(self).__name__
        if self.budget.relation != "substitute":
            raise InvalidArgument(
                f"{name} draws batches of a fixed size, which is accounted for under substitution only, where the "
                "number of units is public. Use a budget with relation='substitute'."
            )
        self.batch_size = None if batch_size is None else _validate.whole("batch_size", batch_size, at_least=1)
        # After `DPPenalty`, which tempers what is released of all units, has been told of none: batches are tempered
        # before they are released, and not twice.
        self.tempering = power_of_likelihood(tempering, self.model_tempering)
        self._n_units_given = None
        self.batches: BatchesWithoutReplacement | None = None
        if n_units is not None:
            self.know_n_units(n_units)
            self._n_units_given = n_units

    @abstractmethod
    def default_batch_size(self, n_units: int) -> int:
        """Return how many units are in a batch where a prelude leaves the choice to the sampler."""

    def require_batch_size(self) -> None:
        """Refuse to go without a batch size where there is no prelude.

        Raises
        ------
        InvalidArgument
            If it is missing.
        """
        if self.batch_size is None and self.learning is None:
            raise InvalidArgument(f"{type(self).__name__} needs batch_size=: how many units are in a batch.")

    def know_n_units(self, n_units: int) -> None:
        """Take note of the number of units; refuse another than was passed."""
        super().know_n_units(n_units)
        if self._n_units_given not in (None, n_units):
            raise InvalidArgument(f"n_units={self._n_units_given} was passed, but the table has {n_units} units.")
        batch_size = self.default_batch_size(n_units) if self.batch_size is None else self.batch_size
        self.batches = BatchesWithoutReplacement(batch_size, n_units)

    def known_batches(self) -> BatchesWithoutReplacement:
        """Return the batches, for which the number of units has to be known."""
        if self.batches is None:
            raise InvalidArgument(
                "The number of units is not known yet. Make the plan inside `with model:`, or pass n_units= to "
                f"{type(self).__name__}."
            )
        return self.batches

    @property
    def facts(self) -> dict[str, Any]:
        """What else a reader of the result has to know: a likelihood to a power gives another, wider posterior."""
        return {**super().facts, **tempering_facts(self.tempering, self.batches)}
