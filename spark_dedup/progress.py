"""Progress of a run on stderr: one living line on a terminal, few lines elsewhere, JSON for machines."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from spark_dedup.errors import ConfigError

MODES = ("auto", "plain", "quiet", "json")

POLL_SECONDS = 0.5
"""How often Spark is asked and the living line redrawn."""

LINE_SECONDS = 30.0
"""How often a long stage says so where lines stay."""

_NAME_WIDTH = 16
_CLEAR = "\r\x1b[2K"


class StatusTracker(Protocol):
    """The two questions put to Spark's own status tracker."""

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        """Ids of the Spark stages that run now."""
        ...

    def getStageInfo(self, stageId: int) -> Any:  # noqa: N802, N803
        """`numTasks` and `numCompletedTasks` of a Spark stage; None where it is forgotten."""
        ...


@dataclass(frozen=True)
class Tasks:
    """Tasks of the Spark stage that has most of them, and how long it has been seen."""

    done: int
    all: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """For this Spark stage alone, at the pace so far; None before the first task is done."""
        return self.seconds * (self.all - self.done) / self.done if self.done else None


@dataclass
class StageProgress:
    """One stage while it runs; the pipeline sets `rows_out` and `note`.

    Attributes:
        name: Stage name.
        total: What the stage has to handle, where it is known.
        unit: What `total` counts.
        unit_out: What `rows_out` counts; None: the same.
        rows_out: What came out.
        note: Something worth a word at the end of the line.
    """

    name: str
    total: int | None
    unit: str
    unit_out: str | None = None
    rows_out: int | None = None
    note: str = ""


