"""The records of a message as one: Flower keeps each record, each array and each piece of it as an object of its own, and a
SuperLink spends the same on a small object as on a large one.

    header    JSON, one line: the records in their order; of an array its dtype, shape, format and length
    data      the arrays, one after the other

A server folds what it sends; a client that got folded records folds its answer. What is large is left as it is.
"""

import base64
import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coterie.wire.errors import Refused

FOLDED = "folded"
LARGEST = 2**20  # bytes of arrays; a single object must not be much larger
BYTES = "base64"


def is_folded(records: RecordDict) -> bool:
    return isinstance(records.get(FOLDED), ConfigRecord)


def folded(records: RecordDict) -> RecordDict:
    arrays = [array for r in records.values() if isinstance(r, ArrayRecord) for array in r.values()]
    if sum(len(array.data) for array in arrays) > LARGEST:
        return records
    header = [_told(name, record) for name, record in records.items()]
    line = json.dumps(header, separators=(",", ":")).encode() + b"\n"
    return RecordDict({FOLDED: ConfigRecord({FOLDED: b"".join([line, *(array.data for array in arrays)])})})


def unfolded(records: RecordDict) -> RecordDict:
    """Refuses what is not whole: it is a stranger's."""
    try:
        data = records.config_records[FOLDED][FOLDED]
        assert isinstance(data, bytes)
        head, _, rest = data.partition(b"\n")
        found, start = RecordDict(), 0
        for kind, name, told in json.loads(head):
            if kind == "arrays":
                arrays: dict[str, Array] = {}
                for key, (dtype, shape, stype, length) in told.items():
                    arrays[str(key)] = Array(str(dtype), tuple(shape), str(stype), rest[start : start + length])
                    start += length
                found[str(name)] = ArrayRecord(arrays)
            elif kind == "metrics":
                found[str(name)] = MetricRecord(told)
            else:
                found[str(name)] = ConfigRecord({key: _value(value) for key, value in told.items()})
        if start != len(rest):
            raise ValueError(f"{len(rest)} bytes where {start} were told")
        return found
    except (AssertionError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise Refused(f"a folded message cannot be unfolded ({type(error).__name__}: {str(error)[:200]})") from None


def _told(name: str, record: Any) -> tuple[str, str, dict[str, Any]]:
    if isinstance(record, ArrayRecord):
        facts = {key: (array.dtype, array.shape, array.stype, len(array.data)) for key, array in record.items()}
        return "arrays", name, facts
    if isinstance(record, MetricRecord):
        return "metrics", name, dict(record)
    return "config", name, {key: _plain(value) for key, value in record.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {BYTES: [base64.b64encode(value).decode()]}
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return {BYTES: [base64.b64encode(one).decode() for one in value], "list": True}
    return value


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = [base64.b64decode(one, validate=True) for one in value[BYTES]]
    return found if value.get("list") else found[0]
