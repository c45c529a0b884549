"""Numba kernels for units: rows that move together, some of which exclude each other, into clusters with limited
capacity.

sizes (u,) i64: rows of each unit · links i32: from link_starts[u] on, the units that u must be separate from ·
forbidden i32: from forbidden_starts[u] on, the clusters that u must not be in · load (c,) i64: rows of each cluster, in
units or fixed · low, high: minimum and maximum number of rows of each cluster · free: unconstrained rows, which can
fill any cluster.
"""

import numpy as np

from bitmosaic.hamming.kernels import popcount
from bitmosaic.io.threads import kernel

UNASSIGNED = np.int32(-1)


@kernel()
def lacking(load, low):
    """Number of rows missing to reach `low` in all clusters."""
    total = np.int64(0)
    for j in range(len(load)):
        total += max(low - load[j], 0)
    return total


@kernel()
def assign_greedily(
    order, sizes, link_starts, links, forbidden_starts, forbidden, costs, low, high, free, load, labels
):
    """order (u,) i64, costs (u, c) f32 IN · load (c,) INOUT · labels (u,) i32 OUT: in this order, each unit goes to its
    cheapest allowed cluster. Ties: lowest index. Returns False if a unit has no allowed cluster or too few free rows
    remain to reach `low`."""
    c = len(load)
    closed = np.full(c, -1, np.int64)  # the last unit that may not use this cluster
    labels[:] = UNASSIGNED
    for u in order:
        for k in range(forbidden_starts[u], forbidden_starts[u + 1]):
            closed[forbidden[k]] = u
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
def improve_units(
    sizes, link_starts, links, forbidden_starts, forbidden, costs, low, high, free, load, labels, max_passes
):
    """labels (u,) i32, load (c,) INOUT, feasible before and after: local search that moves a unit to a cheaper cluster,
    alone or together with one unit that blocks it, until nothing improves. Returns the number of passes."""
    n_units, c = len(sizes), len(load)
    n_blockers, blocker = np.zeros(c, np.int64), np.full(c, -1, np.int64)
    short = lacking(load, low)
    limited = high < free + load.sum() or low > 0
    for done in range(max_passes):
        changed = False
        for u in range(n_units):
            a = labels[u]
            n_blockers[:] = 0
            for k in range(forbidden_starts[u], forbidden_starts[u + 1]):
                n_blockers[forbidden[k]] = 2
            for k in range(link_starts[u], link_starts[u + 1]):
                n_blockers[labels[links[k]]] += 1
                blocker[labels[links[k]]] = links[k]
            gain, to, other, other_to = 0.0, -1, -1, -1
            for b in range(c):
                saved = np.float64(costs[u, a]) - costs[u, b]
                if b == a or saved <= gain or n_blockers[b] > 1:
                    continue
                if n_blockers[b] == 0 and load[b] + sizes[u] <= high:
                    lacks = short - max(low - load[a], 0) + max(low - load[a] + sizes[u], 0)
                    lacks += max(low - load[b] - sizes[u], 0) - max(low - load[b], 0)
                    if not limited or lacks <= free:
                        gain, to, other = saved, b, -1
                    continue
                first, last = (
                    (blocker[b], blocker[b] + 1) if n_blockers[b] == 1 else (0, n_units if n_units <= 2000 else 0)
                )
                for v in range(first, last):  # the blocking unit, or any whose capacity u could take
                    if labels[v] != b or v == u or load[b] + sizes[u] - sizes[v] > high:
                        continue
                    for x in range(c):
                        more = np.float64(costs[v, x]) - costs[v, b]
                        if x == b or saved - more <= gain:
                            continue
                        apart = True
                        for k in range(forbidden_starts[v], forbidden_starts[v + 1]):
                            apart &= forbidden[k] != x
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


FAR = np.int32(2**30)


@kernel()
def distance(codes, centers, table, i, j):
    """Distance of code i to center j: i32, in bits or in the units of the table."""
    total = np.int32(0)
    if table.shape[0] == 0:
        for w in range(codes.shape[1]):
            total += np.int32(popcount(codes[i, w] ^ centers[j, w]))  # type: ignore[call-arg]
        return total
    for w in range(codes.shape[1]):
        word = codes[i, w]
        for half in range(min(16, table.shape[1] - 16 * w)):
            total += table[j, 16 * w + half, word & np.uint64(15)]
            word >>= np.uint64(4)
    return total


@kernel()
def nearest_priced(codes, centers, table, prices, labels):
    """prices (c,) i64 IN · labels (n,) i32 OUT: the lowest distance plus price. Ties: lowest index."""
    for i in range(codes.shape[0]):
        best, lowest = 0, np.int64(FAR)
        for j in range(centers.shape[0]):
            cost = distance(codes, centers, table, i, j) + prices[j]
            if cost < lowest:
                best, lowest = j, cost
        labels[i] = best


