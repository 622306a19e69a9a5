"""The notebooks run from top to bottom, each in a fresh kernel of this Python, and show what they promise.

Both share one folder, as a reader's would: the second finds the tables of the first.
"""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import jupytext
import matplotlib.image
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from spark_dedup.config import DEFAULT_RULE
from spark_dedup.session import BRIEF

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = [path.stem for path in sorted(FOLDER.iterdir()) if path.suffix == ".py"]
KERNEL = "this-python"
RECALL = "pair recall >= 0.90: "

pytestmark = pytest.mark.timeout(900)  # the first notebook does a whole run, on a busy machine too


@dataclass(frozen=True)
class Executed:
    """A notebook after its run, and the interpreter that ran it."""

    notebook: nbformat.NotebookNode
    python: str

    def outputs(self) -> list[nbformat.NotebookNode]:
        return [output for cell in self.notebook.cells if cell.cell_type == "code" for output in cell.outputs]

    def shown(self, kind: str) -> list[str]:
        """Everything that was shown in one form: `text/markdown`, `text/html`, `image/png`."""
        return [output.data[kind] for output in self.outputs() if kind in output.get("data", {})]

    def printed(self, stream: str) -> str:
        return "".join(output.text for output in self.outputs() if output.output_type == "stream" and output.name == stream)


@pytest.fixture(scope="module")
def execute(tmp_path_factory) -> Callable[[str], Executed]:
    """A function that converts one notebook and runs it, once."""
    scratch = tmp_path_factory.mktemp("notebooks")
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": KERNEL, "language": "python"}
    (scratch / "kernels" / KERNEL).mkdir(parents=True)
    (scratch / "kernels" / KERNEL / "kernel.json").write_text(json.dumps(spec))
    done: dict[str, Executed] = {}

    def run(name: str) -> Executed:
        if name not in done:
            path = scratch / f"{name}.ipynb"
            jupytext.write(jupytext.read(FOLDER / f"{name}.py"), path)
            notebook = nbformat.read(path, as_version=4)
            asked = nbformat.v4.new_code_cell("import sys; sys.executable")
            notebook.cells.append(asked)
            client = NotebookClient(notebook, timeout=600, kernel_name=KERNEL, resources={"metadata": {"path": str(scratch)}})
            client.execute()
            notebook.cells.remove(asked)
            nbformat.write(notebook, path)  # to look at when a test fails
            done[name] = Executed(notebook, asked.outputs[0].data["text/plain"].strip("'"))
        return done[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(scratch))
        patch.setenv("IPYTHONDIR", str(scratch / "ipython"))  # no start-up files of whoever runs the tests
        patch.setenv("SPARK_DEDUP_DEMO_FOLDER", str(scratch / "demo"))
        patch.setenv("SPARK_SUBMIT_OPTS", BRIEF)
        yield run


def figures(text: str) -> list[int]:
    """The whole numbers of a text, those of a recall in brackets left out."""
    text = re.sub(rf"\({RECALL}.*?\)", "", text)
    return [int(number.replace(",", "")) for number in re.findall(r"(?<![\d.])\d{1,3}(?:,\d{3})*(?![\d.]*\d)", text)]


def picture(png: str) -> np.ndarray:
    """An image as whole numbers, rows x columns x (red, green, blue)."""
    return (matplotlib.image.imread(io.BytesIO(base64.b64decode(png)))[..., :3] * 255).round().astype(int)


