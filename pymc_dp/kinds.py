"""Names in what is published: kinds of releases, what they do in a run, statistics of draws from a surrogate."""

from dataclasses import dataclass
from typing import Literal

#: Whether the clipping of a release moves the draws: it decides on moves, drives them (which biases the draws where
#: nothing decides), counts clipped units, or does neither.
Role = Literal["decides", "drives", "counts", "other"]


@dataclass(frozen=True)
class ReleaseKind:
    """A kind of release, by the name that releases and their accounting have for it."""

    name: str
    role: Role = "other"
    is_number: bool = False  # one release is a single number and not a vector


CLIP_COUNT = ReleaseKind("clip_count", "counts")
SCORE = ReleaseKind("score")
_KNOWN = {
    kind.name: kind
    for kind in (
        ReleaseKind("gradient", "drives"),
        ReleaseKind("log_ratio", "decides", is_number=True),
        ReleaseKind("residual", "decides", is_number=True),
        ReleaseKind("decision", "decides", is_number=True),
        ReleaseKind("clipping_loss", is_number=True),
        ReleaseKind("surrogate_check", is_number=True),
        ReleaseKind("bounded_score", is_number=True),
        ReleaseKind("unit_count", is_number=True),
        CLIP_COUNT,
        SCORE,
    )
}

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


def release_kind(name: str) -> ReleaseKind:
    """Return the kind of a name; without an entry here, it is a vector that decides nothing.

    A single number needs an entry: its values are published with shape (releases, 1) otherwise.
    """
    return _KNOWN.get(name, ReleaseKind(name))


def labelled(name: str, label: str) -> str:
    """Return a name as it is published: with its step's label where a run has several, such as ``gradient_2``."""
    return f"{name}_{label}" if label else name


def clip_fraction_name(kind: str, label: str) -> str:
    """Return the name of the statistic of the part of units that was clipped in a step's releases of a kind."""
    return f"clip_fraction_{labelled(kind, label)}"


def noise_std_of(name: str) -> str:
    """Return the name of the noise's standard deviation in what is published under a name."""
    return f"{name}_noise_std"
