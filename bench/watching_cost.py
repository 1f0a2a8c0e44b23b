#!/usr/bin/python3
"""What it costs to be watched: throughput of a daemon at full load with a scrape each second and
pages open, against the same daemon with neither.

One load runs all the time; windows with and without watchers take turns (ABBA), so that whatever
changes slowly changes both. A pair of windows gives a ratio; the median of all ratios is the figure.
Throughput needs a machine that does nothing else; processor time of the daemon suffers less.
The watchers ask what Prometheus and an open page ask; no browser draws, which elsewhere would run on
another machine.

  bench/watching_cost.py                     # the bundled model, 64 clients
  bench/watching_cost.py --layers 80 --clients 256 --seconds 10
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/deploy"))
from running import BINARY, Daemon, http_get, make_model, start, wait_until


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of windows (default 40)")
    parser.add_argument("--seconds", type=float, default=5, help="of one window (default 5)")
    parser.add_argument("--clients", type=int, default=64, help="requests at once (default 64)")
    parser.add_argument("--pages", type=int, default=1, help="pages open (default 1)")
    parser.add_argument("--layers", type=int, default=0,
                        help="of a narrow random model (default: the bundled model)")
    parser.add_argument("--compression", default="full", help="policy of the requests (default full)")
    return parser.parse_args()


class Watchers:
    """A scrape each second, and what each open page asks in a second, while in use."""

    def __init__(self, daemon, pages):
        self.daemon = daemon
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.every_second, args=(ask,))
                        for ask in [self.scrape] + [self.look] * pages]

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def every_second(self, ask):
        while not self.over.is_set():
            ask()
            self.over.wait(1)

    def scrape(self):
        http_get(self.daemon.http, "/metrics")

    def look(self):
        requests = json.loads(http_get(self.daemon.http, "/api/state"))["cache"]["requests"]
        if requests:  # with one request open
            http_get(self.daemon.http, f"/api/requests/{requests[0]['id']}")


def window(daemon, seconds):
    """Tokens per second, and processor seconds of the daemon per token."""
    def now():
        fields = pathlib.Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        busy = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), daemon.metrics()["ziggurat_generated_tokens_total"], busy
    begin, tokens_before, busy_before = now()
    time.sleep(seconds)
    end, tokens_after, busy_after = now()
    tokens = max(1, tokens_after - tokens_before)
    return tokens / (end - begin), (busy_after - busy_before) / tokens


def say(what, ratios):
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    low, median, high = (100 * (ratio - 1) for ratio in quartiles)
    print(f"{what} when watched: median {median:+.2f} %, quartiles {low:+.2f} to {high:+.2f} %")


def measure(daemon, options):
    speeds, works = [], []
    for pair in range(options.pairs):
        figures = {}
        for is_watched in ((False, True), (True, False))[pair % 2]:
            with Watchers(daemon, options.pages) if is_watched else contextlib.nullcontext():
                figures[is_watched] = window(daemon, options.seconds)
        (speed, work), (watched_speed, watched_work) = figures[False], figures[True]
        speeds.append(watched_speed / speed)
        works.append(watched_work / work)
        print(f"pair {pair + 1}: {speed:8.1f} tokens/s unwatched, {watched_speed:8.1f} watched, "
              f"{100 * (speeds[-1] - 1):+.2f} %", flush=True)
    say("throughput", speeds)
    say("processor time of a token", works)


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = {}
        if options.layers > 0:
            model = {"model": f"{folder}/model"}
            make_model(model["model"], options.layers, context=8192)
        daemon = stack.enter_context(Daemon(folder, "--kv-cache-memory", "4GiB", **model))
        load = start(
            [BINARY, "bench", "serve", "--server", daemon.grpc, "--clients", str(options.clients),
             "--duration", "86400", "--input-tokens", "uniform:64:256",
             "--output-tokens", "uniform:64:512", "--compression", options.compression],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(load.kill)
        running = "ziggurat_requests_running"
        wait_until(lambda: daemon.metrics()[running] >= options.clients, 300, "the load never runs")
        time.sleep(10)  # until requests of all ages run
        measure(daemon, options)


if __name__ == "__main__":
    main()
