"""Messages between the processes of a client: frames of bytes, with headers in JSON and Flower's own protocol buffers."""

import itertools
import json
from collections.abc import Sequence

from flwr.app import Message

from coterie.runtime.flower import (
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    message_to_proto,
    no_object_id_recompute,
    remove_content_from_message,
)


def frames_of(reply: Message) -> list[bytes]:
    """A header with the names of its objects, the message without them, how they hang together, and each of them."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        tree = get_object_tree(reply)
        objects = {object_id: item.deflate() for object_id, item in get_all_nested_objects(reply).items()}
    bare = message_to_proto(remove_content_from_message(reply)).SerializeToString()
    return [json.dumps(list(objects)).encode(), bare, tree.SerializeToString(), *objects.values()]


def message_of(message_id: str, contents: dict[str, bytes]) -> Message:
    """The message that consists of these objects."""
    message = inflate_object_from_contents(message_id, contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = message_id
    return message


def packed(frames: Sequence[bytes]) -> bytes:
    return b"".join([json.dumps([len(frame) for frame in frames]).encode() + b"\n", *frames])


def unpacked(data: bytes) -> list[bytes]:
    """Empty if it was not written to its end."""
    head, _, body = data.partition(b"\n")
    lengths = json.loads(head)
    ends = list(itertools.accumulate(lengths))
    if not ends or ends[-1] != len(body):
        return []
    return [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]
