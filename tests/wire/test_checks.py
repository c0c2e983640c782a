"""Every kind of bad reply is refused, and the reason names what is wrong."""

import io
import pickle
import zipfile

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.wire.arrays import pack
from coterie.wire.checks import Layout, check_evaluation, check_hello, check_update, checked_parts
from coterie.wire.errors import Refused
from coterie.wire.messages import METRICS, MODEL, ORDER, Hello, reply

PARTS = {
    "extractor": np.arange(6, dtype=np.float32),
    "buffers": np.array([0.5, -0.5, 1.0, 2.0], dtype=np.float32),  # two means, two variances
    "counters": np.array([3], dtype=np.int64),
}
LAYOUT = Layout(PARTS, variances=np.array([2, 3]), classifier_shape=(1, 1))
UPLOAD = tuple(PARTS)


def message(content) -> Message:
    asked = Message(RecordDict(), dst_node_id=5, message_type="train")
    return Message(content, reply_to=asked)


def update(metrics=None, **parts) -> Message:
    good = {"num-samples": 10, "loss": 0.5}
    return message(reply({**good, **(metrics or {})}, {**PARTS, **parts}))


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=array.dtype == object)
    return buffer.getvalue()


def raw(data: bytes, dtype="float32", shape=(6,), stype="numpy.ndarray") -> Message:
    """A good reply, but for the bytes of its extractor."""
    alone = {name: pack({name: value})[name] for name, value in PARTS.items()}
    return answer_with(ArrayRecord({**alone, "extractor": Array(dtype, shape, stype, data)}))


def joined(key: str, data: bytes, shape=(10,)) -> Message:
    """A good reply, but for the name and the bytes of the array that holds its extractor and buffers."""
    array = Array("float32", shape, "numpy.ndarray", data)
    return answer_with(ArrayRecord({key: array, "counters": pack(PARTS)["counters"]}))


def answer_with(record: ArrayRecord) -> Message:
    return message(RecordDict({METRICS: MetricRecord({"num-samples": 10}), MODEL: record}))


def refused(reply_: Message, *words: str) -> None:
    with pytest.raises(Refused) as caught:
        check_update(reply_, LAYOUT, UPLOAD)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_good_reply():
    got = check_update(update({"weights": [0.25, 0.75]}), LAYOUT, UPLOAD)
    assert got.num_samples == 10 and got.metrics == {"num-samples": 10, "loss": 0.5}
    assert got.vectors["weights"].tolist() == [0.25, 0.75] and got.num_bytes > 48
    for name, value in PARTS.items():
        assert np.array_equal(got.parts[name], value) and got.parts[name].dtype == value.dtype


def test_a_good_reply_without_a_model():
    answer = message(reply({"num-samples": 0}))
    assert check_update(answer, LAYOUT, ()).parts == {}
    refused(answer, "no record 'model'")


def test_errors_and_missing_records():
    trace = "Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on device\n"
    refused(message(Error(code=2, reason=trace)), "error 2: OSError: [Errno 28] No space left on device")
    refused(message(Error(code=5)), "error 5: no reason given")
    refused(message(RecordDict()), "no record 'metrics'")
    refused(message(RecordDict({MODEL: pack(PARTS)})), "no record 'metrics'")


def test_wrong_parts():
    few = {name: value for name, value in PARTS.items() if name != "counters"}
    refused(
        message(reply({"num-samples": 1}, few)),
        "expected the parts ['buffers', 'counters', 'extractor'], got ['buffers', 'extractor']",
    )
    refused(update(classifier=np.zeros(2, np.float32)), "expected the parts", "classifier")
    with pytest.raises(Refused, match="expected the parts"):
        check_update(update(), LAYOUT, ())


def test_wrong_shapes_and_dtypes():
    refused(update(extractor=np.zeros(5, np.float32)), "extractor: expected float32 (6,), got float32 (5,)")
    refused(update(extractor=np.zeros((2, 3), np.float32)), "extractor: expected float32 (6,), got float32 (2, 3)")
    refused(update(extractor=np.zeros(6)), "extractor: expected float32 (6,), got float64 (6,)")
    refused(update(extractor=np.zeros(6, np.float16)), "got float16")
    refused(update(extractor=np.zeros(6, np.complex64)), "got complex64")
    refused(update(counters=np.array([1.0])), "counters: expected int64 (1,), got float64 (1,)")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(value):
    bad = np.array([1, value, 3, value, 5, 6], np.float32)
    refused(update(extractor=bad), "extractor: 2 of 6 numbers are not finite")
    refused(update({"loss": value}), "loss: not a finite number")
    refused(update({"weights": [0.5, value]}), "weights: not a finite number")


