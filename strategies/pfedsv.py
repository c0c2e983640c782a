"""pFedSV (Wu et al. 2022, arXiv:2202.02502): every client chooses whose models it wants, by their Shapley values for it.

A round has two exchanges. Clients train and upload; the server keeps the last model of every client. Then each client is sent
exactly the models it asked for the last time (the first time: k at random), finds out on its validation samples what each is
worth (client/pfedsv.py), makes its personal model, tests it, and says what it wants next.

    k    as long as a client has not seen everybody; then as many as have positive relevance, at least 1 and at most k

Clients know each other by pseudonyms. A model that a client still has in the same version is not sent again. With
`shared-extractor` the server averages the extractor as FedAvg does, and only classifiers go from client to client.

Models that are too large together for one message go one by one before the second exchange, and count as models that the client
has: so it never has two of them in memory.
"""

import functools
from collections.abc import Iterable, Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from coterie.strategies.base import Method
from coterie.strategies.fedavg import average, sample_weights
from coterie.strategies.federation import name_order
from coterie.strategies.pool import MEMORY_LIMIT, ModelPool
from coterie.strategies.pseudonyms import Pseudonyms
from coterie.tasks.models import STATISTICS, WEIGHTS
from coterie.wire.arrays import pack
from coterie.wire.checks import Personalized, Update, check_done, check_personalized
from coterie.wire.config import Settings
from coterie.wire.errors import ConfigError, RunFailed
from coterie.wire.messages import (
    OTHERS,
    TRAIN_DELIVER,
    TRAIN_PERSONALIZE,
    DeliverOrder,
    EvaluateOrder,
    PersonalizeOrder,
    TrainOrder,
    content,
)
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from pydantic import Field

USUAL_K = 5
ONE_MESSAGE = 64 * 2**20  # bytes of k models up to which they go in one message
LARGEST_SHOWN = 200  # clients up to which the event line has all relevances


class PFedSVSettings(Settings):
    top_k: int = Field(
        0,
        ge=0,
        le=15,
        description="Most models of others that a client asks for in a round. 0: 5, or all others where fewer.",
    )
    alpha: float = Field(0.2, ge=0.0, lt=1.0, description="Share of the old relevance in the new one.")
    shared_extractor: bool = Field(
        False,
        description="Average the extractor over all clients, exchange only classifiers: fewer bytes, a faster game.",
    )


