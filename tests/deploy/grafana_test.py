"""The structure of the dashboards. What their expressions answer is live_prometheus_test's part."""
import itertools
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from expressions import DASHBOARDS, ROOT, dashboards

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
BUILT_IN = {"__rate_interval", "__range"}


def cells(panel):
    place = panel["gridPos"]
    return set(itertools.product(range(place["x"], place["x"] + place["w"]),
                                 range(place["y"], place["y"] + place["h"])))


class Dashboards(unittest.TestCase):
    def test_are_what_the_generator_writes(self):
        self.assertEqual([path.stem for path in DASHBOARDS], ["capacity", "kv-memory", "serving"])
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-B", str(ROOT / "deploy/grafana/generate.py"), folder],
                           check=True)
            for path in DASHBOARDS:
                self.assertEqual((pathlib.Path(folder) / path.name).read_text(), path.read_text(),
                                 f"{path}: run deploy/grafana/generate.py")

    def test_have_uids_and_titles_of_their_own(self):
        for key in ("uid", "title"):
            values = [board[key] for _, board in dashboards()]
            self.assertEqual(len(values), len(set(values)))
        for path, board in dashboards():
            self.assertEqual(board["uid"], "ziggurat-" + path.stem)
            self.assertRegex(board["uid"], r"^[a-z-]{1,40}$")
            self.assertNotIn("id", board, "an id belongs to one installation")

    def test_read_from_the_data_source_that_is_selected(self):
        for path, board in dashboards():
            variables = {variable["name"]: variable for variable in board["templating"]["list"]}
            self.assertEqual(variables["datasource"]["type"], "datasource")
            self.assertEqual(variables["datasource"]["query"], "prometheus")
            sources = [variable["datasource"] for variable in variables.values()
                       if variable["type"] == "query"]
            for panel in board["panels"]:
                sources += [panel["datasource"]] + [t["datasource"] for t in panel["targets"]]
            self.assertTrue(all(source == SOURCE for source in sources), path)

    def test_use_only_variables_that_they_have(self):
        for path, board in dashboards():
            known = {variable["name"] for variable in board["templating"]["list"]} | BUILT_IN
            for panel in board["panels"]:
                for target in panel["targets"]:
                    used = set(re.findall(r"\$(\w+)", target["expr"]))
                    self.assertLessEqual(used, known, f"{path}: {panel['title']}")
                    self.assertLessEqual({"job", "instance"}, used, f"{path}: {panel['title']}")


class Panels(unittest.TestCase):
    def test_have_ids_titles_and_descriptions(self):
        for path, board in dashboards():
            ids = [panel["id"] for panel in board["panels"]]
            titles = [panel["title"] for panel in board["panels"]]
            self.assertEqual(len(ids), len(set(ids)))
            self.assertEqual(len(titles), len(set(titles)), path)
            for panel in board["panels"]:
                self.assertGreater(len(panel["description"]), 10, panel["title"])
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                refs = [target["refId"] for target in panel["targets"]]
                self.assertTrue(refs)
                self.assertEqual(len(refs), len(set(refs)))

    def test_stand_beside_each_other(self):
        for path, board in dashboards():
            for one, other in itertools.combinations(board["panels"], 2):
                self.assertFalse(cells(one) & cells(other), f"{one['title']}, {other['title']}")
            self.assertTrue(all(x < 24 for panel in board["panels"] for x, _ in cells(panel)), path)

    def test_show_what_each_dashboard_is_for(self):
        kinds = {path.stem: {(panel["type"], panel["title"]) for panel in board["panels"]}
                 for path, board in dashboards()}
        self.assertIn(("heatmap", "Occupancy by layer"), kinds["kv-memory"])
        self.assertIn(("barchart", "The ziggurat"), kinds["kv-memory"])
        for title in ("Bytes by format", "Compression ratio by policy", "Tail waste by layer",
                      "High-water marks"):
            self.assertIn(("timeseries", title), kinds["kv-memory"])
        for title in ("Throughput", "Time to first token", "Inter-token latency", "Queue time",
                      "Batch", "Finish reasons"):
            self.assertIn(("timeseries", title), kinds["serving"])
        self.assertIn(("stat", "More requests that fit"), kinds["capacity"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
