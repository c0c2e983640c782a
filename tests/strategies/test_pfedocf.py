"""pFedOCF: what clients and server say to each other leads to the game in memory, and bad answers do not stop it."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, MetricRecord, RecordDict
from safetensors.numpy import load_file

from coterie.client.data import load_client_data
from coterie.games.formation import finish, formation
from coterie.games.overlap import LinearGame, coalitions_of, form_coalitions, is_individually_stable
from coterie.server.app import initial_layout
from coterie.strategies.pfedocf import PFedOCF
from coterie.strategies.pfedocf.game import OCFSettings
from coterie.tasks.models import build_network
from coterie.wire.arrays import pack, unpack
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.messages import HELLO, METRICS, MODEL, ORDER, OTHERS

LINEAR = {"strategy": "pfedocf", "task": "linear", "num-clients": 6, "partition": "natural", "input-shape": "4"}
LINEAR |= {"linear-groups": 2, "linear-deviation": 0.05, "linear-samples": "20-60"}
GROUPS = {"strategy": "pfedocf", "model": "linear", "num-clients": 5, "learning-rate": 0.1, "validation-fraction": 0.3}
GROUPS |= {"ocf.trial-rounds": 1}


def config_of(run) -> RunConfig:
    return RunConfig.parse(split_sections(json.loads((run.path / "config.json").read_text()))[0])


def data_of(run, client: str):
    config = config_of(run)
    return load_client_data({"partition-id": int(client), "num-partitions": config.num_clients}, config, client)


def messages(run, kind, server_round=None):
    return [
        (name, asked, answer)
        for (name, asked), (_, answer) in zip(run.grid.sent, run.grid.answered, strict=True)
        if asked.metadata.message_type == kind and server_round in (None, int(asked.metadata.group_id))
    ]


def coalitions_in(run, server_round=1):
    return [frozenset(map(int, members)) for members in run.events[server_round - 1]["coalitions"].values()]


# --- linear tasks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["overlapping", "disjoint"])
def test_linear_clients_get_what_the_closed_form_says(federate, mechanism):
    """Estimates, game and mixtures worked out here from the clients' samples."""
    run = federate(**LINEAR, **{"ocf.mechanism": mechanism, "ocf.cost": 0.0001})
    thetas, counts, rests = [], [], []
    for client in run.result["clients"]:
        data = data_of(run, client)
        x, y = data.dataset.x[data.split.train].astype(float), data.dataset.y[data.split.train].astype(float)
        theta = np.linalg.solve(x.T @ x, x.T @ y)
        thetas.append(theta.astype(np.float32))
        counts.append(len(y))
        rests.append(((x @ theta - y) ** 2).sum())
    noise = sum(rests) / (sum(counts) - 4 * 6)
    game = LinearGame(thetas, counts, noise, estimated=True)
    costs = 0.0001 * np.array(counts)
    expected = form_coalitions(game, costs=costs, disjoint=mechanism == "disjoint")
    assert set(coalitions_in(run)) == {c for c in expected if len(c) > 1} != set()
    if mechanism == "overlapping":
        assert is_individually_stable(game, expected, costs=costs)
    ordered = coalitions_in(run)
    for i, client in enumerate(run.result["clients"]):
        mine = coalitions_of(i, ordered)
        weights = game.mixing_weights(i, mine)
        mixed = sum(
            a * np.average(np.array(thetas)[sorted(c)], axis=0, weights=np.array(counts)[sorted(c)])
            for a, c in zip(weights, mine, strict=True)
        )
        np.testing.assert_allclose(run.personal(client)["classifier.weight"][0], mixed, rtol=1e-4, atol=1e-5)
        assert list(run.events[0]["mixing"][client].values()) == pytest.approx(weights.tolist(), abs=1e-5)


def test_a_linear_client_sends_its_estimate_and_nothing_else(federate):
    run = federate(**LINEAR, num_server_rounds=20)
    assert run.result["rounds"] == 1 and len(run.events) == 1  # estimates do not change
    sent = messages(run, "train.coalitions")
    assert len(sent) == 6
    for _, asked, answer in sent:
        assert not asked.content.array_records
        assert {name: array.shape for name, array in answer.content.array_records[MODEL].items()} == {
            "classifier": (1, 5)
        }
        assert set(answer.content.metric_records[METRICS]) == {"num-samples", "loss", "steps", "cpu-seconds"}
    kinds = [message.metadata.message_type for _, message in run.grid.sent]
    assert kinds.count("evaluate") == 6 and len(kinds) == 24  # hello, train, evaluate, figures


