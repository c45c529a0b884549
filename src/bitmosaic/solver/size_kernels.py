"""Loops of the assignment under size limits: rows move along cheapest paths between clusters, many at a time.

The graph has a node for each cluster and one more, the outside, node c. An edge from a to b is as long as the cheapest
move of a member of a to b; the edge from a to the outside is there while a may grow, and the one back while it may
shrink. Prices of clusters keep every length at zero or more, so that each path of length zero is a cheapest one.

codes (n, w) u64 · centers (c, w) u64 · table (c, h, 16) i32, the cost of each half-byte, or (0, 0, 0) where every bit
counts 1 · members (≥ n,) i32: of cluster j, those from first[j] on, count[j] of them.
"""

import numpy as np

from bitmosaic.kernels import kernel, popcount

FAR = np.int32(2**30)


@kernel()
def distance(codes, centers, table, i, j):
    """Of code i to center j: i32, in bits or in the units of the table."""
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
    """prices (c,) i64 IN · labels (n,) i32 OUT: where distance and price together are lowest. Ties: lowest index."""
    for i in range(codes.shape[0]):
        best, lowest = 0, np.int64(FAR)
        for j in range(centers.shape[0]):
            cost = distance(codes, centers, table, i, j) + prices[j]
            if cost < lowest:
                best, lowest = j, cost
        labels[i] = best


@kernel()
def lay_out(labels, bound, members, first, count):
    """labels (n,) i32, bound (n,) bool IN · members, first (c + 1,), count (c,) i64 OUT: who is where, with room to
    grow between the clusters. Bound rows are left out."""
    c = len(count)
    count[:] = 0
    for i in range(len(labels)):
        if not bound[i]:
            count[labels[i]] += 1
    slack = (len(members) - count.sum()) // c
    first[0] = 0
    for j in range(c):
        first[j + 1] = first[j] + count[j] + slack
        count[j] = 0
    for i in range(len(labels)):
        if not bound[i]:
            j = labels[i]
            members[first[j] + count[j]] = i
            count[j] += 1


@kernel()
def look_at_all(codes, centers, table, members, first, count, a, shortest, ties):
    """shortest, ties (c, c) i32 INOUT: the cheapest move from a to each other cluster, and how many rows have it."""
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
def look_again(codes, centers, table, members, first, count, a, b, shortest, ties):
    """The same for one pair."""
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
def move(codes, centers, table, members, first, count, a, b, amount, labels, bound, shortest, ties, seen):
    """`amount` of the rows of a that are nearest to b go there. What is known of the edges follows: without a tie, a
    length is only the least it can be."""
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
                lay_out(labels, bound, members, first, count)
                m = first[a] + count[a]
            else:
                members[first[b] + count[b]] = i
                count[b] += 1
            for x in range(c):
                there = distance(codes, centers, table, i, x)
                if seen[a] and x != a and there - own == shortest[a, x] and ties[a, x] > 0:
                    ties[a, x] -= 1
                if seen[b] and x != b and there - other <= shortest[b, x]:
                    ties[b, x] = ties[b, x] + 1 if there - other == shortest[b, x] else 1
                    shortest[b, x] = there - other
            amount -= 1
        m -= 1
    if count[a] == 0:
        shortest[a, :], ties[a, :] = FAR, 0


@kernel()
def prices_up(codes, centers, table, members, first, count, low, high, flow, excess, prices, shortest, ties, seen, far):
    """Lengths of the cheapest paths from where there are too many rows, far (c + 1,) i64 OUT, up to the nearest place
    where there are too few; prices (c + 1,) i64 INOUT become such that this path has length zero. False: no path."""
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
            look_at_all(codes, centers, table, members, first, count, v, shortest, ties)
            seen[v] = True
        for b in range(c):
            if not done[b] and reach + shortest[v, b] + prices[b] - prices[v] < far[b]:
                if ties[v, b] == 0 and b != v:
                    look_again(codes, centers, table, members, first, count, v, b, shortest, ties)
                far[b] = min(far[b], reach + shortest[v, b] + prices[b] - prices[v])
    for u in range(c + 1):
        prices[u] -= min(far[u], reach)
    for u in range(c):
        prices[u] -= prices[c]
    prices[c] = 0
    return True


@kernel()
def room(codes, centers, table, members, first, count, low, high, flow, prices, shortest, ties, seen, a, b):
    """How many rows may go from a to b without any cost."""
    c = len(count)
    if a == c:
        return flow[b] - low[b] if prices[b] == prices[c] else 0
    if b == c:
        return high[a] - flow[a] if prices[a] == prices[c] else 0
    if a == b or count[a] == 0:
        return 0
    if not seen[a]:
        look_at_all(codes, centers, table, members, first, count, a, shortest, ties)
        seen[a] = True
    if shortest[a, b] + prices[b] - prices[a] > 0:
        return 0
    if ties[a, b] == 0:
        look_again(codes, centers, table, members, first, count, a, b, shortest, ties)
        if shortest[a, b] + prices[b] - prices[a] > 0:
            return 0
    return np.int64(ties[a, b])


@kernel()
def spread(codes, centers, table, bound, low, high, members, first, count, labels, prices, shortest, ties):
    """labels (n,) i32 INOUT, the nearest under prices (c + 1,) i64 INOUT: at the end between low and high (c,) i64 IN
    rows that are not bound are in each cluster, at the lowest cost. False: that cannot be."""
    c = len(count)
    lay_out(labels, bound, members, first, count)
    seen = np.zeros(c, np.bool_)
    far, level, arc = np.empty(c + 1, np.int64), np.empty(c + 1, np.int64), np.empty(c + 1, np.int64)
    flow, excess = np.empty(c, np.int64), np.zeros(c + 1, np.int64)
    queue, path, rooms = np.empty(c + 1, np.int64), np.empty(c + 2, np.int64), np.empty(c + 2, np.int64)
    for j in range(c):  # what has a price is full, or as empty as it may be
        flow[j] = high[j] if prices[j] > 0 else low[j] if prices[j] < 0 else min(max(count[j], low[j]), high[j])
        excess[j] = count[j] - flow[j]
        excess[c] -= excess[j]
    while excess.max() > 0:
        if not prices_up(
            codes, centers, table, members, first, count, low, high, flow, excess, prices, shortest, ties, seen, far
        ):
            return False
        while True:  # paths of length zero, the ones with the fewest edges first, until there are none
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
                    if level[b] < 0 and room(
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
                            amount = min(amount, rooms[k])
                        for k in range(depth - 1, -1, -1):
                            x, y = path[k], path[k + 1]
                            if x == c:
                                flow[y] -= amount
                            elif y == c:
                                flow[x] += amount
                            else:
                                move(
                                    codes, centers, table, members, first, count, x, y, amount,
                                    labels, bound, shortest, ties, seen,
                                )  # fmt: skip
                        excess[source] -= amount
                        excess[a] += amount
                        depth = 0
                        continue
                    found = np.int64(0)
                    while arc[a] <= c:
                        b = arc[a]
                        if level[b] == level[a] + 1:
                            found = room(
                                codes, centers, table, members, first, count, low, high, flow, prices,
                                shortest, ties, seen, a, b,
                            )  # fmt: skip
                            if found > 0:
                                break
                        arc[a] += 1
                    if found > 0:
                        rooms[depth] = found
                        depth += 1
                        path[depth] = arc[a]
                    else:
                        depth -= 1
                        if depth >= 0:
                            arc[path[depth]] += 1
    return True
