"""The command line: arguments -> settings -> one call -> exit code.

Results go to stdout, progress and errors to stderr. Exit code 0: done; 1: failed; 2: wrong usage or settings.
The same entry point serves `spark-dedup`, `python -m spark_dedup`, `spark-submit` and a wheel task.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_dedup.config import DedupConfig
from spark_dedup.config_file import load_config
from spark_dedup.errors import ConfigError, SparkDedupError
from spark_dedup.settings import as_dict, fingerprint

if TYPE_CHECKING:
    from spark_dedup.progress import Progress

OK, FAILED, USAGE = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(
        prog="spark-dedup", description="Find near-duplicate passages in lakehouse tables, and say what the search could have missed."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument("--config", metavar="FILE", help="YAML file with settings")
    settings.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="one setting; may be repeated")

    output = argparse.ArgumentParser(add_help=False)
    loudness = output.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", action="store_true", help="no progress; only the result")
    loudness.add_argument("--json", action="store_true", help="result and progress as JSON")

    run = commands.add_parser("run", parents=[settings, output], help="find near-duplicates and write the tables")
    run.add_argument("--rebuild", action="store_true", help="start over; stored embeddings of the same model are kept")
    run.set_defaults(call=run_command)

    demo = commands.add_parser("demo", parents=[output], help="the whole job on a sample that comes with the package")
    demo.add_argument("--folder", default="demo-output", help="where its tables and its report go (default: %(default)s)")
    demo.add_argument("--encoder", default="use", help="use or sentence-transformers (default: %(default)s)")
    demo.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="one setting; may be repeated")
    demo.set_defaults(call=demo_command)

    plan = commands.add_parser("plan", parents=[settings, output], help="what a run would do and take, before it is started")
    plan.add_argument("--price-per-hour", type=float, metavar="X", help="what the cluster costs, in any currency")
    plan.add_argument("--advise", action="store_true", help="say which question fits the source: vectors, shared words, or both")
    plan.set_defaults(call=plan_command)

    recall = commands.add_parser("recall", parents=[settings, output], help="measure what the search of a finished run missed")
    recall.add_argument(
        "--sweep",
        nargs="?",
        const="",
        metavar="SETTING[=V,V,...]",
        help="search again under several values of a setting, such as ef_search=16,64,256 or engine=hnsw,cells, and compare",
    )
    recall.set_defaults(call=recall_command)

    report = commands.add_parser("report", parents=[output], help="show what the newest run of a store found")
    report.add_argument("--store", required=True, help="catalog schema or folder")
    report.add_argument("--html", metavar="FILE", help="write the page as one HTML file too")
    report.add_argument("--pairs", type=int, default=6, help="pairs to show of each kind (default: %(default)s)")
    report.set_defaults(call=report_command)

    compare = commands.add_parser("compare-methods", parents=[output], help="which method found which pairs of the newest run of a store")
    compare.add_argument("--store", required=True, help="catalog schema or folder")
    compare.set_defaults(call=compare_command)

    doctor = commands.add_parser("doctor", parents=[settings], help="is everything there that the job needs?")
    doctor.set_defaults(call=doctor_command)

    config = commands.add_parser("config", help="settings")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", parents=[settings], help="print the effective settings, what is allowed, and the fingerprint")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(call=show_command)

    jars = commands.add_parser("jars", help="fetch the jars that a local session needs")
    jars.add_argument("--folder", metavar="DIR", help="where to put them (default: .jars here if it exists, else the user's cache)")
    jars.set_defaults(call=jars_command)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; None takes those of the process.

    Returns:
        The exit code.
    """
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as e:  # argparse has printed why
        return int(e.code or 0)
    try:
        return int(arguments.call(arguments))
    except SparkDedupError as e:
        say(f"error: {e}")
        return USAGE if isinstance(e, ConfigError) else FAILED
    except KeyboardInterrupt:
        say("stopped; the next run goes on from the last finished stage")
        return FAILED
    except ModuleNotFoundError as e:
        if e.name not in ("pyspark", "py4j"):
            raise
        say("error: pyspark is not installed in this Python\nhint: pip install 'spark-dedup[spark35]', or run where Spark is")
        return FAILED


def entry() -> None:
    """Console entry point: leaves with the exit code of `main`.

    Some platforms take every `SystemExit` of a wheel task for a failure, so success returns.
    """
    code = main()
    if code:
        sys.exit(code)


def say(text: str) -> None:
    """Write one message to stderr."""
    sys.stderr.write(text + "\n")


def put(text: str) -> None:
    """Write a result to stdout; what its encoding can not say becomes a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.stdout.write(text.rstrip("\n") + "\n")


def progress_of(arguments: argparse.Namespace) -> Progress:
    """Progress on stderr in the manner that was asked for."""
    from spark_dedup.progress import Progress

    return Progress(mode="quiet" if arguments.quiet else "json" if arguments.json else "auto")


def page_width() -> int:
    """Columns of the terminal, within what reads well."""
    return max(60, min(120, shutil.get_terminal_size((100, 24)).columns))


def run_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup run`."""
    config = load_config(arguments.config, arguments.overrides)
    from spark_dedup.pipeline import run
    from spark_dedup.report.render import render_run

    manifest = run(config, rebuild=arguments.rebuild, progress=progress_of(arguments))
    put(manifest.to_json() if arguments.json else render_run(manifest, width=page_width(), color=sys.stdout.isatty()))
    return OK


