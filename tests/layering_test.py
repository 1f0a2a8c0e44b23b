"""The table of docs/architecture.md, "The house": which folder may include which, and which may
include nothing but a few libraries."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

MAY_INCLUDE = {
    "block_manager": set(),
    "compression": set(),
    "attention": {"block_manager"},
    "model": {"attention", "block_manager", "compression"},
    "scheduler": {"attention", "block_manager", "compression", "model"},
    "bench": {"attention", "block_manager", "compression", "model", "scheduler"},
    "server": {"attention", "bench", "block_manager", "compression", "model", "scheduler"},
}
LIBRARIES = {
    "block_manager": {"absl"},
    "compression": {"absl", "fmt", "nlohmann"},
}
# As an emulated build for tests kernels run in the emulator.
EXCEPTIONS = {("attention/cuda/platform.h", "tests")}


def includes(file):
    """The folders named in the includes of a file."""
    return re.findall(r'^\s*#\s*include ["<](\w+)/', file.read_text(), re.MULTILINE)


def sources(folder):
    return [file for file in sorted((ROOT / folder).rglob("*"))
            if file.suffix in {".h", ".cc", ".cu", ".cuh"}]


class Layering(unittest.TestCase):
    def test_folders_include_only_what_they_may_know(self):
        for folder, may in MAY_INCLUDE.items():
            files = sources(folder)
            self.assertTrue(files, folder)
            for file in files:
                name = str(file.relative_to(ROOT))
                for other in includes(file):
                    if other in MAY_INCLUDE or other == "tests":
                        self.assertTrue(other in may | {folder} or (name, other) in EXCEPTIONS,
                                        f"{name} includes {other}/")

    def test_the_core_knows_few_libraries(self):
        system = {"sys", "linux", "sanitizer"}
        for folder, libraries in LIBRARIES.items():
            for file in sources(folder):
                others = set(includes(file)) - libraries - system - {folder}
                self.assertEqual(others, set(), file)


if __name__ == "__main__":
    unittest.main()
