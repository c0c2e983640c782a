"""What is sent is what arrives; randomness depends on its purpose alone."""

import dataclasses

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.wire.arrays import pack, unpack
from coterie.wire.fingerprint import DOOR, PACKAGES, fingerprint, source_files
from coterie.wire.messages import MODEL, ORDER, OTHERS, EvaluateOrder, Hello, Sent, TrainOrder, reply, size_in_bytes
from coterie.wire.randomness import derive_seed, generator

words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
counts = st.integers(0, 2**40)
orders = st.builds(
    TrainOrder,
    round=counts,
    phase_parts=st.lists(words, max_size=3).map(tuple),
    phase_epochs=st.lists(counts, max_size=3).map(tuple),
    upload=st.lists(words, max_size=5).map(tuple),
    keep=st.lists(words, max_size=5).map(tuple),
    proximal_mu=st.floats(0, 1e6),
)
evaluations = st.builds(
    EvaluateOrder, round=counts, kinds=st.lists(words, max_size=2).map(tuple), fine_tune_epochs=counts
)
few = st.integers(0, 10**9)
hellos = st.builds(Hello, words, words, few, few, few, few)


@given(st.one_of(orders, evaluations, hellos))
def test_records_come_back(order):
    record = order.to_record()
    assert isinstance(record, ConfigRecord)
    assert type(order).from_record(record) == order


@given(orders)
@settings(max_examples=20)
def test_records_survive_flowers_own_encoding(order):
    again = ConfigRecord.inflate(order.to_record().deflate())
    assert TrainOrder.from_record(again) == order


@pytest.mark.parametrize("change", [{"round": None}, {"more": 1}])
def test_missing_or_unknown_fields_are_refused(change):
    values = {**dataclasses.asdict(EvaluateOrder(1, ("personal",))), **change}
    values = {name: value for name, value in values.items() if value is not None}
    with pytest.raises(ValueError, match="EvaluateOrder: expected the fields"):
        EvaluateOrder.from_record(values)


@pytest.mark.parametrize("name", ["", "x" * 65, "a/b", "../up", "a\nb", "a\0b", 7])
def test_names_that_are_no_names(name):
    with pytest.raises(ValueError, match="name has 1 to 64 letters"):
        Hello(name, "c", 1, 1, 1, 1)


@pytest.mark.parametrize("count", [-1, 1.5, "3", None, 10**9 + 1])
def test_counts_that_are_no_counts(count):
    with pytest.raises(ValueError, match="counts of a hello must be integers from 0 to 1000000000"):
        Hello("a", "c", 1, count, 1, 1)


arrays = hnp.arrays(
    st.sampled_from([np.float32, np.int64]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=20),
    elements=st.integers(0, 99),
)


@given(st.dictionaries(words, arrays, max_size=5))
def test_packing(parts):
    again = unpack(pack(parts))
    assert set(again) == set(parts)
    for name, value in parts.items():
        assert (
            again[name].dtype == value.dtype and again[name].shape == value.shape and np.array_equal(again[name], value)
        )


def test_views_are_packed_as_they_look():
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(unpack(pack({"a": matrix.T, "b": matrix[:, 1]}))["a"], matrix.T)


def test_content_and_size():
    order, model = EvaluateOrder(3, ("global",)), pack({"classifier": np.zeros(1000, np.float32)})
    sent = Sent(order, model, {"classifier": np.zeros((2, 1000), np.float32)}).content()
    assert set(sent) == {ORDER, MODEL, OTHERS}
    assert EvaluateOrder.from_record(sent.config_records[ORDER]) == order
    assert 12000 <= size_in_bytes(sent) < 12000 + 2 * 200
    alone = Sent(order).content()
    assert size_in_bytes(alone) == 0 and MODEL not in alone
    answer = reply({"loss": 0.5, "num-samples": 3, "weights": [0.5, 0.25]}, {"norm": np.ones(2, np.float32)})
    assert dict(answer.metric_records["metrics"]) == {"loss": 0.5, "num-samples": 3, "weights": [0.5, 0.25]}
    assert np.array_equal(unpack(answer.array_records[MODEL])["norm"], [1, 1])


# --- randomness ------------------------------------------------------------------------------------------------------


def test_every_consumer_has_a_generator_of_its_own():
    keys = [
        (seed, purpose, server_round, client)
        for seed in (0, 1, 11)
        for purpose in ("train", "tune", "sample")
        for server_round in (0, 1, 11)
        for client in ("", "1", "11", "a")
    ]
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    assert all(0 <= derive_seed(*key) < 2**63 for key in keys)


def test_generators_do_not_depend_on_each_other():
    alone = generator(1, "train", 2, "a").random(4)
    other = generator(1, "train", 2, "b")
    other.random(100)
    np.random.seed(3)
    assert np.array_equal(generator(1, "train", 2, "a").random(4), alone)
    assert not np.array_equal(generator(1, "train", 2, "b").random(4), alone)


def test_seeds_are_the_same_everywhere():
    """Two machines must draw the same: these numbers were written down once."""
    import hashlib

    text = "(7, 'model', 0, '')"
    expected = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) // 2
    assert derive_seed(7, "model") == expected


@pytest.mark.parametrize("installed", [False, True])
def test_the_fingerprint_changes_with_the_code_and_not_with_the_place(tmp_path, monkeypatch, installed):
    import shutil

    import coterie.wire.fingerprint as module

    root = module.Path(module.__file__).parent.parent
    home = tmp_path / "site-packages" / "coterie" if installed else tmp_path
    shutil.copytree(root / DOOR, home if installed else home / DOOR, ignore=shutil.ignore_patterns("__pycache__"))
    for package in PACKAGES:
        shutil.copytree(root / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    here = set(source_files())
    monkeypatch.setattr(module, "__file__", str(home / "wire" / "fingerprint.py"))
    assert set(source_files()) == here and {"coterie/__init__.py", "cli/main.py"} <= here
    assert module.fingerprint.__wrapped__() == fingerprint() and len(fingerprint()) == 12
    path = home / "client" / "app.py"
    path.write_text(path.read_text() + "\n# another line\n")
    assert module.fingerprint.__wrapped__() != fingerprint()
