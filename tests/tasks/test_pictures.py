"""Folders of images as clinics and cameras leave them, and what training does with them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import coterie
from coterie.client.data import load_client_data
from coterie.server.pixels import check_pixels
from coterie.strategies.registry import parse_config
from coterie.tasks.own import load_inputs, load_own
from coterie.tasks.samples import DataError
from coterie.tasks.training import Samples, augmented
from coterie.wire.errors import Refused
from coterie.wire.messages import ORDER, Description


def save(path, values: np.ndarray, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)


def test_16_bits_keep_their_range_and_12_of_them_are_found(tmp_path):
    save(tmp_path / "a" / "16.png", np.array([[0, 65535], [32768, 257]], np.uint16))
    save(tmp_path / "a" / "12.png", np.array([[0, 4095], [2048, 16]], np.uint16))
    save(tmp_path / "b" / "8.png", np.array([[0, 255], [128, 1]], np.uint8))
    data = load_own(tmp_path)
    assert data.x.shape == (3, 1, 2, 2)
    assert data.x.reshape(3, 4).tolist() == [[0, 255, 128, 1], [0, 255, 128, 1], [0, 255, 128, 1]]


def test_a_picture_is_turned_as_the_camera_says(tmp_path):
    upright = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held sideways: turn by 90 degrees, clockwise
    save(tmp_path / "a" / "1.png", np.rot90(upright), exif=exif)
    save(tmp_path / "b" / "1.png", upright)
    data = load_own(tmp_path)
    assert data.x[0].tolist() == data.x[1].tolist() == upright[None].tolist()


def test_mixed_sizes_take_the_median_and_bad_files_are_left_out_and_counted(tmp_path, caplog):
    for i, size in enumerate(((4, 6), (8, 6), (20, 40))):
        save(tmp_path / "ab"[i % 2] / f"{i}.png", np.full((*size, 3), 10 * i, np.uint8))
    whole = (tmp_path / "a" / "0.png").read_bytes()
    (tmp_path / "a" / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b" / "empty.jpg").write_bytes(b"")
    data = load_own(tmp_path)
    assert data.x.shape == (3, 3, 8, 6) and data.x[:, 0, 0, 0].tolist() == [0, 20, 10]
    assert (
        "half.png: not a readable image" in caplog.text
        and "2 of 5 images cannot be read and are left out" in caplog.text
    )
    assert "images of 3 sizes become 6x8; input-shape tells another" in caplog.text
    x, names = load_inputs(tmp_path, (3, 8, 6))
    assert names == ["a/0.png", "a/2.png", "b/1.png"] and x.tolist() == data.x[[0, 1, 2]].tolist()
    with pytest.raises(DataError, match=r"half\.png: not a readable image"):
        load_own(tmp_path, refuse=True)
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match="none of 5 images can be read"):
        load_own(tmp_path)


@given(st.integers(0, 99), st.integers(2, 17), st.sampled_from([("flip",), ("crop",), ("flip", "crop")]))
def test_augmented_images_are_flipped_and_moved_and_nothing_else(seed, size, kinds):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(6, 2, size, size)).astype(np.float32))
    made = augmented(Samples(x, torch.arange(6)), kinds, np.random.default_rng(seed))
    assert made.y.tolist() == list(range(6)) and made.x.shape == x.shape
    room = max(1, size // 8) if "crop" in kinds else 0
    for before, after in zip(x.numpy(), made.x.numpy(), strict=True):
        turned = [before, before[:, :, ::-1]] if "flip" in kinds else [before]
        padded = [np.pad(image, ((0, 0), (room, room), (room, room))) for image in turned]
        places = range(2 * room + 1)
        moved = (p[:, i : i + size, j : j + size] for p in padded for i in places for j in places)
        assert any(np.array_equal(after, image) for image in moved)


def scan(rng: np.random.Generator, ill: int) -> np.ndarray:
    return rng.integers(60, 120 + 60 * ill, (10, 9), np.uint8)


@pytest.fixture
def clinics(tmp_path):
    """Bright ones are ill."""
    rng = np.random.default_rng(0)
    for i in range(40):
        save(
            tmp_path / "scans" / ("ill" if i % 2 else "well") / f"{i}.png",
            scan(rng, i % 2),
        )
    return tmp_path / "scans"


def test_pixels_are_scaled_by_all_clients_statistics_of_their_training_images(clinics, tmp_path):
    keys = {
        "partition": "iid",
        "num_clients": 2,
        "num_server_rounds": 1,
        "workers": 0,
        "progress": False,
        "model": "linear",
    }
    run = coterie.run("fedavg", "own", str(clinics), run_dir=tmp_path / "run", augment="flip,crop", **keys)
    told = json.loads((run.path / "pixels.json").read_text())
    every = load_own(clinics).x / 1.0
    assert told["mean"][0] == pytest.approx(every.mean(), abs=4) and told["std"][0] == pytest.approx(every.std(), abs=4)
    assert told["mean"][0] != pytest.approx(every.mean(), abs=1e-9)  # test images are not looked at
    assert run.model("0").mean == run.model("1").mean == pytest.approx(told["mean"])
    site = coterie.run("fedavg", "own", str(clinics), run_dir=tmp_path / "site", scaling="site", **keys)
    means = [float(site.model(name).mean[0]) for name in "01"]
    assert means[0] != means[1] and np.mean(means) == pytest.approx(told["mean"][0], abs=2)
    assert not (site.path / "pixels.json").exists()
    again = coterie.resume(run.path, num_server_rounds=2, workers=0, progress=False)
    assert again.result["rounds"] == 2


def test_who_was_refused_for_its_pixels_is_so_after_a_resume(clinics, federate):
    def lies(asked, answer, name):
        if name == "2" and asked.metadata.message_type == "query.describe":
            told = json.dumps({"count": 1, "sums": [5.0], "squares": [0.3]})
            answer.content.config_records[ORDER] = Description(0, told).to_record()
        return answer

    keys = {"task": "own", "data": str(clinics), "model": "linear", "num_clients": 3, "join_timeout": 1.0}
    first = federate(lies, num_server_rounds=1, **keys)
    again = federate(path=first.path, num_server_rounds=2, **keys)
    assert [set(event["train"]) for event in again.events] == [{"0", "1"}] * 2
    assert "no pixels between 0 and 255 have these sums" in again.events[1]["not-admitted"]["node 4"]


@pytest.mark.parametrize("sums", [[5.0], [-1.0], [0.2, 0.2], [0.6]])
def test_sums_that_no_pixels_have_are_refused(sums):
    told = json.dumps({"count": 1, "sums": sums, "squares": [0.3] * len(sums)})
    record = RecordDict({ORDER: Description(0, told).to_record()})
    asked = Message(RecordDict(), dst_node_id=1, message_type="query.describe")
    asked.metadata.__dict__["_message_id"] = "m"
    with pytest.raises(Refused, match="what it tells of its images cannot be used"):
        check_pixels(Message(record, reply_to=asked), 1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"augment": "flip,turn"}, "augment = 'flip,turn': 'turn' is unknown; write flip, crop, or flip,crop"),
        ({"augment": "flip", "task": "synthetic-linear"}, "augment = 'flip': is for images"),
        ({"augment": "flip", "settings": {"privacy.mode": "dp-sgd"}}, "and not for dp-sgd"),
    ],
)
def test_what_cannot_be_augmented_is_refused(keys, message):
    with pytest.raises(coterie.CoterieError, match=message):
        coterie.run("fedavg", workers=0, progress=False, num_server_rounds=1, **keys)


def site(home: Path, name: str, sizes: dict[str, tuple[int, int]], grey: bool) -> Path:
    for label, size in sizes.items():
        folder = home / name / label
        folder.mkdir(parents=True)
        for i in range(6):
            Image.new("L" if grey else "RGB", size, i if grey else (i, 9, 9)).save(folder / f"{i}.png")
    return home / name


def test_several_folders_are_several_clients_as_on_machines_of_their_own(tmp_path):
    north = site(tmp_path, "north", {"ill": (10, 8), "ok": (10, 8)}, grey=True)
    south = site(tmp_path, "south", {"odd": (14, 12), "ok": (14, 12)}, grey=False)
    done = coterie.run(
        "fedavg", "own", f"{south},{north}", num_server_rounds=1, run_dir=tmp_path / "run", workers=0, progress=False
    )
    assert [row["client"] for row in done.clients] == ["north", "south"]
    assert done.config["input-shape"] == "3,10,12" and done.config["classes"] == "ill,odd,ok"
    config, _ = parse_config(done.config)
    for i, (name, place) in enumerate((("north", north), ("south", south))):
        dealt = load_client_data({"partition-id": i, "num-partitions": 2}, config, name)
        own = load_client_data({"data": str(place)}, config, name)
        for part in ("train", "validation", "test"):
            mine, theirs = getattr(dealt.split, part), getattr(own.split, part)
            assert len(mine) and np.array_equal(dealt.dataset.x[mine], own.dataset.x[theirs])
            assert np.array_equal(dealt.dataset.y[mine], own.dataset.y[theirs])


def test_several_places_must_be_alike(tmp_path):
    for name, features in (("a", 3), ("b", 4)):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((20, features)), y=np.arange(20) % 2)
    files = f"{tmp_path / 'a.npz'},{tmp_path / 'b.npz'}"
    with pytest.raises(coterie.CoterieError, match=r"b\.npz: samples of client b are not like those of .*a\.npz"):
        coterie.run("fedavg", "own", files, num_server_rounds=1)
    with pytest.raises(coterie.CoterieError, match="every file or folder is a client of its own; leave partition out"):
        coterie.run("fedavg", "own", files, partition="iid", num_server_rounds=1)
