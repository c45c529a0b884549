"""Algorithm 1: embeddings -> projections, codes, centroids, labels and view weights, updated alternately."""

import hashlib
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import zip_longest

import numpy as np

from bitmosaic.hamming import kernels
from bitmosaic.hamming.codes import cluster_bit_sums, pack, unpack
from bitmosaic.io.threads import row_ranges
from bitmosaic.solver import steps
from bitmosaic.solver.clustering import Clustering, refine
from bitmosaic.solver.constrained.clustering import best_seeding, with_rules

# ---- State that a checkpoint saves so that another process can resume a fit: the loop between two iterations, and
# codes.
#
# The work before the loop is repeated on resume. It is deterministic to the last bit, and its signature shows whether
# a checkpoint belongs to these data and parameters.


LARGEST_SIMILARITY, LARGEST_WEIGHT = 1e3, 1e12  # far above any value of a real fit, far below overflow


class NoCheckpoint:
    """Default checkpoint: starts from the beginning and saves nothing. Also documents the interface."""

    enabled = False  # whether codes are computed and saved in parts

    def resume(self, signature, rng):
        """Return the LoopState to resume from, with `rng` restored, or None.

        ``signature()`` identifies everything computed before the loop.
        """

    def save(self, state):
        """Save the arrays and facts that ``state()`` returns, if enough time has passed."""

    def read_codes(self, codes):
        """Read the saved codes of the first rows into `codes` and return their number."""
        return 0

    def save_codes(self, codes):
        """Append the codes of the next rows."""

    def error(self, what):
        """The error to raise for invalid saved data."""


NO_CHECKPOINT = NoCheckpoint()


