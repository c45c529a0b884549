"""Numba kernels of the colour features: serial, GIL released, compiled on first use; the caller allocates."""

from bitmosaic.kernels import kernel


@kernel()
def block_moments(planes, rows, columns, out):
    """planes (3, b, h, w) f32 IN · rows, columns (g, 2) i64 IN: first and end · out (b, g, g, 3, 3) f32 OUT.

    Columns are added in pairs from the outside in: sums commute, so a mirrored block gives the same bits.
    """
    for channel in range(planes.shape[0]):
        for i in range(planes.shape[1]):
            plane = planes[channel, i]
            for row in range(rows.shape[0]):
                top, bottom = rows[row]
                for column in range(columns.shape[0]):
                    left, right = columns[column]
                    half = (right - left) // 2
                    odd = right - left > 2 * half
                    count = (bottom - top) * (right - left)

                    total = 0.0
                    for y in range(top, bottom):
                        for k in range(half):
                            total += float(plane[y, left + k]) + float(plane[y, right - 1 - k])
                        if odd:
                            total += plane[y, left + half]
                    mean = total / count

                    squares, cubes = 0.0, 0.0
                    for y in range(top, bottom):
                        for k in range(half):
                            a, b = plane[y, left + k] - mean, plane[y, right - 1 - k] - mean
                            squares += a * a + b * b
                            cubes += a * a * a + b * b * b
                        if odd:
                            a = plane[y, left + half] - mean
                            squares += a * a
                            cubes += a * a * a

                    root = (abs(cubes) / count) ** (1 / 3)
                    out[i, row, column, channel, 0] = mean
                    out[i, row, column, channel, 1] = (squares / count) ** 0.5
                    out[i, row, column, channel, 2] = root if cubes > 0 else -root


@kernel()
def auto_correlogram(colours, distances, same, out):
    """colours (b, h, w) u8 IN · distances (r,) i64 IN · same (h, w) u32 SCRATCH · out (b, c, r) f32 OUT.

    A pair of pixels is compared once, from the one above (or left of) the other, and counts for both.
    """
    h, w = same.shape
    for i in range(colours.shape[0]):
        for ring in range(distances.shape[0]):
            d = distances[ring]
            same[:] = 0
            for dy in range(min(d, h - 1) + 1):
                # The ring's lower half: its right corner column at dy = 0, both sides between, the whole last row.
                step = 1 if dy == d else 2 * d
                for dx in range(d if dy == 0 else -d, d + 1, step):
                    left, right = max(0, -dx), min(w, w - dx)
                    for y in range(h - dy):
                        upper, lower, row = colours[i, y], colours[i, y + dy], same[y]
                        for x in range(left, right):
                            row[x] += upper[x] == lower[x + dx]

            out[i, :, ring] = 0.0
            tally(colours[i], same, d, out[i, :, ring])


@kernel()
def tally(colours, same, d, out):
    """colours (h, w) u8 IN · same (h, w) u32 IN: equal pairs found from each pixel · d i64 IN · out (c,) f32 OUT."""
    h, w = colours.shape
    equal = [0] * out.shape[0]
    all_pairs = [0] * out.shape[0]
    for y in range(h):
        outer_h = min(h - 1, y + d) - max(0, y - d) + 1
        inner_h = min(h - 1, y + d - 1) - max(0, y - d + 1) + 1
        for x in range(w):
            outer_w = min(w - 1, x + d) - max(0, x - d) + 1
            inner_w = min(w - 1, x + d - 1) - max(0, x - d + 1) + 1
            colour = colours[y, x]
            equal[colour] += same[y, x]
            all_pairs[colour] += outer_h * outer_w - inner_h * inner_w
    for colour in range(out.shape[0]):
        if all_pairs[colour] > 0:
            out[colour] = 2 * equal[colour] / all_pairs[colour]
