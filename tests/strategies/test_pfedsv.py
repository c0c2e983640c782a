"""pFedSV against its formulas, worked out here from the messages alone; who is sent what; and what a restart leaves."""

import hashlib
import hmac
import itertools
import json
import math

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from coterie.client.app import app
from coterie.client.data import load_client_data
from coterie.server.findings import found
from coterie.strategies.pfedsv import pseudonyms
from coterie.strategies.pfedsv.orders import Judgement, PersonalizeOrder
from coterie.strategies.pfedsv.pseudonyms import Pseudonyms
from coterie.tasks.models import Network, build_network
from coterie.wire.arrays import pack, unpack
from coterie.wire.config import RunConfig, split_sections
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.messages import METRICS, MODEL, ORDER, OTHERS, TrainOrder
from coterie.wire.randomness import derive_seed

ALL = {"strategy": "pfedsv", "partition": "pathological", "num-server-rounds": 3, "learning-rate": 0.1}
SHARED = {**ALL, "pfedsv.shared-extractor": True}
PAPER = {"pfedsv.game": "paper"}
SOME = {**ALL, "num-clients": 8, "fraction-train": 0.25, "num-server-rounds": 10, "pfedsv.top-k": 2}


def order_of(message: Message) -> PersonalizeOrder:
    return PersonalizeOrder.from_record(message.content.config_records[ORDER])


def judgement_of(message: Message) -> Judgement:
    return Judgement.from_record(message.content.config_records[ORDER])


def models_sent(message: Message) -> dict[str, dict[str, np.ndarray]]:
    """Pseudonym -> model, as it travelled."""
    order = order_of(message)
    if not order.sent:
        return {}
    rows = unpack(message.content.array_records[OTHERS])
    return {name: {part: matrix[i] for part, matrix in rows.items()} for i, name in enumerate(order.sent)}


def uploaded(run, server_round: int) -> dict[str, dict[str, np.ndarray]]:
    replies = run.exchanges(server_round, "train")
    return {name: unpack(answered.content.array_records[MODEL]) for name, (_, answered) in replies.items()}


def network_of(run) -> Network:
    config = RunConfig.parse(split_sections(json.loads((run.path / "config.json").read_text()))[0])
    return build_network(config.model, (1, 8, 8), 10, seed=derive_seed(config.seed, "model"))