@dataclass(frozen=True)
class LoopState:
    """Algorithm 1 between two iterations."""

    codes: np.ndarray
    ZtBs: list[np.ndarray]
    clustering: Clustering
    alpha: np.ndarray
    history: list[tuple[int, str, float]]
    n_iter: int
    before: float  # objective of the last iteration
    converged: bool

    def to_arrays(self, rng):
        """Arrays and JSON-compatible facts, for a file."""
        c = self.clustering
        arrays = {"codes": self.codes, "labels": c.labels, "centers": pack(c.Q), "S": c.S, "alpha": self.alpha}
        arrays |= {"bit_weights": c.bit_weights} | {f"ZtB{v}": ZtB for v, ZtB in enumerate(self.ZtBs)}
        if c.sizes is not None:
            arrays["sizes"] = c.sizes
        facts = {
            "history": [list(entry) for entry in self.history],
            "n_iter": self.n_iter,
            "before": None if np.isinf(self.before) else self.before,
            "converged": bool(self.converged),
            "clustering": [c.objective, c.n_iter, bool(c.converged)],
            "random": rng.bit_generator.state,
        }
        return arrays, facts

    @classmethod
    def from_arrays(cls, arrays, facts, rng):
        """The state; restores `rng` as well."""
        objective, rounds, settled = facts["clustering"]
        Q = unpack(arrays["centers"]).astype(np.int8)
        clustering = Clustering(
            Q, arrays["labels"], arrays["S"], arrays.get("sizes"), arrays["bit_weights"], objective, rounds, settled
        )
        rng.bit_generator.state = facts["random"]
        return cls(
            codes=arrays["codes"],
            ZtBs=[arrays[f"ZtB{v}"] for v in range(sum(name.startswith("ZtB") for name in arrays))],
            clustering=clustering,
            alpha=arrays["alpha"],
            history=[(int(i), step, value) for i, step, value in facts["history"]],
            n_iter=facts["n_iter"],
            before=np.inf if facts["before"] is None else facts["before"],
            converged=facts["converged"],
        )

    def fits(self, n_rows, s, widths):
        """Whether shapes, types and values are possible for a fit of `n_rows` rows with `widths` anchors per view."""
        return self._arrays_fit(n_rows, s, widths) and self._values_fit(n_rows, s)

    def _arrays_fit(self, n_rows, s, widths):
        c, K = s.n_clusters, s.K
        most = LARGEST_SIMILARITY * n_rows
        expected = [
            (self.codes, np.uint8, (n_rows, K // 8), 255),
            (self.clustering.labels, np.int32, (n_rows,), c - 1),
            (self.clustering.Q, np.int8, (c, K), 1),
            (self.clustering.S, np.int64, (c, K), n_rows),
            (self.clustering.bit_weights, np.float64, (K,), LARGEST_WEIGHT),
            (self.alpha, np.float64, (len(widths),), LARGEST_WEIGHT),
            *([] if self.clustering.sizes is None else [(self.clustering.sizes, np.int64, (c,), n_rows)]),
            *((ZtB, np.float64, (width, K), most) for ZtB, width in zip_longest(self.ZtBs, widths)),
        ]
        return all(
            array is not None
            and (array.dtype, array.shape) == (kind, shape)
            and (-largest <= array.min() and array.max() <= largest)  # false for NaN
            for array, kind, shape, largest in expected
        )

    def _values_fit(self, n_rows, s):
        c = self.clustering
        numbers = [c.objective, *(value for _, _, value in self.history)]
        counts = [self.n_iter, c.n_iter, *(number for number, _, _ in self.history)]
        return (
            c.labels.min() >= 0
            and self.alpha.min() >= 0
            and abs(self.alpha.sum() - 1) < 1e-6
            and c.bit_weights.min() >= 0
            and (c.sizes is None or (c.sizes.min() >= 0 and c.sizes.sum() == n_rows))
            and all(type(value) in (int, float) and abs(value) < 1e38 for value in numbers)
            and (self.before == np.inf or self.before == numbers[-1])
            and all(type(count) is int and count >= 0 for count in counts)
            and all(isinstance(step, str) for _, step, _ in self.history)
            and 0 < self.n_iter <= s.max_iter
        )


def signature(settings, grams, n_present, start, start_rows, rng):
    """A hash of everything that determines the loop. The data enter through the products of all similarities."""
    digest = hashlib.sha256(repr((astuple(settings), rng.bit_generator.state)).encode())
    for array in (*grams, n_present, *start.projections, start.labels, start_rows):
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


FEW_FLIPS = 0.08  # fraction of the bits of a block up to which adding single rows beats a matrix product
CHECKED_BLOCKS = 16  # blocks of saved codes that are recomputed to verify that they belong to these data
PART_BLOCKS = 256  # blocks per saved part of the codes
LOWEST_LOSS = 1e-3  # mean loss per bit, lower bound for the view weights


@dataclass(frozen=True)
class Settings:
    """The parameters of the objective and of the loop, in the paper's symbols."""

    n_clusters: int
    K: int  # bits
    K_S: int  # shared bits, the first ones
    ridge: float  # λ1
    variance_reward: float  # λ2/N
    coupling: float  # λ3; 0 learns the codes first and the clusters afterwards (HSIC-TS)
    balance: float  # ν
    norm: steps.L21 | steps.Frobenius
    exponent: float  # r
    max_iter: int  # t
    cluster_iter: int  # κ
    n_init: int
    tol: float
    rotate: bool = False  # one fused view, whose projection is a rotation; λ1 = λ2 = 0


@dataclass(frozen=True)
class Learned:
    """The result of Algorithm 1 on the training rows."""

    Ps: list[np.ndarray]  # (l, K) for each view
    weights: np.ndarray  # (m,) w_v = α_v^r · N/N_v
    view_weights: np.ndarray  # (m,) α_v, sum 1
    clustering: Clustering
    codes: np.ndarray  # (n, K/8) uint8, of the training rows
    history: list[tuple[int, str, float]]  # (iteration, step, objective)
    n_iter: int
    converged: bool


def learn(
    blocks,
    grams,
    n_present,
    start,
    start_rows,
    settings,
    rng,
    report: Callable[[int, float, float | None], None],
    checkpoint=NO_CHECKPOINT,
    rules=None,
    known=None,
):
    """Run Algorithm 1 on the training rows in `blocks`.

    grams: Z_vᵀZ_v of each view · n_present (m,): number of rows that have each view · start_rows: the rows of
    `start.labels` · report(iteration, objective, fraction of changed bits): called after each iteration, and once with
    None when resuming · checkpoint: saves the state between iterations, and may provide one to resume from · rules:
    constraints on the labels · known (n,): first labels, -1 where unknown, for a start without labels.
    """
    s, n = settings, blocks.n_rows
    factors = [] if s.rotate else [steps.regularized_factor(G, s.ridge, s.variance_reward) for G in grams]
    fairness = n / n_present  # compare views by mean loss, whatever number of rows has them
    state = checkpoint.resume(lambda: signature(s, grams, n_present, start, start_rows, rng), rng)
    if state is None:
        state = first_state(blocks, start, start_rows, s, rng, rules, known)
    elif state.fits(n, s, [len(G) for G in grams]):
        report(state.n_iter, state.before, None)
    else:
        raise checkpoint.error("other arrays or values than this fit expects")
    codes, ZtBs, clustering, alpha = state.codes, state.ZtBs, state.clustering, state.alpha
    history, n_iter, before, converged = state.history, state.n_iter, state.before, state.converged
    del state
    problem = with_rules(rules, blocks.problem(codes, s.norm, s.balance))
    weights = alpha**s.exponent * fairness

    def note(step, coding, grouping):
        history.append((n_iter, step, coding + s.coupling * grouping))

    def new_projections():
        Ps = projections(grams, factors, ZtBs, weights, s)
        costs = [steps.projection_cost(G, P, s.ridge, s.variance_reward) for G, P in zip(grams, Ps, strict=True)]
        note("P", weights @ losses(Ps, costs), clustering.objective)
        return Ps, costs

    def losses(Ps, costs):
        views = zip(n_present, Ps, ZtBs, costs, strict=True)
        return np.array([steps.view_loss(n_v, s.K, P, ZtB, cost) for n_v, P, ZtB, cost in views])

    while not converged and n_iter < s.max_iter:
        n_iter += 1
        Ps, costs = new_projections()

        codes, flips = new_codes(blocks, codes, ZtBs, Ps, weights, clustering_pull(problem, clustering, s))
        problem = with_rules(rules, blocks.problem(codes, s.norm, s.balance))
        h = losses(Ps, costs)
        coding = weights @ h
        S = problem.sums(clustering.labels, s.n_clusters)
        note("B", coding, problem.objective(S, clustering.Q))

        if s.coupling > 0:
            on_step = partial(lambda step, grouping, coding: note(step, coding, grouping), coding=coding)
            clustering = refine(problem, clustering.Q, s.cluster_iter, on_step, clustering.labels, S)
        else:
            clustering = replace(clustering, S=S)

        alpha = steps.view_weights(h * fairness, s.exponent, LOWEST_LOSS * n * s.K)
        weights = alpha**s.exponent * fairness
        note("α", weights @ h, clustering.objective)

        objective = history[-1][2]
        converged = flips == 0 or before - objective <= s.tol * abs(objective)
        before = objective
        report(n_iter, objective, flips / (n * s.K))
        state = LoopState(codes, ZtBs, clustering, alpha, history, n_iter, before, converged)
        checkpoint.save(partial(state.to_arrays, rng))

    Ps, _ = new_projections()
    return Learned(Ps, weights, alpha, clustering, codes, history, n_iter, converged)


def first_state(blocks, start, start_rows, s, rng, rules=None, known=None):
    """Codes from the projections of the start, and their clusters."""
    m = len(blocks.embeddings)
    codes = blocks.constant(np.zeros(s.K // 8, np.uint8))
    ZtBs = [-np.outer(total, np.ones(s.K)) for total in blocks.totals()]  # for codes that are all -1
    codes, _ = new_codes(blocks, codes, ZtBs, start.projections, np.ones(m))
    problem = with_rules(rules, blocks.problem(codes, s.norm, s.balance))
    clustering = first_clusters(problem, start, start_rows, s, rng, known)
    return LoopState(codes, ZtBs, clustering, np.full(m, 1 / m), [], 0, np.inf, False)


def projections(grams, factors, ZtBs, weights, s):
    """P_v = [P_S, P_I_v] for every view: (l, K) float64    [eq. 12, 13]; or the rotation of one fused view"""
    if s.rotate:
        return [steps.rotation(ZtBs[0])]
    P_Is = [steps.individual_projection(F, ZtB[:, s.K_S :]) for F, ZtB in zip(factors, ZtBs, strict=True)]
    if s.K_S == 0:
        return P_Is
    P_S = steps.shared_projection(grams, [ZtB[:, : s.K_S] for ZtB in ZtBs], weights, s.ridge, s.variance_reward)
    return [np.hstack([P_S, P_I]) for P_I in P_Is]


def clustering_pull(problem, clustering, s):
    """λ3 Q D (c, K) and the labels: the pull of the clusters on each bit. None if clusters are learned afterwards."""
    if s.coupling == 0:
        return None
    d = problem.weights(clustering.S, clustering.Q)
    return steps.centroid_pull(clustering.Q, d, s.coupling), clustering.labels


def new_codes(blocks, codes, ZtBs, Ps, weights, pull=None):
    """B = sgn(Σ w_v Z_v P_v + λ3 Q[labels] D) to replace `codes`, and the number of changed bits    [eq. 18]

    The same pass updates Z_vᵀB (l, K) float64 of every view in `ZtBs`.
    """
    pulls, labels = (None, ()) if pull is None else ((pull[0] / weights.max()).astype(np.float32), (pull[1],))
    work = partial(code_block, [P.astype(np.float32) for P in Ps], weights, pulls)
    codes, (*changes, flips) = blocks.run(work, codes, *labels)
    for ZtB, change in zip(ZtBs, changes, strict=True):
        ZtB += change
    return codes, int(flips)


def code_block(Ps, weights, pulls, Zs, old, labels=None):
    """New codes of a block, the changes of Z_vᵀB and the number of flipped bits. pulls (c, K) are scaled as in
    `vote`."""
    R = steps.vote(Zs, Ps, weights)
    if pulls is not None:
        R += pulls[labels]
    new = pack(R)
    flips = int(np.bitwise_count(old ^ new).sum())
    return new, [*(change_of_products(Z, old, new, flips) for Z in Zs), flips]


def change_of_products(Z, old, new, flips):
    """Zᵀ(new - old) (l, K) float32 of packed codes. With few flipped bits, only their rows are added."""
    if flips > FEW_FLIPS * 8 * new.size:
        return Z.T @ (unpack(new) - unpack(old))
    change = np.zeros((8 * new.shape[1], Z.shape[1]), np.float32)
    kernels.add_flipped(Z, old, new, change)
    return change.T


def encode(blocks, Ps, weights, checkpoint=NO_CHECKPOINT):
    """b = sgn(Σ_{v present} w_v ψ(x_v) P_v) for every row: packed codes, the same for training and new images."""
    work = partial(encoded_block, Ps, weights)
    if not checkpoint.enabled:
        return blocks.run(work)[0]
    codes = np.empty((blocks.n_rows, Ps[0].shape[1] // 8), np.uint8)
    n_saved = checkpoint.read_codes(codes)
    some = np.linspace(0, -(-n_saved // blocks.step), CHECKED_BLOCKS, endpoint=False).astype(int)
    for number in np.unique(some) if n_saved else ():
        positions = np.arange(number * blocks.step, min((number + 1) * blocks.step, n_saved))
        if not np.array_equal(blocks.run_some(work, positions)[0], codes[positions]):
            raise checkpoint.error("codes of other data")
    for rows in row_ranges(blocks.n_rows - n_saved, PART_BLOCKS * blocks.step):
        positions = np.arange(n_saved + rows.start, n_saved + rows.stop)
        codes[positions] = blocks.run_some(work, positions)[0]
        checkpoint.save_codes(codes[positions])
    return codes


def encoded_block(Ps, weights, Zs):
    return pack(steps.vote(Zs, Ps, weights)), []


def first_clusters(problem, start, start_rows, s, rng, known=None):
    """Clusters of the first codes: those of the start, extended to other rows by the nearest centroid; or the best
    seeding."""
    if start.labels is None:
        n_init = s.n_init if s.coupling > 0 else 1  # without coupling, clusters are learned from the final codes
        return best_seeding(problem, s.n_clusters, n_init, s.cluster_iter, rng, known)
    start_labels = start.labels.astype(np.int32)
    S = cluster_bit_sums(problem.take(start_rows), start_labels, s.n_clusters)
    Q = np.where(S >= 0, 1, -1).astype(np.int8)
    return refine(problem, Q, 0, labels=problem.labels_with(Q, start_rows, start_labels))
