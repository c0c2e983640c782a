"""The server's store of models: the same numbers in memory and in files, and little memory in files."""

import json
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.strategies.pool import ModelPool

LAYOUT = {"extractor": np.zeros(7, np.float32), "counters": np.zeros(2, np.int64)}


def model(rng):
    return {"extractor": rng.normal(size=7).astype(np.float32), "counters": rng.integers(0, 9, 2)}


@pytest.fixture(params=["memory", "disk"])
def pool(request, tmp_path):
    return opened(LAYOUT, tmp_path / "pool", request.param)


def opened(layout, directory, store="disk") -> ModelPool:
    pool = ModelPool(layout, directory, store)
    pool.expect(1)
    return pool


def test_gives_back_what_was_put(pool):
    rng = np.random.default_rng(0)
    models = {str(i): model(rng) for i in range(40)}
    for name, parts in models.items():
        pool.put(name, parts)
    models["7"] = model(rng)
    pool.put("7", models["7"])
    assert len(pool) == 40 and "39" in pool and "40" not in pool
    for name, parts in models.items():
        for part, value in parts.items():
            np.testing.assert_array_equal(pool.get(name, part), value)
            np.testing.assert_array_equal(pool.part(part)[pool.index(name)], value)


def test_some_parts_can_be_replaced_but_a_new_client_brings_all(pool):
    rng = np.random.default_rng(1)
    first = model(rng)
    pool.put("a", first)
    pool.put("a", {"counters": np.array([5, 6])})
    np.testing.assert_array_equal(pool.get("a", "extractor"), first["extractor"])
    np.testing.assert_array_equal(pool.get("a", "counters"), [5, 6])
    with pytest.raises(ValueError, match="all parts"):
        pool.put("b", {"counters": np.array([1, 1])})
    assert len(pool) == 1


def test_mixed_is_the_mixed(pool, monkeypatch):
    monkeypatch.setattr("coterie.strategies.pool.BLOCK_BYTES", 64)  # a few rows at a time
    rng = np.random.default_rng(2)
    models = [model(rng) for _ in range(11)]
    for i, parts in enumerate(models):
        pool.put(str(i), parts)
    weights = rng.dirichlet(np.ones(11), size=3)
    expected = sum(weights[:, [i]] * models[i]["extractor"].astype(float) for i in range(11))
    np.testing.assert_allclose(pool.mixed(weights, "extractor"), expected, rtol=1e-5, atol=1e-6)
    counters = pool.mixed(weights, "counters")
    assert counters.dtype == np.int64
    np.testing.assert_array_equal(counters, np.rint(sum(weights[:, [i]] * models[i]["counters"] for i in range(11))))


def test_files_are_found_again(tmp_path):
    rng = np.random.default_rng(3)
    first = opened(LAYOUT, tmp_path)
    parts = model(rng)
    first.put("a", model(rng))
    first.put("b", parts)
    again = ModelPool(LAYOUT, tmp_path)
    again.load_state_dict(first.state_dict())
    assert again.clients == ["a", "b"] and again.on_disk
    np.testing.assert_array_equal(again.get("b", "extractor"), parts["extractor"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=2, max_size=8), st.data())
def test_the_last_two_states_stay_whatever_is_written_after_them(rounds, data):
    """Each round some clients' rows change. After any of them a pool goes on from the last state, or the one before."""
    rng = np.random.default_rng(4)
    with tempfile.TemporaryDirectory() as directory:
        pool, states = opened(LAYOUT, Path(directory)), []
        for clients in rounds:
            for client in clients:
                pool.put(str(client), model(rng))
            told = json.loads(json.dumps(pool.state_dict()))
            rows = {name: pool.get(name, "extractor").tolist() for name in pool.clients}
            states.append((told, rows))
            for client in data.draw(st.lists(st.sampled_from(pool.clients), max_size=4)) if len(pool) else ():
                pool.put(client, model(rng))  # a round that is not saved any more
            for told, rows in states[-2:]:
                again = ModelPool(LAYOUT, Path(directory))
                again.load_state_dict(told)
                assert {name: again.get(name, "extractor").tolist() for name in again.clients} == rows
            size = (Path(directory) / "extractor.rows").stat().st_size
            assert size <= 3 * 6 * 7 * 4  # places are used again: those of two states and of a round at most


def test_many_large_models_go_to_files_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.strategies.pool.MEMORY_LIMIT", 10 * 44)  # bytes of ten models
    for clients, on_disk in ((10, False), (11, True)):
        pool = ModelPool(LAYOUT, tmp_path / str(clients))
        pool.expect(clients)
        assert pool.on_disk == on_disk == (tmp_path / str(clients)).exists()


def test_memory_does_not_grow_with_clients_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.strategies.pool.BLOCK_BYTES", 2**20)
    layout = {"extractor": np.zeros(50_000, np.float32)}  # 200 kB
    row = np.ones(50_000, np.float32)

    def peak(clients: int) -> int:
        pool = opened(layout, tmp_path / str(clients))
        tracemalloc.start()
        for i in range(clients):
            pool.put(str(i), {"extractor": row})
        pool.mixed(np.full((2, clients), 1 / clients), "extractor")
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    small, large = peak(20), peak(200)
    assert large < small + 2**20  # 36 MB more in files, not in memory
