"""The clipped sum of gradients beside the obvious one in JAX: ``vmap(grad)``, clip, sum, compiled, in float64.

JAX is no dependency. In an environment of its own with JAX in it, and this project's packages on the path, run::

    OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 PYTHONPATH=.:.venv/lib/python3.12/site-packages \\
      other-environment/bin/python benchmarks/against_jax.py

Both run in one process, on one thread and in turns; the least of many runs counts. Every model is that of
``bench_rows.py``, in JAX written by hand on the same unconstrained parameters. The two sums are compared first.
JAX's has no grid: it adds floating-point numbers, which is not what a guarantee needs, but is quicker if anything.
"""

import functools
import os
import sys
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parent))

import bench_rows as models
import numpy as np
import pymc as pm

from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

BOUND, GRID = 2.0, 2.0**-40
ROUNDS = 30


def in_jax():
    """Return, by the model's name, the log-likelihood of one row of a table and the tables."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    def bernoulli(eta, y):
        return -jax.nn.softplus(jnp.where(y > 0, -eta, eta))

    def logistic(theta, x, y):
        return bernoulli(x @ theta, y)

    def hierarchical_logistic(theta, x, y):
        return bernoulli(x @ (theta[0] + jnp.exp(theta[1]) * theta[2:]), y)

    def softmax(theta, x, y):
        return jax.nn.log_softmax(x @ theta.reshape(9, 5))[y]

    cholesky = np.linalg.cholesky(np.eye(10) + 0.3)

    def multivariate_normal(theta, x):
        whitened = jax.scipy.linalg.solve_triangular(jnp.asarray(cholesky), x - theta, lower=True)
        return -0.5 * whitened @ whitened

    inverse = np.linalg.inv(cholesky)

    def multivariate_normal_inverted(theta, x):
        whitened = jnp.asarray(inverse) @ (x - theta)
        return -0.5 * whitened @ whitened

    def varying_intercepts(theta, group, y):
        return bernoulli(theta[2:][group], y)

    def banana(theta, x):
        return -0.25 * ((x[0] - theta[0]) ** 2 + (x[1] - theta[1] - 0.5 * theta[0] ** 2) ** 2)

    x, y = models.X, models.BINARY
    return {
        "logistic": (logistic, x, y),
        "hierarchical_logistic": (hierarchical_logistic, x, y),
        "softmax": (softmax, x[:, :9], models.CLASSES),
        "multivariate_normal": (multivariate_normal, x),
        "multivariate_normal, inverse by hand": (multivariate_normal_inverted, x),
        "varying_intercepts_20": (varying_intercepts, models.GROUPS[20], y),
        "varying_intercepts_2000": (varying_intercepts, models.GROUPS[2000], y),
        "banana": (banana, x[:, :2]),
    }


def clipped_sum(log_likelihood):
    """Return the compiled clipped sum of a row's gradients, with its log-likelihoods."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    def summed(theta, *tables):
        rows = jax.vmap(jax.value_and_grad(log_likelihood), in_axes=(None, *[0] * len(tables)))
        values, gradients = rows(theta, *tables)
        factors = jnp.minimum(1.0, BOUND / jnp.sqrt((gradients**2).sum(axis=1)))
        return values, (gradients * factors[:, None]).sum(axis=0)

    return jax.jit(summed)


def seconds(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def main():
    import jax  # noqa: PLC0415

    jax.config.update("jax_enable_x64", True)
    print(f"jax {jax.__version__}, numpy {np.__version__}, pymc {pm.__version__}")  # noqa: T201
    print("| model | JAX (ms) | clipped sum (ms) | ratio |\n|---|---|---|---|")  # noqa: T201
    for name, (log_likelihood, *tables) in in_jax().items():
        with pm.Model() as model:
            getattr(models, name.split(",")[0])()
        rows = UnitLikelihood(read(model))
        rows.warm_up()
        theta = np.random.default_rng(1).normal(scale=0.3, size=rows.n_parameters)
        theirs = clipped_sum(log_likelihood)
        on_device = [jax.device_put(np.ascontiguousarray(table)) for table in (theta, *tables)]
        found = np.asarray(jax.block_until_ready(theirs(*on_device))[1])
        ours = rows.clipped_gradient(theta, BOUND, GRID).value
        difference = np.abs(found - ours).max() / np.abs(ours).max()
        if not difference < 1e-6:
            raise SystemExit(f"{name}: the sums differ by {difference:.1e}")
        ours_again = functools.partial(rows.clipped_gradient, theta, BOUND, GRID)
        rounds = 5 if name == "varying_intercepts_2000" else ROUNDS
        pairs = [
            (seconds(lambda run=theirs, on=on_device: jax.block_until_ready(run(*on))), seconds(ours_again))
            for _ in range(rounds)
        ]
        jax_ms, our_ms = (1e3 * min(times) for times in zip(*pairs, strict=True))
        print(f"| {name} | {jax_ms:.2f} | {our_ms:.2f} | {jax_ms / our_ms:.1f} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
