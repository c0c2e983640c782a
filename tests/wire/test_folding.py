"""Records as one and back."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coterie.wire.errors import Refused
from coterie.wire.folding import FOLDED, LARGEST, folded, is_folded, unfolded

NAMES = st.text(max_size=8)
SCALARS = st.one_of(
    st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.booleans(), NAMES, st.binary(max_size=20)
)
LISTS = st.one_of(
    st.lists(st.integers(-9, 9), max_size=3),
    st.lists(st.floats(allow_nan=False), max_size=3),
    st.lists(NAMES, max_size=3),
    st.lists(st.binary(max_size=5), max_size=3),
)
CONFIG = st.dictionaries(NAMES, st.one_of(SCALARS, LISTS), max_size=4).map(ConfigRecord)
METRICS = st.dictionaries(NAMES, st.one_of(st.integers(-9, 9), st.floats(allow_nan=False)), max_size=4).map(
    MetricRecord
)
ARRAY = arrays.arrays(
    st.sampled_from(["<f4", "<f8", "<i8", "|u1"]),
    arrays.array_shapes(min_dims=0, max_side=4),
    elements={"allow_nan": False},
)
MODELS = st.dictionaries(NAMES, ARRAY.map(Array), max_size=3).map(ArrayRecord)
RECORDS = st.dictionaries(NAMES.filter(lambda name: name != FOLDED), st.one_of(CONFIG, METRICS, MODELS), max_size=4)


@given(RECORDS)
def test_what_is_unfolded_is_what_was_folded(records: dict) -> None:
    wanted = RecordDict(records)
    small = folded(wanted)
    assert is_folded(small) and len(small) == 1
    found = unfolded(small)
    assert list(found) == list(wanted) and found == wanted
    assert found.object_id == wanted.object_id


def test_what_is_large_stays_as_it_is() -> None:
    large = RecordDict({"model": ArrayRecord({"w": Array(np.zeros(LARGEST // 8 + 1))})})
    assert folded(large) is large and not is_folded(large)


@given(st.binary(max_size=60))
def test_a_strangers_bytes_are_refused_or_unfolded(data: bytes) -> None:
    try:
        unfolded(RecordDict({FOLDED: ConfigRecord({FOLDED: data})}))
    except Refused as error:
        assert "unfolded" in str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[" * 100_000,
        b'[["arrays","m",{"w":["<f4",[2],"numpy.ndarray",8]}]]\nshort',
        b'[["arrays","m",{"w":["<f4",[2],"numpy.ndarray",-8]}]]\n',
        b"[]\nmore than was told",
        b'[["config","a",{"x":{"base64":["?"]}}]]\n',
        b'[["config","a",{"x":[1,"a"]}]]\n',
        b'[["metrics","a",{"x":"text"}]]\n',
    ],
)
def test_what_is_not_whole_is_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="cannot be unfolded"):
        unfolded(RecordDict({FOLDED: ConfigRecord({FOLDED: data})}))
