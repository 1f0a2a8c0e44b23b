"""Reads a Dockerfile: its stages, and their instructions."""
import dataclasses
import json
import re


@dataclasses.dataclass
class Instruction:
    word: str  # "RUN", "COPY", ...
    text: str  # what follows, continued lines joined

    def words(self):
        """As a list: the exec form if it is one, else split at blanks."""
        return json.loads(self.text) if self.text.startswith("[") else self.text.split()

    def option(self, name):
        """The value of --name=, or None."""
        found = re.search(rf"--{name}=(\S+)", self.text)
        return found.group(1) if found else None

    def operands(self):
        return [word for word in self.text.split() if not word.startswith("--")]


@dataclasses.dataclass
class Stage:
    base: str
    name: str
    instructions: list

    def of(self, word):
        return [each for each in self.instructions if each.word == word]


def parse(text):
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    stages = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word.upper() == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(base, name, []))
        else:
            stages[-1].instructions.append(Instruction(word.upper(), rest.strip()))
    return {stage.name: stage for stage in stages}
