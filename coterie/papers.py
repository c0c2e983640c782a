"""What the papers report, number by number, in per cent unless it says otherwise: mean and standard deviation.

Read from the tables of

    pFedSV      Wu et al. 2022, arXiv:2202.02502, Tables 1 to 4
    pFedSim     Tan et al. 2023, arXiv:2305.15706, Tables 3 and 6
    ShapleyFL   Sun et al. 2023, Tables 2 and 3, and section 6.2
    SPO         Cui et al. 2022, arXiv:2108.07926, Tables 2 and 3
    pFedOCF     Table 1

by our names of the methods. `None` is a number that could not be read. Methods that are not here (FedEM, FedGen, f-FedAP) are
left out. By preset they stand as (task, cell, strategy) -> number.
"""

from collections.abc import Mapping, Sequence

Figure = tuple[float, float] | str  # mean and deviation; or words, where there is more than one number
Figures = dict[tuple[str, str, str], Figure]
Table = dict[str, list[float | None]]  # by strategy: mean and deviation of one cell after the other
_: None = None

PFEDSV_CELLS = [  # (task, cell) of the columns of Tables 1 to 3
    (task, task + end) for task in ("mnist", "fashion-mnist", "cifar10", "cifar100") for end in ("", "-100")
]
# fmt: off
PFEDSV_TABLE1: Table = {
    "local": [96.11, .28, 93.27, 3.68, 92.35, .43, 91.42, 2.69, 84.15, 2.13, 75.57, 4.08, 73.57, 5.13, 68.57, 4.25],
    "fedavg": [_, _, 78.46, 1.14, _, _, 75.63, 4.73, 57.67, 4.16, 44.64, 4.75, 50.57, 3.71, 43.16, 4.68],
    "fedprox": [_, _, 78.45, 1.83, _, _, 78.83, 3.49, 55.68, 2.67, 45.75, 4.39, 49.21, 3.69, 41.08, 5.27],
    "ifca": [_, _, 86.73, 2.05, _, _, 82.63, 3.59, 71.69, 3.25, 60.23, 3.94, 61.37, 4.16, 52.44, 4.68],
    "fedavg-ft": [94.38, 1.06, 90.51, 1.67, 91.18, 3.54, 89.49, 4.51, _, _, 70.13, 5.68, _, _, 64.38, 4.69],
    "pfedme": [93.75, 1.34, 86.57, 2.61, 92.46, 1.72, 85.39, 2.97, _, _, 70.15, 5.86, _, _, 60.85, 5.26],
    "fedfomo": [96.90, .87, 93.71, 2.05, 94.10, .65, 92.78, 1.92, _, _, 74.36, 2.15, _, _, 69.21, 4.37],
    "fedamp": [95.82, 1.37, 92.59, 1.88, 93.26, 2.14, 91.46, 2.04, _, _, 72.91, 2.83, _, _, 67.02, 4.15],
    "pfedhn": [96.53, .84, 94.16, 1.38, 94.97, .86, 93.69, 1.58, _, _, 76.62, 3.05, _, _, 70.58, 4.57],
    "pfedsv": [98.01, .83, 96.94, 1.75, 96.16, .58, 94.68, 2.36, 89.64, 1.88, 80.65, 3.78, 80.57, 4.37, 72.61, 4.73],
}
PFEDSV_TABLE2: Table = {
    "local": [74.05, 2.11, 59.81, 5.73, 60.18, 6.42, 58.22, 6.73, 40.53, 7.20, 36.15, 6.88, 35.43, 3.87, 30.05, 5.49],
    "fedavg": [43.57, 3.75, 30.15, 4.82, 40.58, 4.16, 36.49, 5.07, 33.81, 5.07, 26.82, 6.43, 26.17, 4.27, 20.33, 5.27],
    "fedprox": [47.49, 4.18, 44.76, 5.49, 43.09, 4.82, 40.34, 4.72, 35.76, 5.18, 29.91, 5.58, 29.62, 5.13, 23.27, 4.69],
    "ifca": [58.67, 2.69, 54.58, 3.79, _, _, 51.04, 4.38, 43.09, 4.88, 40.67, 4.86, _, _, 31.89, 4.20],
    "fedavg-ft": [65.72, 3.84, 55.57, 4.26, 57.27, 4.13, 52.83, 5.01, 43.42, 5.29, 40.05, 5.22, 36.33, 3.86, 32.55, 4.37],
    "pfedme": [64.39, 4.08, 58.02, 3.51, 60.27, 3.59, 56.81, 4.01, 50.73, 4.29, 44.21, 5.09, 40.29, 3.57, 34.94, 3.78],
    "fedfomo": [72.54, 2.18, 63.07, 2.54, 64.75, 3.42, 60.49, 3.72, 53.83, 4.57, 48.35, 5.29, 45.91, 3.06, 37.51, 3.09],
    "fedamp": [70.15, 3.02, 60.28, 3.11, 62.28, 2.53, 58.94, 3.14, 51.57, 4.03, 46.05, 4.48, 43.67, 3.55, 36.40, 3.76],
    "pfedhn": [73.35, 2.04, 62.57, 4.11, 62.95, 3.44, 59.55, 4.15, 52.82, 3.88, 47.19, 5.83, 45.33, 3.45, 37.38, 3.77],
    "pfedsv": [78.17, 1.59, 70.76, 2.41, 71.47, 1.86, 66.63, 2.03, 61.18, 1.67, 56.76, 1.85, 50.46, 2.47, 42.25, 3.13],
}
PFEDSV_TABLE3: Table = {"pfedsv": [_, _, 68.43, 1.86, _, _, 65.31, 1.95, 57.94, 2.53, 53.28, 1.66, 48.37, 2.51, 40.79, 2.84]}
PFEDSV_TABLE4_CELLS = [
    (task, f"{task}-sigma-{sigma}") for task in ("cifar10", "cifar100") for sigma in (0, 1, 2)
]
PFEDSV_TABLE4: Table = {
    "fedavg": [19.68, 1.76, 17.54, 1.37, 15.97, 1.53, 5.21, .41, 5.03, .24, 4.37, .19],
    "pfedsv": [84.73, 1.67, 82.16, 1.55, 78.29, 1.63, 31.07, 1.22, 30.59, 1.06, 23.44, .89],
}

