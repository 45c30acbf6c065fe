"""``keylanes broker`` as a process: nodes, TLS, passwords and rights, used by an application as it is printed."""

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ..tiers.marks import tier

pytestmark = [pytest.mark.timeout(300)]

APPLICATION = """
from keylanes import App, Settings

app = App("shop", settings=Settings.from_env())

@app.handler("orders", to="parcels")
async def pack(order: dict) -> dict:
    return {"packed": order["item"]}
"""
CODE = "from keylanes.cli.entry import main; import sys; sys.exit(main())"
RIGHTS = ("topic:*", "transactional_id:shop.*")


def keylanes(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **environment}
    command = [sys.executable, "-P", "-c", CODE, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.broker
@tier("proof", "starting-brokers")
def test_an_application_runs_on_a_cluster_with_passwords(tmp_path: Path) -> None:
    """Three nodes with TLS, SCRAM and an access list: what is printed is all that an application needs."""
    (tmp_path / "shop.py").write_text(APPLICATION)
    command = ["broker", "kafka", "--nodes", "3", "--tls", "--sasl", "SCRAM-SHA-512", "--acl", "--json"]
    command += [word for right in RIGHTS for word in ("--allow", f"app:all:{right}")]
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CODE, *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            facts = json.loads(broker.stdout.readline())
            assert facts["broker"].count(":") == 1 + 3
            assert (len(facts["pids"]), facts["protocol"]) == (3, "SASL_SSL")
            path = Path(facts["environment"]["app"])
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            set_ = dict(line.split("=", 1) for line in shlex.split(path.read_text()) if line != "export")
            assert set_["KEYLANES_SASL_PLAIN_PASSWORD"] == json.loads(Path(facts["passwords"]).read_text())["app"]
            made = keylanes(tmp_path, "topics", "shop:app", "--partitions", "1", "--create", **set_)
            assert made.returncode == 0, made.stderr
            ran = keylanes(tmp_path, "run", "shop:app", "--until", "level", **set_)
            assert ran.returncode == 0, ran.stderr
            broker.send_signal(signal.SIGINT)
            assert broker.wait(60) == 0
        finally:
            broker.kill()
    assert not [pid for pid in facts["pids"] if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sasl", "SCRAM-SHA-1"], "SCRAM-SHA-1"),
        (["--acl"], "needs users who say who they are"),
        (["--mutual"], "over TLS only"),
        (["--allow", "app:read:topic:orders"], "give --acl, too"),
        (["--acl", "--sasl", "PLAIN", "--allow", "app:look:topic:orders"], "seen 'app:look:topic:orders'"),
        (["--sasl", "PLAIN", "--user", "a b"], "seen 'a b'"),
        (["--nodes", "12"], "nodes"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    """One sentence and exit code 2, before anything is fetched or started."""
    answer = keylanes(tmp_path, "broker", "kafka", *arguments)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert not (tmp_path / "kafka").exists()
