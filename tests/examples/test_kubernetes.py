"""docs/kubernetes.md: its manifests are of one piece, and fit the settings and the example that they run."""

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from keylanes import Security, Settings
from keylanes.runtime.settings import OTHER_VARIABLES

from ..tiers.marks import tier
from .test_examples import EXAMPLES, service

pytestmark = tier("check")

__all__ = ["service"]

PAGE = (EXAMPLES.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8")
PREFIX = "KEYLANES_"
UNITS = {"Mi": 2**20, "Gi": 2**30}
PYTHON_AND_ROCKSDB_BYTES = 172 * 2**20
"""What the page adds to the settings."""
GRACE_S_DEFAULT = 30
"""What Kubernetes gives to a pod to stop."""


def manifests() -> list[dict[str, Any]]:
    """All that the page shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [msgspec.yaml.decode(text) for block in blocks for text in re.split(r"^---$", block, flags=re.MULTILINE)]


def of_kind(kind: str) -> dict[str, Any]:
    """The only one of a kind."""
    (found,) = [manifest for manifest in manifests() if manifest["kind"] == kind]
    return found


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    """Its only one."""
    (found,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(found)


workloads = pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])


def test_the_page_shows_what_is_needed() -> None:
    """And everything in it is named alike, so that selectors find their pods."""
    assert [one["kind"] for one in manifests()] == ["Service", "StatefulSet", "PodDisruptionBudget", "Deployment"]
    labels = {"app": "orders"}
    for one in manifests():
        assert one["metadata"]["name"] == "orders"
        selector = one["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
        if "template" in one["spec"]:
            assert one["spec"]["template"]["metadata"]["labels"] == labels
    assert of_kind("StatefulSet")["spec"]["serviceName"] == of_kind("Service")["metadata"]["name"]


@workloads
def test_each_variable_is_one_that_is_read(kind: str) -> None:
    """A setting, one that the application reads, or one that the example does; the values are allowed."""
    variables = {one["name"]: one.get("value", "secret") for one in container(of_kind(kind))["env"]}
    ours = {name: value for name, value in variables.items() if name.startswith(PREFIX)}
    known = {*Settings.__struct_fields__, *Security.__struct_fields__, *(name.lower() for name in OTHER_VARIABLES)}
    assert {name.removeprefix(PREFIX).lower() for name in ours} <= known
    assert all(f'"{name}"' in (EXAMPLES / "service.py").read_text() for name in variables.keys() - ours.keys())
    assert Settings.from_env(ours).security.security_protocol == "SASL_SSL"


def test_a_name_is_the_name_of_a_place() -> None:
    """Of a pod that comes back under it, and of no other."""
    (name,) = [one for one in container(of_kind("StatefulSet"))["env"] if one["name"] == "KEYLANES_GROUP_INSTANCE_ID"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert "KEYLANES_GROUP_INSTANCE_ID" not in str(of_kind("Deployment"))


@workloads
def test_state_lies_in_a_folder_of_a_volume(kind: str) -> None:
    """Below it: the volume itself is root's."""
    spec = of_kind(kind)["spec"]
    volumes = [one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())]
    volumes += [one["name"] for one in spec["template"]["spec"].get("volumes", ())]
    (mount,) = container(of_kind(kind))["volumeMounts"]
    assert volumes == [mount["name"]]
    (folder,) = [one["value"] for one in container(of_kind(kind))["env"] if one["name"] == "KEYLANES_STATE_FOLDER"]
    assert folder.startswith(f"{mount['mountPath']}/")


@workloads
def test_probes_ask_what_the_example_answers(kind: str, service: ModuleType) -> None:
    """At its port; the startup has the time that a start may take."""
    found = container(of_kind(kind))
    assert f"--port={found['ports'][0]['containerPort']}" in found["command"]
    settings = Settings()
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = found[name]["httpGet"]
        assert asked["port"] == found["ports"][0]["name"]
        status, answer = service.respond(asked["path"])
        assert (status, answer.state) == (503, "idle"), "it does not run here"
    startup_ms = 1_000 * found["startupProbe"]["failureThreshold"] * found["startupProbe"]["periodSeconds"]
    assert startup_ms >= settings.start_timeout_ms + 2 * settings.session_timeout_ms
    assert found["readinessProbe"]["httpGet"]["path"] == "/ready"


def steps() -> Iterator[tuple[int, str]]:
    """The seconds of each step of a stop, and where that is set."""
    table = PAGE.partition("<!-- stop: begin -->")[2].partition("<!-- stop: end -->")[0]
    for seconds, where in re.findall(r"^\| [^|*]+ \| (\d+) s \| (.+) \|$", table, re.MULTILINE):
        yield int(seconds), where


def test_the_steps_of_a_stop_have_the_times_of_the_settings() -> None:
    """Their sum is within what Kubernetes gives by default."""
    settings = Settings()
    found = [(seconds, where.strip("`")) for seconds, where in steps()]
    assert found == [(getattr(settings, where) // 1_000, where) for _, where in found]
    together_s = settings.stop_limit_ms // 1_000
    assert sum(seconds for seconds, _ in found) == together_s < GRACE_S_DEFAULT
    assert f"| **together** | **{together_s} s** |" in PAGE


@workloads
def test_a_pod_has_the_time_to_stop_and_the_memory_to_work(kind: str) -> None:
    """All steps of a stop, one after the other, and all that the settings allow."""
    spec = of_kind(kind)["spec"]["template"]["spec"]
    found = container(of_kind(kind))
    sleep, before_s = found["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    (requests_s,) = [option.partition("=")[2] for option in found["command"] if "graceful" in option]
    assert f"{before_s} s of `preStop` and at most {requests_s} s of `--timeout-graceful-shutdown`" in PAGE
    together_s = int(before_s) + int(requests_s) + sum(seconds for seconds, _ in steps())
    assert f"That is {together_s} s" in PAGE
    assert spec["terminationGracePeriodSeconds"] >= together_s
    bounds = [name for name in Settings.__struct_fields__ if name.endswith("_bytes_max")]
    settings_bytes = sum(getattr(Settings(), name) or 0 for name in bounds)
    assert f"{settings_bytes // 2**20} MiB by default" in PAGE
    limit = found["resources"]["limits"]["memory"]
    assert int(limit[:-2]) * UNITS[limit[-2:]] >= settings_bytes + PYTHON_AND_ROCKSDB_BYTES
