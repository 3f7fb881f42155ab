"""`synthetic_tables`: tables like the protected one, from released numbers alone; `pooled`: estimates from them."""

from typing import Any

import numpy as np
import pandas as pd
import scipy
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.simulation import ResponseSimulator
from pymc_dp.model.view import read
from pymc_dp.reports.published import facts_of
from pymc_dp.rows.likelihood import RowInput
from pymc_dp.surveys.describing import Description, in_own_units
from pymc_dp.tables import Date, Template, Whole
from pymc_dp.tables.columns import Columns, block_of
from pymc_dp.tables.schema import scale_of

#: Least number of tables for an estimate of the variance between them.
_FEWEST_TABLES = 2


def synthetic_tables(
    result: DataTree,
    description: Description,
    template: Template,
    *,
    model: Model | None = None,
    m: int = 20,
    n: int | None = None,
    seed: int = 0,
    missing: bool = True,
) -> list[pd.DataFrame]:
    """Return tables of invented rows: covariates by a description, and responses by a posterior. Nothing is released.

    Each table has its own draw of the description, given its noise and the sampling of units, and its own draw of the
    posterior. So the differences between results of one analysis on all tables reflect the uncertainty, noise included:
    see `pooled`.

    Parameters
    ----------
    result : DataTree
        With a group ``posterior``.
    description : Description
        Of the same table, with at least the columns of `template`.
    template : Template
        The template on which the model was built: ``table.template``.
    model : pm.Model, optional
        The model of the posterior `result`. Default: that of the ``with`` context.
    m : int
        Number of tables.
    n : int, optional
        Number of rows of each table. Default: the number of units in the description.
    seed : int
        Of all draws, which use public numbers only.
    missing : bool
        Leave out entries of covariates at the rates of the description, completely at random. The response of a row
        is then drawn with the number that replaces a missing entry.

    Returns
    -------
    list of DataFrame
        With the columns of `template`, in their own units. The model's response follows the model given the other
        columns, and is never missing: the posterior was fitted with the value that replaces a missing one. Numbers are
        correlated as described, and categories independent of them.
        ``attrs["private"]`` is whether both results are private.

    Raises
    ------
    InvalidArgument
        If an argument is of another type, or the model is not built on `template` alone.
    UnsupportedModel
        If there are several responses in a row.
    """
    if not isinstance(description, Description) or not isinstance(template, Template):
        raise InvalidArgument(
            "Synthetic tables are made of a description and a template: dp.synthetic_tables(result, "
            "dp.describe(table, ...), table.template)."
        )
    private = all(facts_of(tree)["private"] for tree in (result, description.tree))
    schema = template.schema
    if lacking := set(schema.names) - set(description.schema.names) - {schema.person}:
        raise InvalidArgument(f"The description has no column {', '.join(sorted(lacking))}: describe the whole table.")
    m = _validate.whole("m", m, at_least=_FEWEST_TABLES)
    counted = max(int(np.rint(description.units)), 1)
    n = _validate.whole("n", counted if n is None else n, at_least=1)
    model = model_in_context(model)
    leaves = read(model, with_response=True).row_split.leaves
    inputs = [RowInput.of(leaf) for leaf in leaves]
    made_of = [template.parts_of(each, leaf.rows()) for each, leaf in zip(inputs, leaves, strict=True)]
    covariates = [place for place, leaf in enumerate(leaves) if not leaf.observed]
    (of_response,) = [made_of[place] for place, leaf in enumerate(leaves) if leaf.observed]
    if None in made_of or of_response is None or len(of_response) != 1 or of_response[0] not in schema.names:
        raise InvalidArgument("The model has to stand on `template` alone, with one of its columns as the response.")
    response = schema.column_of(str(of_response[0]))
    (middle, half), whole = scale_of(response), isinstance(response, Whole | Date)
    posterior = result["posterior"].to_dataset().stack(sample=("chain", "draw"))
    simulator = ResponseSimulator(model, [leaves[place].source for place in covariates], seed)
    taken = np.linspace(0, posterior.sizes["sample"] - 1, m).astype(int)
    columns = Columns(
        tuple(made_of[place] or () for place in covariates), tuple(inputs[place] for place in covariates), None, schema
    )
    tables = []
    for number, draw in enumerate(np.random.default_rng(seed).permutation(taken)):
        values = {str(name): posterior[name].isel(sample=draw).values for name in posterior}
        rows = -(-n // template.n) * template.n
        frame = description.invented(rows, seed + number, redrawn=True, missing=missing)
        found = []
        for block in np.split(np.arange(len(frame)), len(frame) // template.n):  # the model has so many rows
            inside = block_of(columns, columns.read(frame.iloc[block])).rows if covariates else ()
            found.append(simulator.at(values, inside))
        numbers = middle + half * np.concatenate(found)
        frame[response.name] = in_own_units(response, np.rint(numbers) if whole else numbers)
        tables.append(frame[[each.name for each in schema.modelled]].iloc[:n])
        tables[-1].attrs["private"] = private
    return tables


def pooled(estimates: Any, variances: Any, probability: float = 0.9) -> pd.DataFrame:
    """Pool the results of synthetic tables: an estimate, its standard deviation and an interval.

    Parameters
    ----------
    estimates : array_like, shape (m,) or (m, quantities)
        Estimates from each table, such as coefficients.
    variances : array_like, of the same shape
        Their squared standard errors in the same analysis.
    probability : float
        Of the intervals.

    Returns
    -------
    DataFrame
        One line for each quantity: ``mean``, ``sd``, ``low``, ``high`` and ``degrees_of_freedom``.

    Raises
    ------
    InvalidArgument
        If there are fewer than two tables, or the shapes differ.

    Notes
    -----
    With b the variance between estimates and v the mean of variances, estimates vary around the drawn parameters of
    their table by v, and these parameters by b - v: the variance of their mean around the truth is (1 + 1/m) b - v. It
    is set to at least v: inference cannot be more precise than from the protected table itself, of as many rows.

    References
    ----------
    Raghunathan, Reiter and Rubin (2003), Multiple imputation for statistical disclosure limitation, Journal of Official
    Statistics 19; Räisä, Jälkö, Kaski and Honkela (2023), Noise-aware statistical inference with differentially private
    synthetic data, AISTATS.
    """
    found, within = np.asarray(estimates, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    if found.shape != within.shape or found.ndim not in (1, 2) or len(found) < _FEWEST_TABLES:
        raise InvalidArgument("estimates and variances are of the same shape, (tables,) or (tables, quantities).")
    m = len(found)
    found, within = found.reshape(m, -1), within.reshape(m, -1)
    between, v = (1.0 + 1.0 / m) * found.var(axis=0, ddof=1), within.mean(axis=0)
    enough = between > 2.0 * v
    freedom = np.where(enough, (m - 1.0) * (1.0 - v / np.where(enough, between, 1.0)) ** 2, m - 1.0)
    sd, mean = np.sqrt(np.maximum(between - v, v)), found.mean(axis=0)
    room = scipy.stats.t.ppf(0.5 + probability / 2.0, freedom) * sd
    return pd.DataFrame(
        {"mean": mean, "sd": sd, "low": mean - room, "high": mean + room, "degrees_of_freedom": freedom}
    )
