"""One client cannot move the models far, and a round that ruins them is taken back (strategies/bounds.py)."""

import json
import math

import numpy as np
import pytest
from flwr.app import Array, Error, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from coterie.server.app import initial_layout
from coterie.strategies.bounds import Bounds, lower_median
from coterie.strategies.registry import default_config, method_of, parse_config, section_of
from coterie.wire.arrays import pack, unpack
from coterie.wire.checks import Update
from coterie.wire.errors import Absent, NotFinite, TooLong
from coterie.wire.messages import MODEL, Sent, TrainOrder

ORDER = TrainOrder(1, upload=("classifier",))


def judged(bounds: Bounds, lengths, start=0.0, sent=True):
    """Who is left out of clients whose updates have these lengths, in a round that goes on with the others."""
    model = np.full(4, start, np.float32)
    step = np.array([1, 0, 0, 0], np.float32)
    updates = {
        str(i): Update({"classifier": (model + np.float32(value) * step)}, 1, {}, {}, 0)
        for i, value in enumerate(lengths)
    }
    order = Sent(ORDER, {"classifier": model} if sent else None)
    refused = bounds.too_long(dict.fromkeys(updates, order), updates)
    assert all(isinstance(why, TooLong) for why in refused.values())
    bounds.remember()
    return set(refused)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1.0, 50.0), min_size=1, max_size=9),
    st.floats(1e4, 1e30),
    st.integers(0, 9),
    st.floats(1e-6, 1e6),
)
def test_one_that_is_far_too_long_is_left_out_and_honest_ones_never(honest, bad, place, unit):
    """Also one of two or three. Honest clients differ up to fifty times, in any unit."""
    bounds = Bounds()
    assert judged(bounds, [unit * value for value in honest]) == set()
    place = min(place, len(honest))
    lengths = [*honest[:place], bad, *honest[place:]]
    for known in (bounds, Bounds()):
        assert judged(known, [unit * min(value, 1e38 / unit / 10) for value in lengths]) == {str(place)}


def test_a_majority_that_begins_later_is_held_by_the_rounds_before():
    bounds = Bounds()
    for _ in range(3):
        assert judged(bounds, [1, 2, 3]) == set()
    for _ in range(3):  # nor do repeated tries wear the bound down
        refused = bounds.too_long(*_huge())
        assert set(refused) == {"0", "1", "2"}
    assert judged(bounds, [1, 2, 3]) == set()


def _huge():
    model = {"classifier": np.zeros(4, np.float32)}
    updates = {str(i): Update({"classifier": np.full(4, 1e6, np.float32)}, 1, {}, {}, 0) for i in range(3)}
    return dict.fromkeys(updates, Sent(ORDER, model)), updates


def test_who_learned_all_it_can_does_not_shut_out_one_that_joins_late():
    """Its update is a million times as long as theirs, and still shorter than the model."""
    bounds = Bounds()
    for _ in range(6):
        assert judged(bounds, [0.0, 1e-6, 1e-6, 1e-6, 0.0], start=1.0) == set()
    assert judged(bounds, [0.0, 1e-6, 1e-6, 1e-6, 1.0], start=1.0) == set()
    assert judged(bounds, [0.0, 1e-6, 1e-6, 1e-6, 1e3], start=1.0) == {"4"}


def test_of_what_was_not_sent_the_model_counts():
    bounds = Bounds()
    assert judged(bounds, [1, 2, 8], sent=False) == set()
    assert judged(bounds, [1, 2, 1e3], sent=False) == {"2"}
    assert set(bounds.usual) == {"whole weights"}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9))
def test_the_lower_median_is_the_smallest_value_that_half_do_not_exceed(values):
    found = lower_median(values)
    half = math.ceil(len(values) / 2)
    assert found in values and sum(value <= found for value in values) >= half
    assert sum(value < found for value in values) < half


@pytest.mark.parametrize(
    ("losses", "failed", "ruined"),
    [
        ([0.4, 0.5, 9.0], 0, False),  # one client says so
        ([0.4, 9.0], 0, False),
        ([0.4, 9.0, 9.0], 0, True),
        ([2.2, 2.2, 2.2], 0, False),  # ten times the last, and no worse than guessing
        ([0.4], 2, True),
        ([0.4, 0.4], 1, False),
    ],
)
def test_what_ruin_is(losses, failed, ruined):
    bounds = Bounds(math.log(10))
    tests = {str(i): {"global.loss": 0.2} for i in range(3)}
    assert bounds.ruined(["global"], tests, {}) == ""
    tests = {str(i): {"global.loss": loss} for i, loss in enumerate(losses)}
    why = {f"x{i}": NotFinite("no number") for i in range(failed)} | {"away": Absent("away")}
    assert bool(bounds.ruined(["global"], tests, why)) is ruined


