"""The tabular data sets: UCI Adult, UCI heart disease, and a synthetic linear regression.

All vocabularies, fill-in values and normalisation constants are written down here instead of being computed from the
files, so that every client encodes alike without seeing another's data, and a server knows the number of features.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coterie.tasks.samples import DataError, Dataset
from coterie.tasks.spec import TASKS

# Column, mean and standard deviation of Adult's numbers, over both files, rounded.
_ADULT_NUMBERS = {
    0: (38.6, 13.7),  # age
    2: (189_664.0, 105_604.0),  # census weight
    4: (10.1, 2.57),  # years of education
    10: (1_079.0, 7_452.0),  # capital gain
    11: (87.5, 403.0),  # capital loss
    12: (40.4, 12.4),  # hours per week
}
# Column and values of Adult's categories; "?" is a value like the others: that nothing is known says something too.
_ADULT_CATEGORIES = {
    1: "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
    3: "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters Preschool "
    "Prof-school Some-college",
    5: "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed",
    6: "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
    "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving",
    7: "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    8: "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    9: "Female Male",
    13: "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece "
    "Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico "
    "Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand "
    "Trinadad&Tobago United-States Vietnam Yugoslavia",
}
_ADULT_LABELS = {"<=50K": 0, ">50K": 1}
_EDUCATION, _INCOME = 3, 14

# Name, value for a missing entry (median of a measurement, most frequent category), mean and std after filling in.
_HEART_COLUMNS = (
    ("age", 54, 53.5, 9.43),
    ("sex", 1, 0.789, 0.408),
    ("chest pain", 4, 3.25, 0.931),
    ("resting blood pressure", 130, 132.0, 17.9),
    ("cholesterol", 240, 245.0, 51.8),
    ("fasting blood sugar", 0, 0.15, 0.357),
    ("resting ECG", 0, 0.603, 0.805),
    ("maximal heart rate", 140, 138.0, 25.1),
    ("exercise angina", 0, 0.366, 0.482),
    ("ST depression", 0.5, 0.853, 1.06),
    ("ST slope", 2, 1.85, 0.516),
    ("coloured vessels", 0, 0.227, 0.629),
    ("thallium scan", 3, 3.99, 1.68),
)
# Nobody has no blood pressure or cholesterol: these zeros (one hospital's whole column) stand for "not measured".
_HEART_ZERO_IS_MISSING = (3, 4)


def load_adult(root: Path) -> Dataset:
    """Adult from adult.data and adult.test: six numbers and eight one-hot categories; is the income above 50K?"""
    files = [find(root, "adult", "adult.data"), find(root, "adult", "adult.test")]
    tables = [list(_rows(path, 15)) for path in files]
    x, y, owner = [], [], []
    places = _adult_places()
    for path, table in zip(files, tables, strict=True):
        for line, row in table:
            x.append(_adult_features(row, places, f"{path}, line {line}"))
            y.append(_category(_ADULT_LABELS, row[_INCOME].rstrip("."), f"{path}, line {line}"))
            owner.append(0 if row[_EDUCATION] == "Doctorate" else 1)
    width = TASKS["adult"].input_shape[0]
    mean, std = np.zeros(width, np.float32), np.ones(width, np.float32)
    constants = np.array(list(_ADULT_NUMBERS.values()), dtype=np.float32)
    mean[: len(constants)], std[: len(constants)] = constants.T
    return Dataset(
        np.array(x, dtype=np.float32),
        np.array(y, dtype=np.int64),
        2,
        mean,
        std,
        owner=np.array(owner, dtype=np.int64),
        owners=TASKS["adult"].natural_clients,
        num_test=len(tables[1]),
        label_names=tuple(_ADULT_LABELS),
        source=str(root / "adult.data"),
    )


def _adult_places() -> dict[int, dict[str, int]]:
    """For every category column: the position in the feature vector of each value."""
    places: dict[int, dict[str, int]] = {}
    start = len(_ADULT_NUMBERS)
    for column, values in _ADULT_CATEGORIES.items():
        places[column] = {value: start + i for i, value in enumerate(values.split())}
        start += len(places[column])
    return places


def _adult_features(row: list[str], places: dict[int, dict[str, int]], where: str) -> np.ndarray:
    features = np.zeros(TASKS["adult"].input_shape[0], np.float32)
    for i, column in enumerate(_ADULT_NUMBERS):
        features[i] = _number(row[column], where, column)
    for column, place in places.items():
        features[_category(place, row[column], where)] = 1
    return features


def load_heart(root: Path) -> Dataset:
    """Heart disease from heart/processed.<hospital>.data, a natural client per hospital; is there any disease?"""
    x, y, owner = [], [], []
    hospitals = TASKS["heart"].natural_clients
    for index, hospital in enumerate(hospitals):
        path = find(root, "heart", f"heart/processed.{hospital}.data")
        for line, row in _rows(path, 14):
            where = f"{path}, line {line}"
            x.append([_heart_value(row, column, where) for column in range(len(_HEART_COLUMNS))])
            y.append(int(_number(row[13], where, 13) > 0))
            owner.append(index)
    constants = np.array([column[2:] for column in _HEART_COLUMNS], dtype=np.float32)
    return Dataset(
        np.array(x, dtype=np.float32),
        np.array(y, dtype=np.int64),
        2,
        constants[:, 0],
        constants[:, 1],
        owner=np.array(owner, dtype=np.int64),
        owners=hospitals,
        label_names=("healthy", "diseased"),
        source=str(root / "heart"),
    )


def _heart_value(row: list[str], column: int, where: str) -> float:
    missing = row[column] == "?"
    value = 0.0 if missing else _number(row[column], where, column)
    missing = missing or (value == 0 and column in _HEART_ZERO_IS_MISSING)
    return float(_HEART_COLUMNS[column][1]) if missing else value


def synthetic_parameters() -> np.ndarray:
    """The true regression coefficients of synthetic-linear's clients, (clients, features).

    Two groups of three clients. Each group has a centre drawn from N(0, I); a client's own coefficients are its group's
    centre plus 0.05 * N(0, I). Averaging inside a group helps a client with few samples, averaging across groups hurts.
    """
    rng = np.random.default_rng(20)
    features = TASKS["synthetic-linear"].input_shape[0]
    centres = rng.standard_normal((2, features))
    return np.repeat(centres, 3, axis=0) + 0.05 * rng.standard_normal((6, features))


def load_synthetic(samples_per_client: int = 200) -> Dataset:
    """Linear regression y = x . theta_client + noise, with x and the noise from N(0, 1). Always the same numbers."""
    thetas = synthetic_parameters()
    clients, features = thetas.shape
    rng = np.random.default_rng(21)
    x = rng.standard_normal((clients, samples_per_client, features))
    y = np.einsum("csf,cf->cs", x, thetas) + rng.standard_normal((clients, samples_per_client))
    return Dataset(
        x.reshape(-1, features).astype(np.float32),
        y.reshape(-1).astype(np.float32),
        0,
        np.zeros(features, np.float32),
        np.ones(features, np.float32),
        owner=np.repeat(np.arange(clients), samples_per_client),
        owners=TASKS["synthetic-linear"].natural_clients,
        source="synthetic-linear",
    )


def find(root: Path, task: str, name: str) -> Path:
    path = root / name
    if not path.is_file():
        raise DataError(
            f"task {task!r}: no file {path}. Get it from the UCI Machine Learning Repository (archive.ics.uci.edu, "
            f"data set {'2, Adult' if task == 'adult' else '45, Heart Disease'}) and put it there, or point data-root "
            f"to the folder that has {name}."
        )
    return path


def _rows(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    """The rows of a comma-separated file with their line numbers, without empty lines and `|` comments."""
    with path.open(newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.reader(file, skipinitialspace=True), start=1):
            if not row or row[0].startswith("|"):
                continue
            if len(row) != columns:
                raise DataError(f"{path}, line {line}: {len(row)} columns instead of {columns}. Is the file complete?")
            yield line, [value.strip() for value in row]


def _category(known: dict[str, int], value: str, where: str) -> int:
    if value not in known:
        raise DataError(
            f"{where}: {value!r} is none of the published values ({', '.join(known)}). Use the original file."
        )
    return known[value]


def _number(text: str, where: str, column: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise DataError(f"{where}, column {column}: {text!r} is not a finite number. Use the original file.")
    return value
