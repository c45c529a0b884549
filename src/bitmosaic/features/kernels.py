"""Numba kernels of LBP, HOG, GIST and the color features.

Each kernel is compiled on first use, cached on disk, releases the GIL and runs on the calling thread. The registry
splits the images into pieces and runs them in several threads. The caller allocates every output and work array. Sums
have one fixed order without contraction or re-association, so the features of an image do not depend on the batch.
Loops that should be vectorized use few arrays each, because the compiler must check at run time that they do not
overlap.
"""

import numpy as np

from bitmosaic.io.threads import kernel

f32 = np.float32

# arctan(a) / 2π ≈ a · p(a²) on [0, 1], to 2e-8 of a turn: a Chebyshev fit, highest power first.
TURN = tuple(map(f32, (-6.334e-4, 3.43561e-3, -8.83404e-3, 1.529797e-2, -2.211741e-2, 3.174224e-2, -5.304582e-2)))
TURN_FIRST = f32(0.15915483)


@kernel()
def mirror_maximum(features, partner, out):
    """features (n, d) f32 IN · partner (d,) i64 IN: index of feature j in the mirror image · out (n, d) f32 OUT."""
    for i in range(features.shape[0]):
        for j in range(features.shape[1]):
            here, there = features[i, j], features[i, partner[j]]
            out[i, j] = there if there > here else here


# ---- LBP


@kernel()
def pad_gray(image, gray):
    """image (h, w, 3) u8 IN · gray (h + 2, w + 2) u16 OUT: luminance × 256, the border repeated."""
    height, width = image.shape[0], image.shape[1]
    for y in range(height):
        row = gray[y + 1]
        for x in range(width):
            row[x + 1] = 77 * image[y, x, 0] + 150 * image[y, x, 1] + 29 * image[y, x, 2]
        row[0] = row[1]
        row[width + 1] = row[width]
    for x in range(width + 2):
        gray[0, x] = gray[1, x]
        gray[height + 1, x] = gray[height, x]


@kernel()
def lbp_codes(gray, codes):
    """gray (h + 2, w + 2) u16 IN · codes (h, w) u8 OUT: bit k is set where neighbor k is at least as light.

    Neighbor 0 lies to the right, the others follow counter-clockwise.
    """
    for y in range(codes.shape[0]):
        above, here, below, row = gray[y], gray[y + 1], gray[y + 2], codes[y]
        for x in range(codes.shape[1]):
            center = here[x + 1]
            code = np.uint16(here[x + 2] >= center)
            code |= np.uint16(above[x + 2] >= center) << np.uint16(1)
            code |= np.uint16(above[x + 1] >= center) << np.uint16(2)
            code |= np.uint16(above[x] >= center) << np.uint16(3)
            code |= np.uint16(here[x] >= center) << np.uint16(4)
            code |= np.uint16(below[x] >= center) << np.uint16(5)
            code |= np.uint16(below[x + 1] >= center) << np.uint16(6)
            code |= np.uint16(below[x + 2] >= center) << np.uint16(7)
            row[x] = code


@kernel()
def lbp_counts(images, bin_of_code, rows, columns, gray, codes, counts):
    """images (n, h, w, 3) u8 IN · bin_of_code (256,) u8 IN · rows, columns (g, 2) i64 IN: first and end pixel of a cell
    · gray (h + 2, w + 2) u16, codes (h, w) u8 WORK · counts (n, g, g, bins) i32 OUT."""
    for i in range(images.shape[0]):
        pad_gray(images[i], gray)
        lbp_codes(gray, codes)
        for a in range(rows.shape[0]):
            for b in range(columns.shape[0]):
                cell = counts[i, a, b]
                cell[:] = 0
                for y in range(rows[a, 0], rows[a, 1]):
                    for x in range(columns[b, 0], columns[b, 1]):
                        cell[bin_of_code[codes[y, x]]] += 1


# ---- HOG


