"""Loops over units: rows that move as one, some of them apart from each other, into clusters with room.

sizes (u,) i64: rows of each unit · links i32, the units from link_starts[u] on that u must be apart from · bars i32,
the clusters from bar_starts[u] on that u must not be in · load (c,) i64: rows of each cluster, in units or fixed · low,
high: rows that each cluster must have, and may have · free: rows that fill up what is lacking.
"""

import numpy as np

from bitmosaic.kernels import kernel

NOT_PLACED = np.int32(-1)


@kernel()
def lacking(load, low):
    """Rows that are lacking to `low` in all clusters."""
    total = np.int64(0)
    for j in range(len(load)):
        total += max(low - load[j], 0)
    return total


@kernel()
def place_in_order(order, sizes, link_starts, links, bar_starts, bars, costs, low, high, free, load, labels):
    """order (u,) i64, costs (u, c) f32 IN · load (c,) INOUT · labels (u,) i32 OUT: each unit in its turn goes where it
    is cheapest among the clusters that are left to it. Ties: lowest index. False: one found none, or rows lack."""
    c = len(load)
    closed = np.full(c, -1, np.int64)  # the last unit that must not go there
    labels[:] = NOT_PLACED
    for u in order:
        for k in range(bar_starts[u], bar_starts[u + 1]):
            closed[bars[k]] = u
        for k in range(link_starts[u], link_starts[u + 1]):
            if labels[links[k]] >= 0:
                closed[labels[links[k]]] = u
        best = -1
        for j in range(c):
            if closed[j] != u and load[j] + sizes[u] <= high and (best < 0 or costs[u, j] < costs[u, best]):
                best = j
        if best < 0:
            return False
        labels[u] = best
        load[best] += sizes[u]
    return lacking(load, low) <= free


@kernel()
def settle(sizes, link_starts, links, bar_starts, bars, costs, low, high, free, load, labels, max_passes):
    """labels (u,) i32, load (c,) INOUT, which meet everything: units go where they are cheaper, alone or while one that
    is in the way goes elsewhere, until nothing is gained. Returns the passes."""
    n_units, c = len(sizes), len(load)
    in_way, who = np.zeros(c, np.int64), np.full(c, -1, np.int64)
    short = lacking(load, low)
    limited = high < free + load.sum() or low > 0
    for done in range(max_passes):
        changed = False
        for u in range(n_units):
            a = labels[u]
            in_way[:] = 0
            for k in range(bar_starts[u], bar_starts[u + 1]):
                in_way[bars[k]] = 2
            for k in range(link_starts[u], link_starts[u + 1]):
                in_way[labels[links[k]]] += 1
                who[labels[links[k]]] = links[k]
            gain, to, other, other_to = 0.0, -1, -1, -1
            for b in range(c):
                saved = np.float64(costs[u, a]) - costs[u, b]
                if b == a or saved <= gain or in_way[b] > 1:
                    continue
                if in_way[b] == 0 and load[b] + sizes[u] <= high:
                    lacks = short - max(low - load[a], 0) + max(low - load[a] + sizes[u], 0)
                    lacks += max(low - load[b] - sizes[u], 0) - max(low - load[b], 0)
                    if not limited or lacks <= free:
                        gain, to, other = saved, b, -1
                    continue
                first, last = (who[b], who[b] + 1) if in_way[b] == 1 else (0, n_units if n_units <= 2000 else 0)
                for v in range(first, last):  # the one that it must be apart from, or any whose room it could have
                    if labels[v] != b or v == u or load[b] + sizes[u] - sizes[v] > high:
                        continue
                    for x in range(c):
                        more = np.float64(costs[v, x]) - costs[v, b]
                        if x == b or saved - more <= gain:
                            continue
                        apart = True
                        for k in range(bar_starts[v], bar_starts[v + 1]):
                            apart &= bars[k] != x
                        for k in range(link_starts[v], link_starts[v + 1]):
                            apart &= labels[links[k]] != x or links[k] == u
                        if not apart:
                            continue
                        if limited:
                            load[a] -= sizes[u]
                            load[b] += sizes[u] - sizes[v]
                            load[x] += sizes[v]
                            fits = load[x] <= high and lacking(load, low) <= free
                            load[a] += sizes[u]
                            load[b] -= sizes[u] - sizes[v]
                            load[x] -= sizes[v]
                            if not fits:
                                continue
                        gain, to, other, other_to = saved - more, b, v, x
            if gain > 1e-6 * (1.0 + abs(costs[u, a])) and to >= 0:
                changed = True
                labels[u] = to
                load[a] -= sizes[u]
                load[to] += sizes[u]
                if other >= 0:
                    labels[other] = other_to
                    load[to] -= sizes[other]
                    load[other_to] += sizes[other]
                short = lacking(load, low)
        if not changed:
            return done + 1
    return max_passes


