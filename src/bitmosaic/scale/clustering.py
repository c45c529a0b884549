"""Packed codes on a cluster -> clusters: `bitmosaic.solver.clustering`, the codes of each part staying where they are.

In each round the centers travel to the workers, and the sizes of the clusters and the sums of their bits back.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from bitmosaic.codes import cluster_bit_sums, nearest_centers, pack
from bitmosaic.pruning import Assignment, assign_codes
from bitmosaic.scale.parts import Column
from bitmosaic.solver.clustering import Problem, Step, change_of_sums, farthest_distinct, plain_if_equal
from bitmosaic.solver.sums import Sums

FEW_SUMS = 8192  # of bits of clusters: so few may stay beside the labels of a part, which saves a task

# Steps that build on the one before. The scheduler remembers them all, and a worker that dies has them done again.
CHAIN = 8


@dataclass(frozen=True)
class ClusterStep(Step):
    """As on one machine; `nearest` is a column of assignments, in which the labels are."""

    n_before: int = 0  # steps that it was computed from

    @property
    def labels(self):
        return self.nearest


@dataclass(frozen=True)
class ClusterProblem(Problem):
    """A column of codes. A column of labels has an array or an assignment for each part, or that and its sums."""

    codes: Column

    @property
    def parts(self):
        return self.codes.parts

    def take(self, rows):
        return self.parts.take(self.codes, rows)

    def sums(self, labels, n_clusters):
        const = self.parts.send(n_clusters)
        parts = self.parts.map("sums", sums_part, const, self.codes, labels)
        return self.parts.total("sums", parts, self.codes.homes)[0]

    def step(self, Q, bit_weights, last=None, labels=None, S=None):
        if last is not None and last.n_before == CHAIN:
            new = self.step(Q, bit_weights)
            if labels is None:
                return new
            moved = self.parts.map("moved", moved_part, None, new.labels, labels)
            return replace(new, n_moved=int(self.parts.total("moved", moved, self.codes.homes)[0]))
        const, nothing = self.parts.send((pack(Q), plain_if_equal(bit_weights))), [None] * len(self.parts)
        before = nothing if last is None else last.nearest
        outs = self.parts.map("assign", step_part, const, self.codes, before, nothing if labels is None else labels)
        if Q.size > FEW_SUMS:
            nearest, total = self.parts.kept("assign", outs, self.codes.homes)
        else:
            nearest = Column(self.parts, list(outs), self.codes.homes)
            total = self.parts.total("assign", outs, self.codes.homes)
        sizes, change, n_moved = total
        n_before = 0 if last is None else last.n_before + 1
        return ClusterStep(nearest, sizes, change if S is None else S + change, int(n_moved), n_before)

    def labels_with(self, Q, rows, values):
        const, wheres = self.parts.send((pack(Q), plain_if_equal(self.initial_weights))), self.parts.positions(rows)
        edges = np.cumsum([0, *map(len, wheres)])
        own = [values[a:b] for a, b in pairwise(edges)]
        futures = self.parts.map("labels", labels_part, const, self.codes, wheres, own)
        return Column(self.parts, futures, self.codes.homes)

    def farthest(self, nearest, count):
        firsts = self.parts.bounds[:-1].tolist()
        futures = self.parts.map("farthest", farthest_part, count, self.codes, nearest, firsts)
        found = self.parts.reduced("farthest-of-all", partial(farthest_of_all, count), futures, self.codes.homes)
        return found[2]


# ---- what workers do


def nearest_of(part):
    return part[0] if isinstance(part, tuple) else part


def labels_of(part):
    nearest = nearest_of(part)
    return nearest.labels if isinstance(nearest, Assignment) else nearest


def sums_part(const, codes, labels):
    sums = Sums()
    sums.add([cluster_bit_sums(codes, labels_of(labels), const.value)])
    return None, sums


def step_part(const, codes, before, labels):
    centers, bit_weights = const.value
    nearest, sums = assign_codes(codes, centers, bit_weights, before=nearest_of(before)), Sums()
    sizes, c = np.bincount(nearest.labels, minlength=len(centers)), len(centers)
    if labels is None:
        sums.add([sizes, cluster_bit_sums(codes, nearest.labels, c), len(codes)])
    else:
        old = labels_of(labels)
        moved = np.flatnonzero(nearest.labels != old)
        sums.add([sizes, change_of_sums(codes[moved], old[moved], nearest.labels[moved], c), len(moved)])
    return nearest, sums


def moved_part(const, labels, old):
    sums = Sums()
    sums.add([np.count_nonzero(labels_of(labels) != labels_of(old))])
    return None, sums


def labels_part(const, codes, where, values):
    labels = nearest_centers(codes, *const.value)[0]
    labels[where] = values
    return labels


def farthest_part(count, codes, nearest, first):
    """Of a part, what may be among the farthest of all: numbers of rows, distances and codes."""
    distances = nearest_of(nearest).distances
    rows = farthest_distinct(codes, distances, count)
    return first + rows, distances[rows], codes[rows]


def farthest_of_all(count, *parts):
    """The farthest of those of several parts. Of two that are equally far, the first row is taken."""
    rows, distances, codes = map(np.concatenate, zip(*(part for part in parts if part is not None), strict=True))
    order = np.argsort(rows)
    best = order[farthest_distinct(codes[order], distances[order], count)]
    return rows[best], distances[best], codes[best]
