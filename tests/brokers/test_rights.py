"""The sentence that names a missing right."""

from keylanes.brokers.patience import fatal_of
from keylanes.brokers.protocol import NotAuthorized
from keylanes.brokers.rights import Right

from ..tiers.marks import tier

pytestmark = tier("check")


def test_a_missing_right_is_named_with_the_acl_that_grants_it() -> None:
    """Resource, pattern, operations, principal and the command; those of one resource in one sentence, each once."""
    rights = [
        Right("topic", "src", "READ"),
        Right("topic", "app.", "WRITE", is_prefix=True),
        Right("topic", "src", "DESCRIBE_CONFIGS"),
        Right("topic", "src", "READ"),
        Right("transactional-id", "app.", "WRITE", is_prefix=True),
    ]
    error = NotAuthorized(rights, "User:app1")
    allow = "allow it with `kafka-acls.sh --bootstrap-server BROKER --add --allow-principal 'User:app1'"
    assert str(error) == (
        f"User:app1 has no right to READ and DESCRIBE_CONFIGS on topic 'src' (literal ACL): {allow} "
        "--operation READ --operation DESCRIBE_CONFIGS --topic 'src'`. "
        f"User:app1 has no right to WRITE on each topic whose name begins with 'app.' (prefixed ACL): {allow} "
        "--operation WRITE --topic 'app.' --resource-pattern-type prefixed`. "
        "User:app1 has no right to WRITE on each transactional id whose name begins with 'app.' (prefixed ACL): "
        f"{allow} --operation WRITE --transactional-id 'app.' --resource-pattern-type prefixed`."
    )
    assert (error.rights, error.principal) == (tuple(rights), "User:app1")
    assert type(fatal_of(error)).exit_code == 2


def test_who_is_refused_may_be_unknown() -> None:
    """Of a certificate a client does not know which principal the cluster makes of it."""
    said = str(NotAuthorized([Right("cluster", "", "IDEMPOTENT_WRITE")], None))
    assert said.startswith("this client's principal has no right to IDEMPOTENT_WRITE on the cluster (literal ACL): ")
    assert said.endswith("--add --allow-principal User:PRINCIPAL --operation IDEMPOTENT_WRITE --cluster`.")
