"""The Java archives of a local Spark: brought once into a folder, so that sessions start fast and without a network.

Managed platforms bring their own archives; nothing here runs there. Run as `python -m spark_dedup.jars`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from spark_dedup.errors import EnvironmentProblem, SparkDedupError

MANIFEST = "jars.json"
DELTA_SECONDS = 600
GRAPHFRAMES_SECONDS = 20
"""GraphFrames is optional: a repository that does not answer must not hold up the set-up."""

CLASS_FOLDERS = ("org/graphframes/", "org/apache/spark/graphframes/", "org/apache/spark/sql/graphframes/")
ENTRY_CLASS = "org/graphframes/GraphFramePythonAPI.class"

HINT = (
    "name your Maven repository in an Ivy settings file (spark.jars.ivySettings in spark-defaults.conf), "
    "or put the jars where Spark finds them and pass a session of your own"
)


@dataclass(frozen=True)
class Line:
    """A Spark line and what belongs to it.

    Args:
        delta: Maven coordinate of Delta Lake.
        graphframes: Maven coordinate of GraphFrames.
        wheel: Hashed pip requirement of a wheel that contains GraphFrames' classes for this line, if there is one.
    """

    delta: str
    graphframes: str
    wheel: str | None = None


LINES = {
    "3.5": Line(
        "io.delta:delta-spark_2.12:3.3.2",
        "io.graphframes:graphframes-spark3_2.12:0.10.1",
        "zingg==0.7.0 --hash=sha256:b4dc8de4a954262f181b4209e07925e5212cdd12dd7614f2e0e5b7c3e1638e07",
    ),
    "4.1": Line("io.delta:delta-spark_4.1_2.13:4.4.0", "io.graphframes:graphframes-spark4_2.13:0.12.2"),
}


@dataclass(frozen=True)
class Jars:
    """What a folder holds.

    Args:
        paths: Every archive, to be given to Spark as `spark.jars`.
        graphframes: Where GraphFrames came from: a coordinate or a pip requirement; None where it could not be had.
    """

    paths: tuple[Path, ...]
    graphframes: str | None


def spark_line() -> str:
    """The line of the installed PySpark, such as `3.5`.

    Raises:
        EnvironmentProblem: If PySpark is missing, or of a line that a local session is not made for.
    """
    try:
        from pyspark.version import __version__ as version
    except ImportError:
        raise EnvironmentProblem(
            "Spark is needed, but the package pyspark is not installed", hint="pip install 'spark-dedup[spark35]' (or [spark41])"
        ) from None
    line = ".".join(str(version).split(".")[:2])
    if line not in LINES:
        raise EnvironmentProblem(
            f"a local session needs pyspark of one of the lines {', '.join(LINES)}, found {version}",
            hint="pip install 'spark-dedup[spark35]' (or [spark41]), or pass a session of your own",
        )
    return line


def jar_folder(line: str) -> Path:
    """Folder of a line's archives; it need not exist.

    `SPARK_DEDUP_JARS` decides; else `.jars` of the working folder or of the nearest folder above it that has one filled;
    else the user's cache.
    """
    named = os.environ.get("SPARK_DEDUP_JARS")
    if named:
        return Path(named).expanduser().absolute() / line
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / ".jars" / line / MANIFEST).is_file():
            return folder / ".jars" / line
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "spark_dedup" / "jars" / line


def installed(line: str, folder: Path) -> Jars | None:
    """What `folder` holds for a line; None where it is missing, incomplete, damaged or of other versions."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["delta"] != LINES[line].delta:
            return None
        for name, digest in manifest["files"].items():
            if checksum(folder / name) != digest:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Jars(tuple(folder / name for name in manifest["files"]), manifest["graphframes"])


