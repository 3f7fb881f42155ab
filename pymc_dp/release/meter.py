"""What a curator may still release: counted down before the data is touched."""

from collections.abc import Mapping, Sequence

from pymc_dp.accounting import NO_NOISE, Releases
from pymc_dp.exceptions import BudgetExceeded
from pymc_dp.release.batches import Batches


class Meter:
    """Counts down what one curator may release.

    Parameters
    ----------
    allowance : mapping of str to int
        How many releases of each kind.
    noise_multipliers : mapping of str to float
        The least noise multiplier that was paid for, by kind.
    scheduled : sequence of Releases
        Kinds on batches, and kinds whose noise changes: every release is taken from one of these events, and is
        refused where none is left that was paid for with its batches and with as little noise.
    without_noise : bool
        Releases without noise are let through: of a budget of infinite epsilon, and of no other.
    """

    def __init__(
        self,
        allowance: Mapping[str, int],
        noise_multipliers: Mapping[str, float],
        scheduled: Sequence[Releases] = (),
        *,
        without_noise: bool = False,
    ) -> None:
        self.without_noise = without_noise
        self._left = dict(allowance)
        self._paid = dict(noise_multipliers)
        # Those with the most noise first, so that a release is taken from the cheapest event that covers it.
        self._scheduled = sorted(scheduled, key=lambda event: -event.noise_needed)
        self._left_of = [event.count for event in self._scheduled]

    def spend(
        self, kind: str, noise_multiplier: float, batches: Batches | None = None, *, adds_noise: bool = True
    ) -> None:
        """Count one release.

        Parameters
        ----------
        kind : str
            Its kind.
        noise_multiplier : float
            What it is asked for with.
        batches : Batches, optional
            How its batch is drawn. Default: it is of all units.
        adds_noise : bool
            False for a decision, whose noise is the test's own: it costs what decisions cost, and nothing else is
            covered by what was paid for decisions.

        Raises
        ------
        BudgetExceeded
            If it was not paid for.
        """
        if self._left.get(kind, 0) < 1:
            raise BudgetExceeded(f"All planned releases of kind {kind!r} of this chain have been made.")
        if adds_noise and not noise_multiplier > NO_NOISE and not self.without_noise:
            raise BudgetExceeded(f"A release of kind {kind!r} was asked for without noise, which cannot be paid for.")
        places = [place for place, event in enumerate(self._scheduled) if event.kind == kind]
        if places:
            self._left_of[self._place(kind, places, noise_multiplier, batches, adds_noise)] -= 1
        elif batches is not None:
            raise BudgetExceeded(f"Releases of kind {kind!r} were paid for on all units, not on batches.")
        elif not noise_multiplier >= self._paid[kind]:
            raise BudgetExceeded(
                f"A release of kind {kind!r} was asked for with noise multiplier {noise_multiplier:.4g}, "
                f"but {self._paid[kind]:.4g} was paid for."
            )
        self._left[kind] -= 1

    def _place(
        self, kind: str, places: Sequence[int], noise_multiplier: float, batches: Batches | None, adds_noise: bool
    ) -> int:
        for place in places:
            event = self._scheduled[place]
            alike = event.sampling is None if batches is None else batches.covered_by(event)
            alike = alike and event.adds_noise == adds_noise
            if alike and self._left_of[place] > 0 and noise_multiplier >= event.noise_needed:
                return place
        raise BudgetExceeded(
            f"No release of kind {kind!r} with noise multiplier {noise_multiplier:.4g} and "
            f"{'these batches' if batches is not None else 'on all units'} is left of what was paid for."
        )

    def __repr__(self) -> str:
        return f"Meter({self._left})"
