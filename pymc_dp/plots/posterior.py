"""`plot_private`: the private posterior, and a reference posterior."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import arviz as az
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.plots import panels
from pymc_dp.reports.published import facts_of

_PRIVATE, _REFERENCE = "private", "reference"
_SAMPLE_DIMS = ["chain", "draw"]
_COLUMNS = 2


def plot_private(
    data: DataTree,
    reference: DataTree | xr.Dataset | None = None,
    *,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
    ci_prob: float = 0.9,
    plot_collection: Any = None,
    backend: str | None = None,
    visuals: panels.Visuals = None,
    **pc_kwargs: Any,
) -> Any:
    """Plot the private posterior and a reference posterior.

    Parameters
    ----------
    data : DataTree
        The result of a private run.
    reference : DataTree or Dataset, optional
        Another posterior of the same variables: of a public or synthetic table, of the prior, or of an earlier run. A
        posterior of the protected table without privacy must not be published, nor must the figure.
    var_names, filter_vars, coords
        As in ``arviz.plot_dist``.
    ci_prob : float
        Probability of the equal-tailed intervals below.
    plot_collection, backend, visuals, **pc_kwargs
        As in ``arviz.plot_dist``, which draws the figure. The keys of ``visuals`` are ``dist``, ``face``,
        ``credible_interval``, ``point_estimate``, ``point_estimate_text``, ``rug``, ``title`` and ``remove_axis``, and
        ``legend``.

    Returns
    -------
    PlotCollection
        A panel for each entry of each variable, in the variable's own units.

    Raises
    ------
    InvalidArgument
        If the result has no posterior, a chosen variable is not one of the run's, the reference lacks one, or an
        argument is out of range.
    MissingBackend
        If the backend is not installed.
    """
    facts = facts_of(data)
    posterior = panels.group_of(data, "posterior", "the run ended before the first draw after tuning.")
    # Variables that a user has added to the posterior may be computed from rows.
    published = json.loads(facts.get("variables", "[]"))
    names = panels.chosen_names([name for name in published if name in posterior], var_names, filter_vars)
    if not names:
        raise InvalidArgument("var_names leaves no variable of the posterior.")
    ci_prob = _validate.open_unit_interval("ci_prob", ci_prob)
    backend = panels.found_backend(backend if plot_collection is None else plot_collection.backend)
    shown = {_PRIVATE: posterior[names].reset_coords(drop=True)}
    if reference is not None:
        shown[_REFERENCE] = _of_reference(reference, shown[_PRIVATE])
    shown = {name: draws.sel(dict(coords or {})) for name, draws in shown.items()}
    chosen = dict(visuals or {})
    legend = chosen.pop("legend", True)
    chosen.setdefault("point_estimate_text", False)
    if plot_collection is None:
        count, of_draw = len(shown), shown[_PRIVATE].isel(chain=0, draw=0)
        pc_kwargs = {
            "color": panels.cycled(panels.COLORS, count),
            "linestyle": panels.cycled(panels.LINESTYLES, count, backend),
            "y": [-1.0 - place for place in range(count)],
            "col_wrap": _COLUMNS,
            **pc_kwargs,
            "aes": {name: ["model"] for name in ("color", "linestyle", "y")} | dict(pc_kwargs.get("aes", {})),
        }
        n_rows = -(-sum(variable.size for variable in of_draw.data_vars.values()) // pc_kwargs["col_wrap"])
        pc_kwargs["figure_kwargs"] = panels.sized(0.3 + 0.2 * count + 1.9 * n_rows, backend, pc_kwargs)
    collection = az.plot_dist(
        shown[_PRIVATE].expand_dims(model=list(shown)),  # statistics are of each model's own draws
        plot_collection=plot_collection,
        backend=backend,
        visuals=chosen,
        stats=_statistics(shown, ci_prob),
        aes_by_visuals={"credible_interval": ["color", "linestyle", "y"]},
        **pc_kwargs,
    )
    why = panels.why_not_private(facts)
    if len(shown) > 1:
        panels.add_legend(collection, "model", legend, why, title="", aes=["color", "linestyle"])
    if why:
        panels.warn_above(collection, why)
    return collection


def _statistics(shown: Mapping[str, xr.Dataset], ci_prob: float) -> dict[str, xr.Dataset]:
    """Return densities, intervals and means of each set of draws."""
    functions: dict[str, Callable[[xr.DataArray], xr.DataArray]] = {
        "dist": lambda draws: az.kde(draws, dim=_SAMPLE_DIMS).assign_attrs(kind="kde"),
        "credible_interval": lambda draws: az.eti(draws, prob=ci_prob, dim=_SAMPLE_DIMS),
        "point_estimate": lambda draws: draws.mean(_SAMPLE_DIMS),
    }
    found = {}
    for statistic, function in functions.items():
        by_variable = [{str(name): function(draws[name]) for name in draws.data_vars} for draws in shown.values()]
        found[statistic] = xr.concat(
            [xr.Dataset(each).expand_dims(model=[name]) for name, each in zip(shown, by_variable, strict=True)],
            dim="model",
            join="outer",
            coords="minimal",
            compat="override",
            combine_attrs="override",
        )
    return found


def _of_reference(reference: Any, posterior: xr.Dataset) -> xr.Dataset:
    """Return the same variables of another posterior, with the same coordinates; refuse one with other variables."""
    if isinstance(reference, DataTree):
        reference = panels.group_of(reference, "posterior", "pass a reference with draws.")
    if not isinstance(reference, xr.Dataset):
        raise InvalidArgument(f"reference must be a DataTree or a Dataset, not a {type(reference).__name__}.")
    found = {}
    for name, variable in posterior.data_vars.items():
        if name not in reference or set(reference[name].dims) != set(variable.dims):
            raise InvalidArgument(
                f"The reference has no variable {name!r} with dims {', '.join(map(str, variable.dims))}."
            )
        other = reference[name].reset_coords(drop=True).transpose(*variable.dims)
        if other.shape[2:] != variable.shape[2:]:
            raise InvalidArgument(f"The reference has other lengths of {name!r} than the result.")
        own = {dim: variable.coords[dim] for dim in variable.dims[2:] if dim in variable.coords}
        found[str(name)] = other.assign_coords(own)
    return xr.Dataset(found)
