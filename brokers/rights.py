"""What ACLs allow, in Kafka's words: a right, and the sentence that names a missing one with the ACL that grants it.

Everything here is plain: who asks a broker, and what an application needs, is decided elsewhere.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

Resource: TypeAlias = Literal["topic", "transactional-id", "group", "cluster"]
Operation: TypeAlias = Literal["READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "IDEMPOTENT_WRITE"]


OUTPUT_OPERATIONS: Final[tuple[Operation, ...]] = ("WRITE", "DESCRIBE_CONFIGS")
"""What writing to a topic needs: its settings say how large a record may be."""


class Right(NamedTuple):
    """An operation on a resource; ``name`` is where the names of many begin when ``is_prefix``."""

    resource: Resource
    name: str
    operation: Operation
    is_prefix: bool = False


class Lacking(NamedTuple):
    """The rights that a client lacks. ``principal``: who the client is, None where it can't know."""

    rights: tuple[Right, ...] = ()
    principal: str | None = None


def sentences(rights: Iterable[Right], principal: str | None) -> str:
    """A sentence for each resource: what is missing, for whom, and the command that adds it."""
    return " ".join(_sentence(rights, principal) for rights in _by_resource(rights))


def command(rights: Sequence[Right], principal: str | None) -> str:
    """Kafka's own command that allows operations on one resource."""
    first = rights[0]
    who = f"'{principal}'" if principal else "User:PRINCIPAL"
    operations = " ".join(f"--operation {right.operation}" for right in rights)
    resource = "--cluster" if first.resource == "cluster" else f"--{first.resource} '{first.name}'"
    pattern = " --resource-pattern-type prefixed" if first.is_prefix else ""
    return f"kafka-acls.sh --bootstrap-server BROKER --add --allow-principal {who} {operations} {resource}{pattern}"


def right_to_id(transactional_id: str) -> Right:
    """What is missing when an id is refused. Each process has one that ends with text of its own, behind a dot: an ACL
    names what stands before it.
    """
    return Right("transactional-id", transactional_id[: transactional_id.rfind(".") + 1], "WRITE", is_prefix=True)


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
    """Those of one resource and pattern together, in the order in which they come; each once."""
    groups: dict[tuple[str, str, bool], list[Right]] = {}
    for right in dict.fromkeys(rights):
        groups.setdefault((right.resource, right.name, right.is_prefix), []).append(right)
    return list(groups.values())
