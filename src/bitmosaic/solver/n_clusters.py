"""Choose the number of clusters: the one whose clusters fit held-out rows best.

Rows of the sample for the start are split in halves at random. For each candidate number one half is clustered (Ward's
tree, then k-means), the other half is assigned to the nearest means, and its silhouette is the score. Scores use the
angles in the consensus space of the views, or the plain views if clusters are well separated there and score higher.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array

from bitmosaic.solver.proposals import agreed_rows, start_sample
from bitmosaic.solver.start import on_the_sphere

ROWS = 3000  # most rows per split
SPLITS = 5
ROWS_PER_CLUSTER = 8  # least mean size, so that each half has four
FEW_ROWS_PER_CLUSTER, FEW = 4, 12  # the same for small data, up to 12 clusters
DIRECTIONS = 64
AGREEMENT_EXPONENT = 0.75  # larger than in the start: weak directions hold groups that are not clusters
STEP = 1.12  # between candidates
BETWEEN = 8  # additional candidates around the best one
LLOYD_ITER = 4
SEPARATE = 0.5  # mean silhouette of squared distances from which clusters are well separated
TOLERANCE = 0.03  # fraction of the best silhouette, lower bound for the slack
ROUNDING = 1e-6  # of squared distances, for rows of length about 1
FAINT = 0.1  # above chance; noise reaches 0.06
NARROW = 1.5  # largest high / low of a clear choice


@dataclass(frozen=True)
class ClusterCounts:
    """The numbers of clusters that were tried, their scores, and the choice.

    `chance` is the silhouette after shuffling the rows of every column, which removes all clusters. The best candidate
    is taken among those clearly above it. Any number from `low` to `high` is about as good as `chosen`.
    """

    candidates: tuple[int, ...]
    silhouette: tuple[float, ...]  # of held-out rows, mean over the splits
    spread: tuple[float, ...]  # standard deviation over the splits
    chance: tuple[float, ...]
    chosen: int
    low: int
    high: int
    separate: bool  # whether clusters are well separated in the plain views

    @property
    def faint(self) -> bool:
        """Whether the clusters are barely better than chance, so that there may be none."""
        at = self.candidates.index(self.chosen)
        return self.silhouette[at] - self.chance[at] < FAINT

    @property
    def clear(self) -> bool:
        """Whether the plausible range is narrow; False if it includes the largest candidate."""
        return (
            bool(self.candidates)
            and not self.faint
            and self.high <= NARROW * self.low
            and self.high < self.candidates[-1]
        )

    def __str__(self) -> str:
        if not self.candidates:
            return f"{self.chosen} (too few distinct rows to tell)"
        if self.low == self.high:
            others = ""
        elif self.high == self.candidates[-1]:
            others = f": {self.low} or more; with this few rows at most {self.high} were tried"
        else:
            others = f": {self.low} to {self.high} are about as good"
        if self.faint:
            return f"{self.chosen} (a guess: clusters are hardly better than chance{others})"
        return f"{self.chosen} ({'clear' if self.clear else 'unclear'}{others})"

    def as_json(self):
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, facts):
        """The inverse of :meth:`as_json`, after JSON. Raises ValueError if the facts are invalid."""
        tried = tuple(map(int, facts["candidates"]))
        columns = {name: tuple(map(float, facts[name])) for name in ("silhouette", "spread", "chance")}
        if any(len(column) != len(tried) for column in columns.values()):
            raise ValueError("candidates and silhouettes must have the same length")
        chosen, low, high = (int(facts[name]) for name in ("chosen", "low", "high"))
        if tried and chosen not in tried:
            raise ValueError(f"chosen={chosen} is not among the candidates")
        if not 1 <= low <= chosen <= high:
            raise ValueError(f"chosen={chosen} is not in the range from {low} to {high}")
        return cls(tried, **columns, chosen=chosen, low=low, high=high, separate=bool(facts["separate"]))


def most_clusters(n_rows):
    """The largest candidate for a sample of `n_rows` rows."""
    n = min(n_rows, ROWS)
    return max(1, n // ROWS_PER_CLUSTER, min(n // FEW_ROWS_PER_CLUSTER, FEW))


def estimate_n_clusters(blocks, rows, consensus, rng):
    """ClusterCounts for the `rows` (positions in `blocks`); `consensus` is the result of
    :func:`start.find_consensus`."""
    sample = start_sample(blocks, rows, consensus)
    complete = np.all([X.any(1) for X in sample.plain], axis=0)  # rows that lack a view are left out
    plain = np.hstack(
        [np.float32(np.sqrt(share)) * X[complete] for share, X in zip(consensus.shares, sample.plain, strict=True)]
    )
    apart = best_count(plain, rng, separate=True) if are_separated(plain, rng) else None
    del plain
    agreed = best_count(
        on_the_sphere(agreed_rows(sample, consensus.shares, DIRECTIONS, AGREEMENT_EXPONENT)), rng, separate=False
    )
    better = apart is not None and max(apart.silhouette) > max(agreed.silhouette, default=0)
    return apart if better else agreed


def candidates(most):
    """2, 3, … and from 13 on in steps of 12%, up to `most`."""
    numbers = [2]
    while numbers[-1] < most:
        numbers.append(min(most, max(numbers[-1] + 1, round(STEP * numbers[-1]))))
    return numbers if most > 1 else []


def are_separated(X, rng):
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
    tried = {}  # number -> silhouettes, the last of shuffled rows

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
    """ClusterCounts from number -> silhouettes of the splits and, last, of the shuffled rows."""
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
    """Two halves of at most 3000 rows, each with its Ward tree."""
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
    and of the second nearest cluster; its cluster is the one with the nearest mean."""
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
    """Means and sizes of the nonempty clusters, and the labels renumbered."""
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    n = len(X)
    indicators = csr_array((np.ones(n, X.dtype), (labels, np.arange(n))), shape=(len(sizes), n))
    return (indicators @ X) / sizes[:, None].astype(X.dtype), sizes, labels


def nearest(X, means):
    return (np.einsum("ij,ij->i", means, means) - 2 * X @ means.T).argmin(1)