def validation_of(run, client: str, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    config = RunConfig.parse(split_sections(json.loads((run.path / "config.json").read_text()))[0])
    data = load_client_data({"partition-id": int(client), "num-partitions": clients}, config, client)
    samples = data.samples(data.split.validation, "cpu")
    return samples.x, samples.y


def load_mean(network: Network, models: list[dict[str, np.ndarray]], weights: np.ndarray | None = None) -> None:
    network.load(
        {
            p: np.average([m[p].astype(float) for m in models], axis=0, weights=weights).astype(models[0][p].dtype)
            for p in models[0]
        }
    )
    network.eval()


def accuracy_of_mean(network: Network, models: list[dict[str, np.ndarray]], x: torch.Tensor, y: torch.Tensor) -> float:
    load_mean(network, models)
    with torch.no_grad():
        return float((network(x).argmax(dim=1) == y).double().mean())


def loss_of_mean(
    network: Network, models: list[dict[str, np.ndarray]], x, y, weights: np.ndarray | None = None
) -> float:
    load_mean(network, models, weights)
    with torch.no_grad():
        probabilities = torch.softmax(network(x).double(), dim=1)
    return float(-probabilities[torch.arange(len(y)), y].log().mean())


def shapley_by_orders(n: int, score) -> np.ndarray:
    """The mean marginal over all n! orders."""
    known = {frozenset(): 0.0}
    total = np.zeros(n)
    for order in itertools.permutations(range(n)):
        before: frozenset[int] = frozenset()
        for player in order:
            after = before | {player}
            known.setdefault(after, score(sorted(after)) if after not in known else 0.0)
            total[player] += known[after] - known[before]
            before = after
    return total / math.factorial(n)


def weights_by_hand(
    values: np.ndarray, models: list[dict[str, np.ndarray]], start: dict[str, np.ndarray]
) -> np.ndarray:
    if (values <= 0).all():
        return np.eye(len(values))[0]
    apart = [
        math.sqrt(
            sum(float(((m[p].astype(float) - start[p]) ** 2).sum()) for p in m if p not in ("buffers", "counters"))
        )
        for m in models
    ]
    shares = np.maximum(values, 0) / np.array(apart)
    return shares / shares.sum()


@pytest.mark.parametrize("settings", [ALL, SHARED], ids=["whole model", "shared extractor"])
def test_a_round_of_the_paper_by_hand(federate, settings):
    """The paper's values, weights, new model and relevance, from what travelled in rounds 1 to 3."""
    run = federate(**settings, **PAPER)
    network = network_of(run)
    shared = bool(settings.get("pfedsv.shared-extractor"))
    start = {client: network.dump() for client in "0123"}
    relevance: dict[str, dict[str, float]] = {client: {} for client in "0123"}
    for server_round in (1, 2, 3):
        trained = uploaded(run, server_round)
        for client, (asked, answered) in run.exchanges(server_round).items():
            others = models_sent(asked)
            omega = unpack(asked.content.array_records[MODEL]) if shared else {}
            parts = ("classifier",) if shared else tuple(trained[client])
            models = [{part: trained[client][part] for part in parts}, *others.values()]
            network.load(trained[client] | omega)
            x, y = validation_of(run, client, 4)
            values = shapley_by_orders(
                len(models), lambda chosen, m=models, x=x, y=y: accuracy_of_mean(network, [m[i] for i in chosen], x, y)
            )
            metrics = answered.content.metric_records[METRICS]
            np.testing.assert_allclose(metrics["values"], values, atol=1e-9)
            weights = weights_by_hand(values, models, start[client])
            np.testing.assert_allclose(metrics["weights"], weights, atol=1e-5)
            for name, value in zip(others, values[1:], strict=True):
                relevance[client][name] = 0.2 * relevance[client].get(name, 0.0) + 0.8 * value
            judgement = judgement_of(answered)
            assert dict(zip(judgement.known, metrics["relevance"], strict=True)) == pytest.approx(relevance[client])
            mean = {p: sum(w * m[p].astype(float) for w, m in zip(weights, models, strict=True)) for p in parts}
            start[client] = trained[client] | omega | {p: v.astype(trained[client][p].dtype) for p, v in mean.items()}
            if server_round == 3:
                for part, value in run.state(client).items():
                    tolerance = 1.0 if part == "counters" else 1e-5
                    np.testing.assert_allclose(value, start[client][part], rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("settings", [ALL, SHARED], ids=["whole model", "shared extractor"])
def test_a_round_by_hand(federate, settings):
    """Gains, weights, the kept model and the fading relevance, from what travelled in rounds 1 to 3."""
    run = federate(**{**settings, "partition": "iid", "num-clients": 5, "pfedsv.top-k": 3})
    network = network_of(run)
    shared = bool(settings.get("pfedsv.shared-extractor"))
    relevance: dict[str, dict[str, tuple[float, int]]] = {client: {} for client in "01234"}  # score and round
    used = []
    for server_round in (1, 2, 3):
        trained = uploaded(run, server_round)
        for client, (asked, answered) in run.exchanges(server_round).items():
            others = models_sent(asked)
            omega = unpack(asked.content.array_records[MODEL]) if shared else {}
            parts = ("classifier",) if shared else tuple(trained[client])
            models = [{part: trained[client][part] for part in parts}, *others.values()]
            network.load(trained[client] | omega)
            x, y = validation_of(run, client, 5)
            own = loss_of_mean(network, models[:1], x, y)
            values = shapley_by_orders(
                len(others),
                lambda chosen, m=models, x=x, y=y, own=own: (
                    own - loss_of_mean(network, [m[0], *[m[1 + i] for i in chosen]], x, y)
                ),
            )
            metrics = answered.content.metric_records[METRICS]
            np.testing.assert_allclose(metrics["values"], values, atol=1e-5)
            helpful = (values > 0).sum()
            weights = np.array([1.0, *[helpful * max(v, 0) / (values[values > 0].sum() or 1) for v in values]]) / (
                helpful + 1
            )
            mixture = loss_of_mean(network, models, x, y, weights)
            np.testing.assert_allclose(metrics["losses"], [own, mixture], rtol=1e-4)
            used.append(bool(mixture <= own and helpful))
            told = run.events[server_round - 1]["mixture"][client]
            assert told["used"] == used[-1] and told["own-loss"] == pytest.approx(own, rel=1e-4)
            if not used[-1]:
                weights = np.eye(len(models))[0]
            np.testing.assert_allclose(metrics["weights"], weights, atol=1e-3)
            for name, value in zip(others, values, strict=True):
                score, judged = relevance[client].get(name, (0.0, 0))
                score = 0.2 * 0.9 ** (server_round - judged) * score + 0.8 * value if judged else value
                relevance[client][name] = (score, server_round)
            faded = {
                name: score * 0.9 ** (server_round - judged) for name, (score, judged) in relevance[client].items()
            }
            judgement = judgement_of(answered)
            assert dict(zip(judgement.known, metrics["relevance"], strict=True)) == pytest.approx(faded, abs=1e-5)
            if server_round == 3:
                load_mean(network, models, weights)
                kept = trained[client] | omega | network.dump(parts)
                for part, value in run.state(client).items():
                    tolerance = 1.0 if part == "counters" else 1e-4
                    np.testing.assert_allclose(value, kept[part], rtol=1e-3, atol=tolerance)
    assert any(used)


def test_the_shared_extractor_is_the_mean_and_travels_once(federate):
    run = federate(**SHARED, **PAPER, **{"num-clients": 5})
    for server_round in (1, 2, 3):
        trained = uploaded(run, server_round)
        counts = {name: run.events[server_round - 1]["train"][name]["num-samples"] for name in trained}
        for asked, _ in run.exchanges(server_round).values():
            received = unpack(asked.content.array_records[MODEL])
            assert set(received) == {"extractor", "norm", "buffers", "counters"}
            assert set(unpack(asked.content.array_records[OTHERS])) == {"classifier"}
            mean = sum(n * trained[c]["extractor"].astype(float) for c, n in counts.items()) / sum(counts.values())
            np.testing.assert_allclose(received["extractor"], mean, rtol=1e-4, atol=1e-6)
        for asked, _ in run.exchanges(server_round, "train").values():
            assert MODEL not in asked.content.array_records  # they have it
    size = run.events[-1]["bytes-up"]["0"]
    classifier = 4 * (84 * 10 + 10)
    for event in run.events:
        assert all(down <= size + 5 * (classifier + 200) for down in event["bytes-down"].values())


def test_a_client_that_lost_its_state_is_sent_the_extractor_again(federate, tmp_path):
    """It refuses to go on from what it has not, is left out of the round, and is sent everything in the next."""

    def lose(asked: Message, answered: Message, client: str) -> Message:
        if client == "3" and asked.metadata.message_type == "train.personalize" and asked.metadata.group_id == "1":
            for path in tmp_path.glob("run-1/state/**/3.safetensors"):
                path.unlink()
        return answered

    run = federate(tamper=lose, **SHARED)
    assert run.events[1]["left-out"]["3"].endswith("kept in round 1 is not here: send the whole model")
    assert run.events[2]["left-out"] == {}
    sent = {client: MODEL in asked.content.array_records for client, (asked, _) in run.exchanges(3, "train").items()}
    assert sent == {"0": False, "1": False, "2": False, "3": True}


@pytest.mark.parametrize("game", ["gain", "paper"])
def test_all_values_negative_keeps_the_own_model(federate, game):
    """Others send models that drown every average in one label, which client 0 has not: all of them are worth less than
    nothing to it, and its own model stays as trained."""

    def garbage(asked: Message, answered: Message, client: str) -> Message:
        if asked.metadata.message_type == "train" and client != "0":
            parts = unpack(answered.content.array_records[MODEL])
            parts["classifier"] = np.zeros_like(parts["classifier"])
            parts["classifier"][-10 + missing] = 1e6  # the biases come last
            answered.content[MODEL] = pack(parts)
        return answered

    config = RunConfig.parse({"task": "digits", "partition": "pathological", "labels-per-client": 2})
    data = load_client_data({"partition-id": 0, "num-partitions": 4}, config, "0")
    missing = min(set(range(10)) - set(data.dataset.y[data.split.train].tolist()))
    run = federate(tamper=garbage, **{**ALL, "local-epochs": 8, "pfedsv.game": game})
    number = 3 if game == "paper" else 1  # by gain, they are not asked for again so soon
    own = uploaded(run, 3)["0"]
    told = run.exchanges(number)["0"][1].content.metric_records[METRICS]
    assert told["weights"][0] == 1.0 and set(told["weights"][1:]) == {0.0}
    own_value, others = ([], told["values"]) if game == "gain" else (told["values"][:1], told["values"][1:])
    assert others and max(others) < 0 and min(own_value, default=1) > 0
    np.testing.assert_array_equal(run.state("0")["classifier"], own["classifier"])


# --- who is sent what -------------------------------------------------------------------------------------------------


def test_a_client_is_sent_exactly_what_it_asked_for(federate):
    run = federate(**ALL, **{"num-clients": 7, "pfedsv.top-k": 2})
    for server_round in (2, 3):
        before, now = run.exchanges(server_round - 1), run.exchanges(server_round)
        for client, (asked, _) in now.items():
            assert set(order_of(asked).sent) == set(judgement_of(before[client][1]).wishes)
            assert len(order_of(asked).sent) <= 2


def test_the_models_under_the_pseudonyms_are_those_of_the_right_clients(federate):
    run = federate(**ALL)
    trained = uploaded(run, 2)
    told = run.events[1]["values"]
    for client, (asked, _) in run.exchanges(2).items():
        others = [name for name in told[client] if name != client]
        for model, other in zip(models_sent(asked).values(), others, strict=True):
            assert other != client
            for part, value in model.items():
                np.testing.assert_array_equal(value, trained[other][part])


def test_clients_cannot_match_their_pseudonyms(federate):
    run = federate(**ALL, **{"num-clients": 6})
    rosters = {client: order_of(asked).roster for client, (asked, _) in run.exchanges(3).items()}
    everybody = [name for roster in rosters.values() for name in roster]
    assert len(everybody) == len(set(everybody)) == 6 * 5
    assert all(list(roster) == sorted(roster) for roster in rosters.values())
    again = {client: order_of(asked).roster for client, (asked, _) in run.exchanges(2).items()}
    assert again == rosters  # a client knows the same ones in every round
    for client, (asked, _) in run.exchanges(3).items():
        text = json.dumps(dict(asked.content.config_records[ORDER]), default=str)
        assert not any(f'"{other}"' in text for other in rosters if other != client)


def test_the_secret_is_random_where_clients_bring_data_of_their_own():
    def begun(seed: int, private: bool) -> Pseudonyms:
        names = Pseudonyms()
        names.begin(seed, private=private)
        return names

    private = [begun(1, private=True) for _ in range(2)]
    assert private[0].of("b", told_to="a") != private[1].of("b", told_to="a")
    public = [begun(seed, private=False) for seed in (1, 1, 2)]
    assert public[0].of("b", told_to="a") == public[1].of("b", told_to="a") != public[2].of("b", told_to="a")
    names = public[0]
    assert names.of("bc", told_to="a") != names.of("c", told_to="ab")
    assert set(names.roster("abc", told_to="a").values()) == {"b", "c"}
    again = Pseudonyms()
    again.load_state_dict(json.loads(json.dumps(private[0].state_dict())))
    again.begin(1, private=True)  # it has one already
    assert again.of("b", told_to="a") == private[0].of("b", told_to="a")


def test_rosters_are_the_sorted_pseudonyms_however_many_are_remembered(monkeypatch):
    def plain(others: list[str], told_to: str) -> list[tuple[str, str]]:
        made = [hmac.new(secret, f"{len(told_to)}:{told_to}{o}".encode(), hashlib.sha256).hexdigest() for o in others]
        return sorted((name[:16], other) for name, other in zip(made, others, strict=True) if other != told_to)

    secret, rng = b"abc", np.random.default_rng(1)
    clients = [f"ward {i}" for i in range(40)]
    for remembered in (2**20, 100, 1):
        monkeypatch.setattr(pseudonyms, "REMEMBERED", remembered)
        names = Pseudonyms(secret)
        for count in (1, 7, 40):  # the pool grows
            for one in clients[:count]:
                assert list(names.roster(clients[:count], told_to=one).items()) == plain(clients[:count], one)
        some = rng.permutation(clients)[:5].tolist()
        assert list(names.roster(some, told_to="ward 3").items()) == plain(some, "ward 3")
    names.load_state_dict({"secret": b"xyz".hex()})
    secret = b"xyz"
    assert list(names.roster(clients, told_to="ward 3").items()) == plain(clients, "ward 3")


def test_a_pseudonym_is_made_once(monkeypatch):
    made: list[tuple[str, str]] = []
    of = Pseudonyms.of
    monkeypatch.setattr(
        Pseudonyms, "of", lambda self, o, *, told_to: made.append((o, told_to)) or of(self, o, told_to=told_to)
    )
    names = Pseudonyms(b"abc")
    for count in (3, 5, 5):
        for one in "abcde"[:count]:
            names.roster("abcde"[:count], told_to=one)
    assert len(made) == len(set(made))


@pytest.mark.parametrize("settings", [{**SOME, **PAPER}, {**SOME, "partition": "iid"}], ids=["paper", "gain"])
def test_nothing_is_sent_twice_in_the_same_version(federate, settings):
    run = federate(**settings)
    seen: dict[str, dict[str, int]] = {}  # client -> pseudonym -> version it must still have
    reused = 0
    for server_round in range(1, 11):
        for client, (asked, answered) in run.exchanges(server_round).items():
            order = order_of(asked)
            had = seen.get(client, {})
            for name, version in zip(order.sent, order.sent_versions, strict=True):
                assert had.get(name) != version
            for name, version in zip(order.held, order.held_versions, strict=True):
                assert had[name] == version
                reused += 1
            both = zip(order.sent + order.held, order.sent_versions + order.held_versions, strict=True)
            seen[client] = dict(both)
            assert set(judgement_of(answered).members) == set(order.sent + order.held)
            sizes = run.events[server_round - 1]["bytes-down"][client]
            one = sum(value.nbytes for value in uploaded(run, server_round)[client].values())
            assert len(order.sent) * one <= sizes <= len(order.sent) * one + 2000
    assert reused > 0


def test_the_pool_has_the_latest_models_and_tells_their_age(federate):
    run = federate(**SOME)
    last: dict[str, int] = {}
    for server_round, event in enumerate(run.events, 1):
        last |= dict.fromkeys(event["train"], server_round)
        for ages in event["age"].values():
            for other, age in ages.items():
                assert age == server_round - last[other]
    assert any(age > 0 for event in run.events for ages in event["age"].values() for age in ages.values())
    assert all(set(event["evaluate"]) == set("01234567") for event in run.events)  # never leave out clients


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda j: {"wishes": ["f" * 16]}, "wishes: unknown pseudonym 'ffffffffffffffff'"),
        (lambda j: {"wishes": list(j["known"])[:3]}, "wishes: 3 models asked for, at most 2 are allowed"),
        (lambda j: {"wishes": [j["known"][0]] * 2}, "wishes: a pseudonym is named twice"),
        (lambda j: {"members": ["x"]}, "members and left-out: unknown pseudonym 'x'"),
        (lambda j: {"reasons": ["x"]}, "reasons: one for each model that was left out"),
        (lambda j: {"more": 1}, "Judgement: expected the fields"),
        (lambda j: {"wishes": 5}, "Judgement: wishes must be a list of texts"),
        (lambda j: {"members": [1, 2]}, "Judgement: members must be a list of texts"),
    ],
    ids=["unknown", "too many", "twice", "members", "reasons", "fields", "a number", "numbers"],
)
def test_a_bad_judgement_is_refused(federate, spoil, reason):
    def tamper(asked: Message, answered: Message, client: str) -> Message:
        if client == "1" and asked.metadata.message_type == "train.personalize" and asked.metadata.group_id == "3":
            record = dict(answered.content.config_records[ORDER])
            answered.content[ORDER] = ConfigRecord(record | spoil(record))
        return answered

    run = federate(tamper=tamper, **ALL, **{"num-clients": 6, "pfedsv.top-k": 2})
    assert run.events[2]["not-personalised"]["1"].startswith(reason)
    assert set(run.events[2]["not-personalised"]) == {"1"}
    assert set(run.result["models"]["personal"]["clients"]) == set("012345")  # tested all the same


