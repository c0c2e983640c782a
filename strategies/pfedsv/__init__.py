"""pFedSV (Wu et al. 2022, arXiv:2202.02502): every client chooses whose models it wants, by their Shapley values for it.

A round has two exchanges. Clients train and upload; the server keeps the last model of every client. Then each client is sent
exactly the models it asked for the last time (the first time: k at random), finds out on its validation samples what each is
worth (client.py), makes its personal model, tests it, and says what it wants next.

    half of the k places    those with the best relevance, which fades with time
    the other half          those never judged, then those not for five rounds

With `game=paper` the game, the mixture and the choice are the paper's: those never downloaded first; after that as many as have
positive relevance, at least 1 and at most k.

Clients know each other by pseudonyms. A model that a client still has in the same version is not sent again. With
`shared-extractor` the server averages the extractor as FedAvg does, and only classifiers go from client to client.

Models that are too large together for one message go one by one before the second exchange, and count as models that the client
has: so it never has two of them in memory.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from coterie.strategies.fedavg import sample_weights
from coterie.strategies.federation import name_order
from coterie.strategies.findings import Finding
from coterie.strategies.method import Method, MethodSettings, setting
from coterie.strategies.pfedsv import client as client_half
from coterie.strategies.pfedsv.orders import DeliverOrder, Personalized, PersonalizeOrder, check_personalized
from coterie.strategies.pfedsv.pseudonyms import Pseudonyms
from coterie.strategies.pool import ModelPool
from coterie.strategies.rounds import Round, in_words
from coterie.tasks.models import STATISTICS
from coterie.tasks.parts import average, stacked
from coterie.wire.arrays import Parts, pack
from coterie.wire.checks import Update, check_done
from coterie.wire.errors import ConfigError, Refused, RunFailed
from coterie.wire.messages import EvaluateOrder, Sent, TrainOrder

log = logging.getLogger(__name__)

USUAL_K = 5
ONE_MESSAGE = 64 * 2**20  # bytes of k models up to which they go in one message
LARGEST_SHOWN = 200  # clients up to which the event line has all relevances


class PFedSV(Method):
    name = "pfedsv"
    private = ("dp-sgd", "weights")
    kinds = ("personal",)
    saved = ("pool", "pseudonyms", "versions", "wishes", "held", "current", "relevance", "top_k")

    class Settings(MethodSettings):
        top_k: int = setting(
            0, "Most models of others that a client asks for in a round. 0: 5, or all others where fewer.", ge=0, le=15
        )
        game: Literal["gain", "paper"] = setting(
            "gain",
            "gain: a model is worth what it lowers the own model's validation loss; a mixture with a higher loss is not used. "
            "paper: accuracy from nothing, weights by distance, never checked.",
        )
        alpha: float = setting(0.2, "Share of the old relevance in the new one.", ge=0.0, lt=1.0)
        shared_extractor: bool = setting(
            False, "Average the extractor over all clients, exchange only classifiers: fewer bytes, a faster game."
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stays = STATISTICS if self.config.buffers == "local" else ()
        sent_up = [part for part in self.layout.parts if part not in stays]
        shared = [part for part in sent_up if part != "classifier"] if self.settings.shared_extractor else []
        self.shared = tuple(shared)  # averaged by the server
        self.exchanged = tuple(part for part in sent_up if part not in shared)  # go from client to client
        self.top_k = self.settings.top_k or USUAL_K
        layout = {part: self.layout.parts[part] for part in self.exchanged}
        self.pool = ModelPool(layout, Path(self.config.run_dir) / "pool")
        self.pseudonyms = Pseudonyms()
        self.versions: dict[str, int] = {}  # client -> round of its model in the pool
        self.wishes: dict[str, list[str]] = {}  # client -> whose models it asked for, by name
        self.held: dict[str, dict[str, int]] = {}  # client -> whose models it has, in which version
        self.current: dict[str, int] = {}  # client -> round in which it got the shared parts
        self.relevance: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        hellos = self.federation.hellos
        others = len(hellos) - 1
        if not self.last_round:  # one that goes on has what it began with, whoever is there now
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
            log.warning("without validation samples, these clients keep their own models: %s", ", ".join(blind))
        self.pool.expect(len(hellos))
        self.pseudonyms.begin(self.config.seed, private=not all(hello.num_partitions for hello in hellos.values()))

    def round(self, round: Round) -> None:
        before = self.shared_parts()
        updates = round.train(lambda clients: [self.train_order(client, round, before) for client in clients])
        self.keep_models(updates, round)
        able = [client for client in updates if self.federation.hellos[client].num_validation]
        names = {client: self.roster(client) for client in able}
        sent = {client: self.to_send(client, names[client]) for client in able}
        failed = self.deliver(round, sent) if self.one_by_one else {}
        orders = {
            client: self.personalize_order(client, round, names[client], sent[client])
            for client in able
            if client not in failed
        }
        after = self.shared_parts()
        judged, silent = round.ask(
            list(orders),
            lambda clients: (
                Sent(orders[client], after, self.models_in(orders[client], names[client])) for client in clients
            ),
            lambda client, reply: check_personalized(reply, orders[client], self.kinds),
            size=self.top_k * self.size_of(self.exchanged) + self.size_of(self.shared),
        )
        for client, error in (failed := failed | silent).items():
            log.warning("round %d: client %s keeps its own model: %s", round.number, client, error)
            self.forget(client)
        for client, answer in judged.items():
            self.learn(client, orders[client], names[client], answer)
            if round.evaluates:
                round.tested[client] = answer.tested
        round.tell(not_personalised=in_words(failed), **self.described(round, names, judged))
        round.tell(models_sent={client: len(names) for client, names in sent.items()})

    # The first exchange: train and upload.

    def uploads(self) -> tuple[str, ...]:
        return tuple(part for part in self.layout.parts if part in self.shared + self.exchanged)

    def train_order(self, client: str, round: Round, shared: ArrayRecord | None) -> Sent:
        """The shared parts go along, unless this client has them: from the end of the round before, or, as long as nobody
        has trained, because the seed gives everybody the same first model."""
        has_them = self.current.get(client) == self.last_round and client not in round.missed
        up_to_date = bool(self.shared) and has_them
        order = TrainOrder(
            round.number,
            upload=self.uploads(),
            keep=tuple(self.layout.parts),
            continues=self.last_round if up_to_date else 0,
        )
        return Sent(order, shared if not up_to_date and self.versions else None)

    def shared_parts(self) -> ArrayRecord | None:
        return pack({part: self.model[part] for part in self.shared}) if self.shared else None

    def keep_models(self, updates: Mapping[str, Update], round: Round) -> None:
        for client in round.missed:
            self.forget(client)
        for client, update in updates.items():
            self.pool.put(client, {part: update.parts[part] for part in self.exchanged})
            self.versions[client] = round.number
        if self.shared:
            shared = [{part: update.parts[part] for part in self.shared} for update in updates.values()]
            self.model = self.model | average(shared, sample_weights(updates.values()))

    def forget(self, client: str) -> None:
        """Nothing is known of what this client has: next time it is sent all."""
        self.held.pop(client, None)
        self.current.pop(client, None)

    # The second: the models asked for.

    def roster(self, client: str) -> dict[str, str]:
        """Everybody whose model is here, under the pseudonyms for this client."""
        return self.pseudonyms.roster(self.pool.clients, told_to=client)

    def wanted(self, client: str, roster: Mapping[str, str]) -> dict[str, str]:
        """What this client asked for; if it never did, the first k pseudonyms, which are in random order."""
        if client not in self.wishes:
            return dict(list(roster.items())[: self.top_k])
        wishes = set(self.wishes[client])
        return {name: other for name, other in roster.items() if other in wishes}

    def to_send(self, client: str, roster: Mapping[str, str]) -> list[str]:
        """The models that this client wants and has not in their last version, by pseudonym."""
        held = self.held.get(client, {})
        return [name for name, other in self.wanted(client, roster).items() if held.get(other) != self.versions[other]]

    def size_of(self, parts: Iterable[str]) -> int:
        return sum(self.layout.parts[part].nbytes for part in parts)

    @property
    def one_by_one(self) -> bool:
        return self.top_k * self.size_of(self.exchanged) > ONE_MESSAGE

    def deliver(self, round: Round, sent: Mapping[str, list[str]]) -> dict[str, Refused]:
        """One model after the other to every client; who failed, and why."""
        failed: dict[str, Refused] = {}
        for turn in range(self.top_k):

            def orders(clients: list[str], turn: int = turn) -> Iterable[Sent]:
                for client in clients:
                    name = sent[client][turn]
                    other = self.roster(client)[name]
                    model = {part: self.pool.get(other, part) for part in self.exchanged}
                    yield Sent(DeliverOrder(round.number, name, self.versions[other], self.exchanged), others=model)

            due = [client for client, names in sent.items() if client not in failed and turn < len(names)]
            failed |= round.ask(
                due, orders, lambda client, reply: check_done(reply), size=self.size_of(self.exchanged)
            )[1]
        return failed

    def personalize_order(
        self, client: str, round: Round, roster: Mapping[str, str], sent: list[str]
    ) -> PersonalizeOrder:
        wanted = self.wanted(client, roster)
        held = [name for name in wanted if name not in sent]
        if self.one_by_one:
            sent, held = [], sent + held
        return PersonalizeOrder(
            round=round.number,
            top_k=self.top_k,
            alpha=float(self.settings.alpha),
            parts=self.exchanged,
            roster=tuple(roster),
            sent=tuple(sent),
            sent_versions=tuple(self.versions[wanted[name]] for name in sent),
            held=tuple(held),
            held_versions=tuple(self.versions[wanted[name]] for name in held),
            keep_models=self.config.fraction_train < 1,  # else all models are new in every round
            evaluate=round.evaluates,
            game=self.settings.game,
        )

    def models_in(self, order: PersonalizeOrder, names: Mapping[str, str]) -> Parts | None:
        """The models that go along with the order, a row each."""
        senders = [names[name] for name in order.sent]
        rows = [{part: self.pool.get(sender, part) for part in self.exchanged} for sender in senders]
        return stacked(rows) if rows else None

    def learn(self, client: str, order: PersonalizeOrder, names: Mapping[str, str], answer: Personalized) -> None:
        self.relevance[client] = {names[name]: score for name, score in answer.relevance.items()}
        if order.roster:  # who was alone could not ask for anything
            self.wishes[client] = [names[name] for name in answer.judgement.wishes]
        members = [names[name] for name in answer.judgement.members]
        self.held[client] = {other: self.versions[other] for other in members} if order.keep_models else {}
        if self.shared:
            self.current[client] = order.round

    def described(
        self, round: Round, rosters: Mapping[str, Mapping[str, str]], judged: Mapping[str, Personalized]
    ) -> dict[str, dict[str, Any]]:
        """For the event line: who used whose model, how old it was, what it was worth."""
        told: dict[str, dict[str, Any]] = {
            name: {} for name in ("values", "weights", "mixture", "age", "models_left_out", "relevance")
        }
        for client, answer in judged.items():
            names = rosters[client]
            members = [names[name] for name in answer.judgement.members]
            players = members if self.settings.game == "gain" else [client, *members]
            told["values"][client] = dict(zip(players, np.round(answer.values, 6).tolist(), strict=True))
            told["weights"][client] = dict(zip([client, *members], np.round(answer.weights, 6).tolist(), strict=True))
            if answer.losses.size:
                own, mixture = np.round(answer.losses, 6).tolist()
                used = bool(answer.weights[0] < 1)
                told["mixture"][client] = {"own-loss": own, "mixture-loss": mixture, "used": used}
            told["age"][client] = {other: round.number - self.versions[other] for other in members}
            if answer.judgement.left_out:
                reasons = zip(answer.judgement.left_out, answer.judgement.reasons, strict=True)
                told["models_left_out"][client] = {names[name]: reason[:200] for name, reason in reasons}
            if len(self.versions) <= LARGEST_SHOWN:
                rounded = {other: float(np.round(score, 6)) for other, score in self.relevance[client].items()}
                told["relevance"][client] = rounded
        return told

    # What the clients do, how they are tested, what was found out.

    deliver_to_client = staticmethod(client_half.deliver)
    personalize = staticmethod(client_half.personalize)

    def test_orders(self, round: Round, clients: list[str]) -> Iterable[Sent]:
        return [Sent(EvaluateOrder(round.number, self.kinds), self.shared_parts())] * len(clients)

    def findings(self) -> list[Finding]:
        clients = sorted(self.pool.clients, key=name_order)
        rows = [[self.relevance.get(one, {}).get(other, 0.0) for other in clients] for one in clients]
        return [Finding.pairs("relevance", clients, np.array(rows).reshape(len(clients), len(clients)))]
