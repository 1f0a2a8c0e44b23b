"""The overlay `tls`: its flags, its probes and its monitor, with a secret such as cert-manager makes."""
import pathlib
import re
import shlex
import socket
import ssl
import subprocess
import tempfile
import unittest

import yaml

import kubernetes_test
from expressions import ROOT, all_expressions, of_tls
from running import BINARY, Daemon, Prometheus, wait_until

TLS_FLAGS = {"--tls-cert", "--tls-key", "--tls-client-ca"}
NAMES = ["ziggurat", "ziggurat.ziggurat.svc", "ziggurat-pods.ziggurat.svc"]


def make_secret(folder):
    """tls.crt, tls.key and ca.crt as cert-manager makes them for docs/deployment.md."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca")
    openssl("req", *curve, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=ziggurat")
    names = ",".join("DNS:" + name for name in NAMES)
    extensions = f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n"
    (pathlib.Path(folder) / "tls.ext").write_text(extensions)
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-extfile", "tls.ext", "-out", "tls.crt")


def https_get(address, name, path, context):
    """The body of a page of the server `name` at an address that is another's name."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as plain, \
            context.wrap_socket(plain, server_hostname=name) as secure:
        secure.sendall(f"GET {path} HTTP/1.0\r\nHost: {name}\r\n\r\n".encode())
        return b"".join(iter(lambda: secure.recv(65536), b"")).decode()


def scrape_of_the_docs(folder):
    """What docs/security.md adds to a scrape configuration, with its files in `folder`."""
    text = (ROOT / "docs/security.md").read_text()
    (block,) = re.findall(r"```yaml\n(scheme: https\n.*?)```", text, re.DOTALL)
    return yaml.safe_load(block.replace("/etc/ziggurat/", folder + "/"))


def shell_of_the_docs(page, beginning):
    """The first command of a page that begins so, and what stands in its block before it."""
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        for i, line in enumerate(lines):
            if line.startswith(beginning):
                return line, "\n".join(lines[:i])
    raise LookupError(f"{page}: {beginning}")


class Documented(unittest.TestCase):
    def test_names_of_certificates_are_those_that_clients_call(self):
        texts = [(ROOT / "docs" / page).read_text() for page in ("security.md", "deployment.md")]
        self.assertEqual(re.findall(r"dnsNames: \[(.*?)\]", "".join(texts)), [", ".join(NAMES)])
        comment = (ROOT / "deploy/kubernetes/overlays/tls/kustomization.yaml").read_text()
        called = {host for text in (comment, *texts, (ROOT / "docs/operations.md").read_text(),
                                    (ROOT / "deploy/kubernetes/base/service.yaml").read_text())
                  for host in re.findall(r"[a-z-]+\.ziggurat\.svc", text)}
        self.assertEqual(called, set(NAMES[1:]))
        services = {service["metadata"]["name"] for service in kubernetes_test.of_kind("tls", "Service")}
        self.assertLessEqual({name.split(".")[0] for name in NAMES}, services)

    def test_container_with_certificates_of_the_trial_becomes_healthy(self):
        line, _ = shell_of_the_docs("deployment.md", "docker run --read-only --stop-timeout 40 --user")
        words = shlex.split(line)
        image = next(i for i, word in enumerate(words) if word.startswith("ziggurat:"))
        self.assertEqual(words[image + 1], "serve")
        given = [word for word in words[image + 2:]
                 if not word.startswith(("--model=", "--listen=", "--http=", "--kv-cache-memory="))]
        probe = shlex.split(words[words.index("--health-cmd") + 1])
        with tempfile.TemporaryDirectory() as folder:
            _, trial = shell_of_the_docs("security.md", "ziggurat serve --model DIR --listen 0.0.0.0")
            subprocess.run(["bash", "-ec", trial], cwd=folder, check=True, capture_output=True)
            here = [word.replace("/tls/", folder + "/") for word in given]
            with Daemon(folder, "--kv-cache-memory=16MiB", *here) as daemon:
                asked = [BINARY, *(word.replace("/tls/", folder + "/") for word in probe[1:]),
                         "--address", daemon.grpc]
                wait_until(lambda: subprocess.run(asked, capture_output=True).returncode == 0, 10,
                           "no health")

    def test_scrape_configuration_reaches_a_daemon_that_asks_for_everything(self):
        with tempfile.TemporaryDirectory() as folder:
            make_secret(folder)
            (pathlib.Path(folder) / "token").write_text("a-token-0123456789\n")
            flags = [f"--tls-cert={folder}/tls.crt", f"--tls-key={folder}/tls.key",
                     f"--tls-client-ca={folder}/ca.crt", f"--auth-token-file={folder}/token"]
            with Daemon(folder, "--kv-cache-memory=16MiB", *flags) as daemon, \
                    Prometheus(folder, daemon.http,
                               scrape=scrape_of_the_docs(folder)) as prometheus:
                wait_until(lambda: prometheus.query("up") == [1], 30, "no scrape")
                asked = [expression for _, expression in all_expressions() if of_tls(expression)]
                self.assertTrue(asked)
                for expression in asked:
                    with self.subTest(expression=expression):
                        # The alert's: days that are left.
                        self.assertTrue(0 < prometheus.query(expression)[0] <= 31)