@pytest.mark.parametrize(
    ("name", "value"),
    [("values", [0.1]), ("weights", [-1.0, 1.0, 1.0]), ("relevance", [1.0] * 9), ("losses", [1.0])],
)
def test_wrong_numbers_are_refused(federate, name, value):
    def tamper(asked: Message, answered: Message, client: str) -> Message:
        if client == "1" and asked.metadata.message_type == "train.personalize":
            answered.content.metric_records[METRICS][name] = value
        return answered

    run = federate(tamper=tamper, **ALL, **{"pfedsv.top-k": 2})
    assert all(event["not-personalised"]["1"].startswith(name) for event in run.events)


def test_a_mixture_that_is_worse_and_used_is_refused(federate):
    def tamper(asked: Message, answered: Message, client: str) -> Message:
        if client == "1" and asked.metadata.message_type == "train.personalize":
            told = answered.content.metric_records[METRICS]
            told["losses"], told["weights"] = (
                [0.5, 0.6],
                [0.5, *[0.5 / (len(told["weights"]) - 1)] * (len(told["weights"]) - 1)],
            )
        return answered

    run = federate(tamper=tamper, **{**ALL, "num-server-rounds": 1})
    assert run.events[0]["not-personalised"] == {
        "1": "weights: the mixture has a higher loss than the own model, and is used"
    }


