#!/usr/bin/python3
"""Builds the target `cpu` of the Dockerfile without a container engine, and runs what it gives.

    sudo deploy/container/prove.py FOLDER              FOLDER: empty, with 8 GB of room
    ... FOLDER --built BINARY    spares the compiler its ten minutes: BINARY stands for what
                                 scripts/build.sh makes
    ... --temporary              in a folder that goes when all is done

Every stage is a fresh root made by debootstrap, in which the stage's COPY and RUN are carried out as
they stand, from a tree that holds what git tracks. Then the last stage is run as its USER, with
processes and a network of its own, on a root file system that is read-only, with the bundled model as
/model: it must become healthy by its own HEALTHCHECK, answer a request, and end with 0 when it is told
to. What this does not prove: that the base image is what debootstrap makes, and what a container
engine would do otherwise.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from dockerfile import parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE = "bookworm"
SKIPPED = 77  # exit code, for ctest
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # a container's
# In namespaces of its own, so that nothing stays mounted and nobody stays running whatever happens:
# who dies takes along what it started.
UNSHARE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
MOUNTS = 'mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; '
WITH_MODEL = ('mount --bind "$0" "$0"; mount --bind "$MODEL" "$0/model"; ' + MOUNTS +
              'mount -o remount,ro,bind "$0/model"; mount -o remount,ro,bind "$0"; ')
LOOPBACK = "ip link set lo up; "  # all the network that the daemon has


def say(what):
    print(f"[{time.strftime('%H:%M:%S')}] {what}", flush=True)


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True,
                          text=True).stdout


def cannot():
    """Why nothing can be proved here, or None."""
    if os.geteuid() != 0 or subprocess.run([*UNSHARE, "--net", "true"], check=False,
                                           capture_output=True).returncode != 0:
        return "it takes root, and leave to make namespaces"
    # What a folder around this one tracks is another tree.
    try:
        if pathlib.Path(git("rev-parse", "--show-toplevel").strip()) != ROOT:
            return f"git does not track {ROOT}, and what is built is what it tracks"
    except (OSError, subprocess.CalledProcessError) as error:
        return f"git says nothing of {ROOT}: {getattr(error, 'stderr', error)}".strip()
    return None


def tracked_tree(folder):
    """What a clone would have, less what .dockerignore leaves out."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines()
            if line.startswith("!")]
    archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", "HEAD", *kept],
                               stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    if archive.wait() != 0:
        raise RuntimeError("git archive failed")


@dataclasses.dataclass
class Work:
    """What all stages are made from."""
    folder: pathlib.Path
    fresh: pathlib.Path  # root file system that stages begin with
    tree: pathlib.Path  # the build context
    binary: pathlib.Path | None
    arguments: dict  # what --build-arg would give


class Root:
    """A root file system and the state that instructions change."""

    def __init__(self, path, fresh):
        self.path, self.directory, self.environment = path, "/", {}
        subprocess.run(["cp", "-a", str(fresh), str(path)], check=True)

    def inside(self, path):
        return self.path / str(pathlib.PurePosixPath(self.directory, path)).lstrip("/")

    def run(self, command):
        script = MOUNTS + 'exec chroot "$0" sh -c "cd $1 && exec $2"'
        environment = {"PATH": PATH, "HOME": "/root", **self.environment}
        # Proxies as a builder of images passes them on.
        for name in ["CMAKE_BUILD_PARALLEL_LEVEL", "http_proxy", "https_proxy", "no_proxy"]:
            if os.environ.get(name):
                environment[name] = os.environ[name]
        subprocess.run([*UNSHARE, "sh", "-euc", script, str(self.path), self.directory, command],
                       check=True, env=environment)

    def copy(self, sources, target):
        target_path = self.inside(target)
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, target_path, symlinks=True, dirs_exist_ok=True)
            else:
                target_path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target_path)


def build(stages, name, work, built):
    """`built`: the roots of the stages made so far."""
    stage = stages[name]
    if not stage.base.startswith(f"debian:{SUITE}"):
        raise RuntimeError(f"{name}: only stages of Debian {SUITE} can be made here")
    root = built[name] = Root(work.folder / name, work.fresh)
    for step in stage.instructions:
        say(f"{name}: {step.word} {step.text}")
        if step.word == "WORKDIR":
            root.directory = step.text
            root.inside(".").mkdir(parents=True, exist_ok=True)
        elif step.word == "COPY":
            origin = step.option("from")
            if origin and origin not in built:
                build(stages, origin, work, built)
            *sources, target = step.operands()
            base = built[origin].path if origin else work.tree
            root.copy([base / source.lstrip("/") for source in sources], target)
        elif step.word == "RUN" and work.binary and step.text.startswith("scripts/build.sh "):
            say(f"{name}: not run, {work.binary} is there already")
            root.copy([work.binary], "build/ziggurat")
        elif step.word == "RUN":
            root.run(step.text)
        elif step.word == "ENV":
            key, _, value = step.text.partition("=")
            root.environment[key] = value
        elif step.word == "ARG":
            key, _, default = step.text.partition("=")
            root.environment[key] = work.arguments.get(key, default)
    return root