@kernel()
def pad_channels(image, planes):
    """image (h, w, 3) u8 IN · planes (3, h + 2, w + 2) f32 OUT: the border repeated."""
    height, width = image.shape[0], image.shape[1]
    for channel in range(3):
        plane = planes[channel]
        for y in range(height):
            row = plane[y + 1]
            for x in range(width):
                row[x + 1] = image[y, x, channel]
            row[0] = row[1]
            row[width + 1] = row[width]
        for x in range(width + 2):
            plane[0, x] = plane[1, x]
            plane[height + 1, x] = plane[height, x]


@kernel()
def keep_stronger(plane, y, gradient):
    """plane (h + 2, w + 2) f32 IN · gradient (3, w) f32 INOUT: across, down, squared length. Ties keep the old value.

    The differences are integers, so the blend below is exact. A branch would often be mispredicted.
    """
    for x in range(gradient.shape[1]):
        gx, gy = plane[y + 1, x + 2] - plane[y + 1, x], plane[y + 2, x + 1] - plane[y, x + 1]
        length = gx * gx + gy * gy
        across, down, squared = gradient[0, x], gradient[1, x], gradient[2, x]
        stronger = f32(length > squared)
        gradient[0, x] = across + stronger * (gx - across)
        gradient[1, x] = down + stronger * (gy - down)
        gradient[2, x] = max(length, squared)


@kernel(error_model="numpy")
def orientation_votes(gradient, bins_per_turn, soft, bins, votes):
    """gradient (3, w) f32 IN · soft f32 IN: 1 shares a vote with the next bin, 0 does not ·
    bins (w,) i32 OUT · votes (2, w) f32 OUT: for the bin and for the next one."""
    across, down, squared = gradient[0], gradient[1], gradient[2]
    first, second = votes[0], votes[1]
    for x in range(across.shape[0]):
        gx, gy = across[x], down[x]
        steep = abs(gy) > abs(gx)
        long = abs(gy) if steep else abs(gx)
        short = abs(gx) if steep else abs(gy)
        ratio = short / (long if long > f32(0) else f32(1))
        square = ratio * ratio
        turn = TURN[0]
        for k in range(1, 7):
            turn = turn * square + TURN[k]
        turn = (turn * square + TURN_FIRST) * ratio
        turn = f32(0.25) - turn if steep else turn
        turn = f32(0.5) - turn if gx < f32(0) else turn
        turn = f32(1) - turn if gy < f32(0) else turn
        position = turn * bins_per_turn
        bin_ = np.int32(position)
        length = np.sqrt(squared[x])
        share = (position - f32(bin_)) * length * soft
        bins[x] = bin_
        first[x] = length - share
        second[x] = share


@kernel()
def gradient_votes(images, bins_per_turn, soft, planes, gradient, bins, votes):
    """images (n, h, w, 3) u8 IN · planes (3, h + 2, w + 2) f32, gradient (3, w) f32 WORK ·
    bins (n, h, w) i32 OUT · votes (n, h, 2, w) f32 OUT. A pixel's gradient is that of its strongest channel."""
    for i in range(images.shape[0]):
        pad_channels(images[i], planes)
        for y in range(images.shape[1]):
            gradient[:] = f32(0)
            for channel in range(3):
                keep_stronger(planes[channel], y, gradient)
            orientation_votes(gradient, bins_per_turn, soft, bins[i, y], votes[i, y])


@kernel()
def add_scaled(band, factor, cells, row):
    """band (g, s) f32 IN · cells (rows, g, s) f32 INOUT."""
    for b in range(band.shape[0]):
        for k in range(band.shape[1]):
            cells[row, b, k] += factor * band[b, k]


