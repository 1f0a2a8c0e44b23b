"""The Dockerfile: what a linter would look for, and that its commands are this repository's."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from expressions import ROOT
from running import BINARY

sys.path.insert(0, str(ROOT / "deploy/container"))
from dockerfile import parse  # noqa: E402 - beside what it reads

TEXT = (ROOT / "Dockerfile").read_text()
STAGES = parse(TEXT)
TARGETS = ("cpu", "cuda")


def help_of(command):
    return subprocess.run([BINARY, command, "--help"], capture_output=True, text=True).stdout


class Parsing(unittest.TestCase):
    def test_joins_lines_and_keeps_stages_apart(self):
        made = parse("# c\nFROM a:1 AS one\nRUN x \\\n  y\nFROM b:2 AS two\nCMD [\"p\", \"q r\"]\n")
        self.assertEqual(list(made), ["one", "two"])
        self.assertEqual(made["one"].of("RUN")[0].text, "x y")
        self.assertEqual(made["two"].of("CMD")[0].words(), ["p", "q r"])


class Stages(unittest.TestCase):
    def test_are_named_and_pinned(self):
        self.assertLessEqual(set(TARGETS), set(STAGES))
        for stage in STAGES.values():
            self.assertTrue(stage.name)
            # A dated or fully numbered tag: never latest, never only a major version.
            self.assertRegex(stage.base, r"^[a-z/]+:([a-z]+-\d{8}-slim|\d+\.\d+\.\d+-[a-z0-9.-]+)$")

    def test_run_nothing_but_scripts_of_the_repository(self):
        runs = 0
        for stage in STAGES.values():
            copied = {c.operands()[-1]: c.operands()[0] for c in stage.of("COPY")}
            for run in stage.of("RUN"):
                program = run.text.split()[0]
                path = ROOT / copied.get(program, program)
                self.assertTrue(path.is_file() and os.access(path, os.X_OK), run.text)
                self.assertFalse(re.search(r"[;&|<>$`]", run.text), run.text)
                self.assertIn("set -euo pipefail", path.read_text(), path)
                subprocess.run(["bash", "-n", str(path)], check=True)
                runs += 1
        self.assertEqual(runs, 10)

    def test_install_without_recommendations_and_leave_no_lists(self):
        for name in ("scripts/install-dependencies.sh", "deploy/container/install-runtime.sh"):
            text = (ROOT / name).read_text().replace("\\\n", " ")
            for line in re.findall(r"^[^#\n]*apt-get [^\n]*\binstall .*$", text, re.M):
                self.assertIn("--no-install-recommends", line, name)
                self.assertIn("-y", line, name)
        runtime = (ROOT / "deploy/container/install-runtime.sh").read_text()
        self.assertIn("rm -rf /var/lib/apt/lists/*", runtime)

    def test_copy_only_what_is_there(self):
        ignored = (ROOT / ".dockerignore").read_text()
        for stage in STAGES.values():
            self.assertFalse(stage.of("ADD"))
            for copy in stage.of("COPY"):
                origin = copy.option("from")
                if origin:
                    self.assertIn(origin, STAGES)
                    self.assertTrue(origin.startswith("build-"))
                    continue
                for source in copy.operands()[:-1]:
                    self.assertTrue((ROOT / source).exists(), source)
                    kept = source == "." or any(source.startswith(line[1:]) for line in
                                                ignored.splitlines() if line.startswith("!"))
                    self.assertTrue(kept, f"{source} is left out by .dockerignore")

    def test_send_the_builder_all_folders_that_cmake_reads(self):
        kept = {line[1:].split("/")[0] for line in (ROOT / ".dockerignore").read_text().splitlines()
                if line.startswith("!")}
        asked = re.findall(r"add_subdirectory\((\w+)", (ROOT / "CMakeLists.txt").read_text())
        self.assertLessEqual(set(asked) | {"cmake", "scripts"}, kept)
        self.assertTrue((ROOT / ".dockerignore").read_text().splitlines()[1] == "*")

    def test_ship_no_libtorch_and_what_comes_with_it(self):
        needed = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
        self.assertIn("libdnnl", needed)
        self.assertNotRegex(needed, "libtorch|libc10")
        self.assertLess(len(needed.splitlines()), 120)

    def test_hold_no_secrets_and_no_addresses(self):
        self.assertFalse(re.search(r"https?://", TEXT))
        for stage in STAGES.values():
            for word in ("ARG", "ENV"):
                for each in stage.of(word):
                    self.assertFalse(re.search(r"(?i)token|secret|password|passwd|api_?key|credential",
                                               each.text), each.text)
        for name in TARGETS:  # whose arguments stay in the image's history
            self.assertEqual([each.text for each in STAGES[name].of("ARG")],
                             ["ZIGGURAT_COMMIT=unknown"])

    def test_take_the_commit_as_an_argument_for_binary_and_label(self):
        for name in TARGETS:
            (label,) = [each.text for each in STAGES[name].of("LABEL") if "revision" in each.text]
            self.assertEqual(label, "org.opencontainers.image.revision=$ZIGGURAT_COMMIT")
            steps = [(step.word, step.text) for step in STAGES["build-" + name].instructions]
            argument = steps.index(("ARG", "ZIGGURAT_COMMIT=unknown"))
            # Just before what reads it, so that another commit does not install packages anew.
            self.assertTrue(steps[argument + 1][1].startswith("scripts/build.sh "))
        with tempfile.TemporaryDirectory() as folder:
            for given, commit in (("", "unknown"), ("abc1234", "abc1234")):
                subprocess.run(["cmake", f"-DSOURCE_DIR={folder}", "-DVERSION=1.2.3",
                                f"-DOUT={folder}/version.h", "-P",
                                str(ROOT / "cmake/ZigguratVersion.cmake")], check=True,
                               env={**os.environ, "ZIGGURAT_COMMIT": given})
                self.assertIn(f'ZIGGURAT_COMMIT "{commit}"',
                              pathlib.Path(folder, "version.h").read_text())


class Targets(unittest.TestCase):
    def test_run_as_nobody_special(self):
        for name in TARGETS:
            words = [step.word for step in STAGES[name].instructions]
            (user,) = STAGES[name].of("USER")
            uid, gid = user.text.split(":")
            self.assertGreater(int(uid), 0)
            self.assertGreater(int(gid), 0)
            self.assertGreater(words.index("USER"), max(i for i, w in enumerate(words) if w == "RUN"))
            runtime = (ROOT / "deploy/container/install-runtime.sh").read_text()
            self.assertIn(f"--uid {uid} ", runtime)

    def test_are_watched_by_the_daemons_own_probe(self):
        for name in TARGETS:
            (check,) = STAGES[name].of("HEALTHCHECK")
            command = json.loads(re.search(r"CMD (\[.*\])", check.text).group(1))
            self.assertEqual(command[:2], ["ziggurat", "health"])
            for flag in command[2:]:
                self.assertIn(flag.split("=")[0] + " ", help_of("health"))
            timeout = int(check.option("timeout").rstrip("s"))
            self.assertLess(float(command[2].split("=")[1]), timeout)

    def test_start_the_daemon_under_an_init(self):
        for name in TARGETS:
            (entry,), (command,) = STAGES[name].of("ENTRYPOINT"), STAGES[name].of("CMD")
            self.assertEqual(entry.words(), ["/usr/bin/tini", "--", "ziggurat"])
            self.assertEqual(command.words()[0], "serve")
            given = {name: value for name, _, value in
                     (word.partition("=") for word in command.words()[1:])}
            for flag in given:
                self.assertIn(flag + " ", help_of("serve"))
            ports = [given["--listen"].split(":")[1], given["--http"].split(":")[1]]
            self.assertEqual(STAGES[name].of("EXPOSE")[0].words(), ports)
        self.assertIn(" tini ", (ROOT / "deploy/container/install-runtime.sh").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