def serve(stage, root, commit):
    """Runs ENTRYPOINT and CMD, HEALTHCHECK beside them, a request, and SIGTERM. `commit`: what the
    daemon must have been built from, where that is known."""
    (root.path / "model").mkdir(exist_ok=True)
    (user,) = stage.of("USER")
    command = stage.of("ENTRYPOINT")[-1].words() + stage.of("CMD")[-1].words()
    probe = json.loads(re.search(r"CMD (\[.*\])", stage.of("HEALTHCHECK")[-1].text).group(1))
    environment = {"PATH": PATH, "MODEL": str(ROOT / "models/needle-llama")}
    chroot = f'exec chroot --userspec={user.text} "$0" "$@"'
    daemon = subprocess.Popen([*UNSHARE, "--net", "sh", "-euc", LOOPBACK + WITH_MODEL + chroot,
                               str(root.path), *command], env=environment)

    def first_process():
        """tini, which has the number 1 inside; None before it is there."""
        found = pathlib.Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        return found[0] if found else None

    def beside(*arguments):
        return subprocess.run(["nsenter", f"--target={first}", "--mount", "--net", "--pid", "chroot",
                               "--userspec=" + user.text, str(root.path), *arguments],
                              env=environment, capture_output=True, text=True)

    try:
        deadline = time.monotonic() + 60
        while not (first := first_process()) or beside(*probe).returncode != 0:
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("never healthy")
            time.sleep(0.5)
        say("healthy by its own HEALTHCHECK")
        mounts = pathlib.Path(f"/proc/{first}/mountinfo").read_text()
        if not re.search(r" / ro[, ]", mounts):
            raise RuntimeError("the root is not read-only: " + mounts)
        version = beside("ziggurat", "--version").stdout.split("\n")[0]
        if commit and f"({commit})" not in version:
            raise RuntimeError(f"not built from {commit}: {version}")
        say(version)
        answer = beside("ziggurat", "generate", " The old house", "--max-tokens", "8")
        if answer.returncode != 0 or not answer.stdout.strip():
            raise RuntimeError("no answer: " + answer.stderr)
        say(f"answers: {answer.stdout.strip()!r}")
        uid = re.search(r"^Uid:\t(\d+)", pathlib.Path(f"/proc/{first}/status").read_text(), re.M)
        if uid.group(1) != user.text.split(":")[0]:
            raise RuntimeError("runs as " + uid.group(1))
        os.kill(int(first), signal.SIGTERM)
        if daemon.wait(60) != 0:
            raise RuntimeError(f"ended with {daemon.returncode}")
        say(f"ran as user {user.text} on a read-only root, and ended with 0")
    finally:
        daemon.kill()  # and with it tini, and with that all of its namespace
        daemon.wait()


def prove(folder, binary):
    # As committed, like all that goes into the build.
    stages = parse(git("show", "HEAD:Dockerfile"))
    commit = git("rev-parse", "--short", "HEAD").strip()
    fresh = folder / "fresh"
    say("debootstrap")
    subprocess.run(["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE,
                    str(fresh)], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as tree:
        tracked_tree(pathlib.Path(tree))
        root = build(stages, "cpu", Work(folder, fresh, pathlib.Path(tree), binary,
                                         {"ZIGGURAT_COMMIT": commit}), {})
    size = subprocess.run(["du", "-sm", str(root.path)], capture_output=True, text=True).stdout
    say(f"the image's root holds {size.split()[0]} MB")
    serve(stages["cpu"], root, None if binary else commit)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("folder", type=pathlib.Path, nargs="?")
    where.add_argument("--temporary", action="store_true")
    parser.add_argument("--built", type=pathlib.Path, metavar="BINARY")
    arguments = parser.parse_args()
    reason = cannot()
    if reason:
        print(f"prove.py: skipped, since {reason}", file=sys.stderr)
        sys.exit(SKIPPED)
    binary = arguments.built.resolve() if arguments.built else None
    if arguments.temporary:
        with tempfile.TemporaryDirectory(prefix="ziggurat-") as folder:
            prove(pathlib.Path(folder), binary)
    else:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        prove(arguments.folder.resolve(), binary)


if __name__ == "__main__":
    main()
