"""Where the number of clusters is not given: the one whose clusters hold best for rows that did not make them.

Rows of the start's sample are halved at random. For each candidate number the one half is clustered (Ward's tree, then
k-means), the other half goes to the nearest means, and its silhouette says how good that is: on the angles of what the
views agree on, or in the plain views where clusters stand apart there, and more than in what the views agree on.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array

from bitmosaic.solver.start import PlainViews, agreed_directions, balanced, on_the_sphere, place

ROWS = 3000  # of each split, at most
SPLITS = 5
ROWS_PER_CLUSTER = 8  # at least, on average, so that each half has four
FEW_ROWS_PER_CLUSTER, FEW = 4, 12  # the same for small data, up to 12 clusters
DIRECTIONS = 64
AGREEMENT_EXPONENT = 0.75  # more than the start has: faint directions hold groups that are no clusters
STEP = 1.12  # between candidates
BETWEEN = 8  # candidates more on the way to the neighbours of the best
LLOYD_ITER = 4
SEPARATE = 0.5  # mean silhouette of squared distances from which on clusters stand apart
TOLERANCE = 0.03  # of the best silhouette, where the spread is less
ROUNDING = 1e-6  # of squared distances, where rows have length 1 or so
FAINT = 0.1  # above chance; noise reaches 0.06
NARROW = 1.5  # high / low of a range that leaves little doubt


@dataclass(frozen=True)
class ClusterCounts:
    """The numbers that were tried, how good each was, and what was chosen.

    `chance` is the silhouette where the rows of every column are shuffled, so that there are no clusters. The best
    candidate is taken among those clearly above it. Any number from `low` to `high` is about as good as `chosen`.
    """

    candidates: tuple[int, ...]
    silhouette: tuple[float, ...]  # of rows held out, mean over the splits
    spread: tuple[float, ...]  # standard deviation over the splits
    chance: tuple[float, ...]
    chosen: int
    low: int
    high: int
    separate: bool  # the clusters stand apart in the plain views

    @property
    def faint(self) -> bool:
        """Whether the clusters are so little better than chance that there may be none."""
        at = self.candidates.index(self.chosen)
        return self.silhouette[at] - self.chance[at] < FAINT

    @property
    def clear(self) -> bool:
        """Whether little else is plausible; never where the range ends with the candidates."""
        return (
            bool(self.candidates)
            and not self.faint
            and self.high <= NARROW * self.low
            and self.high < self.candidates[-1]
        )

    def __str__(self) -> str:
        if not self.candidates:
            return f"{self.chosen} (too few rows that differ to tell)"
        if self.low == self.high:
            others = ""
        elif self.high == self.candidates[-1]:
            others = f": {self.low} or more, with so few rows no more than {self.high} were tried"
        else:
            others = f": {self.low} to {self.high} are about as good"
        if self.faint:
            return f"{self.chosen} (a guess, clusters are hardly better than chance{others})"
        return f"{self.chosen} ({'clear' if self.clear else 'unclear'}{others})"

    def as_json(self):
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, facts):
        """What :meth:`as_json` gave, after JSON; ValueError if it is nothing of the kind."""
        tried = tuple(map(int, facts["candidates"]))
        columns = {name: tuple(map(float, facts[name])) for name in ("silhouette", "spread", "chance")}
        if any(len(column) != len(tried) for column in columns.values()):
            raise ValueError("candidates and their silhouettes differ in number")
        chosen, low, high = (int(facts[name]) for name in ("chosen", "low", "high"))
        if tried and chosen not in tried:
            raise ValueError(f"{chosen} clusters were not tried")
        if not 1 <= low <= chosen <= high:
            raise ValueError(f"{chosen} clusters are not in the range from {low} to {high}")
        return cls(tried, **columns, chosen=chosen, low=low, high=high, separate=bool(facts["separate"]))


def most_clusters(n_rows):
    """The largest candidate for a sample of so many rows."""
    n = min(n_rows, ROWS)
    return max(1, n // ROWS_PER_CLUSTER, min(n // FEW_ROWS_PER_CLUSTER, FEW))


def how_many(blocks, rows, consensus, rng):
    """ClusterCounts of the `rows` (positions in `blocks`); `consensus` is what :func:`start.find_consensus` says."""
    shares = consensus.shares
    views = PlainViews(blocks, rng)(rows)
    plain = np.hstack([scale * X for scale, X in zip(balanced(views, shares), views, strict=True)])
    del views
    complete = plain[~np.isnan(plain).any(1)]  # rows without some view have no say in it
    apart = best_count(complete, rng, separate=True) if stand_apart(complete, rng) else None
    del plain, complete
    directions = agreed_directions(
        consensus.gram, consensus.views, consensus.whiteners, shares, DIRECTIONS, rng, AGREEMENT_EXPONENT
    )
    agreed = best_count(on_the_sphere(place(blocks, rows, directions)), rng, separate=False)
    better = apart is not None and max(apart.silhouette) > max(agreed.silhouette, default=0)
    return apart if better else agreed


def candidates(most):
    """2, 3, … and from 13 on in steps of 12%, up to `most`."""
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
    nothing = ClusterCounts((), (), (), (), chosen=1, low=1, high=1, separate=separate)
    if not numbers:
        return nothing
    splits = [split(X, rng) for _ in range(SPLITS)]
    shuffled = split(rng.permuted(X, axis=0), rng)
    tried = {}  # number -> silhouettes, the last by chance

    def choose(numbers):
        tried.update({k: [held_out_silhouette(s, k) for s in [*splits, shuffled]] for k in numbers if k not in tried})
        return best_of({k: tried[k] for k in sorted(tried)}, separate)

    counts = choose(numbers)
    if max(counts.silhouette) <= 0:  # all rows are the same
        return nothing
    at = numbers.index(counts.chosen)
    around = numbers[max(at - 1, 0)], numbers[min(at + 1, len(numbers) - 1)]
    return choose(np.linspace(*around, BETWEEN + 2).round().astype(int).tolist())


def best_of(tried, separate):
    """ClusterCounts from number -> silhouettes of the splits and, last, of chance."""
    numbers, table = np.array(list(tried)), np.array(list(tried.values()))  # (q,) and (q, SPLITS + 1)
    mean, spread, chance = table[:, :-1].mean(1), table[:, :-1].std(1, ddof=1), table[:, -1]
    slack = max(np.sqrt(np.mean(spread**2)), TOLERANCE * mean.max())
    real = mean - chance > 2 * slack
    best = np.where(real | ~real.any(), mean, -np.inf).argmax()
    plausible = numbers[(mean >= mean[best] - slack) & (real | ~real.any())]
    return ClusterCounts(
        tuple(numbers.tolist()),
        tuple(mean.tolist()),
        tuple(spread.tolist()),
        tuple(chance.tolist()),
        chosen=int(numbers[best]),
        low=int(plausible.min()),
        high=int(plausible.max()),
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
