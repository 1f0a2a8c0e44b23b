"""The manifests: rendered by kubectl, valid by their schemas, and in accord with each other and with
the daemon's own --help."""
import copy
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import jsonschema
import yaml

from expressions import ROOT
from running import BINARY, Daemon, wait_until

KUBERNETES = ROOT / "deploy/kubernetes"
KUBECTL = os.environ.get("ZIGGURAT_KUBECTL", "kubectl")
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
NAME = "app.kubernetes.io/name"
# What Kubernetes sets in pods for a Service called ziggurat, unless enableServiceLinks is false.
SERVICE_VARIABLES = {"ZIGGURAT_SERVICE_HOST": "10.96.0.7", "ZIGGURAT_SERVICE_PORT": "50051",
                     "ZIGGURAT_SERVICE_PORT_GRPC": "50051",
                     "ZIGGURAT_PORT": "tcp://10.96.0.7:50051",
                     "ZIGGURAT_PORT_50051_TCP": "tcp://10.96.0.7:50051",
                     "ZIGGURAT_PORT_50051_TCP_PROTO": "tcp",
                     "ZIGGURAT_PORT_50051_TCP_PORT": "50051",
                     "ZIGGURAT_PORT_50051_TCP_ADDR": "10.96.0.7"}


def render_folder(folder):
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{folder}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


@functools.lru_cache
def render(overlay):
    return render_folder(KUBERNETES / "overlays" / overlay)


def of_kind(overlay, kind):
    return [thing for thing in render(overlay) if thing["kind"] == kind]


def deployment(overlay, name="ziggurat"):
    (found,) = [d for d in of_kind(overlay, "Deployment") if d["metadata"]["name"] == name]
    return found


def pod_templates(overlay):
    return [made["spec"]["template"] for made in of_kind(overlay, "Deployment")]


def daemon_container(overlay):
    return deployment(overlay)["spec"]["template"]["spec"]["containers"][0]


def flags(container):
    """--name -> value of the container's arguments; "" for those without one."""
    parts = (arg.partition("=") for arg in container["args"] if arg.startswith("--"))
    return {name: value for name, _, value in parts}


def small_arguments(overlay):
    """The arguments of an overlay's daemon, for the bundled model and free ports."""
    return [arg for arg in daemon_container(overlay)["args"][1:]
            if not arg.startswith(("--model=", "--listen=", "--http="))]


def daemon_environment(overlay):
    """The variables that the daemon gets from its ConfigMap."""
    name = daemon_container(overlay)["envFrom"][0]["configMapRef"]["name"]
    (config,) = [c for c in of_kind(overlay, "ConfigMap") if c["metadata"]["name"] == name]
    return config["data"]


def small_environment(overlay):
    """What a container's environment would be, with few resources."""
    return {**daemon_environment(overlay), "ZIGGURAT_KV_CACHE_MEMORY": "16MiB",
            "ZIGGURAT_THREADS": "1", **SERVICE_VARIABLES}