def demo_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup demo`."""
    from spark_dedup.demo import demo_config, next_steps, write_source

    folder = Path(arguments.folder)
    config = demo_config(folder, arguments.encoder, arguments.overrides)
    from spark_dedup.pipeline import run
    from spark_dedup.report.collect import collect
    from spark_dedup.report.render import render_html, render_text
    from spark_dedup.session import BRIEF, SMALL, get_session
    from spark_dedup.store import TableStore
    from spark_dedup.sweep import beside_auto

    spark, progress = get_session(java=BRIEF, conf=SMALL), progress_of(arguments)
    write_source(spark, folder)
    manifest = run(config, spark, progress=progress)
    with ThreadPoolExecutor(1) as beside:  # each plans more than it computes
        engines = beside.submit(beside_auto, config, manifest, spark, progress)
        summary = collect(TableStore(spark, config.store), manifest, pairs=12, next_steps=next_steps(folder, config))
        summary = replace(summary, engines=engines.result())
    (folder / "report.html").write_text(render_html(summary), encoding="utf-8")
    put(manifest.to_json() if arguments.json else render_text(summary, width=page_width(), color=sys.stdout.isatty(), pairs=4))
    return OK


def plan_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup plan`."""
    config, price = load_config(arguments.config, arguments.overrides), arguments.price_per_hour
    if price is not None and not 0 <= price < float("inf"):
        raise ConfigError([f"--price-per-hour must be a number >= 0, got {price}"])
    if arguments.advise:
        from spark_dedup.advising import advise
        from spark_dedup.report.advice import advice_json, render_advice

        advice = advise(config, progress=progress_of(arguments))
        put(advice_json(advice) if arguments.json else render_advice(advice, width=page_width(), color=sys.stdout.isatty()))
        return OK
    from spark_dedup.planning import plan
    from spark_dedup.report.plan import plan_json, render_plan

    found = plan(config, price_per_hour=price, progress=progress_of(arguments))
    put(plan_json(found) if arguments.json else render_plan(found, width=page_width(), color=sys.stdout.isatty()))
    return OK


def recall_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup recall`."""
    config = load_config(arguments.config, arguments.overrides)
    if arguments.sweep is None:
        from spark_dedup.report.render import render_run
        from spark_dedup.sweep import measure

        manifest = measure(config, progress=progress_of(arguments))
        put(manifest.to_json() if arguments.json else render_run(manifest, width=page_width(), color=sys.stdout.isatty()))
        return OK
    from spark_dedup.sweep import sweep, sweep_json, sweep_text

    name, _, given = arguments.sweep.removeprefix("search.").partition("=")
    told = [value.strip() for value in given.split(",") if value.strip()]
    try:
        values: list[float | str] = [*told] if name == "engine" else [float(value) for value in told]
    except ValueError as e:
        raise ConfigError([f"--sweep takes numbers, such as ef_search=16,64,256, got {arguments.sweep!r}"]) from e
    points = sweep(config, name or None, values, progress=progress_of(arguments))
    put(sweep_json(points) if arguments.json else sweep_text(points))
    return OK


def report_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup report`."""
    from spark_dedup.job import stored_manifest
    from spark_dedup.report.collect import collect
    from spark_dedup.report.render import render_html, render_text
    from spark_dedup.session import BRIEF, get_session
    from spark_dedup.store import TableStore

    if arguments.pairs < 0:
        raise ConfigError([f"--pairs must be a whole number >= 0, got {arguments.pairs}"])
    store = TableStore(get_session(java=BRIEF), arguments.store)
    manifest = stored_manifest(store)
    summary = collect(store, manifest, pairs=arguments.pairs)
    if arguments.html:
        Path(arguments.html).write_text(render_html(summary), encoding="utf-8")
    put(manifest.to_json() if arguments.json else render_text(summary, width=page_width(), color=sys.stdout.isatty()))
    return OK


def compare_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup compare-methods`."""
    from spark_dedup.job import stored_manifest
    from spark_dedup.report.collect import methods_found
    from spark_dedup.report.methods import methods_json, render_methods
    from spark_dedup.session import BRIEF, get_session
    from spark_dedup.store import TableStore

    store = TableStore(get_session(java=BRIEF), arguments.store)
    manifest = stored_manifest(store)
    found = methods_found(store)
    put(methods_json(found, manifest) if arguments.json else render_methods(found, manifest))
    return OK


def doctor_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup doctor`."""
    config = None
    if arguments.config or arguments.overrides:
        config = load_config(arguments.config, arguments.overrides)
    from spark_dedup.doctor import run_doctor

    text, healthy = run_doctor(config)
    put(text)
    return OK if healthy else FAILED


def show_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup config show`."""
    from spark_dedup.settings_page import settings_text

    overrides = list(arguments.overrides)
    if arguments.config is None:
        defaults = {"source.table": "<table>", "source.id": "<id>", "source.text": "<text>", "store": "<store>"}
        given = {text.partition("=")[0] for text in overrides}
        overrides = [f"{k}={v}" for k, v in defaults.items() if k not in given] + overrides
    config: DedupConfig = load_config(arguments.config, overrides)
    if arguments.json:
        put(json.dumps({"settings": as_dict(config), "fingerprint": fingerprint(config)}, indent=2, ensure_ascii=False))
    else:
        put(settings_text(config))
    return OK


def jars_command(arguments: argparse.Namespace) -> int:
    """`spark-dedup jars`."""
    from spark_dedup.jars import main as fetch

    return fetch([arguments.folder] if arguments.folder else [])