def test_linear_mechanisms(federate):
    models = {}
    for mechanism in ("local", "grand", "grand-mixed"):
        run = federate(**LINEAR, **{"ocf.mechanism": mechanism})
        models[mechanism] = np.array([run.personal(c)["classifier.weight"][0] for c in run.result["clients"]])
        assert len(run.events[0]["coalitions"]) == (mechanism != "local")
    counts = [run.events[0]["train"][c]["num-samples"] for c in run.result["clients"]]
    mean = np.average(models["local"], axis=0, weights=counts)
    np.testing.assert_allclose(models["grand"], np.tile(mean, (6, 1)), rtol=1e-5)
    shares = np.array([run.events[0]["mixing"][c]["own"] for c in run.result["clients"]])[:, None]
    np.testing.assert_allclose(models["grand-mixed"], shares * models["local"] + (1 - shares) * mean, atol=1e-4)


def test_too_few_samples_are_named_before_anything_is_sent(federate):
    with pytest.raises(ConfigError, match=r"client '0' has 9 training samples for 10 features.*at least 12.*ocf.game"):
        federate(**{**LINEAR, "linear-samples": "13", "input-shape": "10"})


def test_one_that_says_it_has_too_few_is_left_out_by_name(federate, caplog):
    """What one client says of itself ends no run."""

    def tamper(asked, answer, client):
        if client == "2" and asked.metadata.message_type == HELLO:
            answer.content.config_records[ORDER]["num_train"] = 3
        if client == "2" and asked.metadata.message_type == "train.coalitions":
            answer.content.metric_records[METRICS]["num-samples"] = 3
        return answer

    run = federate(**LINEAR, tamper=tamper)
    assert "client '2' has 3 training samples for 4 features" in caplog.text
    assert run.events[0]["left-out"] == {"2": "num-samples: 3 for an estimate of 4 coefficients"}
    assert set(run.events[0]["train"]) == {"0", "1", "3", "4", "5"}


def test_linearly_dependent_features_are_refused_by_the_client(federate, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    x[:60, 2] = x[:60, 1]
    owner = np.repeat(["one", "two"], 60)
    np.savez(tmp_path / "d.npz", x=x, y=x.sum(axis=1) + 0.1 * rng.normal(size=120).astype(np.float32), owner=owner)
    own = {"task": "own", "data": str(tmp_path / "d.npz"), "partition": "natural", "num-clients": 2, "model": "linear"}
    run = federate(strategy="pfedocf", **own, **{"ocf.game": "closed"})
    assert "linearly dependent (rank 2)" in run.events[0]["left-out"]["0"] and list(run.events[0]["train"]) == ["1"]


def test_own_data_are_measured_unless_the_user_says_otherwise(tmp_path):
    config = RunConfig(task="own", classes="regression", input_shape="3", model="linear")
    layout = initial_layout(config)
    assert not PFedOCF(config, OCFSettings(), layout).closed
    assert PFedOCF(config, OCFSettings(game="closed"), layout).closed
    digits = RunConfig(model="linear")
    with pytest.raises(ConfigError, match=r"ocf.game = 'closed': is for linear regression"):
        PFedOCF(digits, OCFSettings(game="closed"), initial_layout(digits))


def test_an_estimate_from_too_few_samples_is_a_lie(federate):
    def tamper(asked, answer, client):
        if client == "2" and asked.metadata.message_type == "train.coalitions":
            answer.content.metric_records[METRICS]["num-samples"] = 5
        return answer

    run = federate(**LINEAR, tamper=tamper)
    assert run.events[0]["left-out"] == {"2": "num-samples: 5 for an estimate of 4 coefficients"}
    assert "2" in run.result["models"]["personal"]["clients"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"privacy.mode": "dp-sgd"}, "least squares estimates are not private"),
        ({"privacy.mode": "dp-sgd", "privacy.target-epsilon": 8.0, "ocf.game": "measured"}, "noise-multiplier instead"),
    ],
)
def test_privacy_that_cannot_be_kept_is_refused(federate, settings, reason):
    with pytest.raises(RunFailed, match=reason):
        federate(**LINEAR, round_retries=0, **settings)


# --- any model --------------------------------------------------------------------------------------------------------