@kernel()
def arrange(sizes, link_starts, links, bar_starts, bars, low, high, free, load, budget, labels, stuck):
    """labels (u,) i32 OUT: any arrangement that meets everything · stuck (u,) i64 OUT: how often a unit had no place.

    Depth first; next is the unit with the fewest clusters left, or the largest where clusters may be full. Clusters
    that nobody is in are all alike, so only one of them is tried. Returns 1 if found, 0 if there is none, -1 if
    `budget` looks at units were not enough."""
    n_units, c = len(sizes), len(load)
    closed = np.zeros((n_units, c), np.int32)  # how many reasons there are against a cluster
    left = np.full(n_units, c, np.int64)
    for u in range(n_units):
        for k in range(bar_starts[u], bar_starts[u + 1]):
            if closed[u, bars[k]] == 0:
                left[u] -= 1
            closed[u, bars[k]] += 1
    tight = high < free + load.sum() + sizes.sum()
    stack, tried = np.empty(n_units + 1, np.int64), np.full(n_units + 1, -1, np.int64)
    labels[:], stuck[:] = NOT_PLACED, 0
    remaining, depth, looks = sizes.sum() + free, 0, 0
    stack[0] = -1
    while depth < n_units:
        if stack[depth] < 0:
            looks += n_units
            best = -1
            for u in range(n_units):
                if labels[u] >= 0:
                    continue
                if left[u] == 0:
                    best = u
                    break
                if best < 0:
                    best = u
                elif tight and sizes[u] != sizes[best]:
                    best = u if sizes[u] > sizes[best] else best
                elif left[u] != left[best]:
                    best = u if left[u] < left[best] else best
                elif link_starts[u + 1] - link_starts[u] > link_starts[best + 1] - link_starts[best]:
                    best = u
            stack[depth], tried[depth] = best, -1
        u = stack[depth]
        untouched = False
        for j in range(tried[depth] + 1):
            untouched |= load[j] == 0
        to = -1
        for j in range(tried[depth] + 1, c):
            if closed[u, j] == 0 and load[j] + sizes[u] <= high and not (untouched and load[j] == 0):
                lacks = lacking(load, low) - max(low - load[j], 0) + max(low - load[j] - sizes[u], 0)
                if lacks <= remaining - sizes[u]:
                    to = j
                    break
            untouched |= load[j] == 0
        looks += c
        if to >= 0:
            labels[u], tried[depth] = to, to
            load[to] += sizes[u]
            remaining -= sizes[u]
            for k in range(link_starts[u], link_starts[u + 1]):
                closed[links[k], to] += 1
                if closed[links[k], to] == 1:
                    left[links[k]] -= 1
            depth += 1
            stack[depth] = -1
            continue
        if tried[depth] < 0:
            stuck[u] += 1
        depth -= 1
        if depth < 0:
            return 0
        if looks > budget:
            return -1
        u = stack[depth]
        j = labels[u]
        labels[u] = NOT_PLACED
        load[j] -= sizes[u]
        remaining += sizes[u]
        for k in range(link_starts[u], link_starts[u + 1]):
            closed[links[k], j] -= 1
            if closed[links[k], j] == 0:
                left[links[k]] += 1
    return 1 if lacking(load, low) <= free else 0
