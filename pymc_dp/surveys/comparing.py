"""`compare`: a comparison of models by their predictions of a table."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.context import Model
from pymc_dp.model.view import ModelView
from pymc_dp.release.surveys import DensityDifferences, DifferenceSizes
from pymc_dp.reports.published import facts_of
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys.asking import Ask, Survey, asking, checked_budget, four_digits, heading, tree_of, view_of
from pymc_dp.surveys.fit import Fitted, form_of_result
from pymc_dp.surveys.folding import Folds
from pymc_dp.surveys.histogram import bins_that_most_keep
from pymc_dp.tables import Table

#: Number of draws in the mean of a predictive density.
_DRAWS = 32
#: The part of the cost for finding the clip bound, and the part of the units that are clipped.
_SHARE_OF_SIZES, _CLIPPED = 0.15, 0.01
#: Octaves of the sizes of differences: from 2**-20 to 2**10.
_LOWEST, _OCTAVES = -20, 31


class Comparison:
    """Differences between the predictive densities of models and of a reference model.

    Attributes
    ----------
    tree : DataTree
        Groups ``differences`` and ``privacy``.
    """

    def __init__(self, tree: DataTree) -> None:
        if "differences" not in tree:
            raise InvalidArgument("This tree is not a comparison: pass the result of dp.compare.")
        self.tree = tree

    @property
    def table(self) -> pd.DataFrame:
        """One line for each model except the reference, best first.

        ``elpd_diff``: difference in the expected log predictive density of as many new units to the reference,
        corrected for noise in the two fits; ``error``: its standard error, from sampling of rows (``of_rows``) and
        noise of this release (``of_noise``) and of the fits (``of_fits``) together; ``in_sample``: the noisy
        difference of the two posteriors on the table's own units; ``p_diff``: difference in the effective number of
        parameters, which was subtracted; ``fit_diff``: difference in the expected loss from noise in the fits, added.
        """
        return self.tree["differences"].to_dataset().to_dataframe().sort_values("elpd_diff", ascending=False)

    @property
    def for_arviz(self) -> pd.DataFrame:
        """The input of ``arviz.plot_compare``: ``elpd_diff`` and its error ``dse``, 0 for the reference, best first."""
        lines = self.table[["elpd_diff", "error"]].rename(columns={"error": "dse"})
        reference = pd.DataFrame(0.0, index=[facts_of(self.tree)["reference"]], columns=lines.columns)
        return pd.concat([lines, reference]).sort_values("elpd_diff", ascending=False)

    def __repr__(self) -> str:
        facts, table = facts_of(self.tree), self.table
        of = " of held-out units" if facts["held_out"] else ""
        subject = f"Log predictive densities{of} against those of {facts['reference']!r}"
        lines = [heading(facts, subject), four_digits(table)]
        for name, line in table.iterrows():
            times = abs(line["elpd_diff"]) / line["error"]
            better = "better" if line["elpd_diff"] > 0 else "worse"
            lines.append(
                f"{name!r} predicts {better}, by {times:.1f} standard errors."
                if times > 2.0
                else f"{name!r} and {facts['reference']!r} cannot be distinguished ({times:.1f} standard errors)."
            )
        return "\n".join(lines)


def _responses_of(view: ModelView) -> tuple[bytes, ...]:
    """Return the invented responses of a model on a template, whatever their order and types."""
    return tuple(sorted(each.rows().astype(np.float64).tobytes() for each in view.row_split.leaves if each.observed))


def compare(
    models: Mapping[str, tuple[Model, Any]],
    *,
    budget: PrivacyBudget | None = None,
    data: Table | None = None,
    held_out: bool = False,
    folds: Folds | None = None,
    budget_share: float = 0.25,
    unit: str | None = None,
    unit_index: Any = None,
    insecure_seed: int | None = None,
) -> Comparison:
    """Release differences in predictive accuracy between models and the first of them, within a budget.

    Parameters
    ----------
    models : mapping of str to (pm.Model, DataTree)
        At least two models of the same rows in the same order, each with its posterior: of `pymc_dp.sample` or
        `PrivateLikelihood.sample`, public already. The first one is the reference.
    data : Table, optional
        The protected table, where the models hold invented rows.
    held_out : bool
        Whether the table has other units than those of the fits. ``p_diff`` is then not subtracted.
    folds : Folds, optional
        Instead of `data`: of `pymc_dp.folds`. Each model then has a list of results, one for each of
        ``folds.training``, each evaluated on the units that its fit left out. All folds together are charged as one.
    budget, budget_share, insecure_seed
        As in `pymc_dp.describe`; all comparisons together spend the share.
    unit, unit_index
        The unit of privacy, as in `pymc_dp.sample`.

    Returns
    -------
    Comparison
        Print it for a summary.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, before anything is charged.
    UnsupportedModel
        If models have different numbers of rows, or likelihoods that are not products over units.
    BudgetExceeded, RunInterrupted
        As in `pymc_dp.describe`.

    Notes
    -----
    The statistic of a unit is the difference of its log predictive densities, each the logarithm of a mean over draws,
    clipped to a bound from a noisy histogram of sizes. Sums of differences and of their squares are released
    (`pymc_dp.release.surveys.DensityDifferences`). The models were fitted to the same units, which increases a
    log-likelihood on average by the effective number of parameters: the trace of W = P (H⁻¹ + V)⁻¹ for a
    private likelihood with curvature H and noise V, and a posterior of covariance P; without one, the number of
    parameters in the likelihood. It is subtracted, as in Akaike's criterion, unless the units were held out. The
    expected loss from noise in the fits is added: half the trace of H W V Wᵀ. The variance of that loss is a part of
    the error. With `held_out` the loss is scaled to the number of units of the table, and zero where their
    number is protected: `elpd_diff` is then `in_sample`, of the two posteriors themselves.
    """
    budget, share = checked_budget(budget, budget_share)
    held_out = _validate.truth("held_out", held_out)
    if not isinstance(models, Mapping) or len(models) < 2:
        raise InvalidArgument(
            'compare takes at least two models: {"line": (model, result), "square": (model, result)}.'
        )
    for name, each in models.items():
        if not isinstance(name, str) or not isinstance(each, tuple | list) or len(each) != 2:
            raise InvalidArgument(f"{name!r} must be a name with a model and its result: (model, result).")
    tables, of_folds = ([data], 1.0) if folds is None else (list(folds.testing), 1.0 / (len(folds) - 1.0))
    held_out = held_out or folds is not None
    fitted = {name: list(result) if folds is not None else [result] for name, (_, result) in models.items()}
    if folds is not None and (data is not None or any(len(each) != len(folds) for each in fitted.values())):
        raise InvalidArgument(
            "With folds=, each model has a list of results, one for each fold, and data= is left out."
        )
    if folds is not None and not Table.are_apart(folds.testing):
        raise InvalidArgument("These are no folds that dp.folds drew: a unit may be in several, and is paid for once.")
    forms = {name: form_of_result(model, fitted[name][0]) for name, (model, _) in models.items()}
    views = {name: view_of(model, unit, unit_index, tables[0]) for name, model in forms.items()}
    fits = {name: [Fitted(result, forms[name], views[name]) for result in fitted[name]] for name in models}
    if len({view.row_split.n_rows for view in views.values()}) > 1:
        raise UnsupportedModel("The models have different numbers of rows: they have to be of the same table.")
    if tables[0] is not None and tables[0].schema is not None:  # the models' rows are those of the template
        responses = {_responses_of(view) for view in views.values()}
        if len(responses) > 1:
            raise InvalidArgument(
                "The models have different responses: densities of two columns cannot be compared. Observe the same "
                "column of the template in all of them."
            )
    reference, *names = models
    part = 1.0 / len(names)
    sizes = ReleaseRequest("difference_sizes", 1, part * _SHARE_OF_SIZES, _OCTAVES, once=True)
    sums = ReleaseRequest("density_differences", 1, part * (1.0 - _SHARE_OF_SIZES), 2, once=True)
    survey = Survey("comparison", (sizes,) * len(names) + (sums,) * len(names), share, insecure_seed)
    survey.plan(budget)  # refuses early
    results = [result for each in fitted.values() for result in each]
    rows = [UnitLikelihood(views[name], first_order=False, other=views[reference]) for name in names]
    for units in rows:
        units.warm_up()
    lines = []
    with asking(survey, budget, rows, tables, results) as (asks, facts):
        for place, name in enumerate(names):
            both = zip(asks[place :: len(names)], fits[name], fits[reference], strict=True)
            found = np.array([_of_table(ask, one, other) for ask, one, other in both])
            total, squares, counted, noise_variance, followed, loss, variance = found[:, :-1].sum(axis=0).tolist()
            n = float(facts.get("n_units") or max(counted, 1.0))
            p_diff = 0.0 if held_out else followed
            if held_out and folds is None:
                # The loss from noise in a fit is known for the fit's own rows, and is scaled to the number of rows
                # here; under add-remove the ratio is protected, and there is no correction.
                n_fitted = facts_of(results[0]).get("n_units")
                of_folds = n / float(n_fitted) if "n_units" in facts and n_fitted else 0.0
            fit_diff, of_fits = of_folds * loss, of_folds * math.sqrt(variance)
            of_rows, of_noise = math.sqrt(max(squares - total**2 / n, 0.0)), math.sqrt(noise_variance)
            lines.append(
                {
                    "elpd_diff": total - p_diff + fit_diff,
                    "error": math.hypot(of_rows, of_noise, of_fits),
                    "of_rows": of_rows,
                    "of_noise": of_noise,
                    "of_fits": of_fits,
                    "in_sample": total,
                    "p_diff": p_diff,
                    "fit_diff": fit_diff,
                    "clip_bound": float(found[:, -1].max()),
                }
            )
    columns = {key: ("model", [each[key] for each in lines]) for key in lines[0]}
    facts |= {"reference": reference, "held_out": int(held_out)}
    return Comparison(tree_of({"differences": xr.Dataset(columns, coords={"model": names})}, facts))


def _of_table(ask: Ask, one: Fitted, other: Fitted) -> tuple[float, ...]:
    """Compare two fits on one table.

    Return the sum of differences and of their squares, the noisy number of units, the variance of the noise, the
    differences of the two fits in the effective number of parameters and in the mean loss from noise, the variance of
    the loss, and the clip bound.
    """
    draws = one.some_draws(_DRAWS), other.some_draws(_DRAWS)
    sizes = ask(DifferenceSizes(*draws, _DRAWS, _LOWEST, _OCTAVES))
    bound = 2.0 ** (_LOWEST + bins_that_most_keep(sizes.value, sizes.noise_std, _CLIPPED))
    sums = ask(DensityDifferences(*draws, _DRAWS, bound))
    followed, loss, variance = np.array(one.effect_on_rows()) - np.array(other.effect_on_rows()) * [1.0, 1.0, -1.0]
    total, squares = float(sums.value[0]), max(float(sums.value[1]), 0.0)
    counted, of_noise = float(sizes.value.sum()), (sums.noise_std * bound) ** 2
    return total, squares, counted, of_noise, followed, loss, variance, bound
