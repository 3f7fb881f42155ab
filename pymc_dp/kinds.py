"""Published names: kinds of releases, their roles in a run, and measures of a surrogate."""

from collections.abc import Mapping
from typing import Literal

#: The role of a release, which determines whether its clipping biases the draws: it decides on moves, drives them (a
#: bias unless another release decides), counts clipped units, or has no such role.
Role = Literal["decides", "drives", "counts", "other"]


CLIP_COUNT, SCORE = "clip_count", "score"
#: Roles by kind; kinds that are not listed have the role "other".
ROLES: Mapping[str, Role] = {
    "gradient": "drives",
    "log_ratio": "decides",
    "residual": "decides",
    "decision": "decides",
    CLIP_COUNT: "counts",
}
#: Kinds with a single number in a release; releases of other kinds are vectors.
NUMBERS = frozenset(
    ("log_ratio", "residual", "decision", "clipping_loss", "surrogate_check", "bounded_score", "unit_count")
)

#: Measures of the surrogate, known before the chains start: published with every draw.
SURROGATE_FIGURES = (
    "clip_bias",
    "clip_bias_noise_std",
    "centre_distance",
    "doubtful_width",
    "noise_of_members",
    "curvature_share",
    "widening",
    "widening_by_noise",
    "surrogate_error",
    "surrogate_error_noise_std",
)


def labelled(name: str, label: str) -> str:
    """Return the published form of a name: with its step's label if a run has several steps, such as ``gradient_2``."""
    return f"{name}_{label}" if label else name


def clip_fraction_name(kind: str, label: str) -> str:
    """Return the name of the statistic for the share of clipped units in a step's releases of a kind."""
    return f"clip_fraction_{labelled(kind, label)}"


def noise_std_of(name: str) -> str:
    """Return the name of the statistic for the noise's standard deviation in another one."""
    return f"{name}_noise_std"