@pytest.mark.parametrize("clients", [4, 5])
def test_all_of_a_few_clients_are_judged_in_two_rounds(federate, clients):
    """n <= 2k + 1: everybody was downloaded by everybody after ceil((n - 1) / k) rounds, whatever they were worth."""
    run = federate(**ALL, **{"num-clients": clients, "pfedsv.top-k": 2, "model": "linear"})
    assert all(len(known) == 2 for known in run.events[0]["relevance"].values())
    assert all(len(known) == clients - 1 for known in run.events[1]["relevance"].values())


def test_the_paper_finds_all_relevant_clients_within_the_bound(federate):
    """Everybody was downloaded by everybody after ceil((n - 1) / k) rounds, whatever they were worth."""
    run = federate(**ALL, **PAPER, **{"num-clients": 7, "pfedsv.top-k": 2, "model": "linear"})
    assert all(len(known) == 6 for known in run.events[2]["relevance"].values())
    assert all(len(known) == 4 for known in run.events[1]["relevance"].values())


# --- bad input --------------------------------------------------------------------------------------------------------


def test_more_models_than_there_are_others(federate):
    with pytest.raises(ConfigError, match=r"pfedsv.top-k = 4: a client here has 3 others; choose at most 3, or 0"):
        federate(**ALL, **{"pfedsv.top-k": 4})
    run = federate(**{**ALL, "num-server-rounds": 1})
    assert set(run.events[0]["models-sent"].values()) == {3}