def selects(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


def monitors():
    """Objects of deploy/prometheus for the operator, by kind; the monitor of TLS by its file."""
    folder = ROOT / "deploy/prometheus"
    rule = subprocess.run([str(folder / "prometheus-rule.sh")], check=True, capture_output=True,
                          text=True).stdout
    texts = [rule] + [(folder / name).read_text() for name in
                      ("podmonitor.yaml", "servicemonitor.yaml")]
    made = {thing["kind"]: thing for thing in map(yaml.safe_load, texts)}
    made["podmonitor-tls"] = yaml.safe_load((folder / "podmonitor-tls.yaml").read_text())
    return made


@functools.lru_cache
def schemas():
    kinds = {}
    for path in sorted((pathlib.Path(__file__).parent / "schemas").glob("*.json")):
        loaded = json.loads(path.read_text())
        for kind, name in loaded["kinds"].items():
            kinds[kind] = {"$ref": "#/definitions/" + name, "definitions": loaded["definitions"]}
    return kinds


def faults(thing):
    schema = schemas()[f"{thing['apiVersion']}/{thing['kind']}"]
    validator = jsonschema.Draft7Validator(schema)
    return [f"{'/'.join(map(str, fault.path))}: {fault.message}"
            for fault in validator.iter_errors(thing)]


def known_flags(command):
    text = subprocess.run([BINARY, command, "--help"], capture_output=True, text=True).stdout
    return set(re.findall(r"^ +(--[a-z-]+)", text, re.MULTILINE)), text


class Rendering(unittest.TestCase):
    def test_gives_every_overlay(self):
        self.assertEqual(OVERLAYS, ["autoscale", "autoscale-keda", "cpu", "gateway", "model-image",
                                    "nvidia", "tls"])
        kinds = {"ConfigMap", "Deployment", "Namespace", "NetworkPolicy", "PodDisruptionBudget",
                 "Service", "ServiceAccount"}
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                self.assertLessEqual(kinds, {thing["kind"] for thing in render(overlay)})

    def test_gives_what_the_schemas_allow(self):
        checked = 0
        for overlay in OVERLAYS:
            for thing in render(overlay):
                with self.subTest(overlay=overlay, kind=thing["kind"]):
                    self.assertEqual(faults(thing), [])
                    checked += 1
        for thing in monitors().values():
            self.assertEqual(faults(thing), [])
            self.assertEqual(thing["metadata"]["namespace"], "ziggurat")
        self.assertGreater(checked, 60)

    def test_would_find_a_misspelt_field_and_a_wrong_type(self):
        wrong = copy.deepcopy(deployment("cpu"))
        container = wrong["spec"]["template"]["spec"]["containers"][0]
        container["readinesProbe"] = container.pop("readinessProbe")
        wrong["spec"]["replicas"] = "two"
        del container["name"]
        self.assertEqual(len(faults(wrong)), 3, faults(wrong))

    def test_names_things_once_in_one_namespace(self):
        for overlay in OVERLAYS:
            names = [(t["kind"], t["metadata"]["name"]) for t in render(overlay)]
            self.assertEqual(len(names), len(set(names)), overlay)
            for thing in render(overlay):
                if thing["kind"] != "Namespace":
                    self.assertEqual(thing["metadata"]["namespace"], "ziggurat", thing)
            for binding in of_kind(overlay, "RoleBinding"):
                self.assertEqual(binding["subjects"][0]["namespace"], "ziggurat")


class Pods(unittest.TestCase):
    def test_are_restricted(self):
        for overlay in OVERLAYS:
            for template in pod_templates(overlay):
                spec = template["spec"]
                self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                self.assertGreater(spec["securityContext"]["runAsUser"], 0)
                self.assertEqual(spec["securityContext"]["seccompProfile"]["type"],
                                 "RuntimeDefault")
                for container in spec["containers"] + spec.get("initContainers", []):
                    context = container["securityContext"]
                    self.assertFalse(context["allowPrivilegeEscalation"])
                    self.assertTrue(context["readOnlyRootFilesystem"])
                    self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                for key in ("hostNetwork", "hostPID", "hostIPC"):
                    self.assertNotIn(key, spec)

    def test_have_pinned_images_of_no_registry(self):
        for overlay in OVERLAYS:
            for template in pod_templates(overlay):
                spec = template["spec"]
                for container in spec["containers"] + spec.get("initContainers", []):
                    self.assertNotIn("/", container["image"])
                    if container["name"] != "epp":  # whoever installs it says which
                        self.assertRegex(container["image"], r":[0-9][a-z0-9.-]*$")

    def test_mount_what_there_is(self):
        for overlay in OVERLAYS:
            claims = {c["metadata"]["name"] for c in of_kind(overlay, "PersistentVolumeClaim")}
            maps = {c["metadata"]["name"] for c in of_kind(overlay, "ConfigMap")}
            accounts = {c["metadata"]["name"] for c in of_kind(overlay, "ServiceAccount")}
            for template in pod_templates(overlay):
                spec = template["spec"]
                self.assertIn(spec["serviceAccountName"], accounts)
                volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
                used = {mount["name"] for c in spec["containers"] + spec.get("initContainers", [])
                        for mount in c.get("volumeMounts", [])}
                self.assertEqual(used, set(volumes), overlay)
                for volume in volumes.values():
                    if "persistentVolumeClaim" in volume:
                        self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)
                    if "configMap" in volume:
                        self.assertIn(volume["configMap"]["name"], maps)
                for source in spec["containers"][0].get("envFrom", []):
                    self.assertIn(source["configMapRef"]["name"], maps)

    def test_of_the_daemon_go_where_its_program_runs(self):
        for overlay in OVERLAYS:
            spec = deployment(overlay)["spec"]["template"]["spec"]
            self.assertEqual(spec["nodeSelector"], {"kubernetes.io/arch": "amd64"}, overlay)

    def test_end_after_their_drain_and_not_before(self):
        for overlay in OVERLAYS:
            spec = deployment(overlay)["spec"]["template"]["spec"]
            container = spec["containers"][0]
            pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
            drain = int(flags(container)["--drain-timeout"])
            self.assertGreaterEqual(spec["terminationGracePeriodSeconds"], pause + drain + 10)
            live = container["livenessProbe"]
            self.assertGreater(live["periodSeconds"] * live["failureThreshold"], pause + drain)


