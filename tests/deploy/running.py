"""A daemon and a Prometheus server, as processes of a test."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import yaml

from expressions import PROMETHEUS, ROOT, RULE_FILES

BINARY = os.environ.get("ZIGGURAT_BINARY", str(ROOT / "build/ziggurat"))
READY_SECONDS = 120
# Whatever proxy the environment names, it is for other machines than this one.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def wait_until(condition, seconds, what):
    """What the condition has come to say."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if value := condition():
                return value
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def http_get(address, path):
    with DIRECT.open(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


def start(arguments, **options):
    """A process that does not outlive this one, however this one ends."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *arguments], text=True, **options)


def make_model(folder, layers, context):
    """A model with random weights, so narrow that it is quick however many layers it has."""
    subprocess.run([BINARY, "make-model", "--shape", "tiny", "--layers", str(layers),
                    "--context", str(context), "--hidden-size", "32", "--heads", "2",
                    "--kv-heads", "1", "--head-dim", "16", "--intermediate-size", "32",
                    "--vocab-size", "300", "--out", folder], check=True, stdout=subprocess.DEVNULL)


class Process:
    """Ends with the block that it is used in, and where it does not get ready."""

    def __init__(self, arguments, log, environment=None):
        self.log = pathlib.Path(log)
        with self.log.open("w") as log_file:
            self.process = start(arguments, stdout=subprocess.PIPE, stderr=log_file, env=environment)
        try:
            self.await_ready()
        except BaseException:
            self.end()
            raise

    def await_ready(self):
        """Returns when it can be asked."""
        raise NotImplementedError

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Daemon(Process):
    """`ziggurat serve`, with the bundled model, on free ports and in our environment unless told
    otherwise."""

    def __init__(self, folder, *flags, model=ROOT / "models/needle-llama", http="127.0.0.1:0",
                 environment=None):
        self.clients = []
        super().__init__([BINARY, "serve", "--model", str(model),
                          "--listen", "127.0.0.1:0", "--http", http, *flags],
                         pathlib.Path(folder) / "daemon.log", environment)

    def await_ready(self):
        patience = threading.Timer(READY_SECONDS, self.process.kill)
        patience.daemon = True
        patience.start()
        ready = self.process.stdout.readline()
        patience.cancel()
        if not ready.startswith("ready "):
            raise RuntimeError("no daemon: " + self.log.read_text())
        ports = dict(word.split("=") for word in ready.split()[1:])
        self.grpc, self.http = ports["grpc"], ports["http"]

    def generate(self, prompt, *flags):
        """`ziggurat generate` in the background; ends with the daemon, if not before."""
        process = start([BINARY, "generate", "--server", self.grpc, *flags], stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.clients.append(process)
        process.stdin.write(prompt)
        process.stdin.close()
        return process

    def end(self):
        for client in self.clients:
            client.kill()
            client.wait()
        super().end()

    def metrics(self):
        """name{labels} -> value of a scrape."""
        lines = http_get(self.http, "/metrics").splitlines()
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))}


class Prometheus(Process):
    """A server with the configuration and the rules of deploy/prometheus, in a hurry."""

    def __init__(self, folder, *targets, scrape=None):
        """`scrape`: more keys of the scrape configuration."""
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s",
                            "evaluation_interval": "1s"}
        config["rule_files"] = [str(path) for path in RULE_FILES]
        config["scrape_configs"][0]["static_configs"] = [
            {"targets": list(targets), "labels": {"namespace": "ziggurat"}}]
        config["scrape_configs"][0].update(scrape or {})
        path = pathlib.Path(folder) / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        super().__init__(["prometheus", f"--config.file={path}",
                          f"--storage.tsdb.path={folder}/data",
                          "--web.listen-address=127.0.0.1:0"],
                         pathlib.Path(folder) / "prometheus.log")

    def await_ready(self):
        listens = re.compile(r'msg="Listening on".*?\baddress=(\S+)')
        found = wait_until(lambda: listens.search(self.log.read_text()), 30,
                           "prometheus does not start")
        self.address = found[1]
        wait_until(lambda: http_get(self.address, "/-/ready"), 30, "prometheus does not start")

    def _ask(self, path):
        answer = json.loads(http_get(self.address, "/api/v1/" + path))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        """The values of an instant query."""
        data = self._ask("query?" + urllib.parse.urlencode({"query": expression}))
        if data["resultType"] == "scalar":
            return [float(data["result"][1])]
        return [float(sample["value"][1]) for sample in data["result"]]

    def rules(self):
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]