@kernel()
def build_members(labels, constrained, members, first, count):
    """labels (n,) i32, constrained (n,) bool IN · members, first (c + 1,), count (c,) i64 OUT: the unconstrained rows
    of each cluster, with free slots between clusters."""
    c = len(count)
    count[:] = 0
    for i in range(len(labels)):
        if not constrained[i]:
            count[labels[i]] += 1
    slack = (len(members) - count.sum()) // c
    first[0] = 0
    for j in range(c):
        first[j + 1] = first[j] + count[j] + slack
        count[j] = 0
    for i in range(len(labels)):
        if not constrained[i]:
            j = labels[i]
            members[first[j] + count[j]] = i
            count[j] += 1


@kernel()
def scan_cluster(codes, centers, table, members, first, count, a, shortest, ties):
    """shortest, ties (c, c) i32 INOUT: cost of the cheapest move from a to each other cluster, and how many rows attain
    it."""
    c = len(count)
    shortest[a, :], ties[a, :] = FAR, 0
    for m in range(first[a], first[a] + count[a]):
        i = members[m]
        own = distance(codes, centers, table, i, a)
        for b in range(c):
            gap = distance(codes, centers, table, i, b) - own
            if gap < shortest[a, b]:
                shortest[a, b], ties[a, b] = gap, 1
            elif gap == shortest[a, b]:
                ties[a, b] += 1
    shortest[a, a], ties[a, a] = FAR, 0


@kernel()
def scan_pair(codes, centers, table, members, first, count, a, b, shortest, ties):
    """As `scan_cluster`, for the move from a to b only."""
    low, many = FAR, 0
    for m in range(first[a], first[a] + count[a]):
        i = members[m]
        gap = distance(codes, centers, table, i, b) - distance(codes, centers, table, i, a)
        if gap < low:
            low, many = gap, 1
        elif gap == low:
            many += 1
    shortest[a, b], ties[a, b] = low, many


@kernel()
def move(codes, centers, table, members, first, count, a, b, amount, labels, constrained, shortest, ties, seen):
    """Move the `amount` rows of a that are cheapest to move to b, and update the table of moves. Where ties becomes 0,
    `shortest` is only a lower bound."""
    c, wanted = len(count), shortest[a, b]
    m = first[a] + count[a] - 1
    while amount > 0:
        i = members[m]
        own, other = distance(codes, centers, table, i, a), distance(codes, centers, table, i, b)
        if other - own == wanted:
            count[a] -= 1
            members[m] = members[first[a] + count[a]]
            labels[i] = b
            if first[b] + count[b] == first[b + 1]:
                build_members(labels, constrained, members, first, count)
                m = first[a] + count[a]
            else:
                members[first[b] + count[b]] = i
                count[b] += 1
            for x in range(c):
                far = distance(codes, centers, table, i, x)
                if seen[a] and x != a and far - own == shortest[a, x] and ties[a, x] > 0:
                    ties[a, x] -= 1
                if seen[b] and x != b and far - other <= shortest[b, x]:
                    ties[b, x] = ties[b, x] + 1 if far - other == shortest[b, x] else 1
                    shortest[b, x] = far - other
            amount -= 1
        m -= 1
    if count[a] == 0:
        shortest[a, :], ties[a, :] = FAR, 0


@kernel()
def raise_prices(
    codes, centers, table, members, first, count, low, high, flow, excess, prices, shortest, ties, seen, far
):
    """far (c + 1,) i64 OUT: lengths of the cheapest paths from clusters with excess rows, up to the nearest cluster
    that lacks rows · prices (c + 1,) i64 INOUT: updated so that this path has length zero. Returns False if there is no
    path."""
    c = len(count)
    done = np.zeros(c + 1, np.bool_)
    for v in range(c + 1):
        far[v] = 0 if excess[v] > 0 else np.int64(FAR)
    while True:
        v, reach = -1, np.int64(FAR)
        for u in range(c + 1):
            if not done[u] and far[u] < reach:
                v, reach = u, far[u]
        if v < 0:
            return False
        if excess[v] < 0:
            break
        done[v] = True
        if v == c:
            for b in range(c):
                if flow[b] > low[b]:
                    far[b] = min(far[b], reach + prices[b] - prices[c])
            continue
        if flow[v] < high[v]:
            far[c] = min(far[c], reach + prices[c] - prices[v])
        if count[v] == 0:
            continue
        if not seen[v]:
            scan_cluster(codes, centers, table, members, first, count, v, shortest, ties)
            seen[v] = True
        for b in range(c):
            if not done[b] and reach + shortest[v, b] + prices[b] - prices[v] < far[b]:
                if ties[v, b] == 0 and b != v:
                    scan_pair(codes, centers, table, members, first, count, v, b, shortest, ties)
                far[b] = min(far[b], reach + shortest[v, b] + prices[b] - prices[v])
    for u in range(c + 1):
        prices[u] -= min(far[u], reach)
    for u in range(c):
        prices[u] -= prices[c]
    prices[c] = 0
    return True


