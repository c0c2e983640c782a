"""What an experiment of a paper is (coterie/presets.py has them).

Three kinds: methods are compared, estimators of the Shapley value, or pFedOCF's mechanisms. What the user gives goes before
what the preset says.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.papers import Figures
from coterie.tasks.datasets import DataError, load_dataset
from coterie.wire.config import Value, choose
from coterie.wire.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preset:
    title: str
    source: str
    values: Mapping[str, Value]
    quick: Mapping[str, Value]  # goes over `values`, with one seed
    seeds: tuple[int, ...] = (1,)

    def chosen(self, quick: bool) -> tuple[dict[str, Value], tuple[int, ...]]:
        """Values and seeds of the long or the short form."""
        return ({**self.values, **self.quick}, (1,)) if quick else (dict(self.values), self.seeds)


@dataclass(frozen=True, kw_only=True)
class Methods(Preset):
    """A set of cells, one table each, and in every cell the same methods with the same seeds."""

    strategies: str
    cells: Mapping[str, Mapping[str, Value]]  # name -> what is different there
    quick_cells: tuple[str, ...] = ()  # the cells of the short form; () for all
    metric: str = "accuracy"  # the column that the paper's numbers stand beside
    paper: Figures = field(default_factory=dict)  # what the paper reports (coterie/papers.py)
    of_methods: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)  # what is different for a method
    communication: bool = False  # also print what travels, for this model and for large ones
    costs: bool = False  # also what each run cost
    without_data: Mapping[str, Value] = field(
        default_factory=dict
    )  # goes over `values` where their task's data are missing

    def chosen_cells(self, quick: bool, given: Mapping[str, Value], cell: str = "") -> dict[str, Mapping[str, Value]]:
        """The one that is named; else those that are left when `given` goes before what they say: those that say the same; else
        none twice."""
        if cell:
            if not any(self.cells):
                raise ConfigError(f"cell = {cell!r}: is for presets, whose tables are cells; add --preset NAME")
            return {choose("cell", cell, list(self.cells)): self.cells[cell]}
        touched = {name: [key for key in own if key in given] for name, own in self.cells.items()}
        same = [name for name, keys in touched.items() if keys and all(self.cells[name][k] == given[k] for k in keys)]
        if not same and all(touched.values()):  # none of them is left: one without a name
            return {"": next(iter(self.cells.values()))}
        chosen: dict[str, Mapping[str, Value]] = {}
        for name in same or (quick and self.quick_cells) or self.cells:
            if {**self.cells[name], **given} not in [{**own, **given} for own in chosen.values()]:
                chosen[name] = self.cells[name]
        return chosen

    def with_data(
        self, values: dict[str, Value], cells: dict[str, Mapping[str, Value]], data_root: str, *, named: bool
    ) -> tuple[dict[str, Value], dict[str, Mapping[str, Value]]]:
        """Values and cells without tasks whose data are not here, unless the user named task or cell (`named`)."""
        if named or list(cells) == [""]:
            return values, cells
        if self.without_data and missing(str(values["task"]), data_root):
            values = {**values, **self.without_data}
        here = {
            name: own for name, own in cells.items() if "task" not in own or not missing(str(own["task"]), data_root)
        }
        return values, here or cells


def missing(task: str, data_root: str) -> bool:
    try:
        load_dataset(task, data_root)
    except DataError as error:
        log.warning("%s", error)
        return True
    return False


class Estimators(Preset):
    """Estimators of the Shapley value (coterie/estimators.py)."""


class Mechanisms(Preset):
    """pFedOCF's mechanisms (coterie/mechanisms.py)."""