@kernel()
def cell_histograms(bins, votes, rows, columns, band, cells, out):
    """bins (n, h, w) i32, votes (n, h, 2, w) f32 IN · rows ((h,) i64, (h,) f32), columns ((w,) i64, (w,) f32) IN: a
    pixel's cell, counted from a margin cell 0, and the share of the next cell · band (g + 2, slots) f32,
    cells (g + 2, g + 2, slots) f32 WORK · out (n, g, g, o) f32 OUT: slot k belongs to orientation k mod o."""
    n_cells, n_orientations, n_slots = out.shape[1], out.shape[3], band.shape[1]
    for i in range(bins.shape[0]):
        cells[:] = f32(0)
        for y in range(bins.shape[1]):
            band[:] = f32(0)
            for x in range(bins.shape[2]):
                cell, share, bin_ = columns[0][x], columns[1][x], bins[i, y, x]
                first, second = votes[i, y, 0, x], votes[i, y, 1, x]
                band[cell, bin_] += first - first * share
                band[cell, bin_ + 1] += second - second * share
                band[cell + 1, bin_] += first * share
                band[cell + 1, bin_ + 1] += second * share
            cell, share = rows[0][y], rows[1][y]
            add_scaled(band, f32(1) - share, cells, cell)
            add_scaled(band, share, cells, cell + 1)
        for a in range(n_cells):
            for b in range(n_cells):
                histogram = out[i, a, b]
                histogram[:] = f32(0)
                for k in range(n_slots):
                    histogram[k % n_orientations] += cells[a + 1, b + 1, k]


@kernel(error_model="numpy")
def normalize_cells(histograms, floor, clip, energy, out):
    """histograms (n, g, g, o) f32 IN · energy (g, g) f32 WORK · out (n, g, g, o) f32 OUT.

    A cell is divided by the length of each of the four 2 × 2 blocks that it lies in (border cells count twice there),
    clipped, and the four are averaged. Opposite orientations add up in the energy.
    """
    n_cells, half = histograms.shape[1], histograms.shape[3] // 2
    for i in range(histograms.shape[0]):
        for a in range(n_cells):
            for b in range(n_cells):
                total = f32(0)
                for k in range(half):
                    both = histograms[i, a, b, k] + histograms[i, a, b, k + half]
                    total += both * both
                energy[a, b] = total
        for a in range(n_cells):
            up, down = max(a - 1, 0), min(a + 1, n_cells - 1)
            for b in range(n_cells):
                left, right = max(b - 1, 0), min(b + 1, n_cells - 1)
                here = energy[a, b] + floor
                to_left, to_right = here + energy[a, left], here + energy[a, right]
                above_left = f32(1) / np.sqrt(to_left + energy[up, b] + energy[up, left])
                above_right = f32(1) / np.sqrt(to_right + energy[up, b] + energy[up, right])
                below_left = f32(1) / np.sqrt(to_left + energy[down, b] + energy[down, left])
                below_right = f32(1) / np.sqrt(to_right + energy[down, b] + energy[down, right])
                source, target = histograms[i, a, b], out[i, a, b]
                for k in range(source.shape[0]):
                    value = source[k]
                    target[k] = f32(0.25) * (
                        min(value * above_left, clip)
                        + min(value * above_right, clip)
                        + min(value * below_left, clip)
                        + min(value * below_right, clip)
                    )


# ---- GIST


@kernel()
def gray_levels(images, level, out):
    """images (n, h, w, 3) u8 IN · level (256,) f32 IN: the value of each gray · out (n, h, w) f32 OUT."""
    for i in range(images.shape[0]):
        for y in range(images.shape[1]):
            for x in range(images.shape[2]):
                gray = 77 * images[i, y, x, 0] + 150 * images[i, y, x, 1] + 29 * images[i, y, x, 2]
                out[i, y, x] = level[(gray + 128) >> 8]