def test_negative_variances_but_any_mean():
    refused(update(buffers=np.array([0, 0, 1, -1e-6], np.float32)), "buffers: a running variance is negative")
    check_update(update(buffers=np.array([-3, -4, 0, 1], np.float32)), LAYOUT, UPLOAD)


@pytest.mark.parametrize("count", [-1, 1.0, 10**9 + 1, 2**62])
def test_counts_that_are_none(count):
    refused(update({"num-samples": count}), "num-samples: expected a whole number from 0 to 1000000000", repr(count))


def test_no_count():
    refused(message(reply({"loss": 1.0}, PARTS)), "num-samples: expected a whole number", "None")
    refused(message(reply({"num-samples": [1, 2]}, PARTS)), "num-samples: expected a whole number")


# --- bytes that lie --------------------------------------------------------------------------------------------------


def test_a_header_inside_that_differs_from_the_one_outside():
    refused(raw(npy(np.zeros(3, np.float32))), "extractor: expected float32 (6,), got float32 (3,)")
    refused(raw(npy(np.zeros(6, np.float64))), "got float64 (6,)")
    refused(raw(npy(np.zeros(6, ">f4"))), "extractor")
    refused(raw(npy(np.zeros(3, np.complex64))), "got complex64")


def test_too_many_or_too_few_bytes():
    data = npy(PARTS["extractor"])
    refused(raw(npy(np.zeros(10_000, np.float32))), "extractor: 40128 bytes for an array of 24")
    refused(raw(data[:-1]), "extractor: cannot be read")
    refused(raw(data[:20]), "extractor: cannot be read")
    refused(raw(b""), "extractor: cannot be read")
    refused(raw(data, stype="torch"), "extractor: cannot be read", "torch")


class Trap:
    """Would leave a trace if it were unpickled."""

    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


def test_pickles_are_not_opened():
    for data in (npy(np.array([Trap()], dtype=object)), pickle.dumps(Trap())):
        refused(raw(data), "extractor: cannot be read")
        refused(raw(data, dtype="object", shape=(1,)), "extractor: expected float32 (6,), got object (1,)")
    assert not Trap.sprung


def header(text: str) -> bytes:
    body = text.encode("latin1").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("x.npy", npy(np.zeros(6, np.float32)))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        archive(),
        b"PK\x03\x04 not an archive",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (-6,), }"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (6,"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (6L,), }") + bytes(24),
        header("'" * 60),
        header("(" * 110),
        header("{'descr': [('a', '<f4', (0,))], 'fortran_order': False, 'shape': (6,), }"),
        b"\x93NUMPY\x09\x00" + bytes(50),
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff" + bytes(50),
    ],
    ids=[
        "archive",
        "no archive",
        "huge",
        "negative",
        "torn",
        "python 2",
        "quotes",
        "nested",
        "fields",
        "version",
        "long header",
    ],
)
def test_files_that_make_numpy_stumble(data):
    try:
        got = check_update(raw(data), LAYOUT, UPLOAD)
    except Refused as error:
        assert str(error).startswith("extractor:")
    else:  # numpy may make sense of it: then it is an array as it must be
        assert got.parts["extractor"].shape == (6,) and got.parts["extractor"].dtype == np.float32


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_no_flipped_byte_gets_past_or_stops_the_run(data):
    both = data.draw(st.booleans())
    content = bytearray(npy(BOTH if both else PARTS["extractor"]))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        reply_ = joined("extractor:6+buffers:4", bytes(content)) if both else raw(bytes(content))
        got = check_update(reply_, LAYOUT, UPLOAD).parts["extractor"]
    except Refused:
        return
    assert got.shape == (6,) and got.dtype == np.float32 and np.isfinite(got).all()


