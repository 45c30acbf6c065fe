"""docs/settings.md from the fields of ``Settings`` and ``Security``, and the comments behind them.

``.venv/bin/python -P tests/settings_page.py`` writes it.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from keylanes import Security, Settings
from keylanes.brokers.options import words_of
from keylanes.runtime.limits import MIB, Limits

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
COMMAND = ".venv/bin/python -P tests/settings_page.py"
INTRODUCTION = f"""# Settings

Every limit and choice of an application is a field of `keylanes.Settings`. Give it to the application:

```python
app = App("shop", broker="kafka://localhost:9092", settings=Settings(threads=32, state_folder="/var/lib/shop"))
```

`Settings.from_env()` reads the environment instead: `threads` is `KEYLANES_THREADS`, and so on. Nothing reads these
variables unless you call it. Truth is written true, yes, on, 1 or false, no, off, 0, in any case of letters; `none`, or
nothing, stands for None where None is allowed. A wrong value is refused with `SettingsError`; a variable that names no
setting is ignored, with one warning. A setting of an earlier version is refused, with what took its place
([CHANGELOG.md](../CHANGELOG.md) has all). `Settings.of(threads="32")` takes plain values and text, for files of your
own.

One variable counts without `from_env()`: `KEYLANES_BROKER` is the address of the broker for `App("shop")` without
`broker=`.

Some settings bound each other; a start says what to change:

- `heartbeat_interval_ms` is at most a third of `session_timeout_ms`;
- `transaction_timeout_ms` is at most `session_timeout_ms`, and `request_timeout_ms` at most half of
  `transaction_timeout_ms`;
- `request_timeout_ms` is at most `default_api_timeout_ms`, and that at most `broker_retry_ms` and `start_timeout_ms`.

Units are in the names: `_ms` is milliseconds, `_bytes` bytes, `_s` seconds. What a handler has for itself is given to
`@app.handler`: see its docstring.

<!-- The tables are generated from the fields and the comments behind them: {COMMAND} -->
"""
MEMORY_HEAD = """## Memory

`memory_bytes_max` is divided into these shares. Those for state are used where a handler keeps state, one of them for
each source topic. Beside them `send_bytes_max` holds for what is sent outside of handlers. The interpreter, RocksDB's
write buffers (72 MiB) and what handlers hold come on top.

| share | by default | what it is |
|---|---|---|
"""
SECURITY_HEAD = """## TLS and SASL

Fields of `keylanes.Security`, given as `Settings(security=Security(…))`. They have the names that Kafka's clients use.
`Settings.from_env()` reads them beside the others: `KEYLANES_SECURITY_PROTOCOL`, `KEYLANES_SSL_CAFILE`, …

```python
security = Security(
    security_protocol="SASL_SSL",
    ssl_cafile="/etc/ssl/kafka-ca.pem",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_plain_username="shop",
    sasl_plain_password=Secret(os.environ["SHOP_PASSWORD"]),
)
```

Files are read and tried when `Security` is made, and read again for later connections. Passwords show nowhere: not in
logs, tracebacks or printed settings. Plaintext is refused to any address but loopback, unless `allow_plaintext` allows
it. See [security.md](security.md).
"""


class Field(NamedTuple):
    """A field as its class describes it."""

    group: str
    name: str
    words: str


def described(kind: type) -> Iterator[Field]:
    """The fields in the source of a class: what stands behind each, or below it, and the heading above."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    headings = [(number, line.strip("# ")) for number, line in enumerate(lines, 1) if re.match(r"    # \w", line)]
    for statement, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            behind = lines[(statement.end_lineno or 0) - 1][statement.end_col_offset or 0 :].strip()
            match below:
                case ast.Expr(ast.Constant(str(text))):
                    behind = text
            group = [heading for number, heading in headings if number < statement.lineno]
            yield Field(group[-1] if group else "", statement.target.id, " ".join(behind.strip("# ").split()))


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    groups: dict[str, list[Field]] = {}
    for field in described(Settings):
        if field.name != "security":
            groups.setdefault(field.group, []).append(field)
    for group, fields in groups.items():
        parts += [f"## {group}\n", table(Settings, fields)]
    shares, memory_bytes = Settings().limits, Settings().memory_bytes_max
    rows = [(getattr(shares, field.name), field) for field in described(Limits) if field.group.startswith("Shares")]
    rows.sort(key=lambda row: -row[0])
    parts.append(
        MEMORY_HEAD + "".join(f"| 1/{memory_bytes // n} | {n // MIB} MiB | {field.words} |\n" for n, field in rows)
    )
    parts += [SECURITY_HEAD, table(Security, list(described(Security)))]
    return "\n".join(parts)


def table(kind: type[msgspec.Struct], fields: list[Field]) -> str:
    """One row for each field."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    rows = ["| setting | allowed | default | what it is |", "|---|---|---|---|"]
    for field in fields:
        allowed, default = words_of(known[field.name].type), shown(field.name, known[field.name].default)
        rows.append(f"| `{field.name}` | {allowed} | {default} | {field.words.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def shown(name: str, value: object) -> str:
    """A default, large numbers also as people say them."""
    if isinstance(value, int) and not isinstance(value, bool):
        if "bytes" in name and value % (1024 * 1024) == 0:
            return f"{value} ({value // (1024 * 1024)} MiB)"
        if name.endswith("_ms") and value and value % 86_400_000 == 0:
            return f"{value} ({value // 86_400_000} days)"
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