@kernel()
def product(left, right, out):
    """left (a, b) f32, right (b, c) f32 IN · out (a, c) f32 OUT = left @ right. Groups of zeros in left are skipped."""
    whole = left.shape[1] // 4 * 4
    out[:] = f32(0)
    for i in range(left.shape[0]):
        for k in range(0, whole, 4):
            p, q, r, s = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            if p != f32(0) or q != f32(0) or r != f32(0) or s != f32(0):
                for j in range(out.shape[1]):
                    sum_ = out[i, j] + p * right[k, j] + q * right[k + 1, j]
                    out[i, j] = sum_ + r * right[k + 2, j] + s * right[k + 3, j]
        for k in range(whole, left.shape[1]):
            for j in range(out.shape[1]):
                out[i, j] += left[i, k] * right[k, j]


@kernel()
def both_sides(left, images, right, work, out):
    """left (a, h), images (n, h, w), right (w, c) f32 IN · work (a, w) f32 WORK · out (n, a, c) f32 OUT."""
    for i in range(images.shape[0]):
        product(left, images[i], work)
        product(work, right, out[i])


@kernel()
def spectra(images, waves, cosines, sines, work, out):
    """images (n, s, s) f32 IN · waves (s, s) f32 IN: s / 2 cosines, then s / 2 negative sines, as columns ·
    cosines, sines (s / 2, s) f32 IN · work (3, s, s) f32 WORK ·
    out (n, 2, s - 1, s - 1) f32 OUT: real and imaginary part, frequencies from -(s / 2 - 1) to s / 2 - 1."""
    half = cosines.shape[0]
    zero = half - 1
    for i in range(images.shape[0]):
        product(images[i], waves, work[0])
        even, odd = work[1, :half], work[2, :half]
        product(cosines, work[0], even)
        product(sines, work[0], odd)
        real, imaginary = out[i, 0], out[i, 1]
        for v in range(half):
            for u in range(half):
                ahead, behind = even[v, u], odd[v, half + u]
                real[zero + v, zero + u] = ahead + behind
                real[zero - v, zero - u] = ahead + behind
                real[zero - v, zero + u] = ahead - behind
                real[zero + v, zero - u] = ahead - behind
                ahead, behind = even[v, half + u], odd[v, u]
                imaginary[zero + v, zero + u] = ahead - behind
                imaginary[zero - v, zero - u] = behind - ahead
                imaginary[zero - v, zero + u] = ahead + behind
                imaginary[zero + v, zero - u] = -ahead - behind


@kernel()
def inverse_transform(real, imaginary, turns):
    """real, imaginary (m, l) f32 INOUT: m a power of two; the rows come out in bit-reversed order ·
    turns (m / 2, 2) f32 IN: cosine and sine of 2πj/m. Decimation in frequency, not scaled."""
    size = real.shape[0]
    span = size
    while span > 1:
        half, step = span // 2, size // span
        for start in range(0, size, span):
            for j in range(half):
                a, b = start + j, start + j + half
                cosine, sine = turns[j * step, 0], turns[j * step, 1]
                for k in range(real.shape[1]):
                    x, y = real[a, k] - real[b, k], imaginary[a, k] - imaginary[b, k]
                    real[a, k] += real[b, k]
                    imaginary[a, k] += imaginary[b, k]
                    real[b, k] = x * cosine - y * sine
                    imaginary[b, k] = x * sine + y * cosine
        span = half


