"""What the paper printed, in our names of methods and views.

Z. Zhang, L. Liu, J. Qin, F. Zhu, F. Shen, Y. Xu, L. Shao, H. T. Shen, "Highly-Economized Multi-View Binary Compression
for Scalable Image Clustering", ECCV 2018.

CIFAR-10 is the set that we run too (its Tables 3, 4 and 5). ImageNet-10 (its Tables 1 and 2) is another set: those
figures never stand beside ours.
"""

VIEWS = ("lbp", "gist", "hog")
MULVIEW = "MulView"
COLUMNS = (*VIEWS, MULVIEW)
SCORES = ("acc", "nmi", "purity", "f_score")
CIFAR10_ROWS = 60_000
MIB = 2**20  # its "MB": 60,000 × 3626 numbers of 8 bytes are its 1.62 GB


def _figures(table: str, quantities: tuple[str, ...] = SCORES) -> dict[str, dict[tuple[str, str], float]]:
    """method -> (quantity, view) -> figure"""
    keys = [(quantity, view) for quantity in quantities for view in COLUMNS]
    rows = (line.split() for line in table.strip().splitlines())
    return {method: dict(zip(keys, map(float, figures), strict=True)) for method, *figures in rows}


# ACC, NMI, purity, F-score; in each: LBP, GIST, HOG, MulView
CIFAR10_SCORES = _figures("""
k-means       .2185 .2842 .2661 .2877  .1044 .1692 .1634 .1803  .2401 .3056 .2943 .3136  .1677 .1866 .1887 .1998
k-means++     .2182 .2845 .2703 .2882  .1044 .1691 .1645 .1805  .2400 .3052 .2953 .3138  .1676 .1866 .1895 .2001
k-medoids     .2171 .2419 .2456 .2630  .0862 .1238 .1328 .1565  .2339 .2483 .2561 .2921  .1703 .1744 .1808 .2035
Ak-kmeans     .2066 .2847 .2608 .2879  .1021 .1692 .1607 .1808  .2275 .3054 .2847 .3148  .1643 .1867 .1882 .2001
LSC-K         .2550 .3010 .2838 .3488  .1303 .1869 .1668 .2382  .2768 .3306 .3039 .3787  .1692 .2044 .1878 .2477
Nyström       .2339 .2592 .2408 .2747  .0922 .1226 .1415 .1511  .2445 .2626 .2655 .2975  .1517 .1654 .1680 .1793
ITQ+bk-means  .2322 .2777 .2481 .2787  .0963 .1502 .1570 .1613  .2490 .2882 .2756 .2953  .1685 .1808 .1769 .1863
CKM           .2225 .2521 .2294 .2703  .1092 .1184 .1034 .1499  .2476 .2649 .2319 .2846  .1509 .1606 .1479 .1807
HSIC-TS       .2440 .3209 .3178 .3742  .1105 .2063 .2053 .2547  .2526 .3650 .3199 .3956  .1717 .2318 .2221 .2422
HSIC-F        .2536 .3456 .3394 .3809  .1094 .2134 .2199 .2596  .2697 .3651 .3589 .4045  .1670 .2318 .2337 .2564
HSIC          .2681 .3595 .3389 .3951  .1220 .2299 .2170 .2629  .2837 .3828 .3481 .4204  .1721 .2397 .2383 .2595
""")

CIFAR10_SECONDS = _figures(
    """
k-means       409 305 412  977
k-means++     294 334 266  791
Ak-kmeans      61  56  58   77
LSC-K         112 834 913 1877
Nyström        26  28  32   58
ITQ+bk-means   24  23  27   48
CKM            29  28  30   46
HSIC-TS        29  30  25   34
HSIC           10  10  10   17
""",
    ("seconds",),
)

CIFAR10_BYTES = {
    "k-means": {"data": 1.62 * 1024 * MIB, "centroids": 0.28 * MIB},
    "HSIC": {"data": 0.92 * MIB, "centroids": 0.15e-3 * MIB, "projection": 2.53 * MIB},
}
CIFAR10_REDUCTION = {"k-means": 1.0, "HSIC": 481.0}

