"""aiokafka's insides are touched in one module, and are as it says: an upgrade that moves them fails here."""

import ast
import importlib
import inspect
import textwrap
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher, FetchResult

from keylanes.brokers.kafka import inside
from keylanes.brokers.kafka.client import KafkaClient

from ..tiers.marks import tier

pytestmark = tier("check")

FOLDER = Path(inspect.getfile(inside)).parent
OVERRIDDEN = {"_get_conn", "_metadata_update", "_do_sasl_handshake", "_do_version_lookup"}
"""By ``KafkaClient`` and ``KafkaConnection``: the only private names of aiokafka outside of inside.py."""


def is_private(name: str) -> bool:
    """Whether nobody else should use an attribute."""
    return name.startswith("_") and not name.startswith("__")


def touched(source: str) -> set[tuple[str, bool]]:
    """Private attributes that a source reads or writes, each with whether it is one of ``self``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            found.add((node.attr, isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1]
            assert isinstance(name, ast.Constant), f"line {node.lineno}: by a name that nobody can look up"
            if is_private(str(name.value)):
                found.add((str(name.value), False))
    return found


def names_of(class_: type) -> set[str]:
    """What a class defines, and what its methods set on ``self``."""
    names = set(dir(class_))
    for base in class_.__mro__[:-1]:
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                names.add(node.attr)
    return names


@pytest.mark.parametrize("path", inside.USED)
def test_what_is_used_is_there(path: str) -> None:
    """The class is in its module, and each name that is used of it."""
    module, _, name = path.rpartition(".")
    class_ = getattr(importlib.import_module(module), name)
    missing = set(inside.USED[path]) - names_of(class_)
    assert not missing, f"aiokafka has changed inside: {path} has no {sorted(missing)} any more"


def test_a_missing_name_would_be_seen() -> None:
    """What a class neither defines nor sets is not among its names."""
    assert "_no_such_thing" not in names_of(AIOKafkaClient)
    assert {"_conns", "_get_conn"} <= names_of(AIOKafkaClient)


def test_all_that_is_used_is_named() -> None:
    """The table has each private name that the module touches, and no others."""
    named = {name for names in inside.USED.values() for name in names if is_private(name)}
    used = {name for name, _ in touched(inspect.getsource(inside))}
    assert used | OVERRIDDEN == named


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_other_module_touches_them(path: Path) -> None:
    """Private attributes there are the module's own; of what it derives from, only what is overridden."""
    if path.name == "inside.py":
        return
    found = touched(path.read_text(encoding="utf-8"))
    foreign = {name for name, is_own in found if not is_own}
    if path.name == "client.py":
        foreign |= {name for name, is_own in found if is_own and name in names_of(AIOKafkaClient)}
    assert not foreign - OVERRIDDEN


def test_what_is_replaced_is_called_as_before() -> None:
    """An override or a replacement takes what its original takes."""

    def parameters(function: object) -> list[str]:
        assert callable(function)
        return list(inspect.signature(function).parameters)

    assert parameters(KafkaClient._get_conn)[2:] == parameters(AIOKafkaClient._get_conn)[2:] == ["group", "no_hint"]
    assert parameters(KafkaClient._metadata_update) == parameters(AIOKafkaClient._metadata_update)
    for name in ("_do_version_lookup", "_do_sasl_handshake"):
        assert parameters(getattr(AIOKafkaConnection, name)) == ["self"]
    assert parameters(AIOKafkaClient._md_synchronizer) == ["self"]
    assert parameters(Fetcher._proc_fetch_request) == ["self", "assignment", "node_id", "request"]
    assert parameters(Fetcher.fetched_records) == ["self", "partitions", "timeout", "max_records"]
    assert parameters(FetchResult.getall) == ["self", "max_records"]
