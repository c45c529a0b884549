"""How well added pictures fit: the distance of each to its center against those of the pictures the fit learned from.

Ranked among the members of its cluster, a picture of the same kind may stand anywhere with the same chance: its rank,
as a share, is uniform from 0 to 1, and exceeds 0.95 in 5% of cases (docs/decisions/drift.md).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import betabinom

from bitmosaic.hsic_options import AUTO_TRAIN_SIZE
from bitmosaic.run import Run

BEYOND = 0.95  # of the members of a cluster are nearer to its center than what is called beyond
FEWEST, FEWEST_HOT = 100, 30  # pictures, below which nothing is decided; the same for one cluster
FEWEST_FITTED = 1000  # members to compare with: the codes of fewer fit those very pictures too well
EXCESS, EXCESS_HOT = 0.02, 0.10  # a share beyond that matters, above the 5% that are always there and the optimism
CERTAIN, CHANCE_HOT = 5.0, 1e-4  # standard errors; the chance that any of the clusters is called hot, and is not
MOST_HOT = 5  # clusters that are named


@dataclass(frozen=True)
class HotSpot:
    """A cluster whose added pictures are farther from its center than its members."""

    number: int
    pictures: int
    beyond: float


@dataclass(frozen=True)
class Drift:
    """How the pictures that were added since the last fit compare with those it learned from."""

    pictures: int
    median: float  # of their ranks; 0.5 where they fit as well
    beyond: float  # share of ranks above 0.95; 0.05 where they fit as well
    hot_spots: list[HotSpot]
    refit_due: bool
    reason: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.beyond:.1%} of {self.pictures:,} added pictures are farther from their center than 95% of its "
            f"members (5% would be usual; median rank {self.median:.2f}). {self.reason}"
        )


def drift_of(run: Run) -> Drift | None:
    """Of all pictures added since the last fit; None if there are none."""
    if not run.unlearned:
        return None
    labels, distances = (run.column(name)[run.n_fitted :] for name in ("labels", "distances"))
    return compare(run.fitted_column("labels"), run.fitted_column("distances"), labels, distances)


def compare(train_labels: Any, train_distances: Any, labels: np.ndarray, distances: np.ndarray) -> Drift:
    """The drift of added pictures, by their clusters and distances, against those of the fit."""
    low, high, sizes = ranks(train_labels, train_distances, labels, distances)
    beyond = np.clip((high - BEYOND) / (high - low), 0, 1)  # (n,) the chance that a rank drawn from its ties is beyond
    numbers, owners = np.unique(labels, return_inverse=True)
    counts, sums = np.bincount(owners), np.bincount(owners, beyond)  # (c,)
    members = np.zeros(len(numbers))
    members[owners] = sizes
    usual = 1 - BEYOND
    # Pictures of one cluster are compared with the same members: their chance differences add up.
    variances = usual * BEYOND * (counts + counts**2 / (members + 1))
    share = float(beyond.mean())
    median = float(np.median((low + high) / 2))
    certain = (sums.sum() - usual * len(labels)) / np.sqrt(variances.sum())
    shares, tried = sums / counts, counts >= FEWEST_HOT
    # How many of so many pictures are beyond, if they are as the members are: a beta-binomial number.
    chances = betabinom.sf(np.floor(sums) - 1, counts, usual * (members + 1), BEYOND * (members + 1))
    usual += optimism(len(train_labels))
    is_hot = tried & (shares - usual >= EXCESS_HOT) & (chances * max(tried.sum(), 1) < CHANCE_HOT)
    hottest = sorted(np.flatnonzero(is_hot), key=lambda i: (-shares[i], numbers[i]))
    hot = [HotSpot(int(numbers[i]), int(counts[i]), round(float(shares[i]), 4)) for i in hottest]
    due, reason = _decided(len(train_labels), len(labels), share - usual, float(certain), hot)
    return Drift(len(labels), round(median, 4), round(share, 4), hot, due, reason)


def optimism(n_fitted: int) -> float:
    """How much larger a share may be beyond because codes suit the pictures they were learned from, at most.

    As measured. Codes are learned from 20,000 pictures: the more others there are, the less these tell.
    """
    learned = min(n_fitted, AUTO_TRAIN_SIZE)
    return 2 / max(learned, 1) ** 0.5 * learned / max(n_fitted, 1)


def ranks(
    train_labels: Any, train_distances: Any, labels: np.ndarray, distances: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From where to where the rank of each picture may be, among the members of its cluster and itself, as shares.

    Distances are few, so many are equal: where a picture stands among its equals is left open. (n,), (n,), and how many
    members there are, (n,). Of a cluster without members, nothing is known: 0 to 1.
    """
    train_labels, train_distances = np.asarray(train_labels), np.asarray(train_distances)
    order = np.lexsort((train_distances, train_labels))
    sorted_labels, sorted_distances = train_labels[order], train_distances[order]
    low, high, sizes = (np.empty(len(labels)) for _ in range(3))
    for number in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == number)
        members = sorted_distances[slice(*np.searchsorted(sorted_labels, [number, number + 1]))]
        sizes[rows] = len(members)
        low[rows] = np.searchsorted(members, distances[rows], "left") / (len(members) + 1)
        high[rows] = (np.searchsorted(members, distances[rows], "right") + 1) / (len(members) + 1)
    return low, high, sizes


def _decided(n_fitted: int, n: int, excess: float, certain: float, hot: list[HotSpot]) -> tuple[bool, str]:
    if n < FEWEST:
        return False, f"That is too few to tell: {FEWEST} are needed."
    if n_fitted < FEWEST_FITTED:
        return False, f"The run was fitted on too few pictures to tell: {n_fitted:,}, and {FEWEST_FITTED:,} are needed."
    where = ", ".join(f"{spot.number} ({spot.beyond:.0%})" for spot in hot[:MOST_HOT])
    if excess >= EXCESS and certain >= CERTAIN:
        most = f", most of all in cluster {where}" if hot else ""
        return True, f"A refit is due: the added pictures are of another kind{most}."
    if hot:
        return True, f"A refit is due: in some clusters, the added pictures are of another kind: {where}."
    return False, "They fit: no refit is due."
