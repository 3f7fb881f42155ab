"""A private run as a sampler object, which holds the settings; its `sample` takes the model and the length of chains.

The interface is that of PyMC's proposed samplers (pull requests 7880 and 8358 of pymc-devs/pymc):
``pm.sample(sampler=...)`` calls `sample_from_init` with its own arguments; `sample` does the same in one call.
"""

from dataclasses import dataclass, field
from typing import Any

from xarray import DataTree

from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model
from pymc_dp.run.refusals import refuse_no_budget, refuse_no_table
from pymc_dp.run.sampling import sample
from pymc_dp.tables import Table


@dataclass(frozen=True)
class Private:
    """Private sampling of a model as an object, for ``pm.sample(sampler=dp.Private(budget=...))``.

    Parameters
    ----------
    budget : PrivacyBudget
        The budget that runs are charged to.
    data : Table, optional
        The protected table, where the model holds invented rows.
    step : DP step, or sequence of them, optional
        Made without a budget, so that it belongs to no model yet: ``dp.DPHMC()``. Default: `DPSurrogateHMC`.
    unit, unit_index
        The unit of privacy: see `pymc_dp.steps.base.DPStep`.

    Raises
    ------
    InvalidArgument
        If `budget` is no budget, or `data` no table.
    """

    budget: PrivacyBudget
    data: Table | None = field(default=None, repr=False)
    step: Any = field(default=None, repr=False)
    unit: str | None = None
    unit_index: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse other types."""
        given: Any = self.budget
        refuse_no_budget(given)
        if given is None:
            raise InvalidArgument("dp.Private needs a budget: budget=pymc_dp.PrivacyBudget(epsilon=..., delta=...).")
        refuse_no_table(self.data)

    def sample(self, draws: int | None = None, *, model: Model | None = None, **run: Any) -> DataTree:
        """Sample as `pymc_dp.sample` does.

        Parameters
        ----------
        draws : int, optional
            Kept iterations of each chain. Default: the sampler's own.
        model : Model, optional
            Default: that of the ``with`` context.
        **run
            As in `pymc_dp.sample`, without the settings that the object holds.

        Raises
        ------
        InvalidArgument
            If an option belongs to the object; and the errors of `pymc_dp.sample`.
        """
        twice = sorted(name for name in vars(self) if run.pop(name, None) is not None)
        if twice:
            raise InvalidArgument(f"{twice[0]}= belongs to dp.Private({twice[0]}=...): leave it out of this call.")
        return sample(draws, model=model, **vars(self), **run)

    def sample_from_init(
        self,
        *,
        model: Model,
        draws: int | None = None,
        tune: int | None = None,
        chains: int | None = None,
        cores: int | None = None,
        random_seed: Any = None,
        progressbar: Any = True,
        progressbar_theme: Any = None,
        quiet: bool = False,
        var_names: Any = None,
        initvals: Any = None,
        discard_tuned_samples: bool = True,
        compute_convergence_checks: bool = True,
        idata_kwargs: dict[str, Any] | None = None,
        callback: Any = None,
        mp_ctx: Any = None,
        blas_cores: Any = "auto",
    ) -> DataTree:
        """Sample with the interface of PyMC's proposed ``pm.sample(sampler=...)``, by its names of arguments.

        Parameters and errors are those of `pymc_dp.sample`.
        """
        return self.sample(**{name: value for name, value in locals().items() if name != "self"})
