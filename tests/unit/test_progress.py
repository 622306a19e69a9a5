"""Progress: what is told while a stage runs and when it ends, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import threading
import time
from types import SimpleNamespace

import pytest

from spark_dedup import progress
from spark_dedup.errors import ConfigError
from spark_dedup.progress import Progress, StageProgress, Tasks, duration, finished_line, rate, running_line, running_tasks


class Tracker:
    """Answers like Spark's status tracker; stage id -> (completed, all)."""

    def __init__(self, stages: dict[int, tuple[int, int]]) -> None:
        self.stages = stages
        self.asked = threading.Event()

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(self.stages)

    def getStageInfo(self, stage: int):  # noqa: N802
        self.asked.set()
        counts = self.stages[stage]
        return SimpleNamespace(numTasks=counts[1], numCompletedTasks=counts[0]) if counts else None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def wait_until(condition, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.005)


def test_elsewhere_than_on_a_terminal_a_stage_has_a_line_at_its_start_and_one_at_its_end():
    out = io.StringIO()
    with Progress(out).stage("embeddings", 6908, "texts") as shown:
        shown.rows_out = 6908
        shown.note = "all on the processor"
    first, last = out.getvalue().splitlines()
    assert first == "embeddings      6,908 texts ..."
    assert last.startswith("embeddings      6,908 texts in 0.0 s (") and last.endswith("/s); all on the processor")