def test_the_federated_game_is_the_game_in_memory(federate):
    """Losses measured here, with the uploaded models and the clients' validation samples: the mean of what the members made of
    the common model in the second round, and the client's own step of that round; alone, its own model."""
    run = federate(**{**GROUPS, "ocf.trial-rounds": 2}, num_server_rounds=2)
    own, together = {}, {}
    for server_round in (1, 2):
        for client, asked, answer in messages(run, "train.coalitions", server_round):
            own[int(client)], together[int(client)] = unpack(answer.content.array_records[MODEL])["classifier"].astype(
                float
            )
            start = asked.content.array_records[OTHERS]["classifier"].numpy()[0].astype(float)
    counts = np.array([run.events[1]["train"][str(i)]["num-samples"] for i in range(5)])
    network = build_network("linear", (1, 8, 8), 10, seed=0)

    def losses(client, coalition):
        members = sorted(coalition)
        mean = np.average([together[m] for m in members], axis=0, weights=counts[members])
        model = own[client] if len(members) == 1 else mean + together[client] - start
        data = data_of(run, str(client))
        samples = data.samples(data.split.validation, "cpu")
        network.load({"classifier": model.astype(np.float32)})
        return torch.nn.functional.cross_entropy(network(samples.x), samples.y, reduction="none").detach().numpy()

    def rises(member, before, after):
        change = losses(member, after) - losses(member, before)
        return change.mean() > np.sqrt(change.var(ddof=1) / len(change))

    steps = formation(range(5), lambda i, c: float(losses(i, c).mean()), np.zeros(5), rises=rises)
    expected = finish(steps).coalitions
    assert any(len(c) > 1 for c in expected)
    assert set(coalitions_in(run, 2)) == {c for c in expected if len(c) > 1}
    assert "coalitions" not in run.events[0]


def test_trial_rounds_end_with_the_run(federate):
    run = federate(**{**GROUPS, "ocf.trial-rounds": 5}, num_server_rounds=2)
    assert "coalitions" not in run.events[0] and "exchanges" in run.events[1]


@pytest.mark.parametrize("partition", ["iid", "pathological"])
def test_not_below_the_better_of_local_and_fedavg(federate, partition):
    """Clients that are alike train together; clients with two labels each train alone, and the report says so."""
    values = {"partition": partition, "model": "mlp", "num-clients": 12, "num-server-rounds": 8, "evaluate-every": 8}
    values |= {"local-epochs": 2, "batch-size": 32, "learning-rate": 0.05}
    runs = {name: federate(strategy=name, **values) for name in ("local", "fedavg", "pfedocf")}
    reached = {name: 100 * run.result["mean-test-accuracy"]["personal"] for name, run in runs.items()}
    assert reached["pfedocf"] >= max(reached["local"], reached["fedavg"]) - 1
    told = runs["pfedocf"].events[2]["coalitions"]
    page = (runs["pfedocf"].path / "report.html").read_text()
    if partition == "iid":
        assert max(map(len, told.values())) > 8 and reached["fedavg"] > reached["local"] + 2
    else:
        alone = set(map(str, range(12))) - {client for members in told.values() for client in members}
        assert len(alone) > 6 and ("alone are" in page or "better off with a model of its own" in page)


def test_models_sent_are_counted_and_nothing_is_sent_twice(federate):
    run = federate(**GROUPS, num_server_rounds=1)
    seen, number = {}, {}
    for client, asked, answer in messages(run, "query.errors"):
        rows = asked.content.array_records[OTHERS]["classifier"].numpy()
        groups = min(100, len(data_of(run, client).split.validation))
        own = client not in number  # asked about its own model at first, which is not sent
        assert len(answer.content.metric_records[METRICS]["errors"]) == groups * (len(rows) + own)
        number[client] = number.get(client, 0) + len(rows)
        for row in rows:
            assert row.tobytes() not in seen.setdefault(client, set())
            seen[client].add(row.tobytes())
    event = run.events[0]
    assert event["models-sent"] == number and event["exchanges"] <= 2 * 5 * event["sweeps"]
    size = initial_layout(config_of(run)).parts["classifier"].nbytes
    for client, models in number.items():
        assert event["bytes-down"][client] == pytest.approx((models + 1) * size, rel=0.15)  # and the one that all train


def test_fewer_candidates_fewer_models(federate):
    sent = []
    for candidates in (1, 0):
        run = federate(**GROUPS, num_server_rounds=1, **{"ocf.candidates": candidates})
        sent.append(sum(run.events[0]["models-sent"].values()))
    assert sent[0] < sent[1]


