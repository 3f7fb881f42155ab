# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What batches do to Hamiltonian Monte Carlo
#
# An experiment without privacy, after Betancourt (2015) and Lode (2019, section 6.1): the mean of a normal with known
# variance, 500 data points, prior N(0, 1). A leapfrog trajectory uses each batch of a partition of the table once and goes
# on for 500 passes without a test. An exact trajectory stays on its level set of the energy. Naive subsampling
# gains energy without bound; friction takes it out again, as much as it is given, not as much as there is.

# %%
import numpy as np

N, SIGMA, PASSES, TRAJECTORIES = 500, 2.0, 500, 100
generator = np.random.default_rng(0)
data = generator.normal(1.0, SIGMA, size=N)
precision = N / SIGMA**2 + 1.0
posterior_mean = data.sum() / SIGMA**2 / precision


def energy_gained(batch_size, step_size, friction=0.0):
    """Return mean energy at the end over energy at the start, in units of a degree of freedom, over trajectories."""
    angle = generator.uniform(0, 2 * np.pi, size=TRAJECTORIES)
    theta = posterior_mean + np.cos(angle) / np.sqrt(precision)
    momentum = np.sin(angle)
    for _ in range(PASSES):
        shuffled = generator.permuted(np.broadcast_to(data, (TRAJECTORIES, N)), axis=1)
        for mean in shuffled.reshape(TRAJECTORIES, -1, batch_size).mean(axis=2).T:
            theta = theta + 0.5 * step_size * momentum
            gradient = N * mean / SIGMA**2 - precision * theta
            damping = 0.5 * step_size * friction
            momentum = ((1 - damping) * momentum + step_size * gradient) / (1 + damping)
            theta = theta + 0.5 * step_size * momentum
    energy = 0.5 * precision * (theta - posterior_mean) ** 2 + 0.5 * momentum**2
    return energy.mean() / 0.5


# %% [markdown]
# The table is cut anew for each pass and trajectory; exact trajectories have 1 and the target 2. Each kick adds
# noise of variance η² V, V = (N / B) · N / σ² · (1 − B / N) for the first batch of a pass; the friction whose own noise
# would be that is C = η V / 2.

# %%
print(f"{'batch':>6}{'step':>8}{'naive':>12}{'C = ηV/2':>12}{'4 C':>10}{'C / 4':>10}")
for batch_size in (10, 50, 250, 500):
    for step_size in (0.05, 0.005):
        variance = N / batch_size * N / SIGMA**2 * (1 - batch_size / N)
        matched = 0.5 * step_size * variance
        cells = [energy_gained(batch_size, step_size, factor * matched) for factor in (0.0, 1.0, 4.0, 0.25)]
        print(
            f"{batch_size:>6}{step_size:>8}" + f"{cells[0]:>12.2f}{cells[1]:>12.2f}{cells[2]:>10.2f}{cells[3]:>10.2f}"
        )

# %% [markdown]
# Naive energies grow with the number of kicks, most for small batches and long steps: over 10⁵ times here. With the
# matched friction they end below 2, since the batches of one pass are drawn without replacement and their noise partly
# cancels; four times as much friction freezes the chain, and a quarter leaves it too hot where batches are small and
# steps long. Friction has to know the noise. DP SGHMC injects noise of known size and makes it the larger part; DP SGNHT
# measures the rest.