def resolve(line: str, root: Path, say: Callable[[str], None] = lambda _: None, *, again: bool = False) -> Jars:
    """Bring a line's archives into `root`/`line`; a second call finds them there and does nothing.

    Delta Lake and GraphFrames come from the Maven repositories that this Spark is set up for. Where GraphFrames can not be
    had, its classes are taken out of a wheel, or left out: the DataFrame engine then finds the components.

    Args:
        line: A key of `LINES`; must be the line of the installed PySpark, whose Ivy does the work.
        root: Folder with one folder per line.
        say: Takes one line of progress.
        again: Bring them even if they are there.

    Raises:
        EnvironmentProblem: If Delta Lake can not be had; names what was tried.
    """
    wanted, folder = LINES[line], root / line
    there = None if again else installed(line, folder)
    if there:
        say(f"Spark {line}: {len(there.paths)} jars in {folder}")
        return there
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=folder) as scratch:
        say(f"Spark {line}: fetching {wanted.delta}")
        found = set(ivy(wanted.delta, Path(scratch) / "delta", DELTA_SECONDS))
        graphframes = None
        for origin, bring in graphframes_sources(wanted):
            say(f"Spark {line}: fetching {origin}")
            try:
                found |= set(bring(Path(scratch) / "graphframes"))
            except EnvironmentProblem as e:
                say(f"Spark {line}: {e.message.splitlines()[0]}")
            else:
                graphframes = origin
                break
        if graphframes is None:
            say(f"Spark {line}: no GraphFrames; the DataFrame engine will find the components")
        return install(line, folder, found, graphframes, say)


def graphframes_sources(line: Line) -> Iterable[tuple[str, Callable[[Path], list[Path]]]]:
    """Where GraphFrames may come from, best first: what it is called, and what brings it into a folder."""
    yield line.graphframes, lambda scratch: ivy(line.graphframes, scratch, GRAPHFRAMES_SECONDS)
    if line.wheel:
        requirement = line.wheel
        yield requirement.split()[0], lambda scratch: [classes_from_wheel(requirement, scratch)]