@kernel()
def capacity(codes, centers, table, members, first, count, low, high, flow, prices, shortest, ties, seen, a, b):
    """Number of rows that can move from a to b at zero reduced cost."""
    c = len(count)
    if a == c:
        return flow[b] - low[b] if prices[b] == prices[c] else 0
    if b == c:
        return high[a] - flow[a] if prices[a] == prices[c] else 0
    if a == b or count[a] == 0:
        return 0
    if not seen[a]:
        scan_cluster(codes, centers, table, members, first, count, a, shortest, ties)
        seen[a] = True
    if shortest[a, b] + prices[b] - prices[a] > 0:
        return 0
    if ties[a, b] == 0:
        scan_pair(codes, centers, table, members, first, count, a, b, shortest, ties)
        if shortest[a, b] + prices[b] - prices[a] > 0:
            return 0
    return np.int64(ties[a, b])


@kernel()
def meet_limits(codes, centers, table, constrained, low, high, members, first, count, labels, prices, shortest, ties):
    """labels (n,) i32 INOUT: the nearest under prices (c + 1,) i64 INOUT before; afterwards each cluster has between
    low and high (c,) i64 IN unconstrained rows, at the lowest cost. Returns False if that is impossible."""
    c = len(count)
    build_members(labels, constrained, members, first, count)
    seen = np.zeros(c, np.bool_)
    far, level, arc = np.empty(c + 1, np.int64), np.empty(c + 1, np.int64), np.empty(c + 1, np.int64)
    flow, excess = np.empty(c, np.int64), np.zeros(c + 1, np.int64)
    queue, path, capacities = np.empty(c + 1, np.int64), np.empty(c + 2, np.int64), np.empty(c + 2, np.int64)
    for j in range(c):  # a cluster with a price is at one of its limits
        flow[j] = high[j] if prices[j] > 0 else low[j] if prices[j] < 0 else min(max(count[j], low[j]), high[j])
        excess[j] = count[j] - flow[j]
        excess[c] -= excess[j]
    while excess.max() > 0:
        if not raise_prices(
            codes, centers, table, members, first, count, low, high, flow, excess, prices, shortest, ties, seen, far
        ):
            return False
        while True:  # augment along zero-length paths, the shortest first
            head, tail, reached = 0, 0, False
            level[:] = -1
            for v in range(c + 1):
                if excess[v] > 0:
                    level[v] = 0
                    queue[tail] = v
                    tail += 1
            while head < tail:
                a = queue[head]
                head += 1
                reached |= excess[a] < 0
                for b in range(c + 1):
                    if level[b] < 0 and capacity(
                        codes,
                        centers,
                        table,
                        members,
                        first,
                        count,
                        low,
                        high,
                        flow,
                        prices,
                        shortest,
                        ties,
                        seen,
                        a,
                        b,
                    ):
                        level[b] = level[a] + 1
                        queue[tail] = b
                        tail += 1
            if not reached:
                break
            arc[:] = 0
            for source in range(c + 1):
                depth = 0
                path[0] = source
                while excess[source] > 0 and depth >= 0:
                    a = path[depth]
                    if excess[a] < 0:
                        amount = min(excess[source], -excess[a])
                        for k in range(depth):
                            amount = min(amount, capacities[k])
                        for k in range(depth - 1, -1, -1):
                            x, y = path[k], path[k + 1]
                            if x == c:
                                flow[y] -= amount
                            elif y == c:
                                flow[x] += amount
                            else:
                                move(
                                    codes, centers, table, members, first, count, x, y, amount,
                                    labels, constrained, shortest, ties, seen,
                                )  # fmt: skip
                        excess[source] -= amount
                        excess[a] += amount
                        depth = 0
                        continue
                    found = np.int64(0)
                    while arc[a] <= c:
                        b = arc[a]
                        if level[b] == level[a] + 1:
                            found = capacity(
                                codes, centers, table, members, first, count, low, high, flow, prices,
                                shortest, ties, seen, a, b,
                            )  # fmt: skip
                            if found > 0:
                                break
                        arc[a] += 1
                    if found > 0:
                        capacities[depth] = found
                        depth += 1
                        path[depth] = arc[a]
                    else:
                        depth -= 1
                        if depth >= 0:
                            arc[path[depth]] += 1
    return True