class Ports(unittest.TestCase):
    def test_are_those_that_the_daemon_listens_on(self):
        for overlay in OVERLAYS:
            container = daemon_container(overlay)
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            given = flags(container)
            self.assertEqual(int(given["--listen"].rsplit(":", 1)[1]), ports["grpc"])
            self.assertEqual(int(given["--http"].rsplit(":", 1)[1]), ports["metrics"])

    def test_of_services_and_policies_are_named_in_the_pods_that_they_select(self):
        for overlay in OVERLAYS:
            templates = pod_templates(overlay)
            wanted = []
            for service in of_kind(overlay, "Service"):
                names = [port["targetPort"] for port in service["spec"]["ports"]]
                wanted.append((service["spec"]["selector"], names))
            for policy in of_kind(overlay, "NetworkPolicy"):
                names = [port["port"] for rule in policy["spec"]["ingress"]
                         for port in rule["ports"]]
                wanted.append((policy["spec"]["podSelector"]["matchLabels"], names))
            for budget in of_kind(overlay, "PodDisruptionBudget"):
                wanted.append((budget["spec"]["selector"]["matchLabels"], []))
            for made in of_kind(overlay, "Deployment"):
                wanted.append((made["spec"]["selector"]["matchLabels"], []))
            for selector, names in wanted:
                chosen = [t for t in templates if selects(selector, t["metadata"]["labels"])]
                self.assertEqual(len(chosen), 1, f"{overlay}: {selector}")
                have = {port["name"] for port in chosen[0]["spec"]["containers"][0]["ports"]}
                self.assertLessEqual(set(names), have, overlay)

    def test_of_probes_are_there_and_their_service_is_ours(self):
        proto = (ROOT / "proto/ziggurat/v1/ziggurat.proto").read_text()
        ours = "{}.{}".format(re.search(r"^package (.*);", proto, re.M).group(1),
                              re.search(r"^service (\w+)", proto, re.M).group(1))
        for overlay in OVERLAYS:
            container = daemon_container(overlay)
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container[kind]
                if overlay == "tls":
                    asked = probe["httpGet"]
                    self.assertIn(asked["port"], ports)
                    self.assertEqual(asked["scheme"], "HTTPS")
                    self.assertEqual(asked["path"], "/healthz" if kind == "livenessProbe" else "/readyz")
                    continue
                self.assertEqual(probe["grpc"]["port"], ports["grpc"])
                self.assertIn(probe["grpc"].get("service", ""), ("", ours))

    def test_of_monitors_are_those_of_the_service_and_the_pods(self):
        made = monitors()
        (metrics,) = [s for s in of_kind("cpu", "Service")
                      if selects(made["ServiceMonitor"]["spec"]["selector"]["matchLabels"],
                                 s["metadata"]["labels"])]
        self.assertEqual([port["name"] for port in metrics["spec"]["ports"]],
                         [e["port"] for e in made["ServiceMonitor"]["spec"]["endpoints"]])
        pod = deployment("cpu")["spec"]["template"]
        names = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
        for monitor in (made["PodMonitor"], made["podmonitor-tls"]):
            self.assertTrue(selects(monitor["spec"]["selector"]["matchLabels"],
                                    pod["metadata"]["labels"]))
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                self.assertIn(endpoint["port"], names)
        self.assertEqual(metrics["metadata"]["labels"][made["ServiceMonitor"]["spec"]["jobLabel"]],
                         "ziggurat")