class Overlay(unittest.TestCase):
    def test_promises_no_plain_text_to_gateways(self):
        for overlay, protocol in (("cpu", "kubernetes.io/h2c"), ("tls", None)):
            ports = {service["metadata"]["name"]: service["spec"]["ports"][0]
                     for service in kubernetes_test.of_kind(overlay, "Service")}
            for name in ("ziggurat", "ziggurat-pods"):
                self.assertEqual(ports[name].get("appProtocol"), protocol, f"{overlay}: {name}")

    def test_names_files_of_the_secret(self):
        spec = kubernetes_test.deployment("tls")["spec"]["template"]["spec"]
        (secret,) = [v for v in spec["volumes"] if "secret" in v]
        self.assertEqual(secret["secret"]["defaultMode"], 0o440)
        mount = next(m["mountPath"] for m in spec["containers"][0]["volumeMounts"]
                     if m["name"] == secret["name"])
        given = kubernetes_test.flags(spec["containers"][0])
        layout = {mount + "/" + key for key in ("tls.crt", "tls.key", "ca.crt")}
        self.assertEqual({given[flag] for flag in TLS_FLAGS}, layout)

    def test_has_a_monitor_that_reads_the_same_secret(self):
        endpoint = kubernetes_test.monitors()["podmonitor-tls"]["spec"]["podMetricsEndpoints"][0]
        config = endpoint["tlsConfig"]
        (secret,) = [v["secret"]["secretName"] for v in kubernetes_test.deployment("tls")["spec"]
                     ["template"]["spec"]["volumes"] if "secret" in v]
        self.assertEqual({config["ca"]["secret"]["name"], config["cert"]["secret"]["name"],
                          config["keySecret"]["name"]}, {secret})

    def test_starts_a_daemon_that_its_probes_and_its_monitor_reach(self):
        container = kubernetes_test.daemon_container("tls")
        endpoint = kubernetes_test.monitors()["podmonitor-tls"]["spec"]["podMetricsEndpoints"][0]
        with tempfile.TemporaryDirectory() as folder:
            make_secret(folder)
            args = [arg.replace("/tls/", folder + "/") for arg in kubernetes_test.small_arguments("tls")]
            with Daemon(folder, *args,
                        environment=kubernetes_test.small_environment("tls")) as daemon:
                self.check_probes(container, daemon)
                config = endpoint["tlsConfig"]
                context = ssl.create_default_context(
                    cafile=folder + "/" + config["ca"]["secret"]["key"])
                context.load_cert_chain(folder + "/" + config["cert"]["secret"]["key"],
                                        folder + "/" + config["keySecret"]["key"])
                page = https_get(daemon.http, config["serverName"], endpoint["path"], context)
                self.assertIn("ziggurat_kv_utilization", page)
                # A secret that was renewed wrongly: the daemon goes on with the one before.
                subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout",
                                "-out", "tls.key"], cwd=folder, check=True, capture_output=True)
                wait_until(lambda: "stays in force" in daemon.log.read_text(), 30,
                           "the key was not read again")
                self.check_probes(container, daemon)

    def check_probes(self, container, daemon):
        """As a kubelet asks: with no certificate, and whatever the daemon's is."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[kind]["httpGet"]
            answer = https_get(daemon.http, "ziggurat", asked["path"], context)
            self.assertEqual(answer.split()[1], "200", kind)


if __name__ == "__main__":
    unittest.main(verbosity=2)