class Progress:
    """Shows each stage of a run.

    Args:
        stream: Where to write; None takes stderr.
        mode: `auto` is a living line on a terminal and `plain` elsewhere; `plain` writes a line at the start and at the end
            of a stage and every `LINE_SECONDS` between; `quiet` writes nothing; `json` writes one object a line, as often
            as `plain`.
        tracker: Spark's status tracker; None shows elapsed time only, until `watch` finds one.

    Raises:
        ConfigError: For another mode.
    """

    def __init__(self, stream: TextIO | None = None, mode: str = "auto", tracker: StatusTracker | None = None) -> None:
        if mode not in MODES:
            raise ConfigError([f"progress must be one of {', '.join(MODES)}, got {mode!r}"])
        self.stream = sys.stderr if stream is None else stream
        self.mode = mode
        self.live = mode == "auto" and self.stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._tracker = tracker
        self._running: StageProgress | None = None
        self._lock = threading.Lock()

    def watch(self, spark: Any) -> None:
        """Take task counts from a session; one without a SparkContext (Connect) gives none, and elapsed time is shown alone."""
        try:
            self._tracker = spark.sparkContext.statusTracker()
        except Exception:  # Connect raises errors of several kinds, and none may stop a run
            self._tracker = None

    def say(self, note: str) -> None:
        """Put a word at the end of the line of the stage that was begun last."""
        if self._running is not None:
            self._running.note = note

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "rows", unit_out: str | None = None) -> Iterator[StageProgress]:
        """Show one stage from its start to its end, well or badly.

        Args:
            name: Stage name.
            total: What it has to handle, where that is known.
            unit: What `total` counts, such as `texts`.
            unit_out: What the stage's `rows_out` counts, such as `pairs`; None: the same.
        """
        shown = self._running = StageProgress(name, total, unit, unit_out)
        if self.mode == "quiet":
            yield shown
            return
        begun = time.monotonic()
        self._begin(shown)
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(shown, begun, ended), name=f"progress-{name}", daemon=True)
        ticker.start()
        failed = True
        try:
            yield shown
            failed = False
        finally:
            ended.set()
            ticker.join(timeout=2 * POLL_SECONDS)
            with self._lock:
                self._end(shown, time.monotonic() - begun, failed)

    def tell(self, lines: Sequence[str]) -> None:
        """Write lines that stay, above the living line where there is one."""
        if self.mode == "quiet":
            return
        with self._lock:
            if self.mode == "json":
                self._put(json.dumps({"event": "told", "lines": list(lines)}, ensure_ascii=False) + "\n")
            else:
                self._put((_CLEAR if self.live else "") + "".join(f"{'':<{_NAME_WIDTH}}{line}\n" for line in lines))

    def _begin(self, shown: StageProgress) -> None:
        with self._lock:
            if self.mode == "json":
                self._put_json("started", shown)
            elif not self.live:
                of = f"{shown.total:,} {shown.unit} ..." if shown.total is not None else "..."
                self._put(f"{shown.name:<{_NAME_WIDTH}}{of}\n")

    def _end(self, shown: StageProgress, seconds: float, failed: bool) -> None:
        if self.mode == "json":
            self._put_json("failed" if failed else "finished", shown, seconds=round(seconds, 3), rows_out=shown.rows_out, note=shown.note)
        else:
            told = f"failed after {duration(seconds)}" if failed else finished_line(shown, seconds)
            self._put(f"{_CLEAR if self.live else ''}{shown.name:<{_NAME_WIDTH}}{told}\n")

    def _tick(self, shown: StageProgress, begun: float, ended: threading.Event) -> None:
        """Redraw until the stage ends. Whatever goes wrong here ends the display, never the run."""
        try:
            seen: dict[int, float] = {}
            said = begun
            while not ended.wait(POLL_SECONDS):
                now = time.monotonic()
                if not self.live and now - said < LINE_SECONDS:
                    continue
                said = now
                tasks = running_tasks(self._tracker, seen, now)
                with self._lock:
                    if not ended.is_set():
                        self._show(shown, now - begun, tasks)
        except Exception:
            return

    def _show(self, shown: StageProgress, seconds: float, tasks: Tasks | None) -> None:
        if self.mode == "json":
            more = {"tasks_done": tasks.done, "tasks": tasks.all} if tasks else {}
            self._put_json("running", shown, seconds=round(seconds, 3), **more)
            return
        line = f"{shown.name:<{_NAME_WIDTH}}{running_line(shown, seconds, tasks)}"
        if self.live:
            self._put(_CLEAR + line[: max(20, shutil.get_terminal_size((80, 24)).columns - 1)])
        else:
            self._put(line + "\n")

    def _put(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def _put_json(self, event: str, shown: StageProgress, **more: Any) -> None:
        known = {"event": event, "stage": shown.name, "total": shown.total, "unit": shown.unit, "unit_out": shown.unit_out or shown.unit}
        self._put(json.dumps({**known, **more}, ensure_ascii=False) + "\n")


def running_tasks(tracker: StatusTracker | None, seen: dict[int, float], now: float) -> Tasks | None:
    """Tasks of the running Spark stage that has most of them; None where nothing is known.

    Args:
        tracker: Spark's status tracker.
        seen: When each Spark stage was first seen; new ones are added.
        now: Monotonic seconds.
    """
    if tracker is None:
        return None
    most: Tasks | None = None
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None and (most is None or info.numTasks > most.all):
            most = Tasks(info.numCompletedTasks, info.numTasks, now - seen.setdefault(stage, now))
    return most


def running_line(shown: StageProgress, seconds: float, tasks: Tasks | None) -> str:
    """What is known while a stage runs. Counts come from tasks, so they are called an estimate."""
    total = f"{shown.total:,} {shown.unit}" if shown.total is not None else ""
    if tasks is None:
        return ", ".join(filter(None, [total, duration(seconds), shown.note]))
    parts = [total, f"tasks {tasks.done:,} of {tasks.all:,}"]
    if shown.total is not None and tasks.all > 1 and tasks.done:
        done = shown.total * tasks.done // tasks.all
        parts = [f"about {done:,} of {total}", parts[1]]
        if tasks.seconds > 0:
            parts.append(f"{rate(done, tasks.seconds)}")
    parts.append(duration(seconds))
    if tasks.seconds_left is not None and tasks.all > 1 and tasks.seconds > 0:
        parts.append(f"{duration(tasks.seconds_left)} left in this step")
    return ", ".join(filter(None, [*parts, shown.note]))


def finished_line(shown: StageProgress, seconds: float) -> str:
    """What a finished stage handled, how long it took, and what came out."""
    apart = shown.unit_out is not None and shown.unit_out != shown.unit
    handled, unit = shown.total, shown.unit
    if not apart and shown.rows_out is not None:
        handled = shown.rows_out
    elif handled is None:
        handled, unit, apart = shown.rows_out, shown.unit_out or shown.unit, False
    told = f"{handled:,} {unit} in {duration(seconds)} ({rate(handled, seconds)})" if handled is not None else duration(seconds)
    if apart and shown.rows_out is not None:
        told += f": {shown.rows_out:,} {shown.unit_out}"
    return f"{told}; {shown.note}" if shown.note else told


def quantity(n: int, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 row`, `7,641 rows`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Seconds as people say them: `14.2 s`, `3 min 05 s`, `2 h 07 min`, `4 days`."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 72 * 60:
        return f"{minutes / 1440:.0f} days"
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def rate(count: int, seconds: float) -> str:
    """Things a second."""
    per_second = count / max(seconds, 0.001)
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"