class Flags(unittest.TestCase):
    def test_are_those_of_the_binary(self):
        known, _ = known_flags("serve")
        self.assertGreater(len(known), 15)
        for overlay in OVERLAYS:
            container = daemon_container(overlay)
            self.assertEqual(container["args"][0], "serve")
            self.assertEqual(set(flags(container)) - known, set(), overlay)

    def test_of_the_config_map_are_variables_that_the_daemon_takes(self):
        for overlay in OVERLAYS:
            known, _ = known_flags("serve")
            variables = {"ZIGGURAT_" + flag[2:].upper().replace("-", "_") for flag in known}
            given = daemon_environment(overlay)
            self.assertGreater(len(given), 5)
            self.assertLessEqual(set(given), variables, overlay)
            fixed = {"ZIGGURAT_" + flag[2:].upper().replace("-", "_")
                     for flag in flags(daemon_container(overlay))}
            self.assertEqual(set(given) & fixed, set(), "a flag would overrule the variable")

    def test_are_printed_with_the_config_map_as_their_source(self):
        container = daemon_container("cpu")
        given = daemon_environment("cpu")
        done = subprocess.run([BINARY, *container["args"], "--print-config"], capture_output=True,
                              text=True, env=given)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name, value in given.items():
            key = name[len("ZIGGURAT_"):].lower().replace("_", "-")
            self.assertRegex(done.stdout, rf"(?m)^{key}: {re.escape(value)} +# {name}$")

    def test_start_a_daemon_that_its_probe_finds(self):
        for overlay in ("cpu", "gateway"):
            container = daemon_container(overlay)
            with tempfile.TemporaryDirectory() as folder, \
                    Daemon(folder, *small_arguments(overlay),
                           environment=small_environment(overlay)) as daemon:
                self.assertEqual(daemon.metrics()["ziggurat_pool_blocks_total"]
                                 * daemon.metrics()["ziggurat_pool_block_bytes"], 16 << 20)
                self.assertNotIn("sets nothing", daemon.log.read_text())
                service = container["readinessProbe"]["grpc"]["service"]
                probe = [BINARY, "health", "--address", daemon.grpc, "--service", service]
                wait_until(lambda: subprocess.run(probe, capture_output=True).returncode == 0, 10,
                           "no health")
                scraped = any(key.startswith("vllm:") for key in daemon.metrics())
                self.assertEqual(scraped, overlay == "gateway")

    def test_of_plain_text_are_there_only_where_there_is_no_tls(self):
        for overlay in OVERLAYS:
            given = flags(daemon_container(overlay))
            self.assertNotEqual("--tls-cert" in given, "--allow-plain-text" in given, overlay)

    def test_of_the_model_are_where_it_is_mounted(self):
        for overlay in OVERLAYS:
            container = daemon_container(overlay)
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            self.assertEqual(flags(container)["--model"], mounts["model"])


