"""Files of arrays: the library's reader reads what is written here, what the library writes is read here, slice by slice."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from coterie.tasks import tensors
from coterie.tasks.tensors import DTYPES, stored_arrays, write_arrays

ARRAYS = st.dictionaries(
    st.text("abcdefgh.0_é", min_size=1, max_size=8),
    st.sampled_from(sorted(DTYPES.values())).flatmap(
        lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, max_side=7))
    ),
    max_size=4,
)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@given(ARRAYS, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
def test_the_library_reads_what_is_written(tmp_path_factory, arrays, texts):
    path = tmp_path_factory.mktemp("a") / "file"
    write_arrays(path, arrays, texts)
    found = load_file(path)
    assert set(found) == set(arrays) and all(same(found[name], array) for name, array in arrays.items())
    with safe_open(path, framework="numpy") as file:
        assert (file.metadata() or {}) == texts


@given(ARRAYS, st.integers(0, 8), st.integers(0, 8))
def test_what_the_library_writes_is_read_in_slices(tmp_path_factory, arrays, start, stop):
    path = tmp_path_factory.mktemp("a") / "file"
    save_file(arrays, path, metadata={"round": "3"})
    found, texts = stored_arrays(path)
    assert texts == {"round": "3"} and set(found) == set(arrays)
    for name, array in arrays.items():
        assert same(found[name][...], array) and found[name].size == array.size
        if array.ndim:
            assert same(found[name][start:stop], array[start:stop]) and same(found[name][:], array)


def test_large_arrays_go_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "PIECE", 7)
    array = np.arange(50, dtype=np.float32)
    write_arrays(tmp_path / "file", {"a": array[::-1], "b": array.reshape(5, 10).T}, {})
    found = load_file(tmp_path / "file")
    assert same(found["a"], array[::-1].copy()) and same(found["b"], array.reshape(5, 10).T.copy())
    assert [array[piece].tolist() for piece in tensors.pieces(15)] == [
        [*range(7)],
        [*range(7, 14)],
        [14],
    ]


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [-4, 8]}},
        {"a": {"dtype": "F31", "shape": [3], "data_offsets": [0, 12]}},
        {"a": {"shape": [3], "data_offsets": [0, 12]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [4, 16]}, "b": 5},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        ["a"],
    ],
    ids=str,
)
def test_a_header_that_cannot_be(header, tmp_path):
    text = json.dumps(header).encode()
    path = tmp_path / "file"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    with pytest.raises(ValueError, match=r"."):
        stored_arrays(path)


def test_a_header_of_brackets_is_refused(tmp_path):
    text = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match="brackets in brackets"):
        stored_arrays(tmp_path / "file")