def test_no_validation_samples(federate):
    with pytest.raises(RunFailed, match=r"validation-fraction = 0: no client has a validation sample"):
        federate(**ALL, **{"validation-fraction": 0.0})


def test_a_single_client(federate):
    run = federate(**ALL, **{"num-clients": 1})
    local = federate(**{**ALL, "strategy": "local", "num-clients": 1})
    assert run.result["models"] == local.result["models"]


@pytest.fixture
def alone(federate):
    """A run of one round; then client 0 can be sent a second message again, changed on its way."""
    run = federate(**{**ALL, "num-server-rounds": 1, "pfedsv.top-k": 2})
    asked, _ = run.exchanges(1)["0"]

    def ask(change) -> Message:
        records = RecordDict(
            {
                ORDER: ConfigRecord(dict(asked.content.config_records[ORDER])),
                OTHERS: pack(unpack(asked.content.array_records[OTHERS])),
            }
        )
        change(records)
        message = Message(records, dst_node_id=2, message_type="train.personalize", group_id="1")
        message.metadata.__dict__["_message_id"] = "1"
        context: Context = run.grid.contexts[2]
        return app(message, context)

    return run, ask


def test_a_downloaded_model_with_nan_is_left_out_by_name(alone):
    run, ask = alone
    names = []

    def change(records: RecordDict) -> None:
        rows = {part: np.array(value) for part, value in unpack(records.array_records[OTHERS]).items()}
        rows["classifier"][1, 3] = np.nan
        records[OTHERS] = pack(rows)
        names.extend(records.config_records[ORDER]["sent"])

    judgement = judgement_of(ask(change))
    assert judgement.members == (names[0],) and judgement.left_out == (names[1],)
    assert judgement.reasons == ("classifier: numbers are not finite",)
    assert all(np.isfinite(value).all() for value in run.state("0").values())


