"""What a client keeps: whole files or none, the round before as well, and a clear word about a damaged one."""

import errno
import os

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors import safe_open
from safetensors.numpy import load_file

from coterie.client.store import ContextStore, FileStore, Note
from coterie.tasks.models import build_network
from coterie.wire.errors import Refused
from coterie.wire.files import keep_as, write_atomically


def parts(value: float) -> dict[str, np.ndarray]:
    return {"classifier": np.full(3, value, np.float32), "counters": np.array([int(value)])}


@pytest.fixture(params=["files", "context"])
def reopen(request, tmp_path):
    """A store, and the same store as the next message finds it."""
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    if request.param == "files":
        return lambda: FileStore(tmp_path / "state-dir", "ward-7")
    return lambda: ContextStore(context)


def value(kept) -> float | None:
    return float(kept["classifier"][0]) if kept else None


def test_what_was_kept_is_there_after_a_restart(reopen):
    assert reopen().own_parts(1) == {}
    reopen().keep(1, parts(1))
    kept = reopen().own_parts(2)
    assert set(kept) == {"classifier", "counters"} and kept["counters"].dtype == np.int64
    assert kept["classifier"].tolist() == [1, 1, 1] and kept["classifier"].dtype == np.float32


def test_a_repeated_round_starts_where_it_started_first(reopen):
    reopen().keep(1, parts(1))
    reopen().keep(2, parts(2))
    for again in (2.5, 2.6, 2.7):
        assert value(reopen().own_parts(2)) == 1
        reopen().keep(2, parts(again))
    assert value(reopen().own_parts(3)) == 2.700000047683716
    assert value(reopen().own_parts(99)) == 2.700000047683716
    reopen().keep(5, parts(5))  # not selected in rounds 3 and 4
    assert value(reopen().own_parts(5)) == 2.700000047683716 and value(reopen().own_parts(6)) == 5


def test_the_first_round_repeated_starts_from_nothing(reopen):
    reopen().keep(1, parts(1))
    assert reopen().own_parts(1) == {}
    reopen().keep(1, parts(1.5))
    assert reopen().own_parts(1) == {} and value(reopen().own_parts(2)) == 1.5


@pytest.mark.parametrize("rounds", [(1, 2, 3), (1, 4, 9), (2, 3, 4, 5)])
def test_a_round_that_is_no_longer_kept_is_refused(rounds, reopen):
    """The last two are there; who is sent further back does not start afresh. Before the first round there is nothing."""
    for number in rounds:
        reopen().keep(number, parts(number))
    *_, previous, latest = rounds
    assert value(reopen().own_parts(latest + 1)) == latest and value(reopen().own_parts(latest)) == previous
    for before in range(2, previous + 1):
        with pytest.raises(Refused, match=rf"kept before round {before} is no longer here"):
            reopen().own_parts(before)
        with pytest.raises(Refused):
            reopen().keep(before, parts(9))
    assert reopen().own_parts(1) == {}
    assert value(reopen().own_parts(latest + 1)) == latest


def test_what_is_read_can_be_changed(reopen):
    reopen().keep(1, parts(1))
    reopen().own_parts(2)["classifier"][:] = 9
    assert value(reopen().own_parts(2)) == 1


def test_clients_do_not_share_files(tmp_path):
    names = ["a", "b", "a.previous", "b.safetensors", "a b", "ü"]
    for server_round in (1, 2):
        for i, name in enumerate(names):
            FileStore(tmp_path, name).keep(server_round, parts(10 * i + server_round))
    for i, name in enumerate(names):
        assert value(FileStore(tmp_path, name).own_parts(2)) == 10 * i + 1, name
        assert value(FileStore(tmp_path, name).own_parts(3)) == 10 * i + 2, name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/x", ".hidden"])
def test_names_that_lead_elsewhere(name, tmp_path):
    with pytest.raises(ValueError, match="client-name = "):
        FileStore(tmp_path / "deep" / "state", name).keep(1, parts(1))
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("damage", [b"", b"not a file of tensors", None])
def test_a_damaged_file(damage, tmp_path):
    store = FileStore(tmp_path, "a")
    store.keep(1, parts(1))
    whole = store.current.read_bytes()
    store.current.write_bytes(whole[:-2] if damage is None else damage)
    with pytest.raises(
        ValueError, match=r"a\.safetensors: not a client state of Coterie .*; move it away to start afresh"
    ):
        store.own_parts(2)
    with pytest.raises(ValueError, match="move it away"):
        store.keep(2, parts(2))


def test_a_file_of_another_kind(tmp_path):
    from safetensors.numpy import save_file

    store = FileStore(tmp_path, "a")
    store.current.parent.mkdir(parents=True)
    save_file(parts(1), store.current)
    with pytest.raises(ValueError, match="not a client state"):
        store.own_parts(2)