class File(unittest.TestCase):
    def test_of_the_docs_takes_the_place_of_the_variables(self):
        docs = (ROOT / "docs/configuration.md").read_text()
        blocks = dict(re.findall(r"```yaml\n# ([a-z]+\.yaml)\n(.*?)```", docs, re.DOTALL))
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(KUBERNETES, f"{folder}/kubernetes")
            overlay = pathlib.Path(folder, "kubernetes/overlays/file")
            overlay.mkdir()
            for name in ("kustomization.yaml", "patch.yaml"):
                (overlay / name).write_text(blocks[name])
            (overlay / "ziggurat.yaml").write_text("max-running: 7\n")
            made = render_folder(overlay)
            for thing in made:
                self.assertEqual(faults(thing), [])
            (pod,) = [t["spec"]["template"]["spec"] for t in made if t["kind"] == "Deployment"]
            container = pod["containers"][0]
            self.assertNotIn("envFrom", container)
            path = pathlib.PurePosixPath(flags(container)["--config"])
            (volume,) = [mount["name"] for mount in container["volumeMounts"]
                         if mount["mountPath"] == str(path.parent)]
            (name,) = [v["configMap"]["name"] for v in pod["volumes"] if v["name"] == volume]
            (config,) = [t for t in made if t["kind"] == "ConfigMap" and t["metadata"]["name"] == name]
            self.assertEqual(list(config["data"]), [path.name])
            args = [arg.replace(str(path), str(overlay / path.name)) for arg in container["args"]]
            done = subprocess.run([BINARY, *args, "--print-config"], capture_output=True, text=True,
                                  env={})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, rf"(?m)^max-running: 7 +# {overlay}/ziggurat.yaml:1$")


class Scaling(unittest.TestCase):
    def test_is_by_metrics_that_are_documented(self):
        (scaler,) = of_kind("autoscale", "HorizontalPodAutoscaler")
        names = [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]]
        self.assertEqual(sorted(names), ["ziggurat_kv_utilization", "ziggurat_requests_waiting"])
        docs = (ROOT / "docs/metrics.md").read_text()
        (adapter,) = [c for c in of_kind("autoscale", "ConfigMap")
                      if c["metadata"]["name"] == "ziggurat-prometheus-adapter"]
        (rule,) = yaml.safe_load(adapter["data"]["config.yaml"])["rules"]
        pattern = re.search(r'__name__=~"([^"]*)"', rule["seriesQuery"]).group(1)
        for name in names:
            self.assertIn(f"`{name}`", docs)
            self.assertRegex(name, pattern)

    def test_is_of_the_deployment_and_leaves_it_the_number_of_pods(self):
        (scaler,) = of_kind("autoscale", "HorizontalPodAutoscaler")
        (keda,) = of_kind("autoscale-keda", "ScaledObject")
        for overlay, target in (("autoscale", scaler), ("autoscale-keda", keda)):
            name = target["spec"]["scaleTargetRef"]["name"]
            self.assertNotIn("replicas", deployment(overlay, name)["spec"])

    def test_is_as_quick_by_either(self):
        (scaler,) = of_kind("autoscale", "HorizontalPodAutoscaler")
        (keda,) = of_kind("autoscale-keda", "ScaledObject")
        made = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
        self.assertEqual(made["behavior"], scaler["spec"]["behavior"])


class Gateway(unittest.TestCase):
    def test_picks_among_our_pods_at_their_ports(self):
        (pool,) = of_kind("gateway", "InferencePool")
        container = daemon_container("gateway")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        labels = deployment("gateway")["spec"]["template"]["metadata"]["labels"]
        self.assertTrue(selects(pool["spec"]["selector"]["matchLabels"], labels))
        self.assertEqual([port["number"] for port in pool["spec"]["targetPorts"]], [ports["grpc"]])
        reference = pool["spec"]["endpointPickerRef"]
        (service,) = [s for s in of_kind("gateway", "Service")
                      if s["metadata"]["name"] == reference["name"]]
        self.assertIn(reference["port"]["number"], [p["port"] for p in service["spec"]["ports"]])
        picker = deployment("gateway", reference["name"])["spec"]["template"]["spec"]
        given = flags(picker["containers"][0])
        self.assertEqual(given["--pool-name"], pool["metadata"]["name"])
        self.assertEqual(int(given["--model-server-metrics-port"]), ports["metrics"])
        config = {c["metadata"]["name"]: c for c in of_kind("gateway", "ConfigMap")}
        mounted = config[picker["volumes"][0]["configMap"]["name"]]["data"]
        self.assertIn(given["--config-file"].split("/")[-1], mounted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