@kernel()
def pooled_energies(spectrum, places, weights, turns, cell_of_row, work, pooled, out):
    """Filter, transform back to m × m points, and sum |response|² over the cells, for all orientations of one scale.

    spectrum (n, 2, f) f32 IN · places (e, 2) i64 IN: index in a spectrum, index in work · weights (e, 2) f32 IN:
    the filter, real and imaginary part · turns (m / 2, 2) f32 IN · cell_of_row (m,) i64 IN: of the bit-reversed rows ·
    work (4, m, m · o) f32, pooled (g, m · o) f32 WORK · out (n, g, g, o) f32 OUT.
    """
    size, n_orientations = work.shape[1], out.shape[3]
    real, imaginary, real_turned, imaginary_turned = work[0], work[1], work[2], work[3]
    flat_real, flat_imaginary = real.reshape(-1), imaginary.reshape(-1)
    for i in range(spectrum.shape[0]):
        flat_real[:] = f32(0)
        flat_imaginary[:] = f32(0)
        for e in range(places.shape[0]):
            a, b = spectrum[i, 0, places[e, 0]], spectrum[i, 1, places[e, 0]]
            flat_real[places[e, 1]] = a * weights[e, 0] - b * weights[e, 1]
            flat_imaginary[places[e, 1]] = a * weights[e, 1] + b * weights[e, 0]
        inverse_transform(real, imaginary, turns)
        for y in range(size):
            for x in range(size):
                here, there = x * n_orientations, y * n_orientations
                for k in range(n_orientations):
                    real_turned[x, there + k] = real[y, here + k]
                for k in range(n_orientations):
                    imaginary_turned[x, there + k] = imaginary[y, here + k]
        inverse_transform(real_turned, imaginary_turned, turns)
        pooled[:] = f32(0)
        for x in range(size):
            cell = cell_of_row[x]
            for k in range(pooled.shape[1]):
                pooled[cell, k] += real_turned[x, k] ** 2 + imaginary_turned[x, k] ** 2
        out[i] = f32(0)
        for y in range(size):
            for b in range(pooled.shape[0]):
                start = y * n_orientations
                for k in range(n_orientations):
                    out[i, cell_of_row[y], b, k] += pooled[b, start + k]


# ---- color moments and correlogram


@kernel()
def block_moments(planes, rows, columns, out):
    """planes (3, b, h, w) f32 IN · rows, columns (g, 2) i64 IN: first and end · out (b, g, g, 3, 3) f32 OUT.

    Columns are added in pairs from the outside in: addition commutes, so a mirrored block gives the same bits.
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
def auto_correlogram(colors, distances, same, out):
    """colors (b, h, w) u8 IN · distances (r,) i64 IN · same (h, w) u32 WORK · out (b, c, r) f32 OUT.

    A pair of pixels is compared once, from the one above (or left of) the other, and counts for both.
    """
    h, w = same.shape
    for i in range(colors.shape[0]):
        for ring in range(distances.shape[0]):
            d = distances[ring]
            same[:] = 0
            for dy in range(min(d, h - 1) + 1):
                # The lower half of the ring: the right pixel at dy = 0, then both sides, then the whole last row.
                step = 1 if dy == d else 2 * d
                for dx in range(d if dy == 0 else -d, d + 1, step):
                    left, right = max(0, -dx), min(w, w - dx)
                    for y in range(h - dy):
                        upper, lower, row = colors[i, y], colors[i, y + dy], same[y]
                        for x in range(left, right):
                            row[x] += upper[x] == lower[x + dx]

            out[i, :, ring] = 0.0
            tally(colors[i], same, d, out[i, :, ring])


@kernel()
def tally(colors, same, d, out):
    """colors (h, w) u8 IN · same (h, w) u32 IN: equal pairs found from each pixel · d i64 IN · out (c,) f32 OUT."""
    h, w = colors.shape
    equal = [0] * out.shape[0]
    all_pairs = [0] * out.shape[0]
    for y in range(h):
        outer_h = min(h - 1, y + d) - max(0, y - d) + 1
        inner_h = min(h - 1, y + d - 1) - max(0, y - d + 1) + 1
        for x in range(w):
            outer_w = min(w - 1, x + d) - max(0, x - d) + 1
            inner_w = min(w - 1, x + d - 1) - max(0, x - d + 1) + 1
            color = colors[y, x]
            equal[color] += same[y, x]
            all_pairs[color] += outer_h * outer_w - inner_h * inner_w
    for color in range(out.shape[0]):
        if all_pairs[color] > 0:
            out[color] = 2 * equal[color] / all_pairs[color]
