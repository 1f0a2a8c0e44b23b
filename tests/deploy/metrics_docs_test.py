"""docs/metrics.md against what a daemon exports: names, types and labels."""
import re
import tempfile
import unittest

from expressions import ROOT
from running import Daemon, http_get, wait_until

SOURCES = sorted((ROOT / "scheduler").glob("*.cc")) + sorted((ROOT / "server").glob("*.cc"))


def documented():
    """name -> (type, labels) of the tables."""
    found = {}
    header = ""
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        if line.startswith("#"):
            header = ""
        if line.startswith("| name |"):
            header = line
        cells = [cell.strip() for cell in line.split("|")]
        match = re.fullmatch(r"`(ziggurat_[a-z_]+)`", cells[1]) if len(cells) > 3 else None
        if match and header:
            has_type = "| type |" in header
            kind, labels = (cells[2], cells[3]) if has_type else ("histogram", cells[2])
            found[match.group(1)] = (kind, set(re.findall(r"`(\w+)`", labels)))
    return found


class Metrics(unittest.TestCase):
    def test_in_the_docs_are_those_in_the_source(self):
        names = {name for path in SOURCES
                 for name in re.findall(r'"(ziggurat_[a-z_]+)"', path.read_text())}
        self.assertGreater(len(names), 30)
        self.assertEqual(set(documented()), names)

    def test_of_a_daemon_are_in_the_docs_with_type_and_labels(self):
        docs = documented()
        with tempfile.TemporaryDirectory() as folder, \
                Daemon(folder, "--kv-cache-memory", "16MiB", "--threads", "1") as daemon:
            asked = daemon.generate(" The old house stood", "--max-tokens", "4", "--compression",
                                    "simlayerkv(threshold=0)")
            self.assertEqual(asked.wait(60), 0)
            # The metric is there from the start, with 0.
            wait_until(lambda: any(name.startswith("ziggurat_requests_finished_total{") and value > 0
                                   for name, value in daemon.metrics().items()),
                       10, "no request has finished")
            page = http_get(daemon.http, "/metrics")
        seen = dict(re.findall(r"^# TYPE (ziggurat_\w+) (\w+)$", page, re.M))
        self.assertGreater(len(seen), 25)
        for name, kind in seen.items():
            self.assertIn(name, docs)
            self.assertEqual(docs[name][0], kind, name)
            for labels in re.findall(rf"^{name}(?:_bucket|_sum|_count)?{{(.*)}} ", page, re.M):
                given = set(re.findall(r'(\w+)="', labels)) - {"le"}
                self.assertEqual(given, docs[name][1], name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