def test_each_coalition_trains_its_model(federate):
    run = federate(**GROUPS, num_server_rounds=3)
    coalitions = list(run.events[0]["coalitions"].values())
    assert coalitions
    trained = {client: answer for client, _, answer in messages(run, "train.coalitions", 2)}
    for client, asked, _ in messages(run, "train.coalitions", 3):
        mine = [members for members in coalitions if client in members]
        if not mine:
            assert not asked.content.array_records and MODEL not in trained[client].content.array_records
            continue
        rows = asked.content.array_records[OTHERS]["classifier"].numpy()
        for row, members in zip(rows, mine, strict=True):
            parts, weights = [], []
            for member in members:
                place = [c for c in coalitions if member in c].index(members)
                parts.append(trained[member].content.array_records[MODEL]["classifier"].numpy()[place])
                weights.append(run.events[1]["train"][member]["num-samples"])
            np.testing.assert_allclose(row, np.average(parts, axis=0, weights=weights), rtol=1e-5, atol=1e-7)
    for client, shares in run.events[2]["mixing"].items():
        assert list(shares) == ["own", *[str(i) for i, members in enumerate(coalitions) if client in members]]
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5) and min(shares.values()) >= 0


@pytest.mark.parametrize(("mechanism", "same"), [("grand", "fedavg"), ("local", "local")])
def test_grand_is_fedavg_and_local_is_local(federate, mechanism, same):
    ours = federate(model="mlp", num_server_rounds=3, strategy="pfedocf", **{"ocf.mechanism": mechanism})
    theirs = federate(model="mlp", num_server_rounds=3, strategy=same)
    for client in ours.result["clients"]:
        for name, value in theirs.personal(client).items():
            np.testing.assert_allclose(ours.personal(client)[name], value, rtol=1e-5, atol=1e-6)


def test_batchnorm_models_go_all_the_way(federate):
    run = federate(strategy="pfedocf", model="lenet5", num_server_rounds=2, **{"ocf.mechanism": "grand-mixed"})
    assert len(run.result["models"]["personal"]["clients"]) == 4 and not run.result["not-tested"]


def test_same_result_with_workers(federate):
    one, two = (federate(**GROUPS, num_server_rounds=2, workers=workers) for workers in (0, 2))
    assert (one.path / "result.json").read_bytes() == (two.path / "result.json").read_bytes()


# --- what can go wrong ------------------------------------------------------------------------------------------------


def spoiled(values):
    def tamper(asked, answer, client):
        if client == "1" and asked.metadata.message_type == "query.errors":
            if values is None:
                return Message(Error(code=5, reason="Node Unavailable"), reply_to=asked)
            records = RecordDict({METRICS: MetricRecord(values)})
            return Message(records, reply_to=asked)
        return answer

    return tamper


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (None, "error 5: Node Unavailable"),
        ({"errors": [float("nan")] * 4}, "errors: not a finite number"),
        ({"errors": [0.1, 0.2]}, "errors: expected "),
        ({"losses": [0.1]}, "errors: expected "),
    ],
)
def test_a_client_that_fails_in_the_game_is_out_and_the_game_goes_on(federate, values, reason):
    run = federate(**GROUPS, num_server_rounds=2, tamper=spoiled(values))
    event = run.events[0]
    assert list(event["left-game"]) == ["1"] and event["left-game"]["1"].startswith(reason)
    assert event["coalitions"] and not any("1" in members for members in event["coalitions"].values())
    assert run.events[1]["left-out"] == {} and run.events[1]["mixing"]["1"] == {"own": 1.0}
    assert "1" in run.result["models"]["personal"]["clients"]


def test_settings_that_do_not_go_together(federate):
    with pytest.raises(ConfigError, match="buffers = 'local': pfedocf mixes whole models"):
        federate(**{**GROUPS, "model": "lenet5", "buffers": "local"})


def test_a_client_that_missed_a_round_goes_on_with_its_newer_model(federate):
    """The server sends its old model in case, and the client does not need it."""

    def tamper(asked, answer, client):
        silent = (client, asked.metadata.message_type, asked.metadata.group_id) == ("1", "train.coalitions", "2")
        return Message(Error(code=5, reason="away"), reply_to=asked) if silent else answer

    run = federate(**GROUPS, num_server_rounds=3, tamper=tamper, **{"ocf.mechanism": "local"})
    whole = federate(**GROUPS, num_server_rounds=3, **{"ocf.mechanism": "local"})
    assert list(run.events[1]["left-out"]) == ["1"]
    np.testing.assert_array_equal(run.personal("1")["classifier.weight"], whole.personal("1")["classifier.weight"])


def test_without_any_validation_sample_there_is_no_game(federate):
    with pytest.raises(RunFailed, match=r"validation-fraction = 0: no client has a validation sample"):
        federate(**{**GROUPS, "validation-fraction": 0.0})


