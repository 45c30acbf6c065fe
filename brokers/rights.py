"""Rights in the words of Kafka's ACLs: a right, and the sentence about a missing right with the ACL to add.

Everything here is plain. Other modules ask a broker, and decide which rights an application needs.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Resource: TypeAlias = Literal["topic", "transactional-id", "group", "cluster"]
Operation: TypeAlias = Literal["READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "IDEMPOTENT_WRITE"]


OWN_TOPICS: Final = frozenset({"control", "offsets", "signals"})
OWN_TABLES: Final = "changelog."
"""The names of an application's own topics continue so, behind the application's name and a dot."""

OUTPUT_OPERATIONS: Final[tuple[Operation, ...]] = ("WRITE", "DESCRIBE_CONFIGS")
"""Writing to a topic needs these operations: the settings of the topic tell how large a record may be."""


class Right(NamedTuple):
    """An operation on a resource. ``is_prefix``: on all resources with names that begin with ``name``."""

    resource: Resource
    name: str
    operation: Operation
    is_prefix: bool = False


class Lacking(NamedTuple):
    """The rights that a client lacks. ``principal``: the client's name in the cluster, None where not known."""

    rights: tuple[Right, ...] = ()
    principal: str | None = None


def sentences(rights: Iterable[Right], principal: str | None) -> str:
    """A sentence for each resource: the missing rights, the principal, and the command that adds the rights."""
    return " ".join(_sentence(rights, principal) for rights in _by_resource(rights))


def command(rights: Sequence[Right], principal: str | None) -> str:
    """The command of Kafka that allows operations on one resource."""
    first = rights[0]
    who = f"'{principal}'" if principal else "User:PRINCIPAL"
    operations = " ".join(f"--operation {right.operation}" for right in rights)
    resource = "--cluster" if first.resource == "cluster" else f"--{first.resource} '{first.name}'"
    pattern = " --resource-pattern-type prefixed" if first.is_prefix else ""
    return f"kafka-acls.sh --bootstrap-server BROKER --add --allow-principal {who} {operations} {resource}{pattern}"


def as_granted(rights: Iterable[Right], app: str) -> list[Right]:
    """Rewrite rights as ACLs grant them, each right once. A right on the application's own topics or transactional ids
    becomes a right on a prefix of names. ``app`` "": no topic is known as the application's own.
    """
    return list(dict.fromkeys(_as_granted(right, app) for right in rights))


def _as_granted(right: Right, app: str) -> Right:
    start = f"{app}."
    if not app or not right.name.startswith(start):
        return right
    rest = right.name.removeprefix(start)
    is_own = right.resource == "topic" and (rest in OWN_TOPICS or rest.startswith(OWN_TABLES))
    if is_own or right.resource == "transactional-id":
        return right._replace(name=start, is_prefix=True)
    return right


def _sentence(rights: Sequence[Right], principal: str | None) -> str:
    first = rights[0]
    who = principal or "this client's principal"
    operations = " and ".join(_in_words(right.operation) for right in rights)
    if first.resource == "cluster":
        what = "the cluster"
    elif first.is_prefix:
        what = f"each {first.resource.replace('-', ' ')} whose name begins with {first.name!r}"
    else:
        what = f"{first.resource.replace('-', ' ')} {first.name!r}"
    allow = f"allow it with `{command(rights, principal)}`"
    pattern = "prefixed" if first.is_prefix else "literal"
    return f"{who} has no right to {operations} on {what} ({pattern} ACL): {allow}."


def _in_words(operation: Operation) -> str:
    return "CREATE (unless it exists)" if operation == "CREATE" else operation


def _by_resource(rights: Iterable[Right]) -> list[list[Right]]:
    """Group rights by resource and pattern, in the given order, each right once."""
    groups: dict[tuple[str, str, bool], list[Right]] = {}
    for right in dict.fromkeys(rights):
        groups.setdefault((right.resource, right.name, right.is_prefix), []).append(right)
    return list(groups.values())