def pixels(image: np.ndarray, colour: str, within: int) -> int:
    """How many pixels are of a colour, give or take `within` in each channel."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(image - wanted) <= within).all(axis=-1).sum())


def test_notebooks_are_stored_as_scripts_only():
    assert NAMES[:2] == ["01_quickstart", "02_candidate_pairs"]
    assert not list(FOLDER.rglob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_runs_in_this_python_without_errors_or_warnings(execute, name):
    ran = execute(name)
    code = [cell for cell in ran.notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for output in ran.outputs() if output.output_type == "error"]
    assert ran.printed("stderr") == ""
    assert ran.python == sys.executable


def test_the_quickstart_counts_the_sample_and_leaves_what_is_not_removable(execute):
    ran = execute("01_quickstart")
    told = ran.shown("text/markdown")
    (sentence,) = [text for text in told if "different texts" in text]
    rows, keys, pairs, edges, clusters, removable = figures(sentence)
    assert (rows, keys) == (7641, 6908)  # counted in the Parquet file with the plain definition of the key
    assert pairs > edges > 0
    assert 0 < clusters <= removable
    assert removable >= rows - keys  # exact copies are removable whatever the search finds
    assert RECALL in sentence
    (joined,) = [text for text in told if "rows after" in text]
    assert figures(joined) == [rows, rows - removable, removable]


def test_the_quickstart_shows_a_refused_setting_a_second_run_that_does_nothing_and_every_stage(execute):
    ran = execute("01_quickstart")
    told = "\n".join(ran.shown("text/markdown"))
    assert "search.flor is not a setting; did you mean 'floor'?" in told
    assert "Did work: **False**. Same run: True." in told
    tables = [html for html in ran.shown("text/html") if "<table" in html]
    for stage in ("records", "representatives", "embeddings", "vectors", "index", "candidates", "components", "clusters", "recall"):
        assert re.search(rf"^{stage} +.* in [\d.]+ (s|min|h)\b", ran.printed("stdout"), re.MULTILINE), f"no progress of {stage}"
        assert f">{stage}</th>" in tables[0].replace("\n", ""), f"{stage} is not in the manifest's table"
    removals = next(html for html in tables if "text_that_stays" in html)
    assert removals.count("<tr") == 6  # a head and five rows


def test_candidate_pairs_finds_the_tables_of_the_quickstart(execute):
    told = execute("01_quickstart").shown("text/markdown")
    sentence = next(text for text in told if "different texts" in text)
    ran = execute("02_candidate_pairs")
    assert ran.printed("stdout") == ""  # no stage was done again
    _, _, pairs, edges, _, _ = figures(sentence)
    (counted,) = [text for text in ran.shown("text/markdown") if "refuses" in text]
    assert f"**{pairs:,} pairs**" in counted
    assert f"accepts **{edges:,}**" in counted
    assert f"refuses {pairs - edges:,} ({RECALL}" in counted
    bands, _, _, rules = ran.shown("text/html")
    cells = [figures(row) for row in re.findall(r"<td>([\d,]+)</td>\s*<td>[\d,]+</td>", bands)]
    assert len(cells) == 6
    assert sum(n for (n,) in cells) == pairs
    accepted_now = re.search(re.escape(escape(DEFAULT_RULE, quote=False)) + r"</th>\s*<td>(\d+)</td>", rules)
    assert accepted_now
    assert int(accepted_now[1]) == edges
    for html in (bands, rules):
        assert RECALL.replace(">", "&gt;") in html


def test_candidate_pairs_shows_examples_side_by_side_with_marked_words(execute):
    _, examples, numbers, _ = execute("02_candidate_pairs").shown("text/html")
    for html, accepted, refused in ((examples, 3, 3), (numbers, 0, 3)):
        assert html.count("<b>accepted</b>") == accepted
        assert html.count("<b>refused: ") == refused
        assert html.count("<code>") == 2 * (accepted + refused)
        assert html.count("<mark>") == html.count("</mark>") >= accepted + refused
        assert set(re.findall(r"</?(\w+)", html)) == {"b", "br", "code", "div", "mark"}  # all else in the texts is escaped
    assert numbers.count("numbers differ") == 3


def test_candidate_pairs_plots_both_verdicts_and_the_substitution(execute):
    plots = execute("02_candidate_pairs").shown("image/png")
    assert len(plots) == 2
    scatter, steps = map(picture, plots)
    assert scatter.shape[0] > 500
    assert scatter.shape[1] > 700
    assert pixels(scatter, "#0b6e66", 0) > 1_000  # 58 opaque points of about 60 pixels, above the others
    assert pixels(scatter, "#d98a4b", 30) > 1_000  # where many refused points lie on each other
    for colour in ("#0b6e66", "#5b7fb5", "#d98a4b"):
        assert pixels(steps, colour, 0) > 200
