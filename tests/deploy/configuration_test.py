"""docs/configuration.md against the binary: every flag, its variable, its key and its default."""
import functools
import json
import os
import re
import subprocess
import tempfile
import unittest

import yaml

from expressions import ROOT
from running import BINARY

DOCS = ROOT / "docs/configuration.md"
ROW = re.compile(r"^\| `(--[a-z-]+)` \| `(\w+)` \| `([^`]+)` \| (none|`[^`]*`) \| (.+) \|$", re.M)
PRINTED = re.compile(r"^(# )?([a-z-]+):(?: (.*?))? +# (.*)$")


def rows():
    """flag -> (variable, example line, default or None)"""
    return {flag: (variable, line, None if default == "none" else default.strip("`"))
            for flag, variable, line, default, _ in ROW.findall(DOCS.read_text())}


def serve(*arguments, environment=None):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ZIGGURAT_")}
    return subprocess.run([BINARY, "serve", *arguments], capture_output=True, text=True,
                          env={**clean, **(environment or {})})


def print_config(*arguments, environment=None):
    """key -> (value as YAML or None, source)"""
    printed = {}
    for line in serve("--print-config", *arguments, environment=environment).stdout.splitlines():
        unset, key, value, source = PRINTED.match(line).groups()
        printed[key] = (None if unset else value, source)
    return printed


@functools.lru_cache
def help_text():
    return serve("--help").stdout


def flags_of_help():
    known = re.findall(r"^ {2}(?:-\w,)?(--[a-z-]+)", help_text(), re.M)
    return [flag for flag in known if flag not in ("--help", "--config", "--print-config")]


def as_list(value):
    return value if isinstance(value, list) else [value]


class Table(unittest.TestCase):
    def test_has_every_flag_and_none_besides_in_the_order_of_help(self):
        self.assertEqual(list(rows()), flags_of_help())
        self.assertEqual(["--" + key for key in print_config()], flags_of_help())

    def test_has_the_defaults_of_the_binary(self):
        for key, (value, source) in print_config().items():
            self.assertEqual(rows()["--" + key][2], value, key)
            self.assertEqual(source, "default" if value is not None else "not set")

    def test_of_help_has_the_same_defaults(self):
        text = help_text()
        for flag, (_, _, default) in rows().items():
            shown = re.search(rf"^ +{flag}(?: [^ =]+(?:=[A-Z]+)?)?(?:=([^ \n]+))?(?: |$)", text, re.M)
            if default not in (None, "false"):
                self.assertIn(f"={default}", shown.group(0), flag)

    def test_names_the_variables_that_set_the_flags(self):
        given = {}
        for variable, line, _ in rows().values():
            ((_, example),) = yaml.safe_load(line).items()
            given[variable] = ",".join(example) if isinstance(example, list) \
                else line.split(": ", 1)[1]
        printed = print_config(environment=given)
        for flag, (variable, line, _) in rows().items():
            ((key, example),) = yaml.safe_load(line).items()
            self.assertEqual("--" + key, flag)
            self.assertEqual(printed[key][1], variable)
            self.assertEqual(as_list(yaml.safe_load(printed[key][0])), as_list(example))

    def test_has_examples_that_make_a_file(self):
        lines = [line for _, line, _ in rows().values()]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("\n".join(lines))
            file.flush()
            printed = print_config("--config", file.name)
            for number, line in enumerate(lines, 1):
                ((key, example),) = yaml.safe_load(line).items()
                value, source = printed[key]
                self.assertEqual(source, f"{file.name}:{number}")
                self.assertEqual(as_list(yaml.safe_load(value)), as_list(example))


class Messages(unittest.TestCase):
    def refusal(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            done = serve("--config", file.name)
            self.assertEqual(done.returncode, 2)
            return done.stderr.replace(file.name, "FILE")

    def test_are_as_the_docs_show_them(self):
        docs = DOCS.read_text().replace("/etc/ziggurat.yaml", "FILE")
        for text in ("\n\nkv-cache-memroy: 1GiB\n", "model: x\nlisten: 50051\n"):
            self.assertIn(self.refusal(text).strip(), docs)

    def test_warn_of_a_variable_as_the_docs_say(self):
        done = serve("--print-config", "--model", "x", environment={"ZIGGURAT_MAX_RUNING": "3"})
        self.assertEqual(done.returncode, 0)
        said = re.search(r"the variable .*", done.stderr).group(0)
        self.assertIn(said, DOCS.read_text())


class RetryPolicy(unittest.TestCase):
    def test_stands_in_the_docs_and_names_our_service(self):
        text = (ROOT / "deploy/client/retry-policy.json").read_text().strip()
        self.assertIn(f"```json\n{text}\n```", (ROOT / "docs/operations.md").read_text())
        policy = json.loads(text)
        proto = (ROOT / "proto/ziggurat/v1/ziggurat.proto").read_text()
        package = re.search(r"^package (.*);", proto, re.M).group(1)
        service = f"{package}.{re.search(r'^service (.+?) ', proto, re.M).group(1)}"
        self.assertEqual(policy["healthCheckConfig"]["serviceName"], service)
        self.assertEqual(policy["methodConfig"][0]["name"], [{"service": service}])


class Names(unittest.TestCase):
    def test_of_variables_are_none_that_kubernetes_sets_for_a_service(self):
        for variable, _, _ in rows().values():
            self.assertNotRegex(variable, r"_SERVICE_(HOST|PORT)|_PORT$|_PORT_\d+_")


if __name__ == "__main__":
    unittest.main(verbosity=2)