PFEDSIM_CELLS = [
    ("cifar10", "dirichlet-0.1"), ("cifar10", "dirichlet-0.5"), ("cinic10", "cinic10-0.1"), ("cinic10", "cinic10-0.5"),
    ("tiny-imagenet", "tiny-imagenet-0.1"), ("tiny-imagenet", "tiny-imagenet-0.5"),
    ("emnist-byclass", "emnist-0.1"), ("emnist-byclass", "emnist-0.5"),
]
PFEDSIM_TABLE3: Table = {
    "local": [84.30, .81, 56.80, .80, 83.13, 1.68, 54.51, 1.11, 43.70, .44, 19.65, .08, 93.54, .43, 84.17, .06],
    "fedavg": [24.77, 4.25, 40.90, 2.48, 27.28, 1.83, 39.44, .95, 27.66, 6.35, 41.45, .13, 75.27, 1.55, 82.17, .27],
    "fedprox": [29.70, 2.29, 41.81, 2.46, 26.23, 3.83, 40.63, 2.09, 29.47, .74, 40.98, .34, 74.22, 1.43, 81.81, .15],
    "feddyn": [34.97, .75, 44.27, 1.25, 25.44, 1.50, 37.50, 1.75, 25.09, .78, 27.04, 1.27, 72.39, 1.81, 80.04, .68],
    "fedbn": [40.75, 5.82, 47.44, 2.17, 43.27, 2.03, 44.51, 1.15, 29.51, 4.04, 40.00, 1.25, 77.45, 1.40, 82.28, .60],
    "per-fedavg": [75.26, 3.37, 44.96, 1.99, 78.29, 2.95, 52.66, .44, 34.04, 1.04, 23.57, 1.75, 93.04, .96, 86.90, .09],
    "fedper": [82.42, .55, 62.37, .90, 81.94, 1.63, 61.08, 1.10, 52.13, .80, 27.27, .30, 94.42, .47, 87.50, .22],
    "fedrep": [84.85, .74, 64.47, 1.03, 84.30, 1.34, 64.42, 1.35, 57.28, .63, 33.57, .40, 95.12, .44, 88.38, .24],
    "fedfomo": [84.70, .72, 58.14, .96, 82.42, 1.93, 54.61, 1.45, 40.80, .48, 23.72, 1.76, 93.20, .46, 83.43, .06],
    "pfedsim": [86.76, .84, 67.34, .36, 84.34, 1.25, 64.42, .77, 64.91, .60, 52.23, .16, 95.70, .31, 90.18, .11],
}
RHOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
PFEDSIM_TABLE6 = {  # CIFAR-10, by rho: Dir(0.1), Dir(0.5)
    0.0: [81.61, 1.52, 56.76, .57], 0.1: [83.29, 1.64, 61.73, .89], 0.3: [85.89, 1.28, 65.36, .79],
    0.5: [86.76, .84, 67.34, .36], 0.7: [87.05, .87, 68.09, .62], 0.9: [79.05, 2.59, 64.70, 1.43],
    1.0: [24.77, 4.25, 40.90, 2.48],
}