def test_a_long_stage_says_so_now_and_then(quick, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    out = io.StringIO()
    with Progress(out, "plain", Tracker({3: (12, 40)})).stage("embeddings", 6908, "texts"):
        wait_until(lambda: out.getvalue().count("tasks 12 of 40") >= 2)
    assert "\r" not in out.getvalue() and "\x1b" not in out.getvalue()


def test_a_line_comes_at_most_twice_a_minute(quick):
    assert progress.LINE_SECONDS == 30.0
    out, tracker = io.StringIO(), Tracker({3: (1, 2)})
    with Progress(out, "plain", tracker).stage("vectors"):
        assert not tracker.asked.wait(0.1)
    assert len(out.getvalue().splitlines()) == 2


def test_a_terminal_shows_one_line_that_is_redrawn_and_then_replaced(quick):
    out = Terminal()
    with Progress(out, "auto", Tracker({3: (12, 40)})).stage("embeddings", 6908, "texts"):
        wait_until(lambda: "tasks 12 of 40" in out.getvalue())
    drawn = out.getvalue()
    assert drawn.count("\n") == 1 and drawn.endswith("/s)\n")
    assert "\r\x1b[2Kembeddings      about 2,072 of 6,908 texts, tasks 12 of 40" in drawn  # 6908 * 12 // 40
    assert drawn.rpartition("\r\x1b[2K")[2].startswith("embeddings      6,908 texts in ")


def test_a_failed_stage_leaves_a_clean_line_and_the_error_goes_on(quick):
    out = Terminal()
    with pytest.raises(ZeroDivisionError), Progress(out).stage("index", 10, "vectors"):
        raise ZeroDivisionError
    assert out.getvalue().rpartition("\r\x1b[2K")[2].startswith("index           failed after 0.0 s")


def test_a_line_is_cut_to_the_terminal(quick, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    with Progress(out, "auto", Tracker({3: (12, 40)})).stage("embeddings", 6908, "texts"):
        wait_until(lambda: "about" in out.getvalue())
    redrawn = out.getvalue().split("\r\x1b[2K")[1:-1]
    assert redrawn and all(len(line) == 39 for line in redrawn)


def test_a_terminal_without_cursor_control_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with Progress(out).stage("index"):
        pass
    assert "\x1b" not in out.getvalue()


def test_quiet_writes_nothing_and_starts_no_thread():
    out = io.StringIO()
    before = threading.active_count()
    with Progress(out, "quiet").stage("records", 5) as shown:
        assert threading.active_count() == before
        shown.rows_out = 5
    assert out.getvalue() == ""


def test_json_is_one_object_a_line(quick, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    out = io.StringIO()
    shown_as = Progress(out, "json", Tracker({1: (2, 8)}))
    with shown_as.stage("candidates", 100, "vectors", "pairs") as shown:
        wait_until(lambda: "running" in out.getvalue())
        shown.rows_out = 7
    with pytest.raises(KeyError), shown_as.stage("components"):
        raise KeyError
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert events[0] == {"event": "started", "stage": "candidates", "total": 100, "unit": "vectors", "unit_out": "pairs"}
    running = next(e for e in events if e["event"] == "running")
    assert (running["tasks_done"], running["tasks"]) == (2, 8)
    finished = next(e for e in events if e["event"] == "finished")
    assert (finished["stage"], finished["rows_out"]) == ("candidates", 7) and finished["seconds"] >= 0
    assert (events[-1]["event"], events[-1]["stage"]) == ("failed", "components")


def test_the_thread_ends_with_its_stage(quick):
    with Progress(io.StringIO(), "plain").stage("records"):
        assert any(t.name == "progress-records" for t in threading.enumerate())
    assert not any(t.name == "progress-records" for t in threading.enumerate())


def test_an_error_of_the_tracker_does_not_reach_the_run(quick, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    broken = Tracker({})
    broken.stages = {5: ()}  # no counts: reading them fails

    def fail(stage: int):
        broken.asked.set()
        raise RuntimeError("the session is gone")

    broken.getStageInfo = fail
    out = io.StringIO()
    with Progress(out, "plain", broken).stage("records") as shown:
        assert broken.asked.wait(5)
        shown.rows_out = 4
    assert out.getvalue().splitlines()[-1].startswith("records         4 rows in ")


def test_a_session_without_a_spark_context_gives_elapsed_time_only(quick, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)

    class Connect:
        @property
        def sparkContext(self):  # noqa: N802
            raise NotImplementedError("not in Connect")

    out = io.StringIO()
    shown_as = Progress(out, "plain", Tracker({1: (1, 2)}))
    shown_as.watch(Connect())
    with shown_as.stage("records", 9):
        wait_until(lambda: "records         9 rows, 0.0 s" in out.getvalue())
    assert "tasks" not in out.getvalue()


def test_a_session_gives_its_tracker(quick, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    tracker = Tracker({1: (1, 4)})
    session = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    out = io.StringIO()
    shown_as = Progress(out, "plain")
    shown_as.watch(session)
    with shown_as.stage("records"):
        wait_until(lambda: "tasks 1 of 4" in out.getvalue())


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="one of auto, plain, quiet, json, got 'loud'"):
        Progress(mode="loud")


def test_the_spark_stage_with_most_tasks_counts_and_its_time_runs_from_when_it_was_first_seen():
    seen: dict[int, float] = {}
    tracker = Tracker({1: (1, 4), 2: (5, 40), 3: None})
    assert running_tasks(tracker, seen, 10.0) == Tasks(5, 40, 0.0)
    tracker.stages = {2: (10, 40)}
    assert running_tasks(tracker, seen, 16.0) == Tasks(10, 40, 6.0)
    assert running_tasks(Tracker({}), seen, 17.0) is None
    assert running_tasks(None, seen, 17.0) is None


def test_time_left_is_that_of_the_tasks_that_are_left():
    # 10 of 40 tasks in 6 s: 30 more take 18 s; 1,727 of 6,908 texts in 6 s: 288/s
    line = running_line(StageProgress("embeddings", 6908, "texts"), 20.0, Tasks(10, 40, 6.0))
    assert line == "about 1,727 of 6,908 texts, tasks 10 of 40, 288/s, 20.0 s, 18.0 s left in this step"


def test_what_a_stage_says_of_itself_stands_at_the_end_while_it_runs():
    progress = Progress(io.StringIO(), "plain")
    progress.say("nothing runs")
    with progress.stage("candidates", 50, "vectors") as shown:
        progress.say("2 of 7 batches")
        assert running_line(shown, 2.0, None) == "50 vectors, 2.0 s, 2 of 7 batches"
        assert running_line(shown, 2.0, Tasks(0, 8, 1.0)) == "50 vectors, tasks 0 of 8, 2.0 s, 2 of 7 batches"


@pytest.mark.parametrize(
    ("total", "tasks", "line"),
    [
        (None, None, "2.0 s"),
        (50, None, "50 rows, 2.0 s"),
        (50, Tasks(0, 8, 1.0), "50 rows, tasks 0 of 8, 2.0 s"),  # nothing done: nothing to estimate from
        (50, Tasks(0, 1, 1.0), "50 rows, tasks 0 of 1, 2.0 s"),
        (None, Tasks(4, 8, 1.0), "tasks 4 of 8, 2.0 s, 1.0 s left in this step"),
    ],
)
def test_no_estimate_without_grounds(total, tasks, line):
    assert running_line(StageProgress("x", total, "rows"), 2.0, tasks) == line


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (StageProgress("x", 6908, "texts", rows_out=6908), "6,908 texts in 14.2 s (486/s)"),
        (StageProgress("x", 6908, "texts"), "6,908 texts in 14.2 s (486/s)"),
        (StageProgress("x", None, "rows", rows_out=71), "71 rows in 14.2 s (5.0/s)"),
        (StageProgress("x", 6908, "vectors", "pairs", rows_out=24233), "6,908 vectors in 14.2 s (486/s): 24,233 pairs"),
        (StageProgress("x", None, "vectors", "pairs", rows_out=71), "71 pairs in 14.2 s (5.0/s)"),
        (StageProgress("x", None, "rows"), "14.2 s"),
        (StageProgress("x", None, "rows", note="nothing to do"), "14.2 s; nothing to do"),
    ],
)
def test_a_finished_stage_tells_what_it_handled(shown, line):
    assert finished_line(shown, 14.2) == line


def test_what_is_told_stays_as_lines_and_a_living_line_gives_way(quick):
    plain, quiet, objects, terminal = io.StringIO(), io.StringIO(), io.StringIO(), Terminal()
    for out, mode in ((plain, "plain"), (quiet, "quiet"), (objects, "json"), (terminal, "auto")):
        Progress(out, mode=mode).tell(["one", "two"])
    assert plain.getvalue() == f"{'':16}one\n{'':16}two\n"
    assert quiet.getvalue() == ""
    assert json.loads(objects.getvalue()) == {"event": "told", "lines": ["one", "two"]}
    assert terminal.getvalue() == "\r\x1b[2K" + plain.getvalue()


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.04, "0.0 s"),
        (14.2, "14.2 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (185, "3 min 05 s"),
        (5999, "99 min 59 s"),
        (7620, "2 h 07 min"),
        (72 * 3600 - 31, "71 h 59 min"),
        (72 * 3600 + 12 * 3600, "4 days"),
    ],
)
def test_durations_as_people_say_them(seconds, told):
    assert duration(seconds) == told


def test_rates_do_not_divide_by_nothing():
    assert rate(5, 0.0) == "5,000/s"
    assert rate(1, 4.0) == "0.2/s"
