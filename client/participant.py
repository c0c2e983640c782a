"""One client while it answers a message: its name, configuration, data, network and store."""

import functools
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, RecordDict

from coterie.client.attacks import Attack, attack_of
from coterie.client.data import ClientData, has_table, load_client_data, num_partitions_of, table_share
from coterie.client.images import has_images, scaled
from coterie.client.owner import with_own_places
from coterie.client.store import ContextStore, FileStore, Store
from coterie.client.tables import TableShare, with_schema
from coterie.tasks.foreign import foreign_images, foreign_set
from coterie.tasks.models import Network
from coterie.tasks.personal import personal_facts, residuals_of
from coterie.tasks.resolve import dealt_names, model_name, network_of, spec_of, with_method
from coterie.tasks.samples import Dataset
from coterie.tasks.spec import TaskSpec
from coterie.tasks.training import Samples, Sgd, balanced_weights, kinds_of
from coterie.wire.arrays import Parts
from coterie.wire.attack import AttackSettings, bad_clients, kinds
from coterie.wire.checks import checked_parts, part_places
from coterie.wire.config import RunConfig, Value, choose, split_sections
from coterie.wire.errors import ConfigError, Refused
from coterie.wire.messages import MODEL, record_of
from coterie.wire.privacy import PrivacySettings
from coterie.wire.randomness import derive_seed, generator

LARGE = 32 * 2**20  # bytes of a model from which on no second copy of it is kept


@dataclass(frozen=True)
class Participant:
    name: str
    config: RunConfig
    privacy: PrivacySettings
    spec: TaskSpec
    store: Store
    device: str
    context: Context
    round: int = 0  # that the message belongs to

    @classmethod
    def of(cls, context: Context) -> "Participant":
        config = local_config(context)
        privacy = _parsed(_as_text(context.run_config))[1]
        torch.set_num_threads(int(context.node_config.get("threads", config.threads)))
        name = client_name(context, config)
        state_dir = context.node_config.get("state-dir")
        run = config.run_id or str(context.run_id)
        store: Store = ContextStore(context)
        if state_dir:
            store = FileStore(Path(str(state_dir)), name, run, durable=not context.node_config.get("simulated"))
        device = pick_device(str(context.node_config.get("device", config.device)))
        config = with_schema(config, store)
        return cls(name, config, privacy, spec_of(config), store, device, context)

    @property
    def has_table(self) -> bool:
        return has_table(self.config)

    def table_share(self) -> TableShare:
        return table_share(self.context.node_config, self.config, self.name)

    def data(self) -> ClientData:
        data = load_client_data(self.context.node_config, self.config, self.name)
        return scaled(data, self.config, self.store) if has_images(self.config) else data

    def train_samples(self) -> Samples:
        data = self.data()
        return data.samples(data.split.train, self.device)

    def validation_samples(self) -> Samples:
        return self._judged_on(self.data().split.validation)

    def test_samples(self) -> Samples:
        return self._judged_on(self.data().split.test)

    def _judged_on(self, chosen: np.ndarray) -> Samples:
        samples = self.data().samples(chosen, self.device)
        return replace(samples, metric=self.config.metric, threshold=self.config.threshold)

    def network(self) -> Network:
        """The run's network with its initial weights."""
        network, initial = _initial_network(self.config, self.privacy.mode == "dp-sgd", self.device)
        if initial is None:
            _initial_network.cache_clear()
        else:
            network.load(initial)
        return network

    def attack(self) -> Attack | None:
        """The harm that this client does: by its node configuration, or chosen by the run's; None for an honest one."""
        node = self.context.node_config
        settings = _attack_settings(_as_text(self.context.run_config))
        if settings.kind == "none" and "attack" not in node:
            return None
        if "attack" in node:
            kind = choose("node configuration: attack", str(node["attack"]), kinds())
            settings = settings.model_copy(update={"kind": kind})
            bad = kind != "none"
        elif settings.clients:
            bad = self.name in settings.clients.replace(" ", "").split(",")
        else:
            names = dealt_names(self.config, num_partitions_of(node, self.config))
            place = int(node.get("partition-id", -1))
            bad = 0 <= place < len(names) and names[place] in bad_clients(settings, names, self.config.seed)
        classes = 0 if self.spec.kind == "regression" else self.spec.num_outputs
        if not bad:
            return None
        foreign = None
        if settings.kind == "open-set":
            other = foreign_set(self.config.task, settings.foreign, self.config.data_root)
            foreign = functools.partial(self._foreign_images, other) if other is not None else None
        return attack_of(settings.kind)(settings, self.config.seed, self.name, classes, foreign)

    def _foreign_images(self, of: Dataset, number: int, rng: np.random.Generator) -> torch.Tensor:
        return foreign_images(of, self.data().dataset, number, rng, self.device)

    def rng(self, purpose: str, server_round: int) -> np.random.Generator:
        """The generator for one purpose; torch's own generator (dropout) is seeded alike."""
        seed = derive_seed(self.config.seed, purpose + "-torch", server_round, self.drawn_as)
        if self.device == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed looks through all accelerators first
        else:
            torch.manual_seed(seed)
        return generator(self.config.seed, purpose, server_round, self.drawn_as)

    @property
    def drawn_as(self) -> str:
        """By which name its random numbers are drawn: a share of a data set has the same ones, whoever has it."""
        dealt = self.config.task != "own" and "partition-id" in self.context.node_config
        return str(self.context.node_config["partition-id"]) if dealt else self.name

    def save_model(self, network: Network) -> None:
        """The personal model, with the facts that are needed to use it."""
        c, spec = self.config, self.spec
        private = self.privacy.mode == "dp-sgd"
        data = self.data()
        facts = personal_facts(spec, data.dataset, model_name(spec, c.model), c.buffers, group_norm=private)
        if spec.num_outputs == 2 and spec.kind != "regression":
            facts["threshold"] = str(c.threshold)
        if data.schema is not None:
            facts["table"] = data.schema.to_json()
        if spec.kind == "regression":
            scale = data.schema.label_std if data.schema is not None else 1.0
            facts["residuals"] = residuals_of(network, self.validation_samples(), scale)
        self.store.save_model(network, {"client": self.name, **facts})

    def sgd(self, proximal_mu: float = 0.0, learning_rate: float = 0.0) -> Sgd:
        c = self.config
        rate = learning_rate or c.learning_rate
        return Sgd(
            rate, c.batch_size, c.momentum, c.weight_decay, proximal_mu, self.class_weights(), kinds_of(c.augment)
        )

    def class_weights(self) -> tuple[float, ...]:
        """Of the loss in training, by the setting of that name."""
        if self.config.class_weights == "none" or self.spec.kind == "regression":
            return ()
        data = self.data()
        if self.config.class_weights == "client":
            y = data.dataset.y[data.split.train]
            return balanced_weights(np.bincount(y, minlength=self.spec.num_outputs))
        if data.schema is None or not data.schema.class_counts:
            raise Refused(
                "class-weights = 'balanced': nobody told how many samples of each label there are; use 'client'"
            )
        return balanced_weights(np.array(data.schema.class_counts))