class PFedSV(Method):
    name = "pfedsv"
    settings_class = PFedSVSettings
    kinds = ("personal",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stays = STATISTICS if self.config.buffers == "local" else ()
        sent_up = [part for part in self.layout.parts if part not in stays]
        shared = [part for part in sent_up if part != "classifier"] if self.settings.shared_extractor else []
        self.shared = tuple(shared)  # averaged by the server
        self.exchanged = tuple(part for part in sent_up if part not in shared)  # go from client to client
        self.top_k = self.settings.top_k or USUAL_K
        self.pool: ModelPool | None = None
        self.pseudonyms: Pseudonyms | None = None
        self.versions: dict[str, int] = {}  # client -> round of its model in the pool
        self.wishes: dict[str, list[str]] = {}  # client -> whose models it asked for, by name
        self.held: dict[str, dict[str, int]] = {}  # client -> whose models it has, in which version
        self.current: dict[str, int] = {}  # client -> round in which it got the shared parts
        self.relevance: dict[str, dict[str, float]] = {}
        self.orders: dict[str, PersonalizeOrder] = {}  # of this round
        self.sent: dict[str, list[str]] = {}  # client -> whose models it was sent in this round, by pseudonym

    def begin(self) -> None:
        hellos = self.federation.hellos
        others = len(hellos) - 1
        if self.settings.top_k > others:
            raise ConfigError(
                f"pfedsv.top-k = {self.settings.top_k}: a client here has {others} others; choose at most {others}, or 0"
            )
        self.top_k = self.settings.top_k or min(USUAL_K, others)
        blind = sorted((name for name, hello in hellos.items() if not hello.num_validation), key=name_order)
        if len(blind) == len(hellos):
            raise RunFailed(
                f"validation-fraction = {self.config.validation_fraction:g}: no client has a validation sample, and pfedsv "
                "judges models by them; raise it, or take fewer clients"
            )
        if blind:
            log(WARNING, "without validation samples, these clients keep their own models: %s", ", ".join(blind))
        if self.pseudonyms is None:
            private = not all(hello.num_partitions for hello in hellos.values())
            self.pseudonyms = Pseudonyms.for_run(self.config.seed, private=private)

    # The first exchange: train and upload.

    def uploads(self) -> tuple[str, ...]:
        return tuple(part for part in self.layout.parts if part in self.shared + self.exchanged)

    def train_content(self, client: str, server_round: int) -> RecordDict:
        """The shared parts go along, unless this client has them: from the end of the round before, or, as long as nobody
        has trained, because the seed gives everybody the same first model."""
        up_to_date = bool(self.shared) and self.current.get(client) == self.last_round
        order = TrainOrder(
            server_round,
            ("+".join(WEIGHTS),),
            (self.config.local_epochs,),
            upload=self.uploads(),
            keep=tuple(self.layout.parts),
            continues=self.last_round if up_to_date else 0,
        )
        known = up_to_date or not self.versions
        return content(order, self.packed(self.shared) if self.shared and not known else None)

    def aggregate(self, server_round: int, updates: Mapping[str, Update]) -> dict[str, Any]:
        pool = self.models()
        for client, update in updates.items():
            pool.put(client, {part: update.parts[part] for part in self.exchanged})
            self.versions[client] = server_round
        if self.shared:
            shared = [{part: update.parts[part] for part in self.shared} for update in updates.values()]
            self.model = self.model | average(shared, sample_weights(updates.values()))
        return {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = super().aggregate_train(server_round, replies)
        for client in self.event["left-out"]:
            self.forget(client)
        return result

    # The second: the models asked for.

    def after_train(self, server_round: int, clients: list[str], timeout: float) -> None:
        able = [client for client in clients if self.federation.hellos[client].num_validation]
        one = sum(self.layout.parts[part].nbytes for part in self.exchanged)
        common = sum(self.layout.parts[part].nbytes for part in self.shared)
        self.orders, self.sent = {}, {client: self.to_send(client) for client in able}
        failed = self.deliver(server_round, able, one, timeout) if self.one_by_one else {}
        replies, missing, sizes = self._in_waves(
            TRAIN_PERSONALIZE,
            [client for client in able if client not in failed],
            self.personalize_content,
            server_round,
            self.top_k * one + common,
            timeout,
        )
        judged, refused = self._sort_out(replies, self.check_judgement)
        failed |= missing | refused
        for client, reason in failed.items():
            log(WARNING, "round %d: client %s keeps its own model: %s", server_round, client, reason)
            self.forget(client)
        for client, judgement in judged.items():
            self.learn(client, server_round, judgement)
        self._count(sizes)
        self.event |= {"not-personalised": failed, **self.describe(server_round, judged)}

    @property
    def one_by_one(self) -> bool:
        return self.top_k * sum(self.layout.parts[part].nbytes for part in self.exchanged) > ONE_MESSAGE

    def _count(self, sizes: Mapping[str, int]) -> None:
        for client, number in sizes.items():
            self.event["bytes-down"][client] += number

    def to_send(self, client: str) -> list[str]:
        """The models that this client wants and has not in their last version."""
        held = self.held.get(client, {})
        return [name for name, other in self.wanted(client).items() if held.get(other) != self.versions[other]]

    def deliver(self, server_round: int, clients: list[str], size: int, timeout: float) -> dict[str, str]:
        """One model after the other to every client; who failed, and why."""
        failed: dict[str, str] = {}
        for turn in range(self.top_k):
            due = [client for client in clients if client not in failed and turn < len(self.sent[client])]
            packed = functools.partial(self.deliver_content, turn)
            replies, missing, sizes = self._in_waves(TRAIN_DELIVER, due, packed, server_round, size, timeout)
            failed |= missing | self._sort_out(replies, lambda client, reply: check_done(reply))[1]
            self._count(sizes)
        return failed

    def deliver_content(self, turn: int, client: str, server_round: int) -> RecordDict:
        name = self.sent[client][turn]
        other = self.wanted(client)[name]
        order = DeliverOrder(server_round, name, self.versions[other], self.exchanged)
        return content(order, **{OTHERS: pack({part: self.models().get(other, part) for part in self.exchanged})})

    def personalize_content(self, client: str, server_round: int) -> RecordDict:
        wanted = self.wanted(client)
        held = [name for name in wanted if name not in self.sent[client]]
        sent = self.sent[client]
        if self.one_by_one:
            sent, held = [], sent + held
        order = PersonalizeOrder(
            round=server_round,
            top_k=self.top_k,
            alpha=float(self.settings.alpha),
            parts=self.exchanged,
            roster=tuple(self.roster(client)),
            sent=tuple(sent),
            sent_versions=tuple(self.versions[wanted[name]] for name in sent),
            held=tuple(held),
            held_versions=tuple(self.versions[wanted[name]] for name in held),
            keep_models=self.config.fraction_train < 1,  # else all models are new in every round
            evaluate=self.evaluates(server_round),
        )
        self.orders[client] = order
        more = {}
        if sent:
            pool = self.models()
            more[OTHERS] = pack(
                {part: np.stack([pool.get(wanted[name], part) for name in sent]) for part in self.exchanged}
            )
        return content(order, self.packed(self.shared) if self.shared else None, **more)

    def roster(self, client: str) -> dict[str, str]:
        """Everybody whose model is here, under the pseudonyms for this client."""
        assert self.pseudonyms is not None
        return self.pseudonyms.roster(self.models().clients, told_to=client)

    def wanted(self, client: str) -> dict[str, str]:
        """What this client asked for; if it never did, the first k pseudonyms, which are in random order."""
        roster = self.roster(client)
        if client not in self.wishes:
            return dict(list(roster.items())[: self.top_k])
        return {name: other for name, other in roster.items() if other in self.wishes[client]}

    def check_judgement(self, client: str, reply: Message) -> Personalized:
        return check_personalized(reply, self.orders[client], self.kinds)

    def learn(self, client: str, server_round: int, answer: Personalized) -> None:
        order, names = self.orders[client], self.roster(client)
        self.relevance[client] = {names[name]: score for name, score in answer.relevance.items()}
        if order.roster:  # who was alone could not ask for anything
            self.wishes[client] = [names[name] for name in answer.judgement.wishes]
        members = [names[name] for name in answer.judgement.members]
        self.held[client] = {other: self.versions[other] for other in members} if order.keep_models else {}
        if self.shared:
            self.current[client] = server_round
        if order.evaluate:
            self.tested[client] = answer.tested

    def forget(self, client: str) -> None:
        """Nothing is known of what this client has: next time it is sent all."""
        self.held.pop(client, None)
        self.current.pop(client, None)

    def describe(self, server_round: int, judged: Mapping[str, Personalized]) -> dict[str, Any]:
        """For the event line: who used whose model, how old it was, what it was worth."""
        told: dict[str, dict[str, Any]] = {
            "values": {},
            "weights": {},
            "age": {},
            "models-left-out": {},
            "relevance": {},
        }
        for client, answer in judged.items():
            names = self.roster(client)
            members = [names[name] for name in answer.judgement.members]
            told["values"][client] = dict(zip([client, *members], np.round(answer.values, 6).tolist(), strict=True))
            told["weights"][client] = dict(zip([client, *members], np.round(answer.weights, 6).tolist(), strict=True))
            told["age"][client] = {other: server_round - self.versions[other] for other in members}
            if answer.judgement.left_out:
                reasons = zip(answer.judgement.left_out, answer.judgement.reasons, strict=True)
                told["models-left-out"][client] = {names[name]: reason[:200] for name, reason in reasons}
            if len(self.versions) <= LARGEST_SHOWN:
                told["relevance"][client] = {other: round(v, 6) for other, v in self.relevance[client].items()}
        return {**told, "models-sent": {client: len(names) for client, names in self.sent.items()}}

    # Tests, and what the server keeps.

    def evaluate_content(self, client: str, server_round: int) -> RecordDict:
        return content(EvaluateOrder(server_round, self.kinds), self.packed(self.shared) if self.shared else None)

    def matrices(self) -> dict[str, tuple[list[str], np.ndarray]]:
        clients = sorted(self.models().clients, key=name_order)
        rows = [[self.relevance.get(one, {}).get(other, 0.0) for other in clients] for one in clients]
        return {"relevance": (clients, np.array(rows).reshape(len(clients), len(clients)))}

    def models(self, number: int | None = None) -> ModelPool:
        """The last model of every client, in memory or, where that would take too much, in files of the run directory."""
        if self.pool is None:
            number = len(self.federation.hellos) if number is None else number
            layout = {part: self.layout.parts[part] for part in self.exchanged}
            on_disk = number * sum(part.nbytes for part in layout.values()) > MEMORY_LIMIT
            self.pool = ModelPool(layout, Path(self.config.run_dir) / "pool" if on_disk else None)
        return self.pool

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        pool = self.models()
        assert self.pseudonyms is not None
        state["values"] = {
            "clients": list(pool.clients),
            "on-disk": pool.on_disk,
            "secret": self.pseudonyms.secret.hex(),
            "versions": self.versions,
            "wishes": self.wishes,
            "held": self.held,
            "current": self.current,
            "relevance": self.relevance,
        }
        if not pool.on_disk:
            state["arrays"] |= {f"pool.{part}": pool.part(part) for part in self.exchanged}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        values = state["values"]
        self.pseudonyms = Pseudonyms(bytes.fromhex(values["secret"]))
        self.versions, self.wishes, self.held = values["versions"], values["wishes"], values["held"]
        self.current, self.relevance = values["current"], values["relevance"]
        pool = self.models(len(values["clients"]))
        for i, client in enumerate(values["clients"]):
            if pool.on_disk:
                pool.adopt(client)
            else:
                pool.put(client, {part: state["arrays"][f"pool.{part}"][i] for part in self.exchanged})