BOTH = np.concatenate([PARTS["extractor"], PARTS["buffers"]])


def test_parts_in_one_array():
    key = "extractor:6+buffers:4"
    assert set(pack(PARTS)) == {key, "counters"} and pack(PARTS)[key].data == npy(BOTH)
    got = check_update(joined(key, npy(BOTH)), LAYOUT, UPLOAD).parts
    assert all(np.array_equal(got[name], value) for name, value in PARTS.items())


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("extractor:7+buffers:3", r"extractor: expected float32 \(6,\), got float32 \(7,\)"),
        ("extractor:6+buffers:5", r"in an array \(10,\)"),
        ("extractor:6+buffers:-4", "expected float32"),
        ("extractor:6+buffers:4+extra:0", "expected the parts"),
        ("extractor:6+extractor:4", "expected the parts"),
        ("extractor:6+buffers:four", "names of the parts cannot be read"),
        ("extractor:6+buffers", "names of the parts cannot be read"),
        ("buffers:4+extractor:6", "a running variance is negative"),  # as it is named, so it is read
    ],
)
def test_names_of_joined_parts_that_lie(key, reason):
    values = BOTH if not key.startswith("buffers") else -BOTH
    with pytest.raises(Refused, match=reason):
        check_update(joined(key, npy(values)), LAYOUT, UPLOAD)


def test_a_matrix_of_models():
    rows = pack({"norm": np.ones((3, 4), np.float32), "classifier": np.zeros((3, 2), np.float32)})
    assert len(rows) == 1
    like = {"norm": np.empty((3, 4), np.float32), "classifier": np.empty((3, 2), np.float32)}
    got = checked_parts(rows, like)
    assert got["norm"].shape == (3, 4) and got["norm"].all() and not got["classifier"].any()
    with pytest.raises(Refused, match="norm: expected"):
        checked_parts(rows, like | {"norm": np.empty((2, 4), np.float32)})


# --- other answers ---------------------------------------------------------------------------------------------------


def test_evaluations():
    assert (
        check_evaluation(message(reply({"num-samples": 3, "personal.loss": 0.1})), ("personal",))["personal.loss"]
        == 0.1
    )
    assert check_evaluation(message(reply({"num-samples": 0})), ("personal",)) == {"num-samples": 0}
    for metrics, reason in [
        ({"num-samples": 3, "global.loss": 0.1}, "no personal.loss"),
        ({"personal.loss": 0.1}, "num-samples"),
        ({"num-samples": 3, "personal.loss": float("nan")}, "personal.loss: not a finite number"),
        ({"num-samples": 3, "personal.loss": [0.1]}, "no personal.loss"),
    ]:
        with pytest.raises(Refused, match=reason):
            check_evaluation(message(reply(metrics)), ("personal",))
    with pytest.raises(Refused, match="error 2: boom"):
        check_evaluation(message(Error(code=2, reason="boom")), ("personal",))


def test_hellos():
    hello = Hello("ward-7", "abc", 0, 10, 1, 2)
    assert check_hello(message(RecordDict({ORDER: hello.to_record()}))) == hello


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "is this node running Coterie"),
        (RecordDict({ORDER: ConfigRecord({"name": "a"})}), "Hello: expected the fields"),
        (RecordDict({ORDER: MetricRecord({"name": 1})}), "is this node running Coterie"),
        (RecordDict({"hello": ArrayRecord()}), "is this node running Coterie"),
        (
            RecordDict({ORDER: ConfigRecord({**Hello("a", "c", 1, 1, 1, 1).to_record(), "name": "../a"})}),
            "'../a': a client",
        ),
        (
            RecordDict({ORDER: ConfigRecord({**Hello("a", "c", 1, 1, 1, 1).to_record(), "num_train": -4})}),
            "from 0 to",
        ),
        (
            RecordDict({ORDER: ConfigRecord({**Hello("a", "c", 1, 1, 1, 1).to_record(), "name": ["a"]})}),
            "name has 1 to 64 letters",
        ),
        (Error(code=2, reason="ConfigError: no name"), "error 2: ConfigError: no name"),
    ],
)
def test_hellos_of_strangers(content, reason):
    with pytest.raises(Refused, match=reason):
        check_hello(message(content))