def received_parts(records: RecordDict, network: Network) -> Parts:
    """The model parts that the server sent, checked: a client trusts the server no more than the server its clients."""
    model = record_of(records, MODEL, ArrayRecord) or ArrayRecord()
    sent = part_places(model)
    if unknown := set(sent) - set(network.parts):
        raise Refused(f"the server sent unknown parts {sorted(unknown)}")
    return checked_parts(model, network.like(sent))


@functools.lru_cache(maxsize=1)
def _initial_network(config: RunConfig, group_norm: bool, device: str) -> tuple[Network, Parts | None]:
    """A network to use again, and what to load into it for that; None for a large one, which is rather built again."""
    network = network_of(config, group_norm=group_norm, device=device)
    large = sum(part.nbytes for part in network.parts.values()) > LARGE
    return network, None if large else network.dump()


def local_config(context: Context) -> RunConfig:
    """The run's configuration, with the places of this machine."""
    return with_own_places(_parsed(_as_text(context.run_config))[0], context.node_config)


_texts: deque[tuple[Mapping[str, Value], str]] = deque(maxlen=4)  # nobody changes a configuration


def _as_text(run_config: Mapping[str, Value]) -> str:
    for known, text in _texts:
        if known is run_config:
            return text
    _texts.append((run_config, json.dumps(run_config)))
    return _texts[-1][1]


@functools.lru_cache(maxsize=8)
def _attack_settings(run_config: str) -> AttackSettings:
    return AttackSettings.parse(split_sections(json.loads(run_config))[1].get("attack", {}), prefix="attack.")


@functools.lru_cache(maxsize=8)
def _parsed(run_config: str) -> tuple[RunConfig, PrivacySettings]:
    """Every message comes with the whole configuration, which is the same all the time."""
    told = json.loads(run_config)
    return with_method(RunConfig.parse(split_sections(told)[0])), PrivacySettings.of(told)


def client_name(context: Context, config: RunConfig) -> str:
    """`client-name` of the node configuration, else its partition's; the node id is new after every restart."""
    node = context.node_config
    if "client-name" in node:
        return str(node["client-name"])
    if "partition-id" in node:
        names, place = dealt_names(config, num_partitions_of(node, config)), int(node["partition-id"])
        return names[place] if 0 <= place < len(names) else str(place)
    raise ConfigError("node configuration: give this client a name (client-name='ward-7') or a partition-id")


def pick_device(device: str) -> str:
    if device != "auto":
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device = {device!r}: this machine has no CUDA device; use 'cpu' or 'auto'")
        if device == "mps" and not torch.backends.mps.is_available():
            raise ConfigError(f"device = {device!r}: this machine has no Metal device; use 'cpu' or 'auto'")
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