def test_a_failed_write_leaves_the_old_state(tmp_path, monkeypatch):
    store = FileStore(tmp_path, "a")
    store.keep(1, parts(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.keep(2, parts(2))
    monkeypatch.undo()
    assert value(store.own_parts(99)) == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [store.current]


@pytest.mark.parametrize("damage", [b"", b"\0" * 64], ids=["empty", "zeros"])
def test_what_a_power_cut_damaged_is_not_there_and_what_was_flushed_is(tmp_path, damage):
    store = FileStore(tmp_path, "a", durable=False)
    store.keep(1, parts(1))  # flushed with the checkpoint of the round
    store.keep(2, parts(2))
    store.keep_other("b-1", parts(5))
    for path in (store.current, store.others / "b-1.safetensors"):
        path.write_bytes(damage)
    again = FileStore(tmp_path, "a", durable=False)
    assert value(again.own_parts(2)) == 1 and again.other("b-1") is None
    again.keep(2, parts(3))
    assert value(again.own_parts(2)) == 1 and value(again.own_parts(3)) == 3
    store.current.write_bytes(damage)
    with pytest.raises(ValueError, match="move it away"):
        FileStore(tmp_path, "a").own_parts(3)


def test_what_privacy_costs_is_flushed_at_once_and_never_lost_in_silence(tmp_path, monkeypatch):
    store = FileStore(tmp_path, "a", durable=False)
    store.remember("privacy", Note(0, parts(5)))
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    store.remember("privacy", Note(0, parts(6)))
    assert flushed
    (tmp_path / "state" / "privacy" / "a.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="move it away"):
        store.recall("privacy", 9)


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_store_flushes_its_files(tmp_path, monkeypatch, durable):
    store = FileStore(tmp_path, "a", durable=durable)
    store.keep(1, parts(1))
    store.keep(2, parts(2))
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    store.keep(3, parts(3))
    assert bool(flushed) == durable


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = FileStore(tmp_path, "a")
    for number in (1, 2, 3):
        store.keep(number, parts(number))
    assert value(store.own_parts(3)) == 2 and value(store.own_parts(4)) == 3


def test_keep_as_keeps_the_content_and_leaves_nothing_behind(tmp_path):
    path, other = tmp_path / "a", tmp_path / "previous" / "a"
    for text in (b"one", b"two", b"two"):  # the second two: both are names of one file
        write_atomically(path, text)
        keep_as(path, other)
        keep_as(path, other)
        assert other.read_bytes() == text
        write_atomically(path, b"new")
        assert other.read_bytes() == text
    assert sorted(tmp_path.rglob("*")) == [path, other.parent, other]


def test_the_personal_model_loads_back_into_an_equal_network(tmp_path):
    network = build_network("lenet5", (1, 8, 8), 10, seed=1)
    FileStore(tmp_path, "a").save_model(network, {"model": "lenet5", "client": "a"})
    path = tmp_path / "models" / "a.safetensors"
    other = build_network("lenet5", (1, 8, 8), 10, seed=2)
    import torch

    other.load_state_dict({name: torch.from_numpy(array) for name, array in load_file(path).items()})
    assert all(np.array_equal(array, network.dump()[part]) for part, array in other.dump().items())
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"model": "lenet5", "client": "a"}


# --- files -----------------------------------------------------------------------------------------------------------


def test_write_atomically(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two" and list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_write_that_fails_at_any_step(step, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_write_that_is_interrupted(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_another_run_starts_afresh_but_what_belongs_to_no_round_stays(tmp_path):
    first, second = FileStore(tmp_path, "a", "7"), FileStore(tmp_path, "a", "8")
    first.keep(1, parts(1))
    first.keep(2, parts(2))
    first.remember("privacy", Note(0, parts(5)))
    assert second.own_parts(9) == {} and value(first.own_parts(9)) == 2
    assert value(second.recall("privacy", 9).arrays) == 5
    second.keep(1, parts(10))
    assert value(second.own_parts(2)) == 10 and second.own_parts(1) == {}
    second.keep(2, parts(20))
    assert value(second.own_parts(2)) == 10 and value(second.own_parts(3)) == 20


# --- models of others -------------------------------------------------------------------------------------------------


def test_models_of_others_are_kept_until_they_are_forgotten(reopen):
    assert reopen().other("ab-1") is None
    for key, number in (("ab-1", 1), ("ab-2", 2), ("cd-1", 3)):
        reopen().keep_other(key, parts(number))
    reopen().keep_other("cd-1", parts(4))
    reopen().forget_others(but=["ab-2", "cd-1", "ef-9"])
    assert reopen().other("ab-1") is None
    assert reopen().other("ab-2")["classifier"][1:3].tolist() == [2, 2]
    assert reopen().other("cd-1")["counters"][...].tolist() == [4]
    reopen().keep(1, parts(1))
    reopen().forget_others(but=[])
    assert reopen().other("ab-2") is None and value(reopen().own_parts(2)) == 1


def test_models_of_others_belong_to_a_run_and_a_client(tmp_path):
    FileStore(tmp_path, "a", "7").keep_other("ab-1", parts(1))
    assert FileStore(tmp_path, "a", "8").other("ab-1") is None
    assert FileStore(tmp_path, "b", "7").other("ab-1") is None
    FileStore(tmp_path, "b", "7").forget_others(but=[])
    assert FileStore(tmp_path, "a", "7").other("ab-1") is not None


def test_what_is_found_is_read_when_it_is_sliced(tmp_path):
    store = FileStore(tmp_path, "a")
    store.keep(1, {"extractor": np.arange(10, dtype=np.float32)})
    found = store.find("own", 2)
    assert found.round == 1 and not isinstance(found.arrays["extractor"], np.ndarray)
    assert found.arrays["extractor"][3:5].tolist() == [3, 4]
