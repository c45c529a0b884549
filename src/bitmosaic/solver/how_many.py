"""Where the number of clusters is not given: the one whose clusters hold best for rows that did not make them.

Rows of the start's sample are halved at random. For each candidate number the one half is clustered (Ward's tree, then
k-means), the other half goes to the nearest means, and its silhouette says how good that is. First in the plain views,
for clusters that stand apart; if none do, on the angles of what the views agree on.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array

from bitmosaic.solver.start import agreed_directions, on_the_sphere, place, plain_rows

ROWS = 3000  # of each split, at most
SPLITS = 5
ROWS_PER_CLUSTER = 8  # at least, on average, so that each half has four
FEW_ROWS_PER_CLUSTER, FEW = 4, 12  # the same for small data, up to 12 clusters
DIRECTIONS = 64
STEP = 1.12  # between candidates
BETWEEN = 8  # candidates more on the way to the neighbours of the best
LLOYD_ITER = 4
SEPARATE = 0.5  # mean silhouette of squared distances from which on clusters stand apart
TOLERANCE = 0.03  # of the best silhouette, where the spread is less
ROUNDING = 1e-6  # of squared distances, where rows have length 1 or so
NARROW = 1.5  # high / low of a range that leaves little doubt


@dataclass(frozen=True)
class ClusterCounts:
    """The numbers that were tried, how good each was, and what was chosen.

    Any number from `low` to `high` is about as good as `chosen`; `low` is 1 where the clusters are hardly better than
    those of the same columns shuffled, whose silhouette is `chance`.
    """

    candidates: tuple[int, ...]
    silhouette: tuple[float, ...]  # of rows held out, mean over the splits
    spread: tuple[float, ...]  # standard deviation over the splits
    chosen: int
    low: int
    high: int
    chance: float
    separate: bool  # the clusters stand apart in the plain views

    @property
    def clear(self) -> bool:
        """Whether little else is plausible; never where the range ends with the candidates."""
        return bool(self.candidates) and self.high <= NARROW * self.low and self.high < self.candidates[-1]

    def __str__(self) -> str:
        if not self.candidates:
            return f"{self.chosen} (too few rows that differ to tell)"
        if self.low == 1:
            return f"{self.chosen} (a guess: hardly better than chance, there may be no clusters)"
        if self.high == self.candidates[-1]:
            return f"{self.chosen} (unclear: from {self.low} to the most that were tried, {self.high}, are about as good)"
        if self.low == self.high:
            return f"{self.chosen} (clear)"
        return f"{self.chosen} ({'clear' if self.clear else 'unclear'}: {self.low} to {self.high} are about as good)"

    def as_json(self):
        return asdict(self)

    @classmethod
    def from_json(cls, facts):
        """What :meth:`as_json` gave, after JSON; ValueError if it is nothing of the kind."""
        columns = {
            "candidates": tuple(map(int, facts["candidates"])),
            "silhouette": tuple(map(float, facts["silhouette"])),
            "spread": tuple(map(float, facts["spread"])),
        }
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("candidates and their silhouettes differ in number")
        chosen, low, high = (int(facts[name]) for name in ("chosen", "low", "high"))
        if not 1 <= low <= chosen <= high:
            raise ValueError(f"{chosen} clusters are not in the range from {low} to {high}")
        return cls(
            **columns,
            chosen=chosen,
            low=low,
            high=high,
            chance=float(facts["chance"]),
            separate=bool(facts["separate"]),
        )


def most_clusters(n_rows):
    """The largest candidate for a sample of so many rows."""
    n = min(n_rows, ROWS)
    return max(1, n // ROWS_PER_CLUSTER, min(n // FEW_ROWS_PER_CLUSTER, FEW))


def how_many(blocks, consensus, rng):
    """ClusterCounts of the rows of `blocks`; `consensus` is what :func:`start.find_consensus` says of them."""
    shares = consensus.shares
    plain = np.hstack([np.sqrt(s) * X for s, X in zip(shares, plain_rows(blocks, rng), strict=True)])
    complete = plain[~np.isnan(plain).any(1)]  # rows without some view have no say in it
    if stand_apart(complete, rng):
        return best_count(complete, rng, separate=True)
    del plain, complete
    directions = agreed_directions(consensus.gram, consensus.views, consensus.whiteners, shares, DIRECTIONS, rng)
    return best_count(on_the_sphere(place(blocks, directions)), rng, separate=False)


def candidates(most):
    """2, 3, … and from 10 on in steps of an eighth, up to `most`."""
    numbers = [2]
    while numbers[-1] < most:
        numbers.append(min(most, max(numbers[-1] + 1, round(STEP * numbers[-1]))))
    return numbers if most > 1 else []


def stand_apart(X, rng):
    """Whether some candidate has a silhouette of at least `SEPARATE` in the rows of X (n, k)."""
    numbers = candidates(most_clusters(len(X)))
    halves = split(X, rng) if numbers else []
    return any(held_out_silhouette(halves, k) >= SEPARATE for k in numbers)


def best_count(X, rng, separate):
    """The candidate with the best silhouette of held-out rows of X (n, k)."""
    numbers = candidates(most_clusters(len(X)))
    if not numbers:
        return ClusterCounts((), (), (), 1, 1, 1, 0.0, separate)
    splits = [split(X, rng) for _ in range(SPLITS)]
    values = {k: [held_out_silhouette(s, k) for s in splits] for k in numbers}
    best = max(numbers, key=lambda k: np.mean(values[k]))
    at = numbers.index(best)
    low, high = numbers[max(at - 1, 0)], numbers[min(at + 1, len(numbers) - 1)]
    for k in np.unique(np.linspace(low, high, BETWEEN + 2).round().astype(int)).tolist():
        if k not in values:
            values[k] = [held_out_silhouette(s, k) for s in splits]

    numbers = sorted(values)
    table = np.array([values[k] for k in numbers])  # (candidates, splits)
    mean, spread = table.mean(1), table.std(1, ddof=1)
    best = int(mean.argmax())
    if mean[best] <= 0:  # all rows are the same
        return ClusterCounts((), (), (), 1, 1, 1, 0.0, separate)
    typical = np.sqrt(np.mean(spread**2))
    slack = max(typical, TOLERANCE * mean[best])
    plausible = [k for k, value in zip(numbers, mean, strict=True) if value >= mean[best] - slack]
    chance = held_out_silhouette(split(rng.permuted(X, axis=0), rng), numbers[best])
    above_chance = mean[best] - chance > 2 * slack
    return ClusterCounts(
        tuple(numbers),
        tuple(mean.tolist()),
        tuple(spread.tolist()),
        chosen=numbers[best],
        low=min(plausible) if above_chance else 1,
        high=max(plausible),
        chance=chance,
        separate=separate,
    )


def split(X, rng):
    """Two halves of the rows, or of 3000 of them, each with its Ward tree."""
    rows = rng.permutation(len(X))[:ROWS]
    half = len(rows) // 2
    halves = X[rows[:half]], X[rows[half : 2 * half]]
    return [(half, linkage(half, "ward")) for half in halves]


def held_out_silhouette(halves, k):
    """The silhouette of each half among the k clusters of the other, averaged."""
    (A, tree_A), (B, tree_B) = halves
    return float(np.mean([silhouette_among(B, A, tree_A, k), silhouette_among(A, B, tree_B, k)]))


def silhouette_among(Q, P, tree, k):
    """Mean of (b - a)/max(a, b), a and b the mean squared distances of a row of Q to the members of its cluster of P
    and of the next one; its cluster is that of the nearest mean."""
    means, sizes, labels = means_of(P, fcluster(tree, k, "maxclust") - 1)
    for _ in range(LLOYD_ITER):
        old, labels = labels, nearest(P, means)
        means, sizes, labels = means_of(P, labels)
        if np.array_equal(old, labels):
            break
    if len(means) < 2:
        return 0.0
    own = nearest(Q, means)
    within = np.bincount(labels, np.einsum("ij,ij->i", P, P)) / sizes
    distances = np.einsum("ij,ij->i", Q, Q)[:, None] - 2 * Q @ means.T + within  # (n, k)
    a = np.take_along_axis(distances, own[:, None], 1)[:, 0]
    np.put_along_axis(distances, own[:, None], np.inf, 1)
    b = distances.min(1)
    larger = np.maximum(a, b)
    return float(np.mean(np.where(larger > ROUNDING, (b - a) / np.maximum(larger, ROUNDING), 0)))


def means_of(X, labels):
    """Means and sizes of the clusters that are not empty, and the labels numbered anew."""
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    n = len(X)
    indicators = csr_array((np.ones(n, X.dtype), (labels, np.arange(n))), shape=(len(sizes), n))
    return (indicators @ X) / sizes[:, None].astype(X.dtype), sizes, labels


def nearest(X, means):
    return (np.einsum("ij,ij->i", means, means) - 2 * X @ means.T).argmin(1)
