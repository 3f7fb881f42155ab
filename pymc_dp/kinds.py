"""Names in what is published: kinds of releases, what they do in a run, statistics of draws from a surrogate."""

from collections.abc import Mapping
from typing import Literal

#: Whether the clipping of a release moves the draws: it decides on moves, drives them (which biases the draws where
#: nothing decides), counts clipped units, or does neither.
Role = Literal["decides", "drives", "counts", "other"]


CLIP_COUNT, SCORE = "clip_count", "score"
#: Kinds that are not listed do neither.
ROLES: Mapping[str, Role] = {
    "gradient": "drives",
    "log_ratio": "decides",
    "residual": "decides",
    "decision": "decides",
    CLIP_COUNT: "counts",
}
#: Kinds of which one release is a single number; the values of others are vectors.
NUMBERS = frozenset(
    ("log_ratio", "residual", "decision", "clipping_loss", "surrogate_check", "bounded_score", "unit_count")
)

#: What is known of the surrogate that draws come from, before the chains start: published with every draw.
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
    """Return a name as it is published: with its step's label where a run has several, such as ``gradient_2``."""
    return f"{name}_{label}" if label else name


def clip_fraction_name(kind: str, label: str) -> str:
    """Return the name of the statistic of the part of units that was clipped in a step's releases of a kind."""
    return f"clip_fraction_{labelled(kind, label)}"


def noise_std_of(name: str) -> str:
    """Return the name of the noise's standard deviation in what is published under a name."""
    return f"{name}_noise_std"