def install(line: str, folder: Path, found: Iterable[Path], graphframes: str | None, say: Callable[[str], None]) -> Jars:
    """Move archives into place and write the manifest last, so that a broken set-up is never taken for a finished one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for old in folder.glob("*.jar"):
        old.unlink()
    files = {}
    for path in sorted(found, key=lambda p: p.name):
        shutil.move(path, folder / path.name)
        files[path.name] = checksum(folder / path.name)
    manifest = {"line": line, "delta": LINES[line].delta, "graphframes": graphframes, "files": files}
    new = folder / (MANIFEST + ".new")
    new.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    new.replace(folder / MANIFEST)
    say(f"Spark {line}: {len(files)} jars in {folder}")
    return Jars(tuple(folder / name for name in files), graphframes)


def checksum(path: Path) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def artifact(jar: str) -> str:
    """`delta-storage` of `delta-storage-3.3.2.jar`; names without a version stay as they are."""
    return re.sub(r"(-\d[^/]*)?\.jar$", "", jar)


def ivy(coordinate: str, scratch: Path, seconds: int) -> list[Path]:
    """Resolve one coordinate with Spark's own Ivy, so that the user's `spark.jars.ivySettings` count.

    Archives that Spark ships are left out: the copies beside Spark win anyway.

    Args:
        coordinate: group:artifact:version.
        scratch: Folder for what Ivy writes.
        seconds: Patience.

    Raises:
        EnvironmentProblem: If it could not be resolved in time.
    """
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    shipped = sorted({artifact(p.name) for p in (home / "jars").glob("*.jar")})
    scratch.mkdir(parents=True, exist_ok=True)
    script = scratch / "nothing.py"
    script.write_text("", encoding="utf-8")
    confs = {
        "spark.jars.packages": coordinate,
        "spark.jars.excludes": ",".join(f"*:{name}" for name in shipped),
        "spark.jars.ivy": str(scratch / "ivy"),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
    for key, value in confs.items():
        command += ["--conf", f"{key}={value}"]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    try:
        done = subprocess.run(
            [*command, str(script)], env=environment, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"{coordinate} could not be fetched within {seconds} s") from None
    except OSError as e:
        raise EnvironmentProblem(f"{command[0]} could not be started: {e}", hint="spark-dedup doctor") from None
    if done.returncode != 0:
        raise EnvironmentProblem(f"{coordinate} could not be fetched: {reason(done.stdout + done.stderr)}", hint=HINT)
    return sorted((scratch / "ivy" / "jars").glob("*.jar"))


def reason(log: str) -> str:
    """The line of a child's output that says best why it failed."""
    for pattern in (r"unresolved dependency: [^\]\n]*", r".*JAVA_HOME.*", r"\S*Exception: .*", r"ERROR: .*"):
        found = re.findall(pattern, log)
        if found:
            return str(found[-1]).strip()
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def classes_from_wheel(requirement: str, scratch: Path) -> Path:
    """Make a jar of GraphFrames' classes out of a wheel that carries them.

    Args:
        requirement: `name==version --hash=sha256:...`; pip refuses any other file.
        scratch: Folder for the wheel and the jar.

    Raises:
        EnvironmentProblem: If pip could not download it, or it holds no such classes.
    """
    name = requirement.split()[0]
    scratch.mkdir(parents=True, exist_ok=True)
    wanted = scratch / "wheel.txt"
    wanted.write_text(requirement + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    done = subprocess.run(
        [*pip, "--dest", str(scratch), "--requirement", str(wanted)], capture_output=True, text=True, errors="replace", check=False
    )
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise EnvironmentProblem(f"{name} could not be downloaded: {reason(done.stdout + done.stderr)}")
    target = scratch / f"graphframes-classes-from-{name.replace('==', '-')}.jar"
    with zipfile.ZipFile(wheels[0]) as wheel:
        for member in (m for m in wheel.namelist() if m.endswith(".jar")):
            with wheel.open(member) as jar, zipfile.ZipFile(jar) as archive:
                if ENTRY_CLASS in archive.namelist():
                    select_classes(archive, target, name)
                    return target
    raise EnvironmentProblem(f"{name} holds no jar with {ENTRY_CLASS}")


def select_classes(archive: zipfile.ZipFile, target: Path, origin: str) -> int:
    """Copy GraphFrames' entries, and nothing else, into a jar of their own with a note of where they are from.

    The same entries give the same file, byte for byte.

    Returns:
        Number of entries copied.
    """
    names = sorted(n for n in archive.namelist() if n.startswith(CLASS_FOLDERS) and not n.endswith("/"))
    note = (
        f"GraphFrames classes, copied unchanged from {origin}.\n"
        "GraphFrames (https://graphframes.io) and the Apache Spark GraphX classes below org/apache/spark are licensed under the\n"
        "Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
    )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), f"Manifest-Version: 1.0\nOrigin: {origin}\n")
        out.writestr(zipfile.ZipInfo("META-INF/NOTICE"), note)
        for name in names:
            out.writestr(zipfile.ZipInfo(name), archive.read(name), zipfile.ZIP_DEFLATED)
    return len(names)


def main(argv: list[str] | None = None) -> int:
    """Bring the archives of the installed Spark into a folder; 0 when they are there."""
    parser = argparse.ArgumentParser(prog="python -m spark_dedup.jars", description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="default: $SPARK_DEDUP_JARS, else a filled .jars, else the user's cache")
    parser.add_argument("--again", action="store_true", help="fetch even if they are there")
    options = parser.parse_args(argv)
    try:
        line = spark_line()
        root = options.folder.absolute() if options.folder else jar_folder(line).parent
        resolve(line, root, lambda text: print_line(sys.stdout, text), again=options.again)
    except SparkDedupError as e:
        print_line(sys.stderr, f"error: {e}")
        return 1
    return 0


def print_line(stream: TextIO, text: str) -> None:
    """Write one line at once."""
    stream.write(text + "\n")
    stream.flush()


if __name__ == "__main__":
    raise SystemExit(main())