IMAGENET10_SCORES = _figures("""
k-means       .2265 .3085 .2492 .3073  .1120 .1853 .1134 .1803  .2361 .3098 .2439 .3133  .1628 .1970 .1363 .1996
k-medoids     .1925 .2634 .2268 .2605  .0755 .1721 .1298 .1461  .1988 .2852 .2329 .2690  .1110 .1973 .1836 .1874
Ak-kmeans     .2159 .2988 .2515 .3113  .1000 .1541 .1279 .1966  .2255 .2805 .2761 .3254  .1662 .1827 .1870 .2122
Nyström       .2234 .2459 .2544 .2950  .0936 .1222 .1317 .1719  .2181 .2585 .2741 .3320  .1490 .1749 .1639 .2050
NMF           .2178 .2540 .2509 .2737  .1076 .1353 .1434 .1610  .2178 .2614 .2705 .2887  .1571 .1798 .1609 .1854
LSC-K         .2585 .3192 .2529 .3284  .1356 .1806 .1254 .2215  .2260 .2660 .2797 .3447  .1748 .1748 .1625 .2301
AMGL          .2093 .2843 .2516 .2822  .1131 .1301 .1368 .2110  .2149 .3090 .2796 .2902  .1311 .1571 .2021 .2305
MVKM          .2321 .2882 .2535 .3058  .1181 .1612 .1372 .1881  .2115 .3091 .2538 .3082  .1461 .1730 .1861 .2161
MLAN          .2109 .2197 .2127 .3182  .1173 .1255 .1152 .1648  .2117 .2258 .2168 .3248  .1403 .1614 .1813 .1813
MultiNMF      .2113 .2639 .2574 .2632  .0986 .1732 .1605 .1708  .2202 .2735 .2855 .2905  .1531 .1789 .1802 .1906
OMVC          .2062 .2706 .2544 .2739  .1196 .1613 .1222 .1744  .1925 .2611 .2592 .2637  .1333 .1739 .1761 .1885
MVSC          .2248 .2629 .2732 .3191  .1293 .1593 .1294 .2097  .2132 .3126 .2828 .3393  .1481 .1909 .1911 .2180
ITQ+bk-means  .1861 .2923 .2562 .3101  .0604 .1746 .1200 .2304  .1879 .2842 .2644 .3168  .1214 .1954 .1643 .2032
CKM           .1712 .2382 .1906 .2794  .0394 .1352 .0738 .1823  .1784 .2556 .1962 .2844  .1107 .1687 .1389 .1990
HSIC-TS       .1829 .3030 .2523 .3568  .1367 .1672 .1013 .2376  .1935 .3247 .2577 .3665  .1194 .1945 .1525 .2309
HSIC-F        .1951 .2923 .2516 .3749  .1289 .1592 .1015 .2411  .2062 .3165 .2625 .3795  .1252 .1832 .1566 .2321
HSIC          .2275 .3128 .2597 .3865  .1396 .1692 .1219 .2515  .2131 .3253 .2723 .3905  .1353 .1929 .1739 .2530
""")

IMAGENET10_SECONDS = _figures(
    """
k-means         69   43   82  201
Ak-kmeans       16   11   11   21
Nyström         15   11   12   19
LSC-K          211  226  331  503
AMGL          1693 1730 1862 3820
MLAN          1431 1557 2226 3336
OMVC           696  616  643 1109
CKM             17   11   18   27
HSIC-TS         18   16   16   20
HSIC             4    4    3    5
""",
    ("seconds",),
)


def of_cifar10(dataset: str, n_rows: int) -> bool:
    """Whether the paper's figures may stand beside runs on this set: all of CIFAR-10, not a part."""
    return "".join(filter(str.isalnum, dataset.lower())) == "cifar10" and n_rows == CIFAR10_ROWS


def column_of(views: tuple[str, ...]) -> str | None:
    """The paper's column for these views, if it has one."""
    names = [name.lower() for name in views]
    if len(names) == 1:
        return names[0] if names[0] in VIEWS else None
    return MULVIEW if sorted(names) == sorted(VIEWS) else None


def name_of(method: str) -> str:
    """Both of ours that are HSIC stand beside the paper's HSIC."""
    return "HSIC" if method == "HSIC.paper" else method
