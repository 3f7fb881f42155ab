"""What an installed package has to do without anything but its own dependencies: a private run, saved and read again.

python tools/installed.py
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

import pymc_dp as dp

#: Optional dependencies, which must not be needed.
_OPTIONAL = ("dask", "distributed", "statsmodels", "zarr", "dp_accounting")


def main() -> None:
    rng = np.random.default_rng(1)
    people = pd.DataFrame({"age": rng.uniform(18, 90, 20_000)})
    people["back"] = rng.random(20_000) < 1 / (1 + np.exp(2 - 0.03 * people["age"]))
    table = dp.Table.from_frame(people, schema=[dp.Number("age", 18, 90), dp.YesNo("back")])
    t = table.template
    with pm.Model():
        pm.Bernoulli("back", logit_p=pm.Normal("a") + pm.Normal("b") * t.age, observed=t.back)
        result = pm.sample(budget=dp.PrivacyBudget(epsilon=1.0, delta=1e-6), data=table, progressbar=False)
    found = dp.diagnostics.quality_report(result)
    with tempfile.TemporaryDirectory() as folder:
        result.to_netcdf(Path(folder) / "result.nc")
        with xr.open_datatree(Path(folder) / "result.nc") as opened:
            same = dp.diagnostics.quality_report(opened.load()) == found
    missing = [name for name in _OPTIONAL if importlib.util.find_spec(name) is None]
    sys.stdout.write(
        f"{found}\n\nWithout {', '.join(missing) or 'nothing'}; {sys.platform}, {sys.version.split()[0]}\n"
    )
    if not same or Path(dp.__file__).parents[1] == Path.cwd():
        sys.exit("The installed package was not tried, or its result did not survive being saved.")


if __name__ == "__main__":
    main()