def test_a_restarted_server_has_the_same_bounds():
    values = {**default_config(), "strategy": "pfedsim", "model": "linear", "evaluate-every": 3}
    config, sections = parse_config(values)

    def made():
        method = method_of("pfedsim")(config, sections[section_of("pfedsim")], initial_layout(config))
        method.model = dict(method.layout.parts)
        method.pool.expect(2)
        return method

    one, two = made(), made()
    one.pool.put("0", one.layout.parts)
    one.bounds.begin(one.state_dict())
    judged(one.bounds, [1, 2, 3])
    one.bounds.ruined(["global"], {"0": {"global.loss": 1.0}}, {})
    state = one.state_dict()
    told = json.loads(json.dumps({key: value for key, value in state.items() if key != "arrays"}))
    two.load_state_dict(told | {"arrays": state["arrays"]})
    assert (
        (two.bounds.usual, two.bounds.losses)
        == (one.bounds.usual, one.bounds.losses)
        == (
            {"weights": [2.0]},
            {"global": [1.0]},
        )
    )
    three = made()
    three.load_state_dict(two.bounds.good)
    np.testing.assert_array_equal(three.pool.get("0", "classifier"), one.layout.parts["classifier"])
    assert three.bounds.good is None


# In whole runs.


def tampered(client, rounds, change):
    """What this client uploads after training in these rounds is changed: by its start and what it trained."""
    done: set[int] = set()

    def tamper(asked: Message, answer: Message, name: str) -> Message:
        number = int(asked.metadata.group_id)
        training = asked.metadata.message_type.startswith("train") and MODEL in answer.content.array_records
        if name != client or number not in rounds or number in done or not training:
            return answer
        done.add(number)  # not what it is asked after its training
        if change is None:
            return Message(Error(code=2, reason="away"), reply_to=asked)
        start = unpack(asked.content.array_records[MODEL]) if MODEL in asked.content.array_records else {}
        record = answer.content.array_records[MODEL]
        for key, array in record.items():
            value = array.numpy()
            if value.dtype == np.float32:
                old = pack(start)[key].numpy() if start else np.zeros_like(value)
                if old.shape != value.shape:  # it answers with models more than it was sent
                    old = np.zeros_like(value)
                record[key] = Array(change(old, value).astype(np.float32))
        return answer

    return tamper


@pytest.mark.parametrize("strategy", ["fedavg", "fedrep", "pfedsim", "pfedsv", "pfedhn", "pfedocf", "spo", "median"])
def test_an_update_a_million_times_as_long_is_as_if_the_client_were_away(strategy, federate):
    """One of three clients: the others' result is the same to the last byte."""
    small = {"strategy": strategy, "model": "linear", "num-clients": 3}
    if strategy == "pfedocf":
        small |= {"ocf.trial-rounds": 1}
    if strategy == "fedrep":  # of a linear model nothing would be sent
        small |= {"model": "mlp"}
    huge = federate(tampered("1", {2}, lambda start, value: start + 1e6 * (value - start)), **small)
    away = federate(tampered("1", {2}, None), **small)
    assert "times the usual" in huge.events[1]["left-out"]["1"]
    assert huge.result == away.result
    assert all(np.array_equal(huge.model[name], away.model[name]) for name in away.model)
    assert "times the usual" in (huge.path / "report.html").read_text()


def turned(start, value):
    """Back and far, and still within the bound on lengths: what only its effect gives away."""
    return start - 60 * (value - start)


@pytest.mark.parametrize("strategy", ["fedavg", "pfedsim"])
def test_a_round_that_ruins_the_models_is_rolled_back(strategy, federate, caplog):
    small = {"strategy": strategy, "model": "mlp", "num-clients": 3, "num-server-rounds": 4, "learning-rate": 0.2}
    small |= {"pfedsim.warmup": 1.0}
    good = federate(**small | {"num-server-rounds": 3})
    run = federate(tampered("1", {3}, turned), **small)
    event = run.events[2]
    assert event["left-out"] == {} and event["rolled-back"]["to-round"] == 2
    assert "the median test loss" in event["rolled-back"]["why"]
    assert "round 3 ruined the models and is rolled back to round 2" in caplog.text
    assert event["evaluate"] == run.events[1]["evaluate"]
    # What is there after round 3 is what an undisturbed run had after round 2.
    state, told = (load_file(made.path / "checkpoint.previous" / "state.safetensors") for made in (run, good))
    assert set(state) == set(told) and all(np.array_equal(state[part], told[part]) for part in state)
    assert run.events[3]["mean"]["personal.loss"] < event["mean"]["personal.loss"]
    assert "ruined" in (run.path / "report.html").read_text()


def test_ruin_that_is_seen_later_is_taken_back_to_the_last_test(federate):
    small = {"model": "mlp", "num-clients": 3, "num-server-rounds": 4, "evaluate-every": 2, "learning-rate": 0.2}
    run = federate(tampered("1", {3, 4}, turned), strategy="fedavg", **small)
    assert run.events[3]["rolled-back"]["to-round"] == 2
    assert run.events[3]["evaluate"] == run.events[1]["evaluate"]
