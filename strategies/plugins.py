"""Methods from outside: entry points of the group `coterie.methods`, files of the user's own, classes that are handed over.

A file has one public class of its own that is a Method. It is read once: what runs, and what the fingerprint covers, is what was
in it then; the server looks again for each run.
"""

import hashlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

from coterie.strategies.method import Method
from coterie.wire.errors import ConfigError
from coterie.wire.fingerprint import SOURCE
from coterie.wire.installed import entry_points, load

GROUP = "coterie.methods"  # of entry points
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_files: dict[str, type[Method]] = {}  # path -> the method in it
given: dict[str, type[Method]] = {}  # by name: classes that have no place to load them from


def installed(name: str) -> type[Method]:
    """The method of an entry point."""
    where = f"strategy = {name!r}: the entry point {entry_points(GROUP)[name].value!r}"
    found = load(GROUP, name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"{where} is no subclass of coterie.strategies.method.Method")
    if checked(found, where).name != name:
        raise ConfigError(f"{where} has the name {found.name!r}; an entry point is called as its method")
    method: type[Method] = found
    return method


def from_file(path: str, *, again: bool = False) -> type[Method]:
    """The method in a file; what was read before is what counts, unless it is to be read `again`."""
    if path in _files and not again:
        return _files[path]
    where = f"strategy = {path!r}"
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot be read here ({error.strerror}); give the path of a file on this machine, or install the method "
            f"(an entry point in {GROUP!r})"
        ) from None
    if path in _files and vars(sys.modules[_files[path].__module__])[SOURCE] == source:
        return _files[path]
    module = _run(path, source, where)
    public = [value for name, value in vars(module).items() if not name.startswith("_") and _is_method(value, module)]
    if len(public) != 1:
        has = f"has {len(public)}: {', '.join(found.__name__ for found in public)}" if public else "has none"
        raise ConfigError(
            f"{where}: a file with a method has one public subclass of Method, and this one {has}; "
            "write one, and begin the names of classes that only help with an underscore"
        )
    _files[path] = checked(public[0], f"{where}: {public[0].__name__}")
    return _files[path]


def _run(path: str, source: bytes, where: str) -> ModuleType:
    module = ModuleType(f"{Path(path).stem}-{hashlib.sha256(source + path.encode()).hexdigest()[:8]}")
    module.__file__ = path
    vars(module)[SOURCE] = source
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), vars(module))
    except Exception as error:  # the user's code can raise anything
        del sys.modules[module.__name__]
        raise ConfigError(f"{where}: failed with {type(error).__name__}: {error}") from error
    return module


def _is_method(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__


def checked(method: type[Method], where: str) -> type[Method]:
    """A method that can be made, and has a name that may be a key."""
    name = getattr(method, "name", "")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ConfigError(f"{where} needs a name of small letters, digits and '-': name = 'my-method'")
    if inspect.isabstract(method):
        missing = ", ".join(f"{abstract}()" for abstract in sorted(method.__abstractmethods__))
        raise ConfigError(f"{where} does not say what it does in {missing}; define that, or start from FedAvg")
    return method


def of_files() -> list[type[Method]]:
    """The methods of all files that were read in this process."""
    return list(_files.values())