def told_by(answer: Message) -> dict[str, list[float]]:
    metrics = answer.content.metric_records[METRICS]
    return {name: list(metrics[name]) for name in ("values", "weights", "losses")}


def with_models(change):
    def changed(records: RecordDict) -> None:
        rows = {part: np.array(value) for part, value in unpack(records.array_records[OTHERS]).items()}
        change(rows)
        records[OTHERS] = pack(rows)

    return changed


def test_a_mixture_that_is_worse_is_not_used(alone):
    """The first model drowns every average, so that whoever dilutes it seems to help: here a model that says one label
    always, and is right in half of the samples. The mixture with it is tried, and the own model kept."""
    run, ask = alone
    own = uploaded(run, 1)["0"]
    label = int(validation_of(run, "0", 4)[1][0])

    def tamper(rows: dict[str, np.ndarray]) -> None:
        for part in rows:
            rows[part][:] = own[part]
        rows["classifier"][0] *= -1e3
        rows["classifier"][1, -10 + label] += 50  # the biases come last

    told = told_by(ask(with_models(tamper)))
    assert told["values"][1] > 0 > told["values"][0]
    assert told["losses"][1] > told["losses"][0]
    assert told["weights"] == [1.0, 0.0, 0.0]
    for part, value in run.state("0").items():
        np.testing.assert_array_equal(value, own[part])


