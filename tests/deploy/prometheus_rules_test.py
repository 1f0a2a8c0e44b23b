"""The files of deploy/prometheus: well-formed, tested by promtool, documented, of metrics that are."""
import pathlib
import re
import subprocess
import unittest

import yaml

from expressions import PROMETHEUS, ROOT, RULE_FILES, all_expressions, operands, rules

OPERATIONS = (ROOT / "docs/operations.md").read_text()


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def sections(markdown):
    """Anchor of every heading -> the text below it."""
    parts = re.split(r"^#+ +(.*)$", markdown, flags=re.MULTILINE)
    anchor = lambda heading: re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")
    return {anchor(heading): text.strip() for heading, text in zip(parts[1::2], parts[2::2])}


class Rules(unittest.TestCase):
    def test_pass_promtools_check(self):
        code, said = promtool("check", "rules", *RULE_FILES)
        self.assertEqual(code, 0, said)
        code, said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
        self.assertEqual(code, 0, said)

    def test_pass_their_unit_tests(self):
        files = sorted((pathlib.Path(__file__).parent / "prometheus").glob("*_test.yml"))
        self.assertGreaterEqual(len(files), 2)
        code, said = promtool("test", "rules", *files)
        self.assertEqual(code, 0, said)

    def test_have_a_unit_test_each(self):
        tested = "".join(path.read_text()
                         for path in (pathlib.Path(__file__).parent / "prometheus").glob("*.yml"))
        read = "".join(rule["expr"] for rule in rules())
        for rule in rules():
            name = rule.get("alert") or rule["record"]
            # What another rule reads is tested through that rule.
            self.assertTrue(name in tested or name in read, name)

    def test_are_all_in_what_the_operator_gets(self):
        made = subprocess.run([str(PROMETHEUS / "prometheus-rule.sh")], check=True,
                              capture_output=True, text=True).stdout
        groups = yaml.safe_load(made)["spec"]["groups"]
        self.assertEqual([rule for group in groups for rule in group["rules"]],
                         list(rules()))

    def test_have_names_of_their_own(self):
        names = [(rule.get("alert") or rule["record"], str(rule.get("labels"))) for rule in rules()]
        self.assertEqual(len(names), len(set(names)))

    def test_read_only_metrics_that_are_documented_or_recorded(self):
        docs = (ROOT / "docs/metrics.md").read_text()
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        seen = set()
        for where, expression in all_expressions():
            for name in re.findall(r"(?:[a-z_]*:)?ziggurat[_:][a-z0-9_:]+", expression):
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                self.assertTrue(name in recorded or f"`{base}`" in docs, f"{where}: {name}")
                seen.add(base)
        self.assertGreater(len(seen), 30)


class Alerts(unittest.TestCase):
    def test_say_how_bad_and_link_to_a_runbook_that_is_there(self):
        paragraphs = sections(OPERATIONS)
        for rule in rules():
            if "alert" not in rule:
                continue
            self.assertIn(rule["labels"]["severity"], ("info", "warning", "critical"))
            if not rule["expr"].startswith("absent("):  # which has no labels
                self.assertIn("$labels", rule["annotations"]["summary"])
            page, anchor = rule["annotations"]["runbook_url"].split("#")
            self.assertEqual(page, "docs/operations.md")
            self.assertEqual(anchor, rule["alert"].lower())
            self.assertGreater(len(paragraphs.get(anchor, "")), 200, rule["alert"])

    def test_compare_something(self):
        self.assertEqual(operands("a > 0.95"), ["a"])
        self.assertEqual(operands('a{b=~"x>y and z"} > 2 and c >= scalar(d > 1)'),
                         ['a{b=~"x>y and z"}', "c", "scalar(d > 1)"])
        self.assertEqual(operands('absent(a{b="c"})'), ['a{b="c"}'])


class Scraping(unittest.TestCase):
    def test_in_kubernetes_finds_the_pods_by_what_they_are_labelled_with(self):
        # Debian builds Prometheus without discovery in Kubernetes, so promtool cannot read this.
        config = yaml.safe_load((PROMETHEUS / "prometheus-kubernetes.yml").read_text())
        plain = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        self.assertEqual(config["rule_files"], plain["rule_files"])
        (job,) = config["scrape_configs"]
        self.assertEqual(job["job_name"], "ziggurat")
        self.assertEqual(job["kubernetes_sd_configs"], [{"role": "pod"}])
        kept = {rule["source_labels"][0]: rule["regex"] for rule in job["relabel_configs"]
                if rule.get("action") == "keep"}
        deployment = yaml.safe_load((ROOT / "deploy/kubernetes/base/deployment.yaml").read_text())
        template = deployment["spec"]["template"]
        labels = template["metadata"]["labels"]
        self.assertEqual(labels["app.kubernetes.io/name"],
                         kept["__meta_kubernetes_pod_label_app_kubernetes_io_name"])
        ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
        self.assertIn(kept["__meta_kubernetes_pod_container_port_name"], ports)
        self.assertEqual(kept["__meta_kubernetes_pod_phase"], "Running")

    def test_by_monitors_is_of_running_pods_alone(self):
        for monitor in ("podmonitor", "podmonitor-tls", "servicemonitor"):
            spec = yaml.safe_load((PROMETHEUS / f"{monitor}.yaml").read_text())["spec"]
            (endpoint,) = spec.get("podMetricsEndpoints") or spec["endpoints"]
            self.assertEqual(endpoint["relabelings"],
                             [{"sourceLabels": ["__meta_kubernetes_pod_phase"],
                               "regex": "Running", "action": "keep"}], monitor)


if __name__ == "__main__":
    unittest.main(verbosity=2)
