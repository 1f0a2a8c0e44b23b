"""A deep model and 256 running requests: the page stays smooth, and a scrape small and quick."""
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import unittest

from browser import Browser
from expressions import ROOT
from running import BINARY, Daemon, http_get, make_model, start, wait_until

OUTPUT = pathlib.Path(os.environ.get("ZIGGURAT_TEST_OUTPUT", ROOT / "build/test_output")) / "page"
REQUESTS = 256
POLICIES = ("full", "pyramidkv(budget=64,window=16)", "h2o(heavy=48,recent=48)", "minicache",
            "streaming(sinks=4,recent=60)+int8", "kivi(bits=4,group=16)",
            "snapkv(budget=48,window=16)", "streaming(sinks=4,recent=28)")
SMOOTH_SECONDS = 10


@contextlib.contextmanager
def crowd(folder, layers):
    """A daemon with a narrow model of so many layers, on which REQUESTS requests decode."""
    model = f"{folder}/model"
    make_model(model, layers, context=8192)
    with Daemon(folder, "--kv-cache-memory", "4GiB", "--max-running", str(REQUESTS),
                "--max-prompt-tokens", "1024", model=model) as daemon:
        loads = [start(
            [BINARY, "bench", "serve", "--server", daemon.grpc, "--seed", str(i),
             "--clients", str(REQUESTS // len(POLICIES)), "--duration", "600",
             "--input-tokens", "uniform:40:300", "--output-tokens", "3000",
             "--compression", policy], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for i, policy in enumerate(POLICIES)]
        try:
            wait_until(lambda: all_decode(daemon), 240, "never so many at once")
            yield daemon
        finally:
            for load in loads:
                load.kill()
                load.wait()


def all_decode(daemon):
    requests = json.loads(http_get(daemon.http, "/api/state"))["cache"]["requests"]
    return len(requests) == REQUESTS and all(one["state"] == "decoding" for one in requests)


def timed(daemon, path, times, pause):
    """Seconds of each of some answers, and the size of the last one in bytes."""
    seconds = []
    for _ in range(times):
        time.sleep(pause)
        begin = time.perf_counter()
        size = len(http_get(daemon.http, path).encode())
        seconds.append(time.perf_counter() - begin)
    print(f"{path}: {1e3 * statistics.median(seconds):.1f} ms (best {1e3 * min(seconds):.1f}), "
          f"{size / 1024:.0f} KiB")
    return seconds, size


def best_of_three(check):
    """Whatever else the machine does can only spoil what is timed."""
    for attempts_left in (2, 1, 0):
        try:
            return check()
        except AssertionError as error:
            print(error)
            if attempts_left == 0:
                raise


class Scrapes(unittest.TestCase):
    def test_are_small_and_quick_with_80_layers_and_256_requests(self):
        with tempfile.TemporaryDirectory() as folder, crowd(folder, 80) as daemon:
            before = http_get(daemon.http, "/metrics")
            self.assertLess(len(before.encode()), 2 << 20)
            best_of_three(lambda: self.check_scrapes(daemon))
            self.assertEqual(daemon.metrics()["ziggurat_requests_running"], REQUESTS)
            # No series comes with a request: there are as many of them as of layers and names.
            self.assertLess(before.count("\n"), 1500)
            self.assertNotIn("req-", before)
            # The page's own. A state is made once a second, so slower ones are made for each.
            request = json.loads(http_get(daemon.http, "/api/state"))["cache"]["requests"][0]["id"]
            for path in ("/api/state", "/api/history", f"/api/requests/{request}"):
                seconds, size = timed(daemon, path, times=10, pause=1.1)
                self.assertLess(size, 1 << 20)
                self.assertLess(statistics.median(seconds), 0.100)

    def check_scrapes(self, daemon):
        seconds, _ = timed(daemon, "/metrics", times=20, pause=0.1)
        # The machine computes at the same time, so the median has room and the best has none.
        self.assertLess(min(seconds), 0.010)
        self.assertLess(statistics.median(seconds), 0.050)


class Frames(unittest.TestCase):
    def test_follow_each_other_with_60_layers_and_256_requests(self):
        with tempfile.TemporaryDirectory() as folder, crowd(folder, 60) as daemon, \
                Browser(folder) as browser:
            browser.open(f"http://{daemon.http}/")
            browser.wait(f"return document.querySelectorAll('.card').length === {REQUESTS}")
            self.assertEqual(
                browser.script("return document.querySelectorAll('#floors .floor').length"), 60)
            browser.script("document.getElementById('requests').scrollIntoView()")
            best_of_three(lambda: self.check_frames(self.frames(browser)))
            for scheme in ("light", "dark"):
                browser.set_view(1500, 1000, scheme)
                browser.script("window.scrollTo(0, 0)")
                time.sleep(0.5)
                browser.screenshot(OUTPUT / f"crowd-{scheme}.png")
            browser.script("document.getElementById('requests').scrollIntoView()")
            time.sleep(0.5)
            browser.screenshot(OUTPUT / "crowd-requests.png")
            browser.script("document.querySelectorAll('.card')[200].click()")
            browser.wait("return document.querySelectorAll('#detail-table tbody tr').length === 60")
            browser.screenshot(OUTPUT / "crowd-request.png")
            self.assertEqual(browser.complaints(), [])

    def check_frames(self, figures):
        gaps, stalls = sorted(figures["gaps"]), figures["stalls"]
        print(f"{len(gaps)} frames in {SMOOTH_SECONDS} s: "
              f"median {statistics.median(gaps):.1f} ms, "
              f"99 % within {gaps[int(len(gaps) * 0.99)]:.1f} ms, longest {gaps[-1]:.0f} ms; "
              f"{len(stalls)} tasks of more than 50 ms; drawn {figures['drawn']} times; "
              f"{figures['changed']} of {figures['cards']} cards changed")
        # It draws every second all along, every card that stays changes as tokens come, and most
        # frames come as quickly as a screen shows them. The daemon computes on the same cores,
        # hence the room.
        self.assertGreaterEqual(figures["drawn"], SMOOTH_SECONDS // 2)
        self.assertGreater(figures["cards"], REQUESTS // 2)
        self.assertEqual(figures["changed"], figures["cards"])
        self.assertLess(statistics.median(gaps), 25)
        self.assertLess(gaps[int(len(gaps) * 0.95)], 70)
        self.assertLess(sum(stalls), 100 * SMOOTH_SECONDS)  # ms: a tenth of the time

    def frames(self, browser):
        """Milliseconds between frames, and of every task that held one up; how often the page was
        drawn, how many cards there were all along, and how many of them said something new."""
        return browser.driver.execute_async_script("""
          const [seconds, done] = arguments;
          const gaps = [], stalls = [];
          let drawn = 0;
          const said = [...document.querySelectorAll('.card')].map(
            (card) => [card, card.querySelector('.tokens').textContent]);
          let last = performance.now();
          new PerformanceObserver((list) => list.getEntries().forEach((one) =>
            stalls.push(one.duration))).observe({type: 'longtask'});
          new MutationObserver(() => ++drawn).observe(document.getElementById('charts'),
            {attributes: true, childList: true, characterData: true, subtree: true});
          const end = last + seconds * 1000;
          const step = (now) => {
            gaps.push(now - last);
            last = now;
            if (now < end) requestAnimationFrame(step);
            else {
              const there = said.filter(([card]) => card.isConnected);
              const changed = there.filter(
                ([card, text]) => card.querySelector('.tokens').textContent !== text);
              done({gaps, stalls, drawn, cards: there.length, changed: changed.length});
            }
          };
          requestAnimationFrame(step);""", SMOOTH_SECONDS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