def test_a_mixture_that_is_better_is_what_the_client_uses(alone):
    """Both models have the own one's answers, only surer or less sure: the right ones help, and the model is between them."""
    run, ask = alone
    own = uploaded(run, 1)["0"]

    def tamper(rows: dict[str, np.ndarray]) -> None:
        for part in rows:
            rows[part][:] = own[part]
        rows["classifier"][0] *= 1.2
        rows["classifier"][1] *= -1.0

    told = told_by(ask(with_models(tamper)))
    assert told["values"][0] > 0 > told["values"][1]
    assert told["weights"] == pytest.approx([0.5, 0.5, 0.0]) and told["losses"][1] < told["losses"][0]
    np.testing.assert_allclose(run.state("0")["classifier"], 1.1 * own["classifier"], rtol=1e-5)


def test_models_of_wild_numbers_do_not_end_the_game(alone):
    """Their outputs are not finite: they are worth nothing, and the client goes on."""
    run, ask = alone
    own = uploaded(run, 1)["0"]

    def tamper(rows: dict[str, np.ndarray]) -> None:
        for part in rows:
            rows[part][:] = own[part]
        rows["classifier"][0] = 3e38
        rows["extractor"][0] = 3e38

    told = told_by(ask(with_models(tamper)))
    assert told["weights"][1] == 0 and np.isfinite(told["values"]).all()
    assert all(np.isfinite(value).all() for value in run.state("0").values())


def test_a_model_that_should_be_here_and_is_not_is_left_out(alone):
    _, ask = alone

    def change(records: RecordDict) -> None:
        order = dict(records.config_records[ORDER])
        moved = order["sent"][0]
        order |= {"sent": order["sent"][1:], "sent_versions": order["sent_versions"][1:]}
        order |= {"held": [moved], "held_versions": [1]}
        records[ORDER] = ConfigRecord(order)
        rows = unpack(records.array_records[OTHERS])
        records[OTHERS] = pack({part: value[1:] for part, value in rows.items()})

    assert judgement_of(ask(change)).reasons == ("not here in version 1",)


def test_models_of_another_shape_are_refused_and_the_own_model_stays(alone):
    run, ask = alone
    before = run.state("0")

    def change(records: RecordDict) -> None:
        rows = unpack(records.array_records[OTHERS])
        records[OTHERS] = pack(rows | {"classifier": rows["classifier"][:, 1:]})

    with pytest.raises(Exception, match="classifier: expected float32"):
        ask(change)
    assert all(np.array_equal(value, before[part]) for part, value in run.state("0").items())


def test_a_client_that_did_not_train_in_this_round_refuses(alone):
    _, ask = alone

    def change(records: RecordDict) -> None:
        records[ORDER] = ConfigRecord(dict(records.config_records[ORDER]) | {"round": 2})

    with pytest.raises(Exception, match="no model trained in round 2"):
        ask(change)


