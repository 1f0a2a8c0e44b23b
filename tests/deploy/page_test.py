"""The daemon's page in a real browser: what it draws is what the daemon says of itself, whatever
the theme and the width; with the keyboard alone; when the daemon goes and comes back."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import urllib.error

from browser import Browser
from colors import contrast, distance_to_the_colour_blind
from expressions import ROOT
from running import BINARY, Daemon, http_get, make_model, wait_until

OUTPUT = pathlib.Path(os.environ.get("ZIGGURAT_TEST_OUTPUT", ROOT / "build/test_output")) / "page"
PROMPT = "A brick upon a brick upon a brick. " * 12
# Rings: what they hold stands still, however fast they run, so that what is drawn at one time can
# be compared with what is said at another.
RINGS = {"ring": "streaming(sinks=4,recent=108)",
         "<img/src=x/onerror=alert(1)>": "streaming(sinks=4,recent=252)",
         "heavy": "h2o(heavy=64,recent=64)",
         "coded": "streaming(sinks=4,recent=60)+int8"}
NEW_TOKENS = "180000"  # more than there is time for


def cache_of(daemon):
    """What GetCache answers."""
    return json.loads(subprocess.run([BINARY, "cache", "--json", "--server", daemon.grpc],
                                     check=True, capture_output=True, text=True).stdout)


def stands_still(cache):
    return (len(cache["requests"]) == len(RINGS) and cache["reserved_blocks"] == 0 and
            all(request["state"] == "decoding" for request in cache["requests"]))


def number(text):
    return float(text.replace(",", ""))


class PageOfADaemonUnderLoad(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        # A context that no test comes to the end of.
        make_model(f"{self.folder}/model", layers=8, context=200000)
        self.daemon = self.enterContext(Daemon(self.folder, "--kv-cache-memory", "512KiB",
                                               "--max-prompt-tokens", "2000",
                                               model=f"{self.folder}/model"))
        self.browser = self.enterContext(Browser(self.folder))
        self.running = []
        self.addCleanup(self.stop)

    def stop(self):
        for process in self.running:
            process.kill()
            process.wait()

    def end(self, name):
        """Ends the ring of that name."""
        process = self.running[list(RINGS).index(name)]
        process.kill()
        process.wait()

    def run_rings(self):
        for name, policy in RINGS.items():
            self.running.append(self.daemon.generate(
                PROMPT, "--compression", policy, "--request-id", name, "--ignore-eos",
                "--max-tokens", NEW_TOKENS, "--min-tokens", NEW_TOKENS))
        wait_until(lambda: stands_still(cache_of(self.daemon)), 60, "the rings never stand still")

    def open(self):
        self.browser.open(f"http://{self.daemon.http}/")
        self.browser.wait("return document.getElementById('state').textContent === 'serving'")

    def open_on_rings(self):
        self.run_rings()
        self.open()
        self.browser.wait(
            f"return document.querySelectorAll('.card.decoding').length === {len(RINGS)}")

    def change_states(self, change):
        """The page gets what `change`, a function of JavaScript, makes of each state."""
        self.browser.script("""
          const ask = window.fetch;
          window.fetch = async (path, options) => {
            const answer = await ask(path, options);
            return path === '/api/state' ? Response.json((CHANGE)(await answer.json())) : answer;
          };""".replace("CHANGE", change))

    def test_draws_what_the_cache_holds(self):
        self.open_on_rings()
        cache = cache_of(self.daemon)
        self.assertTrue(stands_still(cache), "the rings have ended")
        # Floors, from the highest layer down: the share of its bar that each format takes.
        floors = self.browser.script("""
          return [...document.querySelectorAll('#floors .floor')].map((floor) => {
            const whole = floor.querySelector('.bar').getBoundingClientRect().width;
            return [...floor.querySelectorAll('.bar i')].map((part) =>
              [part.className, part.getBoundingClientRect().width / whole]);
          })""")
        self.assertEqual(len(floors), len(cache["layers"]))
        widest = max(layer["used_blocks"] for layer in cache["layers"])
        for drawn, layer in zip(reversed(floors), cache["layers"]):
            expected = {self.css_class(name): blocks / widest
                        for name, blocks in layer["blocks_by_format"].items()}
            self.assertEqual(set(expected), {"format bf16", "format bf16 is-scored", "format int8"})
            parts = {name: share for name, share in drawn if name != "reserved"}
            self.assertEqual(set(parts), set(expected))
            for name, share in expected.items():
                self.assertAlmostEqual(parts[name], share, delta=0.004)
        # The pool beside them.
        well = dict(self.browser.script("""
          const whole = document.querySelector('.well').clientHeight;
          return [...document.querySelectorAll('.well i')].map((part) =>
            [part.className, part.getBoundingClientRect().height / whole])"""))
        for name, blocks in {**self.sum_formats(cache), "free-part": cache["free_blocks"]}.items():
            name = name if name == "free-part" else self.css_class(name)
            self.assertAlmostEqual(well[name], blocks / cache["total_blocks"], delta=0.006)
        # The legend, and what is written.
        legend = dict(self.browser.script("""
          return [...document.querySelectorAll('#legend li')].map((item) =>
            [item.children[1].textContent, item.children[2].textContent])"""))
        self.assertEqual({name: number(count) for name, count in legend.items()},
                         {**self.sum_formats(cache), "reserved": 0})
        metrics = self.daemon.metrics()
        self.assertEqual(sum(number(count) for count in legend.values()),
                         metrics["ziggurat_pool_blocks_used"])
        self.assertIn(f"{len(RINGS)} running: 0 prefilling, {len(RINGS)} decoding",
                      self.browser.text("#requests-summary"))
        self.check_cards(cache)
        self.assertEqual(self.browser.script("return [1023, 1048575].map(formatBytes)"),
                         ["1023 B", "1.0 MiB"])
        self.assertEqual(self.browser.complaints(), [])

    def test_says_how_many_requests_are_not_listed(self):
        self.open_on_rings()
        self.change_states("(state) => { state.cache.running += 88; return state; }")
        self.browser.wait("""return document.getElementById('requests-summary').textContent
          .endsWith(', the last 88 not listed')""")
        self.assertEqual(self.browser.text("#queue-summary"), "empty")
        self.change_states("(state) => { state.cache.waiting += 99; return state; }")
        self.browser.wait("""return document.getElementById('queue-summary').textContent ===
          '99 waiting, the last 99 not listed'""")

    def test_shows_nothing_of_one_daemon_while_the_next_loads(self):
        self.open_on_rings()
        self.browser.script("document.querySelector('.card').click()")
        self.browser.wait("return document.querySelectorAll('#detail-table tbody tr').length === 8")
        self.browser.press("Escape")
        self.browser.script("document.getElementById('floors').focus()")
        self.browser.press("ArrowUp")
        self.change_states("""(state) => ({...state, started_at_ms: state.started_at_ms + 1,
          state: 'loading', model: null, cache: null, cache_at_ms: null})""")
        self.browser.wait("return document.getElementById('state').textContent === 'loading'")
        drawn = ".card, #floors .floor, .well i, #legend li, #policies li, #waiting li"
        self.assertEqual(self.browser.script(
            "return document.querySelectorAll(arguments[0]).length", drawn), 0)
        self.assertEqual(self.browser.script("return document.title"), "Ziggurat")
        self.assertEqual(self.browser.text("#cache-summary"), "")
        self.assertEqual(self.browser.text("#model"), "loading the model")
        self.browser.press("ArrowUp")  # on no floors
        self.assertIn("Point at a floor", self.browser.text("#readout"))
        self.assertEqual(self.browser.complaints(), [])

    def css_class(self, name):
        encoding, *marks = name.split("-")
        return " ".join(["format", encoding, *("is-" + mark for mark in marks)])

    def sum_formats(self, cache):
        total = {}
        for layer in cache["layers"]:
            for name, blocks in layer["blocks_by_format"].items():
                total[name] = total.get(name, 0) + blocks
        return total

    def check_cards(self, cache):
        cards = self.browser.script("""
          return [...document.querySelectorAll('.card')].map((card) => ({
            name: card.querySelector('.name').textContent,
            policy: card.querySelector('.policy').textContent,
            size: card.querySelector('.size i').getBoundingClientRect().width /
                  card.querySelector('.size').getBoundingClientRect().width,
            shape: card.querySelector('path').getBBox().width,
            images: card.querySelectorAll('img').length}))""")
        largest = max(request["blocks"] for request in cache["requests"])
        self.assertEqual([card["name"] for card in cards],
                         [request["request_id"] for request in cache["requests"]])
        for card, request in zip(cards, cache["requests"]):
            self.assertEqual(card["policy"], re.sub(r"\([^)]*\)", "", request["compression"]))
            self.assertAlmostEqual(card["size"], request["blocks"] / largest, delta=0.02)
            self.assertAlmostEqual(card["shape"], 100, delta=0.5)
            self.assertEqual(card["images"], 0)

    def test_tables_say_the_same(self):
        self.open_on_rings()
        cache = cache_of(self.daemon)
        self.browser.script("document.getElementById('tables').click()")
        rows = self.browser.wait("""
          return [...document.querySelectorAll('#layer-table tr')].map((row) =>
            [...row.cells].map((cell) => cell.textContent))""")
        head, rows = rows[0], rows[1:]
        self.assertEqual(head[:3], ["Layer", "Used", "Reserved"])
        self.assertEqual(len(rows), len(cache["layers"]))
        for row, layer in zip(rows, cache["layers"]):
            cells = dict(zip(head, row))
            self.assertEqual(int(cells["Layer"]), layer["layer"])
            self.assertEqual(number(cells["Used"]), layer["used_blocks"])
            for name, blocks in layer["blocks_by_format"].items():
                self.assertEqual(number(cells[name]), blocks)
        requests = self.browser.script("""
          return [...document.querySelectorAll('#request-table tbody tr')].map((row) =>
            [...row.cells].map((cell) => cell.textContent))""")
        self.assertEqual([[row[0], row[1], number(row[5])] for row in requests],
                         [[request["request_id"], request["compression"], request["blocks"]]
                          for request in cache["requests"]])
        self.assertEqual(self.browser.script("""
          return [...document.querySelectorAll('.pictures')].filter((one) =>
            one.offsetHeight > 0).length"""), 0)
        self.assertEqual(self.browser.script(
            "return document.querySelectorAll('#series-table tbody tr').length"), 10)
        self.browser.screenshot(OUTPUT / "tables.png")
        # A request opens from its row, and the focus comes back there.
        self.browser.script("document.querySelectorAll('#request-table tbody button')[1].focus()")
        self.browser.press("Enter")
        self.browser.wait("return document.querySelectorAll('#detail-table tbody tr').length === 8")
        self.assertEqual(self.browser.text("#detail-title"), requests[1][0])
        self.browser.press("Escape")
        focused = "return document.activeElement.textContent"
        self.assertEqual(self.browser.script(focused), requests[1][0])
        # It stays with its request when the first row goes.
        self.end(requests[0][0])
        self.browser.wait(
            "return document.querySelectorAll('#request-table tbody tr').length === 3")
        self.assertEqual(self.browser.script(focused), requests[1][0])

    def test_a_request_shows_its_layers(self):
        self.open_on_rings()
        self.browser.script("document.querySelectorAll('.card')[3].click()")
        self.browser.wait("return document.querySelectorAll('#detail-table tbody tr').length === 8")
        request = next(one for one in cache_of(self.daemon)["requests"] if
                       one["request_id"] == self.browser.text("#detail-title"))
        self.assertEqual(self.browser.text("#detail-policy"), request["compression"])
        head, *rows = self.browser.script("""
          return [...document.querySelectorAll('#detail-table tr')].map((row) =>
            [...row.cells].map((cell) => cell.textContent))""")
        for row, layer in zip(rows, request["layers"]):
            cells = dict(zip(head, row))
            self.assertEqual(number(cells["Blocks"]), layer["blocks"])
            self.assertEqual(number(cells["Tokens"]), layer["tokens"])
            self.assertIn(f"{layer['format']} {layer['formats'][0]['blocks']}", cells["Formats"])
        self.browser.screenshot(OUTPUT / "request.png")
        # When it ends the page says so, and keeps what it held.
        self.stop()
        self.browser.wait(
            "return document.getElementById('detail-note').textContent.includes('has ended')")
        self.assertEqual(self.browser.script(
            "return document.querySelectorAll('#detail-table tbody tr').length"), 8)
        self.assertIn("has ended", self.browser.text("#announcement"))
        self.browser.wait("return !document.getElementById('no-requests').hidden")
        self.assertEqual(self.browser.complaints(), [])

    def test_walks_by_keyboard_alone(self):
        self.open_on_rings()
        focused = "return document.activeElement.id || document.activeElement.className"
        stops = []
        for _ in range(4):
            self.browser.press("Tab")
            stops.append(self.browser.script(focused))
            self.assertNotEqual(self.browser.script(
                "return getComputedStyle(document.activeElement).outlineStyle"), "none", stops)
        self.assertEqual(stops, ["skip", "tables", "floors", "card decoding"])
        self.browser.press("Tab")  # all cards are one stop
        self.assertNotIn("card", self.browser.script(focused))
        self.browser.script("document.getElementById('floors').focus()")
        self.browser.press("ArrowUp")
        self.browser.press("ArrowUp")
        layer = cache_of(self.daemon)["layers"][1]
        self.assertIn(f"Layer 1: {layer['used_blocks']} blocks", self.browser.text("#readout"))
        self.assertIn(f"Layer 1: {layer['used_blocks']} blocks", self.browser.text("#announcement"))
        self.browser.press("Tab")
        names = [request["request_id"] for request in cache_of(self.daemon)["requests"]]
        name = "return document.activeElement.querySelector('.name').textContent"
        self.assertEqual(self.browser.script(name), names[0])
        self.browser.press("ArrowRight")
        self.browser.press("ArrowRight")
        self.assertEqual(self.browser.script(name), names[2])
        self.browser.press("End")
        self.assertEqual(self.browser.script(name), names[3])
        self.browser.press("Enter")
        self.browser.wait("return !document.getElementById('detail').hidden")
        self.assertEqual(self.browser.script(focused), "detail-title")
        self.assertEqual(self.browser.text("#detail-title"), names[3])
        self.browser.press("Escape")
        self.assertTrue(self.browser.script("return document.getElementById('detail').hidden"))
        self.assertEqual(self.browser.script(name), names[3])  # back where it came from
        self.end(names[0])  # and there still when the others move up
        self.browser.wait("return document.querySelectorAll('.card').length === 3")
        self.assertEqual(self.browser.script(name), names[3])
        self.assertEqual(self.browser.complaints(), [])

    def test_is_well_formed_for_those_who_hear_it(self):
        self.open_on_rings()
        unnamed = self.browser.script("""
          const named = (element) => element.getAttribute('aria-label') ||
            element.textContent.trim() ||
            document.getElementById(element.getAttribute('aria-labelledby'));
          return [...document.querySelectorAll(
            'button, [role=img], [role=application], [role=region], section, aside')]
            .filter((element) => !named(element)).map((element) => element.outerHTML)""")
        self.assertEqual(unnamed, [])
        count = "return document.querySelectorAll(arguments[0]).length"
        for selector in ("main", "header", "footer", "h1", "[role=status]", "html[lang]"):
            self.assertEqual(self.browser.script(count, selector), 1, selector)
        ids = self.browser.script(
            "return [...document.querySelectorAll('[id]')].map((one) => one.id)")
        self.assertEqual(len(ids), len(set(ids)))

    def test_is_readable_in_both_themes_and_on_a_narrow_screen(self):
        self.open_on_rings()
        self.browser.wait("return document.querySelector('.line-0').getAttribute('d').length > 20")
        for scheme in ("light", "dark"):
            self.browser.set_view(1500, 1000, scheme)
            with self.subTest(scheme=scheme):
                self.check_colours()
            self.browser.screenshot(OUTPUT / f"{scheme}.png")
        for width in (1100, 720, 390, 320):
            self.browser.set_view(width, 900, "light", reduced_motion=True)
            with self.subTest(width=width):
                self.assertLessEqual(self.browser.script(
                    "return document.scrollingElement.scrollWidth"), width)
            self.browser.screenshot(OUTPUT / f"width-{width}.png")
        self.browser.script("document.querySelector('.card').click()")
        self.assertEqual(self.browser.script(
            "return getComputedStyle(document.getElementById('detail')).animationName"), "none")

    def check_colours(self):
        names = ("ground", "panel", "ink", "quiet", "lapis", "gold", "alarm",
                 "f32", "bf16", "int8", "fp8", "int4", "int2")
        colour = dict(zip(names, self.browser.script("""
          const style = getComputedStyle(document.documentElement);
          return arguments[0].map((name) => style.getPropertyValue('--' + name).trim())""", names)))
        self.assertNotIn("", colour.values())
        for text in ("ink", "quiet", "lapis", "gold", "alarm"):
            for ground in ("ground", "panel"):
                self.assertGreaterEqual(contrast(colour[text], colour[ground]), 4.5, (text, ground))
        formats = names[7:]
        for i, one in enumerate(formats):
            self.assertGreaterEqual(contrast(colour[one], colour["panel"]), 1.8, one)
            for other in formats[:i]:
                self.assertGreater(distance_to_the_colour_blind(colour[one], colour[other]), 12,
                                   (one, other))

    def test_asks_nobody_but_the_daemon(self):
        self.open_on_rings()
        self.browser.script("document.querySelector('.card').click()")
        self.browser.wait("return document.querySelectorAll('#detail-table tbody tr').length === 8")
        asked = set()
        for entry in self.browser.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.add(message["params"]["request"]["url"])
        own = f"http://{self.daemon.http}/"
        asked = {url for url in asked if not url.startswith(("data:", "chrome:"))}
        self.assertTrue(asked and all(url.startswith(own) for url in asked), asked)
        self.assertIn(own + "api/state", asked)
        # Even a script that got in could not.
        blocked = self.browser.driver.execute_async_script("""
          const done = arguments[0];
          document.addEventListener('securitypolicyviolation',
            (event) => done(event.violatedDirective));
          fetch('http://127.0.0.2:1/').then(() => done('sent'),
            () => setTimeout(done, 5000, 'failed'));
          """)
        self.assertEqual(blocked, "connect-src")


class DaemonThatGoes(unittest.TestCase):
    def test_is_missed_and_welcomed_back(self):
        with tempfile.TemporaryDirectory() as folder, Browser(folder) as browser:
            with Daemon(folder) as daemon:
                address = daemon.http
                self.assertEqual(daemon.generate("Hello", "--max-tokens", "8").wait(60), 0)
                browser.open(f"http://{address}/")
                browser.wait("return document.getElementById('finished').textContent === '1'")
                self.assertEqual(browser.complaints(), [])
            browser.wait("return !document.getElementById('banner').hidden")
            self.assertIn("does not answer", browser.text("#banner"))
            self.assertEqual(browser.text("#state"), "unreachable")
            self.assertIn("does not answer", browser.text("#announcement"))
            browser.screenshot(OUTPUT / "unreachable.png")
            with Daemon(folder, http=address):
                browser.wait("return document.getElementById('banner').hidden", 40)
                browser.wait("return document.getElementById('finished').textContent === '0'")
                browser.wait("return document.getElementById('state').textContent === 'serving'")
                self.assertIn("again", browser.text("#announcement"))
            # What the browser itself says of a connection that is refused, and nothing of ours.
            for entry in browser.complaints():
                self.assertIn("net::ERR", entry["message"])


class PageThatIsOff(unittest.TestCase):
    def test_is_not_found_and_neither_is_its_data(self):
        with tempfile.TemporaryDirectory() as folder, Daemon(folder, "--page", "off") as daemon:
            for path in ("/", "/api/state", "/api/history", "/api/requests/1"):
                with self.assertRaises(urllib.error.HTTPError) as raised:
                    http_get(daemon.http, path)
                self.assertEqual(raised.exception.code, 404, path)
            self.assertIn("ziggurat_pool_blocks_total", http_get(daemon.http, "/metrics"))

    def test_wants_on_or_off(self):
        refused = subprocess.run([BINARY, "serve", "--model", "x", "--page", "perhaps"],
                                 capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--page", refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
