"""What ACLs allow, in Kafka's words: a right, and the sentence that names a missing one with the ACL that grants it.

Everything here is plain: who asks a broker, and what an application needs, is decided elsewhere.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

Resource: TypeAlias = Literal["topic", "transactional-id", "group", "cluster"]
Operation: TypeAlias = Literal["READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS"]


class Right(NamedTuple):
    """An operation on a resource; ``name`` is where the names of many begin when ``is_prefix``."""

    resource: Resource
    name: str
    operation: Operation
    is_prefix: bool = False


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


def _sentence(rights: Sequence[Right], principal: str | None) -> str:
    first = rights[0]
    who = principal or "this client's principal"
    operations = " and ".join(right.operation for right in rights)
    if first.resource == "cluster":
        what = "the cluster"
    elif first.is_prefix:
        what = f"each {first.resource.replace('-', ' ')} whose name begins with {first.name!r}"
    else:
        what = f"{first.resource.replace('-', ' ')} {first.name!r}"
    allow = f"allow it with `{command(rights, principal)}`"
    pattern = "prefixed" if first.is_prefix else "literal"
    return f"{who} has no right to {operations} on {what} ({pattern} ACL): {allow}."


def _by_resource(rights: Iterable[Right]) -> list[list[Right]]:
    """Those of one resource and pattern together, in the order in which they come; each once."""
    groups: dict[tuple[str, str, bool], list[Right]] = {}
    for right in dict.fromkeys(rights):
        groups.setdefault((right.resource, right.name, right.is_prefix), []).append(right)
    return list(groups.values())