SHAPLEYFL_TABLE2 = {0.1: 54.82, 0.3: 58.22, 0.5: 57.84, 0.7: 56.60, 0.9: 55.88}  # by beta, no deviations
SHAPLEYFL_TABLE3_HEAD = (80, 160, 240, 320, 400)  # sampled permutations; mean squared errors of normalised values
SHAPLEYFL_TABLE3 = {
    ("cifar10", "mc"): [5.66e-2, 3.23e-2, 1.41e-2, 9.04e-3, 8.87e-3],
    ("cifar10", "tmc"): [3.48e-2, 3.38e-2, 3.13e-2, 3.08e-2, 2.71e-2],
    ("cifar10", "dmc"): [1.52e-2, 1.40e-2, 1.36e-2, 8.72e-3, 7.81e-3],
    ("fashion-mnist", "mc"): [1.05e-2, 9.43e-3, 7.08e-3, 5.25e-3, 4.22e-3],
    ("fashion-mnist", "tmc"): [2.81e-2, 2.94e-2, 2.33e-2, 2.19e-2, 2.03e-2],
    ("fashion-mnist", "dmc"): [7.14e-3, 5.54e-3, 5.16e-3, 4.93e-3, 3.76e-3],
}

OCF_BINS = (0.0, 0.5, 0.7, 0.9)  # improvement over training alone: below 0, up to 50, 70, 90, 100 per cent
OCF_TABLE1 = {  # clients of 100
    "grand": (72, 14, 4, 6, 4), "grand-mixed": (1, 17, 42, 40, 0), "disjoint": (69, 9, 10, 8, 4),
    "overlapping": (0, 1, 11, 75, 13),
}

SPO_TABLE2 = {  # accuracy of people without, and with a doctorate
    "afl": "82.6 ± 0.5, doctorate 73.0 ± 2.2", "q-ffl": "82.4 ± 0.1, doctorate 74.4 ± 0.9",
    "local": "83.5 ± 0.0, doctorate 66.9 ± 1.0", "spo": "82.8 ± 0.3, doctorate 77.0 ± 0.7",
    "ce": "83.5 ± 0.0, doctorate 66.9 ± 1.0",
}
SPO_TABLE3: Table = {
    "local": [86.46, 4.02], "fedavg": [51.42, 2.41], "per-fedavg": [76.65, 4.84], "fedper": [87.27, 1.39],
    "pfedme": [87.69, 1.93], "lg-fedavg": [89.11, 2.66], "pfedhn": [90.83, 1.56], "spo": [92.47, 4.80], "ce": [92.47, 4.80],
}
# fmt: on


def by_cell(table: Mapping[str, Sequence[float | None]], cells: Sequence[tuple[str, str]], prefix: str = "") -> Figures:
    """A table with mean and deviation of each cell one after the other, as (task, cell, strategy) -> both."""
    found: Figures = {}
    for strategy, numbers in table.items():
        for (task, cell), mean, std in zip(cells, numbers[::2], numbers[1::2], strict=True):
            if mean is not None and std is not None:
                found[task, cell, strategy] = (mean, std)
    return found


def pfedsim_table6() -> Figures:
    return {
        ("cifar10", f"dirichlet-{alpha}-rho-{rho}", "pfedsim"): (numbers[2 * i], numbers[2 * i + 1])
        for i, alpha in enumerate((0.1, 0.5))
        for rho, numbers in PFEDSIM_TABLE6.items()
    }