def test_a_train_order_that_continues_what_is_not_here(alone):
    run, _ = alone
    order = TrainOrder(2, ("classifier",), continues=5)
    records = RecordDict({ORDER: order.to_record()})
    message = Message(records, dst_node_id=2, message_type="train", group_id="2")
    with pytest.raises(Exception, match="kept in round 5 is not here"):
        app(message, run.grid.contexts[2])


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_a_repeated_second_exchange_starts_from_the_same_memory(federate):
    """The memory of round 2 is that of round 1 plus round 2, however often round 2 is repeated."""
    run = federate(**{**ALL, "num-server-rounds": 2, "pfedsv.top-k": 2})
    asked, answered = run.exchanges(2)["0"]
    context = run.grid.contexts[2]
    train, _ = run.exchanges(2, "train")["0"]
    for _ in range(2):
        app(train, context)
        again = app(asked, context)
        assert list(again.content.metric_records[METRICS]["relevance"]) == list(
            answered.content.metric_records[METRICS]["relevance"]
        )
        assert judgement_of(again) == judgement_of(answered)


def test_a_restarted_client_goes_on_where_it_was(federate):
    """Nothing is in Flower's context: only the files of the state directory are left of a client between messages."""
    run = federate(**SOME)
    assert all(not context.state for context in run.grid.contexts.values())
    known = dict.fromkeys("01234567", 0)
    for event in run.events:
        for client, relevance in event["relevance"].items():
            assert len(relevance) >= known[client]
            known[client] = len(relevance)
    assert max(known.values()) > 2  # more than one round's worth


def test_the_server_can_be_restarted(federate):
    from coterie.server.app import initial_layout
    from coterie.strategies.registry import method_of, parse_config

    run = federate(**SOME)
    saved = json.loads((run.path / "checkpoint" / "state.json").read_text())
    config, settings = parse_config(json.loads((run.path / "config.json").read_text()))
    method = method_of("pfedsv")(config, settings["pfedsv"], initial_layout(config))
    method.load_state_dict({**saved, "arrays": run.model})
    again = method.state_dict()
    told = json.loads(json.dumps({k: v for k, v in again.items() if k != "arrays"}))
    assert told == {key: saved[key] for key in told}
    assert all(np.array_equal(value, run.model[name]) for name, value in again["arrays"].items())
    order = order_of(next(iter(run.exchanges(10).values()))[0])
    client = next(iter(run.exchanges(10)))
    assert tuple(method.roster(client)) == order.roster


def test_the_relevance_is_written_beside_the_truth(federate, tmp_path):
    from coterie.cli.main import main

    with pytest.raises(SystemExit) as end:
        main(
            f"run --strategy pfedsv --num-server-rounds 3 --num-clients 6 --workers 0 --run-dir {tmp_path}/run".split()
        )
    assert end.value.code == 0
    relevance = found(tmp_path / "run")["relevance"]
    assert relevance.clients == [str(i) for i in range(6)] and relevance.values.shape == (6, 6)
    event = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    for client, row in zip(relevance.clients, relevance.values, strict=True):
        for other, value in zip(relevance.clients, row, strict=True):
            assert value == pytest.approx(event["relevance"][client].get(other, 0.0), abs=1e-5)
    assert 0 <= relevance.facts["clients-whose-positive-scores-are-exactly-the-label-sharers"] <= 1
    assert '"name":"relevance"' in (tmp_path / "run" / "report.html").read_text()


def test_with_some_clients_in_a_round_the_extractor_is_sent_to_those_that_have_an_old_one(federate):
    run = federate(**{**SOME, "pfedsv.shared-extractor": True, "num-server-rounds": 6})
    before: set[str] = set()
    for server_round in range(1, 7):
        asked = run.exchanges(server_round, "train")
        for client, (message, _) in asked.items():
            assert (MODEL in message.content.array_records) == (server_round > 1 and client not in before)
        before = set(asked)
        latest = next(iter(run.exchanges(server_round).values()))[0].content.array_records[MODEL]
        for message, _ in run.exchanges(server_round, "evaluate").values():
            np.testing.assert_array_equal(
                unpack(message.content.array_records[MODEL])["extractor"], unpack(latest)["extractor"]
            )


def test_who_was_alone_in_the_first_round_is_sent_models_in_the_next(federate):
    run = federate(**{**SOME, "fraction-train": 0.01, "num-server-rounds": 12})
    first = next(iter(run.exchanges(1)))
    assert order_of(run.exchanges(1)[first][0]).roster == ()
    later = [run.exchanges(r)[first][0] for r in range(2, 13) if first in run.exchanges(r)]
    assert later and len(order_of(later[0]).sent) in (1, 2)
