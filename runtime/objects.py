"""What an answer consists of, looked at before anything of it is unpacked.

A message travels as objects that name each other by their hashes: message, records, arrays, chunks of their bytes. One chunk may
be named many times, so a few bytes can become many: sizes are counted as they would be after unpacking. Each kind of object may
only have children of the next, so nothing is nested without end.
"""

import json
from collections.abc import Mapping

from flwr.app import Message, RecordDict

from coterie.runtime.flower import ObjectTree as Tree
from coterie.runtime.flower import (
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
)
from coterie.wire.errors import Refused

CHILDREN = {
    "Message": {"RecordDict"},
    "RecordDict": {"ArrayRecord", "ConfigRecord", "MetricRecord"},
    "ArrayRecord": {"Array"},
    "Array": {"ArrayChunk"},
    "ArrayChunk": set(),
    "ConfigRecord": set(),
    "MetricRecord": set(),
}
DEPTH = 5  # message, records, record, array, chunk
LARGEST_RECORD = 2**21  # bytes of an object that is not a chunk of an array


def most_objects(largest: int) -> int:
    """How many objects an answer of so many bytes may have; Flower's own chunks are 5 MB long."""
    return 64 + largest // 2**20


def objects_of(tree: Tree, largest: int) -> list[str]:
    """The objects of an answer, children first. `largest`: bytes that it may have."""
    most = most_objects(largest)
    names: dict[str, None] = {}
    for count, item in enumerate(iterate_object_tree(tree)):
        if count >= most:
            raise Refused(f"the answer consists of more than {most} objects")
        names[item.object_id] = None
    return list(names)


def unpacked_message(root: str, contents: Mapping[str, bytes], largest: int) -> Message:
    """The message that these objects make up. Refuses what is malformed, or would be larger than `largest` bytes."""
    try:
        size = _size(root, "Message", contents, {})
        if size > largest:
            raise Refused(f"the answer would unpack to {size} bytes; {largest} are allowed")
        message = inflate_object_from_contents(root, dict(contents))
        if not isinstance(message, Message) or not (message.has_error() or isinstance(message.content, RecordDict)):
            raise Refused("the answer is not a message with records")
        return message
    except Refused:
        raise
    except Exception as error:  # a stranger's bytes, and Flower looks at none of them before it uses them
        raise Refused(f"the answer cannot be unpacked ({type(error).__name__}: {str(error)[:200]})") from None


def _size(name: str, kind: str, contents: Mapping[str, bytes], seen: dict[str, int]) -> int:
    """Bytes of this object and all below it, after unpacking; each but a chunk is unpacked once."""
    if name in seen:
        return 0
    content = contents[name]
    found, children, _ = get_object_head_values_from_object_content(content)
    if found != kind:
        raise Refused(f"the answer has a {found[:40]} where a {kind} belongs")
    length = len(content) - content.find(b"\0") - 1
    if kind == "ArrayChunk":
        return length
    if length > LARGEST_RECORD:
        raise Refused(f"the answer has a {kind} of {length} bytes; {LARGEST_RECORD} are allowed")
    seen[name] = length
    if kind == "Array":
        chunks = [_size(child, "ArrayChunk", contents, seen) for child in children]
        places: list[int] = json.loads(content[-length:])["arraychunk_ids"]
        return length + sum(chunks[place] for place in places)
    return length + sum(_size(child, _kind(contents[child], kind), contents, seen) for child in children)


def _kind(content: bytes, parent: str) -> str:
    found: str = get_object_head_values_from_object_content(content)[0]
    if found not in CHILDREN[parent]:
        raise Refused(f"the answer has a {found[:40]} inside a {parent}")
    return found


def check_tree(tree: Tree, most: int) -> None:
    """That a tree which a client announces is neither too large nor too deep to be kept."""
    level, count = [tree], 0
    for _ in range(DEPTH):
        count += len(level)
        if count > most:
            raise Refused(f"an answer of more than {most} objects")
        level = [child for item in level for child in item.children]
        if not level:
            return
    raise Refused(f"an answer of more than {DEPTH} levels")
