"""The files in deploy/ agree with the program and with each other. Nothing is started here."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ninelives.app.settings import OPTIONS
from ninelives.tools.sandbox.seccomp import REFUSED

DEPLOY = Path(__file__).parents[1] / "deploy"
KNOWN = {option.env for option in OPTIONS.values()} | {"API_SERVER_KEY"}


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_every_setting_of_the_compose_file_is_an_option() -> None:
    services = compose()["services"]
    for name in ("one", "two", "three"):
        assert set(services[name]["environment"]) <= KNOWN
        assert services[name]["environment"]["NINELIVES_SERVER_REPLICA"] == name


def test_nginx_sends_to_the_replicas_of_the_compose_file_and_does_not_buffer_streams() -> None:
    conf = (DEPLOY / "nginx.conf").read_text()
    named = dict(re.findall(r"^\s*server (\w+):(\d+)", conf, re.MULTILINE))
    assert named == dict.fromkeys(("one", "two", "three"), "8642") and set(named) <= set(compose()["services"])
    assert conf.count("{") == conf.count("}") and "proxy_buffering off" in conf
    assert "listen 8080" in conf and compose()["services"]["nginx"]["ports"] == ["127.0.0.1:8642:8080"]


def test_the_seccomp_profile_refuses_what_sandboxed_commands_may_not_call_but_lets_bubblewrap_work() -> None:
    profile = json.loads((DEPLOY / "seccomp.json").read_text())
    refused = {name for row in profile["syscalls"] if "args" not in row for name in row["names"]}
    needed = {"mount", "umount2", "pivot_root", "setns", "clone3", "sched_setattr", "clone", "unshare", "seccomp"}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW" and not refused & needed
    assert set(REFUSED) - needed <= refused
    assert [row["names"] for row in profile["syscalls"] if "args" in row] == [["socket"]]


def test_the_unit_of_systemd_gives_a_server_the_time_that_it_drains() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "ninelives.service")
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) > OPTIONS["limits.drain_s"].default + 5  # type: ignore[operator]
    assert service["ExecStart"].split()[1:3] == ["serve", "--host"] and service["KillMode"] == "mixed"


def test_haproxy_sends_to_the_replicas_of_the_compose_file_and_repeats_only_what_began_nothing() -> None:
    conf = (DEPLOY / "haproxy.cfg").read_text()
    assert re.findall(r"^\s*server (\w+) \1:8642$", conf, re.MULTILINE) == ["one", "two", "three"]
    assert re.findall(r"^\s*retry-on (.*)$", conf, re.MULTILINE) == ["conn-failure 503"] and "uri /readyz" in conf
    assert compose()["services"]["one"]["environment"]["NINELIVES_LIMITS_DRAIN_NOTICE_S"] == "0"


def test_kubernetes_gives_a_replica_the_time_that_it_drains_and_asks_the_right_probes() -> None:
    made = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    settings, pod = made["ConfigMap"]["data"], made["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    named = {each["name"] for each in server["env"]}
    assert set(settings) | named <= KNOWN and "API_SERVER_KEY" in named
    drain_s, notice_s = (float(settings[f"NINELIVES_LIMITS_{name}"]) for name in ("DRAIN_S", "DRAIN_NOTICE_S"))
    assert notice_s == 5 and pod["terminationGracePeriodSeconds"] > max(drain_s, notice_s) + 5
    probes = {name: server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    budget = made["PodDisruptionBudget"]["spec"]
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert budget["minAvailable"] == made["Deployment"]["spec"]["replicas"] - 1
    assert budget["selector"]["matchLabels"] == made["Service"]["spec"]["selector"] == labels


def test_kubernetes_takes_the_manifests() -> None:
    checker = pytest.importorskip("kubernetes_validate", reason="NOT TESTED: pip install kubernetes-validate")
    for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        checker.validate(each, checker.latest_version(), strict=True)


def test_open_webui_is_wired_to_the_balancer_of_the_compose_file() -> None:
    web = compose()["services"]["open-webui"]
    assert web["environment"]["OPENAI_API_BASE_URL"] == "http://nginx:8080/v1" and web["depends_on"] == ["nginx"]
    assert "seccomp=seccomp.json" in compose()["services"]["one"]["security_opt"]


def test_open_webui_is_wired_to_the_server_of_its_compose_file() -> None:
    services = dict(yaml.safe_load((DEPLOY / "open-webui.yaml").read_text()))["services"]
    assert set(services["ninelives"]["environment"]) <= KNOWN
    assert services["open-webui"]["environment"]["OPENAI_API_BASE_URL"] == "http://ninelives:8642/v1"
    assert services["ninelives"]["ports"] == ["127.0.0.1:8642:8642"], "the server is reached from this machine only"
    assert "seccomp=seccomp.json" in services["ninelives"]["security_opt"]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / "ninelives.service"
    text = (DEPLOY / "ninelives.service").read_text()
    unit.write_text(re.sub(r"/opt/ninelives/bin/ninelives", "/bin/true", text))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
