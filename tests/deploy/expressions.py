"""Every PromQL expression that deploy/ ships and docs/ shows, with where it stands."""
import json
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))


def rules():
    """Every rule as it stands in the files."""
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def dashboards():
    for path in DASHBOARDS:
        yield path, json.loads(path.read_text())


def _split(expression, separator):
    """The parts of an expression between separators that stand outside all brackets and quotes."""
    parts, depth, quote, start, i = [], 0, None, 0, 0
    while i < len(expression):
        char = expression[i]
        if quote:
            quote = None if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif depth == 0:
            found = re.compile(separator).match(expression, i)
            if found:
                parts.append(expression[start:i])
                start = i = found.end()
                continue
        i += 1
    return [part.strip() for part in parts + [expression[start:]]]


def operands(alert):
    """What an alert compares. An alert that is quiet has no result, but these always have one."""
    compared = [_split(part, r"(==|!=|>=|<=|>|<)\s*") for part in _split(alert, r"\s(and|or|unless)\s")]
    compared = [[re.sub(r"^absent\((.*)\)$", r"\1", side) for side in sides] for sides in compared]
    return [side for sides in compared for side in sides if not re.fullmatch(r"[0-9.e+-]+", side)]


def fill_variables(expression):
    """A panel's expression as Grafana would send it with everything selected."""
    values = {"job": ".*", "instance": ".*", "__rate_interval": "1m", "__range": "5m"}
    return re.sub(r"\$(\w+)", lambda match: values[match.group(1)], expression)


def autoscaler_expressions():
    overlays = ROOT / "deploy/kubernetes/overlays"
    keda = yaml.safe_load((overlays / "autoscale-keda/scaledobject.yaml").read_text())
    for trigger in keda["spec"]["triggers"]:
        yield "KEDA: " + trigger["name"], trigger["metadata"]["query"]
    adapter = yaml.safe_load((overlays / "autoscale/prometheus-adapter.yaml").read_text())
    scaler = yaml.safe_load((overlays / "autoscale/horizontalpodautoscaler.yaml").read_text())
    (rule,) = yaml.safe_load(adapter["data"]["config.yaml"])["rules"]
    for metric in scaler["spec"]["metrics"]:
        name = metric["pods"]["metric"]["name"]
        query = rule["metricsQuery"].replace("<<.Series>>", name)
        yield "adapter: " + name, query.replace("<<.LabelMatchers>>", 'job="ziggurat"')


def documented_expressions():
    text = (ROOT / "docs/metrics.md").read_text()
    for block in re.findall(r"```promql\n(.*?)```", text, re.DOTALL):
        for part in block.strip().split("\n\n"):
            question, expression = part.split("\n", 1)
            yield "docs/metrics.md: " + question.lstrip("# "), expression


def of_tls(expression):
    """Whether it has data only where a daemon's ports speak TLS."""
    return "ziggurat_tls_" in expression


def all_expressions():
    """(where, expression) pairs, ready to be sent to a server."""
    yield from autoscaler_expressions()
    yield from documented_expressions()
    for rule in rules():
        if "record" in rule:
            yield "rule " + rule["record"], rule["expr"]
            yield "its result " + rule["record"], rule["record"]
        else:
            for operand in operands(rule["expr"]):
                yield "alert " + rule["alert"], operand
    for path, board in dashboards():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", fill_variables(target["expr"])