@pytest.mark.parametrize("spoil", ["rows", "nan", "missing"])
def test_coalition_models_that_cannot_be_are_refused(federate, spoil):
    def tamper(asked, answer, client):
        if (client, asked.metadata.message_type, asked.metadata.group_id) == ("1", "train.coalitions", "2"):
            parts = unpack(answer.content.array_records[MODEL])
            if spoil == "rows":
                parts = {part: np.repeat(rows, 2, axis=0) for part, rows in parts.items()}
            if spoil == "nan":
                parts = {part: np.full_like(rows, np.nan) for part, rows in parts.items()}
            del answer.content[MODEL]
            if spoil != "missing":
                answer.content[MODEL] = pack(parts)
        return answer

    run = federate(**GROUPS, num_server_rounds=3, tamper=tamper, **{"ocf.mechanism": "grand-mixed"})
    assert list(run.events[1]["left-out"]) == ["1"] and run.events[2]["left-out"] == {}
    resent = {client: asked for client, asked, _ in messages(run, "train.coalitions", 3)}
    first = {client: answer for client, _, answer in messages(run, "train.coalitions", 1)}
    assert [client for client, asked in resent.items() if MODEL in asked.content.array_records] == ["1"]
    np.testing.assert_array_equal(
        resent["1"].content.array_records[MODEL]["classifier"].numpy(),
        first["1"].content.array_records[MODEL]["classifier"].numpy()[0],
    )


@pytest.mark.parametrize("weights", [[0.5, 0.6], [-0.5, 1.5], [1.0], None])
def test_mixtures_that_cannot_be_are_refused(federate, weights):
    def tamper(asked, answer, client):
        if client == "1" and asked.metadata.message_type == "evaluate.mix":
            metrics = dict(answer.content.metric_records[METRICS])
            metrics.pop("mixing")
            answer.content[METRICS] = MetricRecord(metrics | ({"mixing": weights} if weights else {}))
        return answer

    run = federate(**GROUPS, num_server_rounds=1, tamper=tamper, **{"ocf.mechanism": "grand-mixed"})
    assert list(run.result["not-tested"]) == ["1"] and "mixing" in run.result["not-tested"]["1"]


def test_a_client_that_lost_its_state_gets_its_model_back(federate, tmp_path):
    """It says so, is left out once, and in the next round has what it uploaded before the game."""

    def tamper(asked, answer, client):
        if (client, asked.metadata.message_type, asked.metadata.group_id) == ("2", "evaluate.mix", "1"):
            for path in (tmp_path / "run-1" / "state").rglob("2.safetensors"):
                path.unlink()
        return answer

    run = federate(**GROUPS, num_server_rounds=3, tamper=tamper)
    assert run.events[1]["left-out"] == {
        "2": "error 2: Refused: the model that this client trained in round 1 is not here: send it"
    }
    assert run.events[2]["left-out"] == {} and "2" in run.events[2]["train"]
    assert not run.events[1]["not-tested"]  # it can still be tested, with its coalitions' models


def test_nobody_learns_who_the_others_are(federate):
    names = ["ward-seven", "clinic-nord", "practice-lee", "labo-quai", "centre-sud"]
    run = federate(**GROUPS, names=names, num_server_rounds=2)
    assert run.events[0]["coalitions"]
    for client, message in run.grid.sent:
        text = repr({name: dict(record) for name, record in message.content.config_records.items()})
        text += repr([list(record) for record in message.content.array_records.values()]) + repr(message.metadata)
        assert not [name for name in names if name != client and name in text]


def test_state_survives_a_restart_of_the_server(federate):
    run = federate(**GROUPS, num_server_rounds=2)
    config = config_of(run)
    state = json.loads((run.path / "checkpoint" / "state.json").read_text())
    state["arrays"] = load_file(run.path / "checkpoint" / "state.safetensors")
    method = PFedOCF(config, OCFSettings(trial_rounds=1), initial_layout(config))
    method.load_state_dict(state)
    again = method.state_dict()
    assert {key: again[key] for key in again if key != "arrays"} == {
        key: state[key] for key in again if key != "arrays"
    }
    assert set(again["arrays"]) == set(state["arrays"]) and method.last_round == 2
    for name, value in again["arrays"].items():
        np.testing.assert_array_equal(value, state["arrays"][name])
    with pytest.raises(ValueError, match="a state of fedavg"):
        method.load_state_dict({**state, "method": "fedavg"})
